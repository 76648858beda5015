"""A method's decoding step as lists of kernels, derived from shapes, tree and options.

How many passes a step has, over how many tokens, is what the drafters say
(``specwb/drafters/NAME.py``). What it takes in small kernels beside is counted by the dry runs
(``data/predict/kernels.toml``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specwb.blocks import PUBLISHED, BlockTree
from specwb.cost.shapes import PredictionError, Shape
from specwb.cost.work import (
    PRODUCT,
    Kernel,
    Setting,
    attending,
    attention,
    bookkeeping,
    counts,
    head,
    layers,
    mlp,
    product,
    small,
    times,
)
from specwb.drafters.eagle import EAGLE_TREE
from specwb.drafters.mcsd_ti import LARGEST
from specwb.drafters.medusa import MEDUSA_TREE
from specwb.methods import read_spec
from specwb.models.fuzzy import grouping
from specwb.options import shape as read_tree
from specwb.tree import Tree

DRAFT, VERIFY, REST = "draft", "target forward", "rules and text"
WINDOW = 2
"""Tokens that a draft model is fed in its first pass of a step."""


@dataclass(frozen=True)
class Step:
    """One decoding step.

    Attributes:
        stages: kernels by what they are for.
        depth: draft tokens that can be accepted.
        nodes: tokens of a row in the target's forward.
        replays, reads: graphs and host reads in this engine.
        levels: passes that are drafted one after the other.
        parameters: weights that the method adds to the target's.
        cached: layers' keys and values, in numbers a token, that it adds.
        searched: places that the host searches, of all rows; each for three beams and 15
            candidates.
    """

    stages: dict[str, list[Kernel]]
    depth: int
    nodes: int
    replays: int = 1
    reads: int = 1
    levels: int = 0
    parameters: int = 0
    cached: int = 0
    searched: float = 0

    def products(self) -> int:
        """Products with weights, as the dry runs count them."""
        return sum(k.count for all_ in self.stages.values() for k in all_ if k.kind == PRODUCT)

    def graph_nodes(self) -> float:
        """Nodes of its graphs."""
        return sum(k.count * k.nodes for all_ in self.stages.values() for k in all_)


@dataclass(frozen=True)
class Request:
    """What a step is derived from.

    Attributes:
        target, draft: shapes; the draft's only for methods with a draft or diffusion model.
        setting: rows, context and size of a number.
        sampled: whether the temperature is above 0.
        devices: that the target is parted over; the draft lies on one, EasySpec's attentions on
            as many as there are.
        options: the method's, as its spec has them.
    """

    target: Shape
    draft: Shape | None
    setting: Setting
    sampled: bool
    devices: int
    options: dict[str, Any]


def step(
    spec: str,
    target: Shape,
    draft: Shape | None,
    setting: Setting,
    sampled: bool = False,
    devices: int = 1,
) -> Step:
    """Derive the step of a method.

    Of a method that stops where it is unsure this is the longest draft. Heads have the published
    sizes, and a method with a static tree has its published one where none is given.

    Args:
        spec: a method with its options, such as ``mcsd:tree=4-2-2``.
        target: the target's shape.
        draft: the draft or diffusion model's shape; None for methods without one.
        setting: rows, context and size of a number.
        sampled: whether the temperature is above 0.
        devices: that the target is parted over.
    Raises:
        PredictionError: nothing is known of the method or an option, or draft is missing.
        MethodError: an unknown method or option.
    """
    entry, rule, options = read_spec(spec, None, {})
    if entry.key not in BUILDERS:
        raise PredictionError(f"{entry.key} is not predicted; what is: {', '.join(BUILDERS)}")
    build, understood = BUILDERS[entry.key]
    for name, value in options.items():
        usual = entry.options[name].default
        if name not in (*understood, "head", "draw") and value != usual:
            raise PredictionError(f"{entry.key}: what {name}={value} costs is not predicted")
    if rule is not None:
        raise PredictionError(f"{entry.key}: what rule={rule.name} costs is not predicted")
    if entry.key in DRAFTED and draft is None:
        kind, such = DRAFTED[entry.key]
        raise PredictionError(f"{entry.key} needs a {kind} model: give --draft, such as {such}")
    usual = {
        name: option.default
        for name, option in entry.options.items()
        if not (name == "tree" and option.default is None)
    }
    request = Request(target, draft, setting, sampled, devices, usual | options)
    return build(request)


def _plain(request: Request, nodes: int, first: int = 0) -> list[Kernel]:
    """The target's forward over ``nodes`` tokens a row, its first layers left out."""
    target, own, devices = request.target, request.setting, request.devices
    return [
        *layers(target, target.layers - first, nodes, own, devices),
        head(target, nodes, own, devices),
    ]


