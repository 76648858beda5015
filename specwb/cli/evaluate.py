"""specwb evaluate: a benchmark's conversations, answers on disk, metrics by subtask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import errors, loaded, table, tell, wide
from specwb.core.files import EVALUATION, FILE
from specwb.core.progress import progress

USUAL = ("sps", "eagle", "pld")
"""The methods where none are named."""
HALF = " In half precision texts may part at a tie up to rounding; --dtype float32 is exact."


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
            "default: those of "
            f"{','.join(USUAL)} that this target can run."
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
) -> None:
    """Answer a benchmark's questions, all turns of them, by every method; print its metrics.

    Answers are stored in OUT/store.sqlite and written to OUT/answers in Spec-Bench's schema, with
    tokens. Speedups are over the faster plain decoding, specwb's or the library's.
    """
    from specwb.core.files import write
    from specwb.core.options import specs
    from specwb.core.probability import Sampling
    from specwb.engine.methods import that_run
    from specwb.lab.bench import report
    from specwb.lab.bench.report import csv_bytes
    from specwb.lab.harness import summary
    from specwb.lab.harness.run import Settings
    from specwb.lab.harness.run import evaluate as run
    from specwb.models.questions import interleave, load_prompts
    from specwb.models.templates import check_template

    if any(not text for text in stop or ()):
        raise ValueError("--stop must not be empty")
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
    sampling = Sampling(temperature)
    settings = Settings(sampling, limit, tuple(stop or ()), seed, turns)
    asked = sum(min(turns, len(question.turns)) for question in questions)
    tell(
        errors,
        f"{asked} turns of {len(questions)} questions, each by {len(chosen)} methods and plain "
        f"decoding, up to {limit} new tokens a turn",
    )
    try:
        with progress("evaluate", lasting=True) as report_done:
            answers = run(
                model, questions, chosen, out, settings, draft=draft, progress=report_done
            )
    except KeyboardInterrupt:
        if any((out / "answers").glob("*.jsonl")):
            tell(errors, f"answers so far are in {out / 'answers'}; the same command goes on")
        raise
    frame = summary.frame(answers, model.tokenizer)
    console = wide()
    rows = [
        {
            "method": row["method"],
            "subtask": row["subtask"],
            "questions": str(row["questions"]),
            "mean accept length": f"{row['mean_accept_length']:.2f}",
            "tokens /s": f"{row['tokens_per_second']:.1f}",
            "speedup": _ratio(row["speedup"]),
            "95 %": f"{_ratio(row['low'])} .. {_ratio(row['high'])}",
            "Spec-Bench's speedup": _ratio(row["spec_bench_speedup"]),
            "same text": f"{row['identical']:.0%}" if sampling.greedy else "-",
        }
        for row in frame.to_dict("records")
    ]
    console.print(table(rows, ("method", "subtask"), console))
    for note in [
        *report.left_out(left_out),
        *_notes(answers, questions, settings, out, model.dtype),
    ]:
        tell(console, note)
    if csv is not None:
        write(csv_bytes(frame, csv), csv)


def _ratio(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2f}x"


def _notes(answers, questions, settings, out, dtype) -> list[str]:
    """What stands below the table."""
    from specwb.lab.bench.results import FIGURES
    from specwb.lab.harness import summary

    asked = settings.turns
    over = summary.reference(answers)
    notes = [
        f"Speedups are over {over}, the faster plain decoding: the {FIGURES['speedup']}; the "
        "interval resamples questions.",
        f"Up to {settings.max_new_tokens} new tokens a turn. Answers are in {out / 'answers'}.",
    ]
    every = [turn for turns in answers.values() for turn in turns]
    if disturbed := sum(turn.disturbed for turn in every):
        notes.append(f"Other programs disturbed {disturbed} of {len(every)} answers.")
    some = next(iter(answers.values()))
    if cut := sum(turn.cut for turn in some):
        notes.append(f"{cut} prompts were shortened to fit the context.")
    by_question = {turn.question_id: turn.turn + 1 for turn in some}
    ended = sum(by_question.get(q.question_id, 0) < min(len(q.turns), asked) for q in questions)
    if ended:
        notes.append(f"{ended} conversations outgrew the context; their later turns were left out.")
    if long := sum(len(q.turns) > asked for q in questions):
        notes.append(f"{long} conversations have more than {asked} turns; others were not asked.")
    for key, turns in answers.items():
        matched = summary.exact_match(turns, questions)
        if matched is not None:
            notes.append(f"{key}: {matched:.1%} of the answers end in the right number.")
        greedy = settings.sampling.greedy
        if greedy and (found := summary.differences(turns, answers["ar"])):
            question, turn, place = found[0]
            notes.append(
                f"{key}: {len(found)} questions with another text than plain decoding's; first "
                f"question {question}, turn {turn + 1}, token {place + 1}."
                + ("" if dtype.itemsize > 2 else HALF)
            )
    return notes
