"""Shipped measurements, recordings and texts that lessons look at."""

from __future__ import annotations

from functools import cache
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import data_dir, document
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.engine.decoding import decode
from specwb.lab.cost.calibrate import CostModel
from specwb.lab.evaluation.lattices import BlockCandidates, places
from specwb.models.diffusion import load_diffusion
from specwb.models.load import load
from specwb.models.questions import load_prompts
from specwb.models.target import Target

TEXTS = 12  # prompts behind which lesson 10 looks at lattices


def stored(name: str, kind: str = "results") -> dict[str, Any]:
    """Read a shipped result, ``data/results/NAME.json``.

    Args:
        name: the file's name without its suffix, such as ``"kangaroo-lab-cpu"``.
        kind: the folder of ``data``: ``results`` or ``recordings``.
    Raises:
        ArgumentError: there is none of that name; the message lists those that there are.
    """
    path = data_dir() / kind / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in path.parent.glob("*.json")))
        raise ArgumentError(f"no result {name!r} in {path.parent}; there are {names}")
    return document(path)


def recording(name: str) -> dict[str, Any]:
    """Read a shipped recording for :func:`specwb.microscope`, ``data/recordings/NAME.json``.

    It was made on an idle machine, and plays without the model that it is of.

    Raises:
        ArgumentError: there is none of that name.
    """
    return stored(name, "recordings")


def calibration() -> CostModel:
    """Return the cost model of the lab's target and draft model on two idle CPU cores: seconds by
    number of tokens, as ``specwb tune`` measured them."""
    return CostModel.from_json(stored("tune-lab-cpu")["calibrated"])


@cache
def lattices(texts: int = TEXTS) -> tuple[Target, list[BlockCandidates], NGram]:
    """Return the lab's target, the lattices of its diffusion model behind some texts, and the
    trigrams: the arguments of :class:`specwb.show.widgets.LatticeExplorer`.

    The texts are the first prompts of the lab family, each with 4 to 15 tokens that the target
    wrote at T = 0. All is computed in float64, so that the digits are the same on every machine.

    Args:
        texts: how many prompts.
    """
    lab = load("lab", dtype="float64", device="cpu")
    begun = [prompt.ids(lab.tokenizer)[:48] for prompt in load_prompts("lab")[:texts]]
    written = decode(lab, begun, "ar", max_new_tokens=4 + TEXTS, eos=()).tokens
    ids = [begun[i] + written[i][: 4 + i % TEXTS] for i in range(len(begun))]
    found = places(lab, load_diffusion(data_dir() / "lab" / "diffusion", lab), ids)
    return lab, found, NGram.load(data_dir() / "lab" / "ngram" / "ngram.npz")
