"""What works: every model type by every method, number type and device, as decoded here and now.

    python tests/matrix.py --out docs/matrix.md [--families llama qwen2]

A cell is a greedy decoding of two prompts by a tiny random model (tests/families.py) with an
untrained head or a disturbed copy of the model as its draft. It counts as equal where the text is
that of the library's own plain decoding, up to the first place at which the library's two best
logits lie within rounding of the number type: from there both texts are right, and go apart. A
cell that is refused names what is missing, before any work. One that is neither is wrong, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import logging
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import families
import tiny
import torch
import transformers

import specwb
from specwb.models.diffusion import DiffusionModel

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8]]
LENGTH = 8
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# how far two ways to compute a logit may lie apart, of the largest one
MARGINS = {"f64": 1e-5, "f32": 1e-3, "bf16": 0.1, "f16": 0.02}
MASK = families.VOCABULARY - 1
SETTINGS: dict[str, dict[str, Any]] = {
    "sps": {"gamma": 2},
    "mcsd": {"tree": (2, 1)},
    "mcsd_ti": {"tree": (2, 1), "stop": "top", "threshold": 0.1},
    "pld": {"gamma": 2},
    "suffix": {"gamma": 2},
    "recycling": {"tree": (2, 1)},
    "easyspec": {"gamma": 2, "groups": "0-1"},
    "medusa": {"tree": (2, 1)},
    "eagle": {"tree": (2, 1)},
    "eagle2": {"nodes": 5, "depth": 2, "top": 2},
    "eagle3": {"nodes": 5, "depth": 2, "top": 2},
    "falcon": {"tree": (2, 1)},
    "falcon_dynamic": {"nodes": 5, "passes": 1, "top": 2, "beams": 2},
    "kangaroo": {"gamma": 2, "eta": 0.0},
    "diffuspec": {"k": 2},
}
HEADS = {"eagle2": "eagle", "falcon_dynamic": "falcon"}
"""Whose heads these methods draft with; others have one of their own name."""
WITH_HEADS = ("medusa", "eagle", "eagle2", "eagle3", "falcon", "falcon_dynamic", "kangaroo")
TEXT = """\
# What works

