"""``specwb certify``: is somebody's verifier lossless?"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from specwb.cli.shared import from_working_folder, own_rule, table, whole, wide


def certify(
    verifier: Annotated[
        str | None,
        typer.Argument(
            help="Function (p, q, drafts) -> tokens, as package.module:function, or a rule, "
            "such as rrsw or package.module:Rule."
        ),
    ] = None,
    draw: Annotated[
        str,
        typer.Option(
            help="Sampling scheme of the drafts: chain; of candidates with, without or top."
        ),
    ] = "chain",
    logits: Annotated[
        bool,
        typer.Option(
            "--logits", help="Pass logits and temperature= to the function, not probabilities."
        ),
    ] = False,
    like: Annotated[
        str | None,
        typer.Option(
            help="Signature of the function: that of transformers, flashinfer, vllm, sglang, "
            "tensorrt_llm, eagle, medusa, recurrent_drafter or mcsd."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit in seconds.", min=0.1)] = 60.0,
    known: Annotated[
        bool,
        typer.Option(
            "--known", help="Print the verdicts on verifiers as engines have shipped them."
        ),
    ] = False,
) -> None:
    """Compute whether a verifier keeps the target's distribution, exactly, on small instances.

    Its random numbers are not sampled: every way in which they can come out is followed. A verifier
    that is biased is shown with a text and its two probabilities.
    """
    from specwb.certificate.certify import certify as certified
    from specwb.certificate.child import forked
    from specwb.certificate.known import VERIFIERS
    from specwb.theory.decisions import LEVEL, UNSEEN

    screen = wide()
    if known:
        if verifier is not None:
            raise ValueError("--known goes alone: leave the verifier out")
        rows = []
        for name, one in VERIFIERS.items():
            result = certified(f"{one.verify.__module__}:{name}", one.draw, logits=one.logits)
            tv = f"{result.tv:.3f}" if result.worst else ""
            rows.append(
                {
                    "verifier": name,
                    "drafts": one.draw,
                    "verdict": result.verdict,
                    "TV": tv,
                    "s": f"{result.seconds:.1f}",
                    "what it does": one.about,
                    "described in": one.source,
                }
            )
        words = ("verifier", "drafts", "verdict", "what it does", "described in")
        screen.print(table(rows, words, screen))
        return
    if verifier is None:
        raise ValueError("a verifier is needed, package.module:function or a rule; or --known")
    from_working_folder()
    own = ":" in verifier and forked(partial(_is_rule, verifier), seconds) is True
    given = own_rule(verifier) if own else verifier
    result = certified(given, draw, logits=logits, like=like, seconds=seconds)
    whole(screen, repr(result))
    for case in result.instances:
        whole(screen, f"  {case}: TV {case.tv:.3g}")
    if result and (own or ":" not in verifier):
        whole(
            screen,
            f"  decisions in a stretch of the uniforms narrower than {UNSEEN:.2g} may have been "
            f"missed (confidence 1 - {LEVEL:.0e} an instance)",
        )
    if not result:
        raise typer.Exit(1)


def _is_rule(name: str) -> bool:
    """Whether ``package.module:name`` is a rule. It is called in a process of its own: a function
    is certified by an interpreter that has not imported its module before."""
    try:
        own_rule(name)
    except ValueError:  # certify says what is wrong with it
        return False
    return True