def _rest(request: Request, key: str, levels: int, candidates: int) -> list[Kernel]:
    own, plain = counts()[key], counts()["plain"]
    number = plain["fixed"] + own["fixed"] + levels * own.get("level", 0)
    if request.sampled:
        number += plain["sampled"] + own.get("sampled_fixed", 0)
        number += candidates * own.get("sampled", 0) + levels * own.get("sampled_level", 0)
    return [bookkeeping(number)]


def _made(
    request: Request,
    key: str,
    drafted: list[Kernel],
    verified: list[Kernel],
    *,
    depth: int,
    nodes: int,
    levels: int,
    candidates: int,
    parameters: int = 0,
    cached: int = 0,
    searched: float = 0,
    stops: bool = True,
) -> Step:
    own = counts()[key]
    staged = stops and own.get("staged", False)
    rest = _rest(request, key, levels, candidates)
    stages = {DRAFT: drafted, VERIFY: verified, REST: rest}
    return Step(
        {name: kernels for name, kernels in stages.items() if kernels},
        depth,
        nodes,
        levels + 2 if staged else own.get("replays", 1),
        levels if staged else own.get("reads", 1),
        levels,
        parameters,
        cached,
        searched,
    )


def _tree(request: Request, published: dict[str, Tree], usual: str) -> Tree:
    chosen = request.options.get("tree", usual)
    if isinstance(chosen, str) and chosen in published:
        return published[chosen]
    return read_tree("tree", chosen)


def _widths(tree: Tree) -> list[int]:
    """Nodes at the depths 0, 1, .."""
    depths = tree.depths[0]
    return [depths.count(d) for d in range(max(depths) + 1)]


def _ar(request: Request) -> Step:
    verified = _plain(request, 1)
    return _made(request, "ar", [], verified, depth=0, nodes=1, levels=0, candidates=0)


def _model(request: Request, key: str, tree: Tree, stops: bool = False) -> Step:
    """A draft model makes a tree level by level, and may stop after each."""
    draft = request.draft
    assert draft is not None
    drafted: list[Kernel] = []
    widths = _widths(tree)
    for d, width in enumerate(widths[:-1]):
        tokens = WINDOW if d == 0 else width
        drafted += layers(draft, draft.layers, tokens, request.setting)
        drafted.append(head(draft, width, request.setting))
    return _made(
        request,
        key,
        drafted,
        _plain(request, sum(widths)),
        depth=len(widths) - 1,
        nodes=sum(widths),
        levels=len(widths) - 1,
        candidates=sum(tree.widths),
        parameters=draft.parameters,
        cached=2 * draft.layers * draft.kv_heads * draft.head_dim,
        stops=stops,
    )


def _sps(request: Request) -> Step:
    return _model(request, "sps", Tree.chain(request.options["gamma"]))


def _mcsd(request: Request) -> Step:
    return _model(request, "mcsd", _tree(request, {}, ""))


def _mcsd_ti(request: Request) -> Step:
    tree = _tree(request, {"usual": LARGEST}, "usual")
    return _model(request, "mcsd_ti", tree, stops=request.options["stop"] != "none")


def _pld(request: Request) -> Step:
    gamma = request.options["gamma"]
    verified = _plain(request, gamma + 1)
    return _made(
        request, "pld", [], verified, depth=gamma, nodes=gamma + 1, levels=0, candidates=gamma
    )


def _lookahead(request: Request) -> Step:
    own = request.options
    depth = own["level"] - 1
    nodes = depth * (own["window"] + own["guesses"])
    verified = _plain(request, nodes)
    return _made(
        request, "lookahead", [], verified, depth=depth, nodes=nodes, levels=0, candidates=0
    )


def _medusa(request: Request) -> Step:
    target, own = request.target, request.setting
    tree = _tree(request, {"published": MEDUSA_TREE}, "published")
    heads = tree.D
    one = [product(own.rows, target.hidden, target.hidden, own.size), head(target, 1, own)]
    return _made(
        request,
        "medusa",
        [times(kernel, heads) for kernel in one],
        _plain(request, tree.n),
        depth=heads,
        nodes=tree.n,
        levels=0,
        candidates=sum(tree.widths),
        parameters=heads * target.hidden * (target.hidden + target.vocabulary),
    )


def _pairs(request: Request, tokens: int, said: int) -> list[Kernel]:
    """A pass of EAGLE's head: ``fc``, a layer and the target's head."""
    target, own = request.target, request.setting
    return [
        product(tokens * own.rows, 2 * target.hidden, target.hidden, own.size),
        *layers(target, 1, tokens, own),
        head(target, said, own),
    ]