Every method decodes with every model type below, but for those in the last column, which are
refused by name before any work: `kangaroo` and `easyspec` run a part of the layers, which the
library's forward pass does not, and `easyspec` needs layers like Llama's, whose weights it stacks.
After the hyphen stands what a model has besides: windows, a rotation. The two ways of running are
explained in [models](models.md#which-models-run).

| model types | way | refused |
|---|---|---|
{rows}

Written by `make matrix` on {machine}. A tiny model of each type
decodes greedily ({places}); its texts are those of the library's own plain
decoding, up to ties within rounding.
"""
REFUSED = (specwb.UnsupportedModel, specwb.MethodError, specwb.LoadError, NotImplementedError)


class Pair:
    """A model of a family with its copy that drafts, and heads, made once.

    Args:
        name: in tests/families.py.
        dtype: of both.
        device: of both.
    """

    def __init__(self, name: str, dtype: torch.dtype, device: str) -> None:
        make: Callable[..., Any] = partial(families.build, name, dtype=dtype)
        self.library = make().to(device)
        self.target = specwb.load(make().to(device))
        self.draft = specwb.load(tiny.perturbed(make(), 0.01).to(device))
        self.heads: dict[str, Any] = {}
        self.texts = [self.plain(prompt) for prompt in PROMPTS]

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """``[m, V]`` the library's, of a text alone."""
        given = torch.tensor([ids], device=self.target.device)
        return self.library(given, use_cache=False).logits[0].double()

    def plain(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=self.target.device)
        how = {"max_new_tokens": LENGTH, "do_sample": False, "pad_token_id": 0}
        out = self.library.generate(ids, attention_mask=torch.ones_like(ids), **how)
        return out[0, len(prompt) :].tolist()

    def head(self, kind: str) -> Any:
        if kind not in self.heads:
            if kind == "diffusion":
                own = tiny.perturbed(families.build("llama", dtype=self.target.dtype), 0.01)
                made: Any = DiffusionModel(own, mask_id=MASK)
            else:
                torch.manual_seed(0)
                made, _, _ = tiny._untrained(kind, self.target, torch.tensor([[1, 2, 3]]), 48)
            made = tiny.cast(made, self.target.dtype).to(self.target.device)
            self.heads[kind] = made.requires_grad_(False).eval()
        return self.heads[kind]

    def method(self, key: str) -> specwb.Method:
        options = dict(SETTINGS.get(key, {}))
        if key in WITH_HEADS:
            options["head"] = self.head(HEADS.get(key, key))
        if key == "diffuspec":
            options["head"] = self.head("diffusion")
        if "draft" in specwb.METHODS[key].options:
            options["draft"] = self.draft
        return specwb.method(key, self.target, **options)

    def is_right(self, texts: list[list[int]], margin: float) -> bool:
        """Whether these are the library's texts, up to a tie."""
        for prompt, ours, theirs in zip(PROMPTS, texts, self.texts, strict=True):
            place = next((i for i in range(LENGTH) if ours[i] != theirs[i]), None)
            if place is None:
                continue
            logits = self.logits([*prompt, *theirs[:place]])[-1]
            gap = logits[theirs[place]] - logits[ours[place]]
            if gap.abs() > margin * logits.abs().max():
                return False
        return True


def cell(pair: Pair, key: str, margin: float) -> tuple[str, str]:
    """``yes``, ``no`` (refused) or ``wrong``, and why."""
    try:
        texts = specwb.decode(
            pair.target, PROMPTS, pair.method(key), max_new_tokens=LENGTH, eos=()
        ).tokens
    except REFUSED as error:
        return "no", str(error)
    except Exception as error:  # whatever it is, the cell is wrong and the others are of interest
        return "wrong", f"{type(error).__name__}: {error}"
    return ("yes", "") if pair.is_right(texts, margin) else ("wrong", "another text")


def measured(
    names: list[str], methods: list[str], dtypes: list[str], devices: list[str]
) -> dict[tuple[str, str, str, str], tuple[str, str]]:
    """Every cell by family, method, number type and device."""
    cells = {}
    for device in devices:
        for dtype in dtypes:
            for name in names:
                try:
                    pair = Pair(name, DTYPES[dtype], device)
                except REFUSED as error:
                    cells |= {(name, key, dtype, device): ("no", str(error)) for key in methods}
                    continue
                for key in methods:
                    cells[name, key, dtype, device] = cell(pair, key, MARGINS[dtype])
                print(f"{device} {dtype} {name}", file=sys.stderr)
    return cells


def page(cells: dict[tuple[str, str, str, str], tuple[str, str]]) -> str:
    """The cells as a table: a row for the families that agree, a column a way to run."""
    names, methods, dtypes, devices = (list(dict.fromkeys(axis)) for axis in zip(*cells))
    places = [(dtype, device) for device in devices for dtype in dtypes]
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    rows: dict[tuple[str, str], list[str]] = {}
    for name in names:
        lacking = []
        for key in methods:
            kinds = {place: cells[name, key, *place][0] for place in places}
            for kind, says in (("no", ""), ("wrong", "WRONG ")):
                held = [" ".join(place) for place in places if kinds[place] == kind]
                where = f" ({', '.join(held)})" if len(held) < len(places) else ""
                lacking += [f"{says}`{key}`{where}"] if held else []
        way = "fast" if name in families.FAST else "generic"
        rows.setdefault((way, ", ".join(lacking) or "none"), []).append(f"`{name}`")
    return TEXT.format(
        machine=f"{platform.machine()} with {versions}",
        places=", ".join(f"{dtype} on {device}" for dtype, device in places),
        rows="\n".join(
            f"| {', '.join(kept)} | {way} | {lacking} |" for (way, lacking), kept in rows.items()
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    every = [*families.FAST, *families.GENERIC]
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    parser.add_argument("--families", nargs="+", default=every, choices=every)
    parser.add_argument("--out", type=Path, required=True, help="the page")
    given = parser.parse_args()
    logging.getLogger("specwb").setLevel(logging.ERROR)
    cells = measured(given.families, list(specwb.METHODS), ["f32", "bf16"], devices)
    given.out.write_text(page(cells), encoding="utf-8")
    wrong = {place: why for place, (kind, why) in cells.items() if kind == "wrong"}
    for place, why in wrong.items():
        print("WRONG", *place, why, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
