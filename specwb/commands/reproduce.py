"""specwb reproduce: measure what papers claim."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from specwb.commands.shared import (
    DEVICE,
    DRAFT,
    DTYPE,
    LIKE_COMPARE,
    RESTART,
    RESULTS,
    SEED,
    TARGET,
    errors,
    table,
    wide,
)

reproduce = typer.Typer(
    no_args_is_help=True,
    help="Measure what papers claim; an interrupted run goes on where it stopped.",
)


OVER = (
    "Speedups measured here are over ar, plain decoding by specwb itself, round by round without "
    "prompt processing. The library's may be faster on this machine: specwb compare measures both "
    "and says which."
)
"""The note below tables with speedups."""


@reproduce.command("mcsd")
def reproduce_mcsd(
    out: RESULTS = Path("build/reproduce/mcsd.json"),
    seconds: Annotated[
        float,
        typer.Option(
            min=0, help="About how long to measure in all, but two prompts a cell at least."
        ),
    ] = 300.0,
    temperatures: Annotated[
        str, typer.Option(help="Comma-separated; the two layouts are compared at 1.")
    ] = "0,0.3,0.7,1",
    rounds: Annotated[
        int, typer.Option(min=2, help="Decoding steps of each prompt and cell.")
    ] = 10,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Multi-candidate decoding: trees, draws and temperatures on one pair.

    Verdicts say what is claimed of them and whether it holds here.
    """
    from specwb.reproduce import mcsd
    from specwb.reproduce.store import Store, identity

    sampled_at = numbers(temperatures, "--temperatures")
    cells = mcsd.grid(sampled_at)
    questions, model, draft_model = _pair(prompts, target, draft, device, dtype)
    settings = {"prompts": prompts, "temperatures": sampled_at, "rounds": rounds, "seed": seed}
    store = Store(out, identity("mcsd", model, draft_model, **settings), restart)
    run = partial(
        mcsd.run,
        model,
        questions,
        store,
        cells,
        draft=draft_model,
        rounds_each=rounds,
        seconds=seconds,
        seed=seed,
    )
    _run_and_print(store, run, partial(mcsd.report, store, cells), mcsd)


