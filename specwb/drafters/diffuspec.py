"""The method diffuspec: its options, checked, and its drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from specwb.core.files import home
from specwb.core.options import MethodError, Option, spell
from specwb.core.tree import MOST
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.diffusion import DRAWS, DiffusionDrafter
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import (
    CacheProxy,
    NGramError,
    OnlineNGram,
    Proxy,
    UniformProxy,
)
from specwb.drafters.heads import check_place, trained_head
from specwb.drafters.length import Adaptive, Length
from specwb.models.diffusion import DiffusionModel, check_ids, load_diffusion
from specwb.models.path import KIND, PathScorer, load_path
from specwb.models.target import Target

GROWTH = f"[0, {MOST}]"
"""What ``delta`` may be."""
ORDER = 3
"""n of the n-grams of prompt and output, where none were counted beforehand; the paper's."""


@dataclass(frozen=True)
class Options:
    head: Annotated[
        Any,
        Option("the diffusion model; default the target's own", kind="a folder, hub id or model"),
    ] = None
    k: Annotated[
        int, Option("draft tokens in every step; 0: adaptive, between k_min and k_max", low=0)
    ] = 0
    k_min: Annotated[int, Option("the smallest adaptive length (the paper: 20)", low=1)] = 4
    k_max: Annotated[int, Option("the largest adaptive length (the paper: 30)", low=1)] = 8
    delta: Annotated[
        float,
        Option(
            "growth of the length when enough was accepted (the paper: 10)",
            within=GROWTH,
        ),
    ] = 2
    share: Annotated[
        float,
        Option("share of the draft that must be accepted to grow (the paper: 1)", within="[0, 1]"),
    ] = 0.8
    steps: Annotated[int, Option("denoising steps", low=1, high=MOST)] = 1
    top: Annotated[int, Option("candidates per place before pruning", low=1)] = 15
    mass: Annotated[
        float,
        Option("pruning keeps the fewest candidates with this total probability", within="(0, 1]"),
    ] = 0.8
    beams: Annotated[int, Option("beam width of the path search", low=1, high=MOST)] = 3
    lam: Annotated[float, Option("weight of the drafter against the proxy", within="[0, 1]")] = 0.5
    score: Annotated[
        Any,
        Option(
            "what chooses the path: cps, the search with n-grams (the paper's); none, the best "
            "token of each place; or a learned score of neighbouring candidates, of which a walk "
            "takes one after another: pair (the target's own), or a folder",
            kind="cps, none, pair, a folder or a scorer",
        ),
    ] = "cps"
    ngram: Annotated[
        str | Path,
        Option(
            "the proxy: own, the target's n-grams, counted beforehand (the paper's); online, "
            "n-grams of prompt and output; both, each with weight 1/2; none; or an .npz file. "
            "For a target without n-grams, own and both are the same as online",
            kind="both, own, online, none or a file",
        ),
    ] = "both"
    draw: Annotated[
        str,
        Option("search, a searched path; sample, tokens drawn from the model", choices=DRAWS),
    ] = "search"
    paths: Annotated[int, Option("number of sequences drawn with draw=sample", low=1)] = 1
    tree: Annotated[bool, Option("verify all paths of the search as one tree")] = False


def diffuspec(target: Target, options: Options) -> Drafter:
    """DiffuSpec: a diffusion model fills all places of a block in one forward pass, and a search
    finds a path through its guesses that reads well from left to right. Long drafts cost as much
    as short ones.

    The length is ``k`` tokens in every step, or adaptive between ``k_min`` and ``k_max``
    (``delta``, ``share``).
    """
    o = options
    _check_together(options)
    model = _diffusion(target, options.head)
    scorer, scored_by = _scorer(target, model, options)
    length = Length(o.k) if o.k else Adaptive(o.k_min, o.k_max, o.delta, share=o.share)
    sampled = o.draw == "sample"
    wide = o.paths if sampled else o.beams if o.tree else 1
    if length.most * wide + 1 > MOST:
        many = f"{wide} paths of {length.most} tokens have more than the {MOST} nodes"
        raise MethodError(f"{many} a tree may have")
    # at T = 0 a sampled draft is the argmax row
    beams, lam = (1, 1.0) if sampled or o.score == "none" else (o.beams, o.lam)
    place, ngram = ngram_file(target, o.ngram), o.ngram
    if lam == 1 or scorer is not None:  # nobody is asked
        place, ngram = None, "none"
    drafter = DiffusionDrafter(
        model,
        length,
        proxy_for(target, ngram, place),
        {*model.ends, *target.eos},
        steps=o.steps,
        top=o.top,
        mass=o.mass,
        beams=beams,
        lam=lam,
        draw=o.draw,
        paths=o.paths,
        as_tree=o.tree,
        scorer=scorer,
    )
    drafter.files = tuple(file for file in (place, scored_by) if file is not None)
    return drafter