def _eagle(request: Request) -> Step:
    tree = _tree(request, {"published": EAGLE_TREE}, "published")
    widths, h = _widths(tree), request.target.hidden
    drafted: list[Kernel] = []
    for d, width in enumerate(widths[:-1]):
        drafted += _pairs(request, len(widths) if d == 0 else width, width)
    return _made(
        request,
        "eagle",
        drafted,
        _plain(request, tree.n),
        depth=tree.D,
        nodes=tree.n,
        levels=tree.D,
        candidates=sum(tree.widths),
        parameters=request.target.layer_parameters + 2 * h * h,
        cached=2 * request.target.kv_heads * request.target.head_dim,
    )


def _grown(request: Request, key: str, each: Callable[[int, int], list[Kernel]], own: int) -> Step:
    """A tree that is grown on the device, ``depth`` levels of the ``top`` best nodes."""
    options, target = request.options, request.target
    depth, top, nodes = options["depth"], options["top"], options["nodes"]
    drafted: list[Kernel] = []
    for d in range(depth):
        drafted += each(depth + 1 if d == 0 else top, 1 if d == 0 else top)
    return _made(
        request,
        key,
        drafted,
        _plain(request, nodes),
        depth=min(depth, nodes - 1),
        nodes=nodes,
        levels=depth,
        candidates=0,
        parameters=own,
        cached=2 * target.kv_heads * target.head_dim,
    )


def _eagle2(request: Request) -> Step:
    h = request.target.hidden
    own = request.target.layer_parameters + 2 * h * h
    return _grown(request, "eagle2", lambda tokens, said: _pairs(request, tokens, said), own)


EAGLE3_VOCABULARY = 32000
"""Tokens that a published EAGLE-3 head drafts among."""


def _eagle3(request: Request) -> Step:
    target, own = request.target, request.setting

    def each(tokens: int, said: int) -> list[Kernel]:
        return [
            product(tokens * own.rows, 3 * target.hidden, target.hidden, own.size),
            *layers(target, 1, tokens, own, inputs=2),
            product(said * own.rows, target.hidden, EAGLE3_VOCABULARY, own.size),
        ]

    more = 3 * target.hidden + EAGLE3_VOCABULARY + target.hidden
    return _grown(request, "eagle3", each, target.layer_parameters + more * target.hidden)