@reproduce.command("acceptance")
def reproduce_acceptance(
    out: RESULTS = Path("build/reproduce/acceptance.json"),
    positions: Annotated[
        int, typer.Option(min=1, help="How many, of each prompt and temperature.")
    ] = 4,
    temperatures: Annotated[str, typer.Option(help="Comma-separated, > 0.")] = "0.3,0.7,1",
    tokens: Annotated[
        int, typer.Option(min=1, help="Length of the texts that positions are taken from.")
    ] = 48,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Acceptance of every rule beside the optimum: which rule wins where.

    It is computed from both models' exact distributions along the target's own texts.
    """
    from specwb.reproduce import acceptance
    from specwb.reproduce.store import Store, identity

    sampled_at = numbers(temperatures, "--temperatures")
    questions, model, draft_model = _pair(prompts, target, draft, device, dtype)
    settings = {
        "prompts": prompts,
        "temperatures": sampled_at,
        "ks": list(acceptance.KS),
        "tokens": tokens,
        "positions": positions,
        "seed": seed,
    }
    store = Store(
        out, identity("acceptance", model, draft_model, **settings), restart, acceptance.CELL
    )
    run = partial(
        acceptance.run,
        model,
        questions,
        store,
        draft=draft_model,
        temperatures=sampled_at,
        tokens=tokens,
        positions=positions,
        seed=seed,
    )
    _run_and_print(store, run, partial(acceptance.report, store), acceptance)


@reproduce.command("falcon")
def reproduce_falcon(
    out: RESULTS = Path("build/reproduce/falcon.json"),
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Train and measure the ablation's heads instead of showing the shipped results.",
        ),
    ] = False,
    heads: Annotated[
        Path, typer.Option(help="Where --train keeps its heads; those that are finished stay.")
    ] = Path("build/heads/falcon-ablation"),
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="About how long to measure in all; default every prompt."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Decoding steps of each prompt and cell.")
    ] = 10,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Falcon: its tables 1, 4 and 5 beside the same comparisons here, with verdicts.

    Comparisons that the paper lacks are measured too.
    --seed is of decoding; the ablation's heads are always trained with the same one.
    """
    from specwb.reproduce import falcon, trained
    from specwb.reproduce.store import Store, identity

    questions, model, draft_model = _pair(prompts, target, None, device, dtype)
    settings = {
        "sha256": model.sha256,
        "draft_sha256": draft_model.sha256,
        "heads": trained.checksums(model, falcon.HEADS),
        "prompts": prompts,
    }
    arguments = identity("falcon", model, draft_model, **settings, rounds=rounds, seed=seed)
    store = Store(out, arguments, restart)
    measurement: dict[str, Any] = {"rounds_each": rounds, "seconds": seconds, "seed": seed}
    ablation = trained.shipped(falcon.SHIPPED, model)
    if train:
        cards = trained.train("falcon", falcon.VARIANTS, target, heads, device=device)
        ablation_store = _ablation(out, arguments, cards, restart)
        ablation = _measure_ablation(
            ablation_store,
            partial(
                falcon.run,
                model,
                questions,
                ablation_store,
                falcon.ablation_cells(),
                heads=heads,
                **measurement,
            ),
        )
    run = partial(falcon.run, model, questions, store, falcon.own_cells(), **measurement)
    _run_and_print(store, run, partial(falcon.report, store, ablation), falcon)


@reproduce.command("diffuspec")
def reproduce_diffuspec(
    out: RESULTS = Path("build/reproduce/diffuspec.json"),
    diffusion: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a diffusion model; default the target's own."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="About how long to measure in all; default every prompt."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Decoding steps of each prompt and cell.")
    ] = 16,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """DiffuSpec: its tables 1, 2, 4, 5 and figures 5 to 7 beside the same comparisons here.

    Comparisons that the paper lacks are measured too, and verdicts given.
    """
    from specwb.reproduce import diffuspec, trained
    from specwb.reproduce.store import Store, identity

    questions, model, draft_model = _pair(prompts, target, None, device, dtype)
    heads = trained.checksums(model, diffuspec.HEADS, {"diffusion": diffusion})
    settings = {
        "sha256": model.sha256,
        "draft_sha256": draft_model.sha256,
        "heads": heads,
        "prompts": prompts,
        "rounds": rounds,
        "seed": seed,
    }
    store = Store(out, identity("diffuspec", model, draft_model, **settings), restart)
    measurement: dict[str, Any] = {
        "draft": diffusion,
        "rounds_each": rounds,
        "seconds": seconds,
        "seed": seed,
    }
    run = partial(diffuspec.run, model, questions, store, diffuspec.cells(), **measurement)
    _run_and_print(store, run, partial(diffuspec.report, store), diffuspec)


@reproduce.command("kangaroo")
def reproduce_kangaroo(
    out: RESULTS = Path("build/reproduce/kangaroo.json"),
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Train and measure the ablation's adapters, in place of the shipped results.",
        ),
    ] = False,
    heads: Annotated[
        Path, typer.Option(help="Where --train keeps its adapters; those that are finished stay.")
    ] = Path("build/heads/kangaroo-ablation"),
    head: Annotated[
        str | None, typer.Option(help="Folder of an adapter; default the target's own.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="About how long to measure in all; default every prompt."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Decoding steps of each prompt and cell.")
    ] = 10,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Kangaroo: threshold and steps, exit layers, adapters, trees and temperatures, with verdicts.

    They stand beside the paper's, and measured speedups beside predicted ones.
    --seed is of decoding; the ablation's adapters are always trained with the same one.
    """
    from specwb.reproduce import kangaroo, trained
    from specwb.reproduce.store import Store, identity

    questions, model, draft_model = _pair(prompts, target, None, device, dtype)
    settings = {
        "sha256": model.sha256,
        "draft_sha256": draft_model.sha256,
        "prompts": prompts,
        "rounds": rounds,
        "seed": seed,
    }
    arguments = identity(
        "kangaroo",
        model,
        draft_model,
        heads=trained.checksums(model, kangaroo.HEADS, {"kangaroo": head}),
        **settings,
    )
    store = Store(out, arguments, restart)
    measurement: dict[str, Any] = {"rounds_each": rounds, "seconds": seconds, "seed": seed}
    ablation, ablation_store = trained.shipped(kangaroo.SHIPPED, model), None
    # a head that cannot be used is refused before the work that takes long
    cells = kangaroo.own_cells()
    kangaroo.build_methods(model, cells, {cell: head for cell in cells if cell.kind == "kangaroo"})
    if train:
        cards = trained.train("kangaroo", kangaroo.VARIANTS, target, heads, device=device)
        ablation_store = _ablation(out, arguments, cards, restart)
        ablation = _measure_ablation(
            ablation_store,
            partial(
                kangaroo.run,
                model,
                questions,
                ablation_store,
                kangaroo.ablation_cells(),
                heads=heads,
                **measurement,
            ),
        )
    run = partial(
        kangaroo.run, model, questions, store, kangaroo.own_cells(), head=head, **measurement
    )
    _run_and_print(store, run, partial(kangaroo.report, store, ablation), kangaroo)
    if ablation_store is not None:
        ablation_store.save(final=True)  # the report has added to it


@reproduce.command("mcsd_ti")
def reproduce_mcsd_ti(
    out: RESULTS = Path("build/reproduce/mcsd_ti.json"),
    head: Annotated[
        str | None, typer.Option(help="Folder of a decision model; default the target's own.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="About how long to measure in all; default every prompt."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Decoding steps of each prompt and cell.")
    ] = 10,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Improved MCSD: the decision model against none on one pair, shapes, and several roots.

    Several roots are LOSSY; how far they move the output is measured, and the cost of masks.
    """
    from specwb.reproduce import mcsd_ti, trained
    from specwb.reproduce.store import Store, identity

    questions, model, draft_model = _pair(prompts, target, draft, device, dtype)
    heads = trained.checksums(model, mcsd_ti.HEADS, {"decision": head})
    settings = {
        "sha256": model.sha256,
        "draft_sha256": draft_model.sha256,
        "heads": heads,
        "prompts": prompts,
        "rounds": rounds,
        "seed": seed,
    }
    store = Store(out, identity("mcsd_ti", model, draft_model, **settings), restart)
    measurement: dict[str, Any] = {
        "draft": draft_model,
        "head": head,
        "rounds_each": rounds,
        "seconds": seconds,
        "seed": seed,
    }
    run = partial(mcsd_ti.run, model, questions, store, mcsd_ti.cells(), **measurement)
    _run_and_print(store, run, partial(mcsd_ti.report, store), mcsd_ti)