def _check_together(o: Options) -> None:
    """Raises MethodError where options do not go together."""
    sampled, learned = o.draw == "sample", _learned(o)
    wrong = [
        (o.k_min > o.k_max, f"k_min={o.k_min} is more than k_max={o.k_max}"),
        (
            o.paths > 1 and not sampled,
            "paths are sampled ones, with draw=sample; of a search tree=true takes all "
            f"{o.beams} of the beam",
        ),
        (
            sampled and (o.tree or o.steps > 1),
            "draw=sample is for one forward with steps=1 and without tree; leave out steps or tree",
        ),
        (
            learned and (o.tree or o.steps > 1),
            "a learned score walks one path through what one forward says; leave out tree or steps",
        ),
        (o.score == "none" and o.tree, "score=none has one path; leave out tree"),
    ]
    for holds, problem in wrong:
        if holds:
            raise MethodError(problem)
    search = ("mass", "lam", "ngram")
    without_effect = [
        ("a learned score", learned, (*search, "beams")),
        ("score=none", o.score == "none", (*search[1:], "beams")),
        ("draw=sample", sampled and not learned, ("top", "beams", *search)),
        ("k", o.k, ("delta", "share", "k_min", "k_max")),
    ]
    for why, holds, names in without_effect:
        changed = [name for name in names if getattr(o, name) != getattr(Options, name)]
        if holds and changed:
            what = f"{changed[0]}={spell(getattr(o, changed[0]))}"
            raise MethodError(f"{what} has no effect with {why}; leave it out")


def _diffusion(target: Target, head: Any) -> DiffusionModel:
    """The diffusion model that was handed over, named, or lies beside the target."""
    if isinstance(head, DiffusionModel):
        check_ids("the model", head, target)
        check_place(target, head)
        return head
    return trained_head("diffusion", target, head, load_diffusion, DiffusionModel)


def ngram_file(target: Target, ngram: str | Path) -> Path | None:
    """The n-gram file that an option (both, own, online, none, or a file or folder) names; None if
    nothing was counted beforehand."""
    if ngram in ("none", "online", "own", "both"):
        folder = target.own_head("ngram") if ngram in ("own", "both") else None
        return folder and folder / "ngram.npz"
    place = home(ngram)
    if isinstance(ngram, str) and not place.exists() and not place.suffix:
        wanted = "ngram must be both, own, online, none or a file"
        raise MethodError(f"{wanted}, and there is no file {ngram}")
    return place / "ngram.npz" if place.is_dir() else place


def _learned(o: Options) -> bool:
    """Whether a learned score chooses the path."""
    return not isinstance(o.score, str) or o.score not in ("cps", "none")


def _scorer(
    target: Target, model: DiffusionModel, o: Options
) -> tuple[PathScorer | None, Path | None]:
    """The path scorer that is named, or lies next to the target, checked against the lattices, and
    its folder."""
    if not _learned(o):
        return None, None
    scorer, place = o.score, None
    if not isinstance(scorer, PathScorer):
        place = target.own_head(f"path/{KIND}") if scorer == KIND else home(scorer)
        if place is None:
            problem = f"{target.name!r} has no path scorer of its own"
            way_out = "score=FOLDER names one"
            raise MethodError(f"{problem}; {way_out}")
        if not str(scorer) or not place.is_dir():
            wanted = "score must be cps, none, pair or a folder"
            raise MethodError(f"{wanted}, and there is no folder {scorer}")
        kind = "path", model
        scorer = target.loaded(kind, place, lambda: load_path(place, target, model))
    elif scorer.hidden != model.net.config.hidden_size:
        its = f"{scorer.hidden} numbers, the diffusion model's have {model.net.config.hidden_size}"
        raise MethodError(f"the path scorer reads states of {its}")
    most = o.k or o.k_max
    if most > scorer.places:
        what = f"the path scorer is for blocks of up to {scorer.places} tokens, this has {most}"
        raise MethodError(f"{what}; take a smaller k or k_max")
    if o.top > scorer.top:
        what = f"the path scorer is for up to {scorer.top} candidates per place, top is {o.top}"
        raise MethodError(f"{what}; take a smaller top")
    return scorer, place


def proxy_for(target: Target, ngram: str | Path, place: Path | None) -> Callable[[], Proxy]:
    """A function that makes a row's proxy from the option ``ngram`` and its :func:`ngram_file`: one
    for all rows, or one per row if it also counts the row's own text."""
    if ngram == "none":
        uniform = UniformProxy(target.vocabulary)
        return lambda: uniform
    if place is None:
        return partial(OnlineNGram, ORDER, target.vocabulary)

    def read() -> NGram:
        try:
            counts = NGram.load(place)
        except NGramError as error:
            raise MethodError(str(error)) from error
        if counts.vocabulary != target.vocabulary:
            raise MethodError(
                f"{place} counts {counts.vocabulary} tokens, {target.name!r} has "
                f"{target.vocabulary}"
            )
        return counts

    # one table for a target; what it remembers of contexts is a method's own
    model = target.loaded("ngram", place, read).forgetful()
    if ngram == "both":
        return partial(CacheProxy, model, model.order, target.vocabulary)
    return lambda: model


ENTRY = Entry(
    "diffuspec",
    diffuspec,
    Options,
    paper="Li et al. 2025, arXiv 2510.02358",
    needs="a diffusion model",
    head="diffusion",
    presets={
        "published": Preset(
            {"k_min": 20, "k_max": 30, "delta": 10, "share": 1, "ngram": "own"},
            "section 4; with n-grams counted beforehand",
        )
    },
    bibtex="""@article{li2025diffuspec,
  title={{DiffuSpec}: Unlocking Diffusion Language Models for Speculative Decoding},
  author={Li, Guanghao and Fu, Zhihui and Fang, Min and Zhao, Qibin and Tang, Ming and Yuan, Chun \
and Wang, Jun},
  journal={arXiv:2510.02358}, year={2025}}""",
)
