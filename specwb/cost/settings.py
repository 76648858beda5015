"""What ``specwb tune`` measures: which chains, trees and other settings, of which methods."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from specwb.analysis import choose_tree
from specwb.cost.head_cost import WIDE as HEADS
from specwb.cost.head_cost import HeadCost
from specwb.cost.model import CostModel
from specwb.files import weights_hash
from specwb.methods import Method, that_run
from specwb.models.target import Target
from specwb.options import spell
from specwb.tree import Tree

GAMMA = 8
"""Length of the longest chain."""
WIDE = (4, 4, 4)
"""The calibration's tree: no tree predicted is deeper or has more children a node."""
TREES = [(2, 1), (2, 2), (3, 1, 1), (2, 2, 2), (4, 2), (4, 2, 2)]
"""Trees drawn without replacement that are always measured, as children a node by level."""
TOPS = [(2, 1), (2, 2), (3, 1, 1), (4, 2)]
"""Trees of top tokens and one draw that are always measured."""
OTHERS = {
    "pld": ("", "gamma=4"),
    "lookahead": ("", "window=4,level=4,guesses=4"),
    "eagle2": ("",),
    "eagle3": ("", "nodes=4,depth=3,top=1"),
    "falcon_dynamic": ("",),
    "diffuspec": ("", "k=3"),
    "kangaroo": ("", "gamma=3,eta=0.6"),
    "mcsd_ti": ("", "tree=2-1-1"),
    "easyspec": ("", "gamma=2"),
}
"""Methods of which no speed is predicted, and the options that are always measured."""


@dataclass(frozen=True)
class Setting:
    """One row of the result."""

    spec: str  # of the method
    family: str  # the kind of method or tree
    # the tree that a speedup is predicted for; None where none is predicted
    tree: Tree | None = None
    top: bool = False  # whether children are the draft model's top tokens and one draw
    head: str = ""  # the method of a trained head, or ""


def target_heads(target: Target) -> dict[str, str]:
    """Find the trained heads that lie beside the target; return method -> sha256."""
    folders = {kind: target.own_head(kind) for kind in HEADS}
    return {kind: weights_hash(folder) for kind, folder in folders.items() if folder is not None}


def settings(
    model: CostModel,
    nodes: int,
    tokens: int,
    temperature: float,
    heads: dict[str, HeadCost] | None = None,
) -> list[Setting]:
    """List what is measured.

    Of a draft model there are chains; trees drawn without replacement; and trees of top tokens and
    one draw (at T = 0 they are the same trees). Of every trained head there are a few fixed trees
    and the one with the largest predicted speedup, and dynamic trees of as many nodes, which are
    not predicted. ``nodes`` is of the largest tree, ``tokens`` what speedups are predicted for.
    """
    chosen = []
    if model.draft:
        gammas = range(1, min(GAMMA, nodes - 1) + 1)
        chosen += [Setting(f"sps:gamma={gamma}", "chain", Tree.chain(gamma)) for gamma in gammas]
        chosen += _tree_settings(model, nodes, tokens)
    for kind, cost in (heads or {}).items():
        chosen += _head_settings(kind, cost, nodes)
    return chosen


def _tree_settings(model: CostModel, nodes: int, tokens: int) -> list[Setting]:
    """Trees of the draft model."""
    trees = [(Tree.branching(*ks), False) for ks in TREES]
    best, _ = choose_tree(
        model.tree, lambda parents: model.round_seconds(Tree.parents(parents)), nodes
    )
    trees.append((Tree.parents(best), False))
    if model.top:
        trees += [(Tree.branching(*ks), True) for ks in TOPS]
        every_shape = [
            Tree.branching(*ks)
            for depth in range(1, len(WIDE) + 1)
            for ks in product(range(1, max(model.top) + 1), repeat=depth)
            if max(ks) > 1
        ]
        fitting = [tree for tree in every_shape if tree.n <= nodes]
        if fitting:
            fastest = max(fitting, key=lambda tree: model.speedup(tree, tokens, top=True))
            trees.append((fastest, True))
    chosen: dict[str, Setting] = {}
    for tree, top in trees:
        if tree.n <= nodes and not tree.is_chain:
            spec = make_spec(tree, top)
            chosen.setdefault(spec, Setting(spec, "top tree" if top else "tree", tree, top))
    return list(chosen.values())


def _head_settings(kind: str, cost: HeadCost, nodes: int) -> list[Setting]:
    """Trees of one trained head."""
    best, _ = choose_tree(
        cost.rates, lambda parents: cost.round_seconds(Tree.parents(parents)), nodes
    )
    trees = [Tree.chain(min(2, len(cost.rates))), Tree.branching(3, 2), Tree.parents(best)]
    if cost.k > 1:  # a chain of two full passes
        trees.insert(1, Tree.chain(min(2 * cost.k, len(cost.rates))))
    chosen = []
    for host in dict.fromkeys(tree.host for tree in trees if 1 < tree.n <= nodes):
        tree = Tree(host)
        chosen.append(Setting(f"{kind}:tree={spell(tree)}", kind, tree, head=kind))
    depth = Tree.parents(best).D
    if kind == "eagle" and len(best) > depth + 1:  # where the best tree is a chain, none is grown
        count = min(len(best), 5 + 16 * (depth - 1))
        chosen.append(Setting(f"eagle2:nodes={count},depth={depth},top=4", "eagle2"))
    passes = -(-depth // cost.k)
    if kind == "falcon" and len(best) > cost.k * passes + 1:
        drafted = sum(4**j for j in range(1, cost.k + 1)) * (1 + (passes - 1) * 4)
        count = min(len(best), drafted + 1)
        spec = f"falcon_dynamic:nodes={count},passes={passes},top=4,beams=4"
        chosen.append(Setting(spec, "falcon_dynamic"))
    return chosen


def make_spec(tree: Tree, top: bool) -> str:
    """Write the spec of ``mcsd`` with this tree."""
    return f"mcsd:tree={spell(tree)}" + (",draw=top" if top else "")


def others(
    target: Target, draft: Target | str | None
) -> tuple[dict[Setting, Method], dict[str, str]]:
    """Build the methods of :data:`OTHERS`; of those that cannot be built say why.

    ``draft``: the draft model that was named; None: every method takes the target's own.
    """
    built: dict[Setting, Method] = {}
    left_out: dict[str, str] = {}
    for key, every in OTHERS.items():
        specs = [":".join(filter(None, (key, options))) for options in every]
        methods, reasons = that_run(specs, target, draft)
        built |= {Setting(spec, key): method for spec, method in methods.items()}
        for reason in reasons.values():
            left_out[key] = reason
    return built, left_out
