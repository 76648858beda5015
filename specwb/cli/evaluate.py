"""specwb evaluate: a benchmark's conversations, answers on disk, metrics by subtask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import errors, interval, loaded, table, tell, wide
from specwb.core.files import EVALUATION, FILE
from specwb.core.progress import progress

if TYPE_CHECKING:
    import pandas as pd

    from specwb.lab.harness.answers import Turn
    from specwb.models.questions import Question

USUAL = ("sps", "eagle", "pld")
"""The methods where none are named."""


def evaluate(
    bench: Annotated[
        str,
        typer.Option(
            help="Benchmark: spec_bench, mt_bench, humaneval, gsm8k, lab, a part of one "
            "(spec_bench/rag) or a .jsonl file in one of their formats."
        ),
    ] = "lab",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with their options, such as 'sps:gamma=3 mcsd' or medusa,eagle; "
            f"default: those of {','.join(USUAL)} that this target can run."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder of the answers; the same command continues with them."),
        EVALUATION,
    ] = Path("build/evaluate"),
    first: Annotated[
        int,
        typer.Option(
            min=0, help="Number of questions, a balanced mix of the subtasks; 0 takes all."
        ),
    ] = 0,
    max_new_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Largest number of new tokens of a turn; 0: 1024, or half of a smaller context.",
        ),
    ] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Largest number of turns of a question.")] = 8,
    temperature: opt.TEMPERATURE = 0.0,
    template: opt.TEMPLATE = None,
    stop: opt.STOP = None,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    seed: opt.SEED = 0,
    csv: Annotated[Path | None, typer.Option(help="File for all figures as CSV."), FILE] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="File for one record a request, with its accepted lengths, as JSON."),
        FILE,
    ] = None,
) -> None:
    """Answer a benchmark's questions, all turns of them, by every method; print its metrics.

    Answers are stored in OUT/store.sqlite and written to OUT/answers in Spec-Bench's schema, with
    tokens. Speedups are over the faster plain decoding, specwb's or the library's.
    """
    from specwb.core.files import write
    from specwb.core.options import specs
    from specwb.core.stops import stop_texts
    from specwb.engine.methods import that_run
    from specwb.lab.bench.report import left_out as reasons
    from specwb.lab.harness import summary
    from specwb.lab.harness.run import evaluate as run
    from specwb.models.questions import interleave, load_prompts
    from specwb.models.templates import check_template

    stops = stop_texts(stop or (), "--stop")
    chosen: list[Any] | None = None if methods is None else specs(methods)
    if chosen == []:
        raise ValueError("--methods is empty; name one method at least")
    check_template(template)
    questions = interleave(load_prompts(bench))[: first or None]
    model = loaded(target, device, dtype, loading, stored=True, template=template)
    left_out: dict[str, str] = {}
    if chosen is None:
        those, left_out = that_run(USUAL, model, draft)
        chosen = list(those.values())
    limit = max_new_tokens or min(1024, model.context // 2)
    asked = sum(min(turns, len(question.turns)) for question in questions)
    tell(
        errors,
        f"{asked} turns of {len(questions)} questions, each by {len(chosen)} methods and plain "
        f"decoding, up to {limit} new tokens a turn",
    )
    try:
        with progress("evaluate", lasting=True) as moved:
            answers = run(
                model,
                questions,
                chosen,
                out,
                draft=draft,
                temperature=temperature,
                max_new_tokens=limit,
                turns=turns,
                stop=stops,
                seed=seed,
                progress=moved,
            )
    except KeyboardInterrupt:
        tell(errors, f"answers so far are in {out}; the same command goes on")
        raise
    frame = summary.frame(answers, model.tokenizer)
    screen = wide()
    screen.print(table(_cells(frame), ("method", "subtask"), screen))
    notes = [*reasons(left_out), *_notes(answers, questions, turns, frame.attrs["reference"])]
    for note in [*notes, f"Up to {limit} new tokens a turn. Answers are in {out / 'answers'}."]:
        tell(screen, note)
    if csv is not None:
        write(frame.to_csv(index=False), csv)
    if json is not None:
        write(dumps(summary.requests(answers), indent=1) + "\n", json)


def _cells(frame: pd.DataFrame) -> list[dict[str, str]]:
    """The table as it is printed: one row a method and subtask, column -> text."""
    return [
        {
            "method": row["method"],
            "subtask": row["subtask"],
            "questions": str(row["questions"]),
            "mean accept length": f"{row['mean_accept_length']:.2f}",
            "tokens /s": f"{row['tokens_per_second']:.1f}",
            "speedup": f"{row['speedup']:.2f}x",
            "95 %": interval(row["low"], row["high"], 2),
            "Spec-Bench's speedup": f"{row['spec_bench_speedup']:.2f}x",
            "same text": f"{row['identical']:.0%}",
        }
        for row in frame.to_dict("records")
    ]


def _notes(
    answers: Mapping[str, Sequence[Turn]], questions: Sequence[Question], most: int, over: str
) -> list[str]:
    """The notes below the table."""
    notes = [
        f"Speedups are over {over}, the faster plain decoding, the median of questions; the "
        "interval resamples questions. Same text: questions whose tokens are those of ar; in half "
        "precision greedy texts may part at near-ties."
    ]
    every = [turn for turns in answers.values() for turn in turns]
    if disturbed := sum(turn.disturbed for turn in every):
        notes.append(f"Other programs disturbed {disturbed} of {len(every)} answers.")
    plain = answers["ar"]
    if cut := sum(turn.cut for turn in plain):
        notes.append(f"{cut} prompts were shortened to fit the context.")
    if left := sum(min(len(q.turns), most) for q in questions) - len(plain):
        notes.append(f"{left} turns were left out, as their conversations outgrew the context.")
    if long := sum(len(q.turns) > most for q in questions):
        notes.append(f"Turns after turn {most} were not asked (conversations with more: {long}).")
    return notes