@reproduce.command("easyspec")
def reproduce_easyspec(
    out: RESULTS = Path("build/reproduce/easyspec.json"),
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="About how long to measure in all; default every prompt."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Decoding steps of each prompt and cell.")
    ] = 10,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: Annotated[
        str | None,
        typer.Option(help="Draft model of several layers; default the target's own deep one."),
    ] = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """EasySpec: N, calibration, widths, layers and executions on one pair, with verdicts.

    Cosines, the drift of the cache and the cost model are measured too.
    """
    from specwb import load
    from specwb.evaluation.prompts import load_prompts
    from specwb.reproduce import easyspec
    from specwb.reproduce.store import Store, identity

    questions, model = load_prompts(prompts), load(target, device=device, dtype=dtype)
    draft_model = easyspec.draft_of(model, draft)
    cells = easyspec.cells(len(draft_model.backbone.layers), model.device.type)
    settings = {
        "sha256": model.sha256,
        "draft_sha256": draft_model.sha256,
        "prompts": prompts,
        "rounds": rounds,
        "seed": seed,
    }
    store = Store(out, identity("easyspec", model, draft_model, **settings), restart)
    run = partial(
        easyspec.run,
        model,
        questions,
        store,
        cells,
        draft=draft_model,
        rounds_each=rounds,
        seconds=seconds,
        seed=seed,
    )
    _run_and_print(store, run, partial(easyspec.report, store), easyspec)


def _pair(
    prompts: str, target: str, draft: str | None, device: str, dtype: str
) -> tuple[Any, Any, Any]:
    """Load questions, target and draft model."""
    from specwb import load
    from specwb.evaluation.prompts import load_prompts
    from specwb.models.load import draft_model

    questions = load_prompts(prompts)
    model = load(target, device=device, dtype=dtype)
    return questions, model, draft_model(model, draft)


def _ablation(out: Path, arguments: dict[str, Any], cards: dict[str, Any], restart: bool) -> Any:
    """Make the store for the results of an ablation's heads, beside those of ``out``."""
    from specwb.reproduce.store import Store, with_commit

    heads = {name: card["sha256"] for name, card in cards.items()}
    settings = {**arguments, "system": f"{arguments['system']}-ablation", "heads": heads}
    store = Store(out.with_name(f"{out.stem}-ablation.json"), settings, restart)
    store.document |= {
        "heads": cards,
        "command": command_line(),
        "commit": with_commit(store.document),
    }
    return store


def _measure_ablation(store: Any, run: Any) -> dict[str, Any]:
    """Measure an ablation and save its results; return them."""
    interrupted = _run(run)
    store.save(final=True)
    if interrupted:
        raise typer.Exit(130)
    return store.document


def _run_and_print(store: Any, run: Any, report: Any, system: Any) -> None:
    """Run with a progress bar, save the results whatever happens, and print them.

    Args:
        store: of the results.
        run: measures into the store, called with ``progress``.
        report: returns the document that is printed.
        system: the module of the paper, with ``tables`` and ``notes`` of a document.
    """
    interrupted = _run(run)
    if not store.cells:
        raise typer.Exit(130)
    store.document["command"] = command_line()
    document = report()
    store.save(final=True)
    screen = wide()
    tables = system.tables(document)
    for title, rows in tables:
        screen.print(title, highlight=False, markup=False)
        screen.print(table(rows, ("tree", "text", "best", "setting", "method", "by depth")))
    columns = [name for _, rows in tables for name in rows[0]]
    over = [OVER] if any(name.startswith("speedup") for name in columns) else []
    for note in [*system.notes(document), *over, f"kept in {store.path}"]:
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(130)


def _run(run: Any) -> bool:
    """Run with a progress bar; return whether it was interrupted."""
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("reproducing", total=1.0)
        return run(
            progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text)
        )


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["specwb", *sys.argv[1:]])


def numbers(text: str, option: str) -> list[float]:
    """Read temperatures such as ``"0,0.7,1"``; each is returned once.

    Raises:
        ValueError: one is no number, or no temperature.
    """
    from specwb.probability import Sampling

    try:
        return list(dict.fromkeys(Sampling(float(part)).temperature for part in text.split(",")))
    except ValueError as error:
        raise ValueError(
            f"{option} must be temperatures such as 0,0.7,1, got {text!r}: {error}"
        ) from error
