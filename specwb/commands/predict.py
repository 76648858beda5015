"""specwb predict: what a method would take on a machine that is not at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.commands.shared import table, tell, wide

if TYPE_CHECKING:
    from specwb.cost import Forecast


def predict(
    method: Annotated[
        str | None,
        typer.Argument(help="A method with its options, such as sps:gamma=5; or --ledger."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(help="Its shape: smol, 68m, 1b, 7b, 8b, 13b, 32b, 33b, 70b or a config.json."),
    ] = "8b",
    draft: Annotated[
        str | None,
        typer.Option(help="The draft or diffusion model's shape: also smol-draft or dream-7b."),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(help="A card: h100, h200, h800, a100, v100, 3090, 4090 or a TOML file."),
    ] = "h100",
    devices: Annotated[int, typer.Option(min=1, help="That the target is parted over.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Texts decoded together.")] = 1,
    context: Annotated[str, typer.Option(help="Tokens of each, such as 500 or 2k.")] = "2k",
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32, or torch's names.")] = "bf16",
    mode: Annotated[
        str,
        typer.Option(
            help="captured: this engine, with graphs; library-eager: the library's layers, "
            "launched one by one."
        ),
    ] = "captured",
    accept: Annotated[
        str | None,
        typer.Option(
            help="Acceptance: a rate, rates by depth (0.8,0.7,0.6), or a file of specwb compare "
            "--json. A rate is the probability that one of a node's candidates is accepted."
        ),
    ] = None,
    tau: Annotated[
        float | None, typer.Option(help="Tokens a step instead, the bonus token included.")
    ] = None,
    drafted: Annotated[
        float | None,
        typer.Option(
            help="Tokens drafted a step on average, where sps or kangaroo stops early; with --tau "
            "or alone."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    ledger: Annotated[
        bool,
        typer.Option("--ledger", help="Predictions beside published rows, with every error."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="With --ledger: a page that it is written into.", writable=True),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Predict a step's time part by part, and the speedup that follows from an acceptance.

    From shapes and a machine card, without a model and without a GPU. An interval has what the card
    leaves open and how far published rows are off.
    """
    if ledger:
        if method is not None:
            raise ValueError(f"--ledger has its own rows; leave {method!r} out")
        beside = {"draft": draft, "accept": accept, "tau": tau, "drafted": drafted}
        if given := [name for name, value in beside.items() if value is not None]:
            raise ValueError(f"--ledger has its own rows; leave --{given[0]} out")
        _show_ledger(out, as_json)
        return
    if method is None:
        raise ValueError("name a method, such as sps:gamma=5, or give --ledger")
    if out is not None:
        raise ValueError("--out is of --ledger")
    from specwb.cost import card, forecast, shape

    told = forecast(
        method,
        shape(target),
        card(gpu),
        draft=None if draft is None else shape(draft),
        dtype=dtype,
        batch=batch,
        context=tokens(context),
        mode=mode,
        accept=accept,
        tau=tau,
        temperature=temperature,
        devices=devices,
        drafted=drafted,
    )
    if as_json:
        typer.echo(json.dumps(plain(told), indent=1))
        return
    screen = wide()
    screen.print(table(_cells(told), ("part", "kind")))
    for note in notes(told):
        tell(screen, note)


def tokens(text: str) -> int:
    """Read a number of tokens, 1 or more, such as 500, 2k (2048) or 0.5k."""
    thousands = text.lower().endswith("k")
    try:
        number = float(text[:-1]) * 1024 if thousands else float(text)
        if number >= 1 and number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"--context must be a number of tokens such as 500 or 2k, got {text!r}")


def _cells(told: Forecast) -> list[dict[str, str]]:
    rows = [
        {
            "part": part.stage,
            "kind": part.kind,
            "number": f"{part.number:.0f}",
            "GB": f"{part.bytes / 1e9:.2f}" if part.bytes else "",
            "GFLOP": f"{part.flops / 1e9:.1f}" if part.flops else "",
            "ms": f"{1e3 * part.seconds:.3f}",
            "share": f"{part.seconds / sum(p.seconds for p in told.table):.0%}",
        }
        for part in told.table
        if part.number or part.seconds
    ]
    total = sum(part.seconds for part in told.table)
    last = {"part": "whole step", "ms": f"{1e3 * total:.3f}", "share": "100%"}
    return [*rows, {name: last.get(name, "") for name in rows[0]}]


def notes(told: Forecast) -> list[str]:

    def between(interval: tuple[float, float] | None, factor: float = 1, digits: int = 2) -> str:
        assert interval is not None
        return " to ".join(f"{factor * x:.{digits}f}" for x in interval)

    out = [
        f"{told.spec}, {told.mode}: a step takes {1e3 * told.step:.2f} ms "
        f"({between(told.step_interval, 1e3)}), plain decoding {1e3 * told.plain:.2f} ms per token "
        f"({between(told.plain_interval, 1e3)}); {told.memory:.1f} GiB a device",
        f"its draft is {told.depth} deep, the target scores {told.nodes} tokens a row; it is "
        f"faster than plain decoding from tau {told.needed:.2f} on "
        f"({between(told.needed_interval)})",
    ]
    if told.tau is None:
        out.append("a speedup needs an acceptance: --accept 0.7, rates by depth, a file, or --tau")
    else:
        out.append(
            f"tau {told.tau:.2f}: speedup {told.speedup:.2f} ({between(told.speedup_interval)}), "
            f"{told.tokens_per_second:.0f} tokens/s ({between(told.tokens_interval, digits=0)})"
        )
    out.append(
        "predicted, not measured; in brackets 5th to 95th percentile over the card's ranges or "
        "nine tenths of the errors of published rows, whichever goes further (specwb predict "
        "--ledger)"
    )
    return out


def plain(told: Forecast) -> dict[str, Any]:
    """The forecast as plain data, seconds and tokens/s."""
    content = dict(vars(told))
    content["table"] = [
        {name: value if isinstance(value, str) else float(value) for name, value in row.items()}
        for row in map(vars, told.table)
    ]
    return content


def _show_ledger(out: Path | None, as_json: bool) -> None:
    from specwb.cost import ledger

    if out is not None:
        ledger.write(out)
    if as_json:
        typer.echo(json.dumps(ledger.as_json(), indent=1))
    else:
        typer.echo(ledger.markdown(), nl=False)