def _falcon(request: Request) -> Step:
    target, own, k = request.target, request.setting, request.options.get("k") or 2
    tree = _tree(request, PUBLISHED, "vicuna")
    widths, h = _widths(tree), target.hidden
    passes = len(BlockTree(tree, k, request.options.get("passes")).passes)
    drafted: list[Kernel] = []
    for b in range(passes):
        tokens = k * widths[k * b] if b else k + len(widths)
        m = tokens * own.rows
        drafted += [
            product(m, 2 * h, 4 * h, own.size),
            product(m, h, 4 * h, own.size),
            # the recurrence goes through a block token by token, in both of its layers
            times(product(max(m // k, 1), h, 4 * h, own.size), 2 * k),
            *layers(target, 2, tokens, own),
            head(target, k * widths[k * b], own),
        ]
    return _made(
        request,
        "falcon",
        drafted,
        _plain(request, tree.n),
        depth=tree.D,
        nodes=tree.n,
        levels=passes,
        candidates=sum(tree.widths),
        parameters=2 * target.layer_parameters + 20 * h * h,
        cached=4 * target.kv_heads * target.head_dim,
    )


def _kangaroo(request: Request) -> Step:
    target, own, options = request.target, request.setting, request.options
    depth, width = options["gamma"], target.heads * target.head_dim
    exit_ = options["exit"] if options.get("exit") is not None else max(1, target.layers // 16)
    if not 0 <= exit_ < target.layers:
        raise PredictionError(
            f"kangaroo: exit must be below the target's {target.layers} layers, got {exit_}"
        )
    qkv = width + 2 * target.kv_heads * target.head_dim
    small_nodes = counts()["layer"]["attention_nodes"] + 2  # of a layer alone
    drafted = [times(kernel, depth + 1) for kernel in layers(target, exit_, 1, own)]
    for tokens in [2, *[1] * (depth - 1)]:
        m = tokens * own.rows
        drafted += [
            product(m, target.hidden, qkv, own.size, 1, 3),
            attention(target, tokens, own),
            product(m, width, target.hidden, own.size),
            small(m, target.hidden, own.size, 0, small_nodes),
            head(target, 1, own),
        ]
    return _made(
        request,
        "kangaroo",
        drafted,
        _plain(request, depth + 1, exit_),
        depth=depth,
        nodes=depth + 1,
        levels=depth,
        candidates=depth,
        parameters=target.attention_parameters,
        cached=2 * target.kv_heads * target.head_dim,
        stops=options["eta"] > 0,
    )


def _easyspec(request: Request) -> Step:
    draft, own, options = request.draft, request.setting, request.options
    assert draft is not None
    depth, n = options["gamma"], options["n"]
    spread = request.devices > 1
    groups = [len(group) for group in grouping(draft.layers, n)]
    # the exact pass goes over what was accepted too; every other one has a token
    drafted = [*layers(draft, draft.layers, depth + 1, own), head(draft, 1, own)]
    for _ in range(depth - 1):
        for group in groups:
            drafted += attending(draft, 1, own, group=group, spread=spread)
            drafted += [times(kernel, group) for kernel in mlp(draft, 1, own)]
            if group > 1:
                drafted.append(bookkeeping(counts()["easyspec"]["group"]))
        drafted.append(head(draft, 1, own))
    return _made(
        request,
        "easyspec",
        drafted,
        _plain(request, depth + 1),
        depth=depth,
        nodes=depth + 1,
        levels=depth,
        candidates=depth,
        parameters=draft.parameters,
        cached=2 * draft.layers * draft.kv_heads * draft.head_dim,
    )


BEAMS, TOP = 3, 15
"""Beams and candidates of the search whose time a card has."""


def _diffuspec(request: Request) -> Step:
    """A diffusion model says ``k`` places in each step of denoising, a search on the host follows.

    One whose text only looks back is fed what is new, at most k + 1 tokens, and k - 1 masks: the
    last place of the text says the first token. After the first step of denoising the text's last
    place is enough. One that looks both ways has the whole text and k masks in every step.
    """
    draft, own, options = request.draft, request.setting, request.options
    assert draft is not None
    if options["draw"] != "search":
        raise PredictionError(f"diffuspec: what draw={options['draw']} costs is not predicted")
    k, steps = options["k"] or options["k_max"], options["steps"]
    if draft.context and own.context + k > draft.context:
        raise PredictionError(
            f"diffuspec: {draft.name} was made for {draft.context} tokens, and drafts nothing "
            f"behind {own.context} of text where k={k}; give a smaller --context"
        )
    everything = Setting(own.rows, 0, own.size)
    drafted: list[Kernel] = []
    for s in range(steps):
        if draft.both_ways:
            drafted += layers(draft, draft.layers, own.context + k, everything)
        else:
            drafted += layers(draft, draft.layers, k if s else 2 * k, own)
        drafted.append(head(draft, k, own))
        if s:
            drafted.append(bookkeeping(counts()["diffuspec"]["step"]))
    asked = options["lam"] < 1 or options["beams"] > 1
    return _made(
        request,
        "diffuspec",
        drafted,
        _plain(request, k + 1),
        depth=k,
        nodes=k + 1,
        levels=steps,
        candidates=k,
        parameters=draft.parameters,
        cached=2 * draft.layers * draft.kv_heads * draft.head_dim,
        searched=own.rows * k * options["beams"] / BEAMS * options["top"] / TOP if asked else 0,
    )


DRAFTED = {
    "sps": ("draft", "1b"),
    "mcsd": ("draft", "1b"),
    "mcsd_ti": ("draft", "1b"),
    "easyspec": ("draft", "1b"),
    "diffuspec": ("diffusion", "dream-7b"),
}
"""Methods with a model beside the target's: what kind, and a shape of that kind."""
LENGTHS = ("k", "k_min", "k_max", "delta", "rho", "share")
SEARCH = ("top", "mass", "beams", "lam", "ngram", "order", "smoothing")
BUILDERS: dict[str, tuple[Callable[[Request], Step], tuple[str, ...]]] = {
    "ar": (_ar, ()),
    "sps": (_sps, ("gamma",)),
    "mcsd": (_mcsd, ("tree",)),
    "mcsd_ti": (_mcsd_ti, ("tree", "stop", "threshold", "decision")),
    "pld": (_pld, ("gamma", "ngram")),
    "lookahead": (_lookahead, ("window", "level", "guesses", "prompt")),
    "medusa": (_medusa, ("tree",)),
    "eagle": (_eagle, ("tree",)),
    "eagle2": (_eagle2, ("nodes", "depth", "top")),
    "eagle3": (_eagle3, ("nodes", "depth", "top")),
    "falcon": (_falcon, ("tree", "k", "passes")),
    "kangaroo": (_kangaroo, ("gamma", "exit", "eta", "stop")),
    "easyspec": (_easyspec, ("gamma", "n")),
    "diffuspec": (_diffuspec, (*LENGTHS, *SEARCH, "steps")),
}
"""Method -> what derives its step, and the options whose cost is known."""
