"""The method diffuspec: its options, checked, and the drafter they describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from specwb.drafters.base import Drafter
from specwb.drafters.diffusion import DRAWS, DiffusionDrafter
from specwb.drafters.heads import check_place, trained_head
from specwb.drafters.length import Adaptive, Length
from specwb.models.diffusion import DiffusionModel, check_ids, load_diffusion
from specwb.models.target import Target
from specwb.ngram import SMOOTHINGS, NGram
from specwb.options import MethodError, spell, whole
from specwb.proxy import CacheProxy, KenLM, NGramError, OnlineNGram, Proxy, Uniform
from specwb.tree import MOST


def diffuspec(
    target: Target, *, head=None, k: int = 0, k_min: int = 4, k_max: int = 8, delta: float = 2, rho: float = 0.5, share: float = 0.8,
    steps: int = 1, top: int = 15, mass: float = 0.8, beams: int = 3, lam: float = 0.5, ngram: str = "both", order: int = 0,
    smoothing: str = "backoff", draw: str = "search", paths: int = 1, tree: bool = False, chunk: int = 0, confidence: float = 0.0, refresh: int = 1,
) -> Drafter:  # fmt: skip
    """DiffuSpec: all tokens in one forward of a diffusion model, a path through its lattice by beam search, an adaptive draft length.

    ``head``: a folder or hub id of a diffusion model, default the target's own. Length: ``k`` tokens always; or adaptive between ``k_min`` and
    ``k_max`` (``delta``, ``rho``, ``share`` of what was generated that must be accepted); or, ``chunk`` tokens a forward, up to ``k`` or ``k_max``
    while sure of each by ``confidence``. The paper's are k_min=20,k_max=30,delta=10,share=1, with ngram=own. ``steps``: of denoising.

    Search: ``top`` candidates a place pruned to ``mass``, ``beams``, ``lam`` the drafter's weight against the proxy's. ``ngram``: own (the target's,
    counted beforehand), online (prompt and output), both (either with weight 1/2), none, or a file: .npz, or KenLM's; where the target has none of
    its own, own and both are online. ``order`` less than the file's, ``smoothing`` backoff or kn. ``tree``: the beam's paths verified as one tree.

    ``draw=sample``: drawn from the model's laws, ``paths`` sequences, instead of searched. ``refresh``: of a model that sees both ways, whole
    forwards only every so many rounds.
    """
    key = "diffuspec"
    for name, number, least in (("top", top, 1), ("steps", steps, 1), ("beams", beams, 1), ("paths", paths, 1), ("k", k, 0), ("order", order, 0),
                                ("chunk", chunk, 0), ("refresh", refresh, 1), ("k_min", k_min, 1), ("k_max", k_max, 1)):  # fmt: skip
        whole(f"{key}: {name}", number, least)
    for name, value, low, high in (("mass", mass, 0, 1), ("lam", lam, 0, 1), ("rho", rho, 0, 1), ("share", share, 0, 1),
                                   ("confidence", confidence, 0, 1), ("delta", delta, 0, MOST)):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or (name in ("mass", "rho") and not value):
            raise MethodError(f"{key}: {name} must be a number in {'(' if name in ('mass', 'rho') else '['}{low}, {high}], got {value!r}")
    if k_min > k_max:
        raise MethodError(f"{key}: k_min={k_min} is more than k_max={k_max}")
    if draw not in DRAWS:
        raise MethodError(f"{key}: draw must be {' or '.join(DRAWS)}, got {draw!r}")
    if not isinstance(tree, bool):
        raise MethodError(f"{key}: tree must be true or false, got {tree!r}")
    if paths > 1 and draw != "sample":
        raise MethodError(f"{key}: paths are sampled ones, with draw=sample; of a search tree=true takes all {beams} of the beam")
    sampled = draw == "sample" and (tree or chunk or steps > 1)
    if sampled or (tree and chunk):
        kind = "draw=sample" if sampled else "tree=true"
        raise MethodError(f"{key}: {kind} is for one forward with steps=1{' and without tree' if sampled else ''}; leave out chunk, steps or tree")
    if bool(chunk) != bool(confidence):
        raise MethodError(
            f"{key}: chunk and confidence belong together: k=12,chunk=4,confidence=0.5 goes on while every token's probability is at least .5"
        )
    model = _diffusion(key, target, head)
    idle: dict[str, dict[str, Any]] = {  # options that these others leave without effect
        "draw=sample": {"top": top, "mass": mass, "beams": beams, "lam": lam, "ngram": ngram} if draw == "sample" else {},
        "k or chunk": {"delta": delta, "rho": rho, "share": share, "k_min": k_min} if k or chunk else {},
        "k": {"k_max": k_max} if k else {},
        f"ngram={ngram}": {"order": order, "smoothing": smoothing} if ngram == "none" or str(ngram).endswith((".arpa", ".bin")) else {},
        "a model whose text only looks back": {"refresh": refresh} if model.causal else {},
    }
    usual = {name: p.default for name, p in inspect.signature(diffuspec).parameters.items()}
    for why, given in idle.items():
        if changed := [name for name, value in given.items() if value != usual[name]]:
            raise MethodError(f"{key}: {changed[0]}={spell(given[changed[0]])} has no effect with {why}; leave it out")
    length = Length(k or k_max, confidence=confidence) if k or chunk else Adaptive(k_min, k_max, delta, rho, share)
    wide = paths if draw == "sample" else beams if tree else 1
    if length.most * wide + 1 > MOST:
        raise MethodError(f"{key}: {wide} paths of {length.most} tokens have more than the {MOST} nodes a tree may have")
    proxy = proxy_for(key, target, ngram, order, smoothing)
    if draw == "sample":  # at T = 0 the argmax row
        beams, lam = 1, 1.0
    if lam == 1:  # nobody is asked
        proxy = proxy_for(key, target, "none", 0, "backoff")
    ends = {*model.ends, *target.eos}
    return DiffusionDrafter(model, length, proxy, ends, steps=steps, top=top, mass=mass, beams=beams, lam=lam, draw=draw, paths=paths, whole=tree,
                            chunk=chunk, refresh=refresh)  # fmt: skip


def _diffusion(key: str, target: Target, given: Any) -> DiffusionModel:
    if isinstance(given, DiffusionModel):
        check_ids(f"{key}: the model", given, target)
        check_place(key, target, given)
        return given
    return trained_head("diffusion", target, given, load_diffusion, DiffusionModel)


def proxy_for(key: str, target: Target, ngram: object, order: int, smoothing: str) -> Callable[[], Proxy]:
    """What makes a row's proxy: one for all rows, or for every row its own where it reads along."""
    if not isinstance(ngram, str | Path):
        raise MethodError(f"{key}: ngram must be both, own, online, none or a file, got {ngram!r}")
    if smoothing not in SMOOTHINGS:
        raise MethodError(f"{key}: smoothing must be {' or '.join(SMOOTHINGS)}, got {smoothing!r}")
    if ngram == "none":
        uniform = Uniform(target.vocabulary)
        return lambda: uniform
    own = target.own_head("ngram") if ngram in ("own", "both") else None
    if ngram == "online" or (ngram in ("own", "both") and own is None):
        return partial(OnlineNGram, order or 3, target.vocabulary)
    place = own / "ngram.npz" if own is not None else Path(ngram).expanduser()
    if isinstance(ngram, str) and not place.exists() and not place.suffix:
        raise MethodError(f"{key}: ngram must be both, own, online, none or a file, and there is no file {ngram}")
    place = place / "ngram.npz" if place.is_dir() else place
    try:
        model = _counted(key, target, place, order, smoothing) if place.suffix == ".npz" else KenLM(place)
    except NGramError as error:
        raise MethodError(f"{key}: {error}") from error
    return partial(CacheProxy, model, model.order, target.vocabulary) if ngram == "both" else lambda: model


def _counted(key: str, target: Target, place: Path, order: int, smoothing: str) -> NGram:
    """Of a file's tables one a target, however many methods search with them; what it remembers of contexts is a method's own."""

    def read() -> NGram:
        counts = NGram.load(place)
        if counts.vocabulary != target.vocabulary:
            raise MethodError(
                f"{key}: {place} counts {counts.vocabulary} tokens, {target.name!r} has "
                f"{target.vocabulary}"
            )
        return counts

    def make() -> NGram:
        counts = target.loaded("ngram", place, read)
        model = counts.with_order(order or counts.order).with_smoothing(smoothing)
        model.scores((), [0])  # its tables are made now, once
        return model

    return target.loaded(("ngram", order, smoothing), place, make).with_smoothing(smoothing)
