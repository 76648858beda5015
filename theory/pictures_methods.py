"""The pictures of the theory pages about methods, 9 to 14; ``theory/pictures.py`` draws them."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
from drawing import INK, box, diagram, sheet
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specwb.core.tree import Tree
from specwb.drafters.diffuspec_parts.lattice import Lattice, exhaustive, viterbi
from specwb.drafters.diffuspec_parts.proxy import OnlineNGram
from specwb.show.palette import ACCEPTED, DRAFT, OTHER, RESIDUAL, TARGET
from specwb.theory import analysis
from specwb.theory.analysis.dependence import total_correlation


def loss() -> Figure:
    """Theorem 9.7: two drafts of equal cross-entropy, of which one is accepted more often."""
    figure, row = sheet(2, 2.8)
    p = [F(1, 3)] * 3
    drafts = [[F(6, 13), F(6, 13), F(1, 13)], [F(9, 13), F(2, 13), F(2, 13)]]
    for axes, q in zip(row, drafts):
        kept = [float(min(a, b)) for a, b in zip(p, q)]
        entropy = -sum(float(a) * math.log(b) for a, b in zip(p, q))
        axes.bar(range(3), kept, 0.7, color=ACCEPTED)
        axes.bar(range(3), [float(x) for x in p], 0.7, fill=False, edgecolor=TARGET, lw=1.6)
        axes.bar(range(3), [float(x) for x in q], 0.7, fill=False, edgecolor=DRAFT, lw=1.6, ls="--")
        rate = float(analysis.acceptance_rate(p, q))
        axes.set_title(f"cross-entropy {entropy:.2f}, accepted {rate:.3f}")
        axes.set_xticks(range(3), [f"token {i}" for i in range(3)])
        axes.set_ylim(0, 0.75)
    row[0].set_ylabel("p (solid), q (dashed), overlap")
    return figure


def blocks() -> Figure:
    """Theorems 10.1 and 10.3: who sees whom in blocks, and what a block cannot say."""
    figure, (left, middle, right) = sheet(3, 3.3, width_ratios=[1.2, 1, 1])
    n, k = 6, 2
    for i in range(n):
        for j in range(n):
            seen = j // k <= i // k
            colour = (DRAFT if i // k == j // k else TARGET) if seen else "white"
            left.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="#cccccc"))
            if i // k == j // k and j > i:
                left.text(j + 0.5, i + 0.5, "+", ha="center", va="center")
    left.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xlabel="sees pair", ylabel="pair")
    left.set_xticks([i + 0.5 for i in range(n)], range(1, n + 1))
    left.set_yticks([i + 0.5 for i in range(n)], range(1, n + 1))
    left.set_title("Blocks of 2 (+: beyond causal)")
    joint = np.array([[0.0, 0.4], [0.4, 0.2]])
    product = np.outer(joint.sum(1), joint.sum(0))
    for axes, table, title in (
        (middle, joint, "The target's pairs"),
        (right, product, "What a block says"),
    ):
        axes.imshow(table, cmap="Blues", vmin=0, vmax=0.7)
        for (y, x), value in np.ndenumerate(table):
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", color=INK)
        axes.set_xticks([0, 1], ["Y = a", "Y = b"])
        axes.set_yticks([0, 1], ["X = a", "X = b"] if axes is middle else ["", ""])
        axes.set_title(title)
    middle.set_xlabel(f"total correlation {total_correlation(joint):.2f} nats")
    return figure


def lattice() -> Figure:
    """Theorem 11.3: the row of first choices and the best path of a lattice."""
    figure, (axes,) = sheet(1, 3.3)
    words = [["the", "an"], ["old", "apple"], ["apple", "tree"], ["tree", "fell"]]
    ids = {word: i for i, word in enumerate(sorted({w for row in words for w in row}))}
    q = [[0.55, 0.45], [0.52, 0.48], [0.6, 0.4], [0.52, 0.48]]
    text = [*("an", "apple", "tree", "fell", ".") * 2, "the", "old", "tree"]
    ids |= {w: len(ids) + i for i, w in enumerate(sorted(set(text) - set(ids)))}
    grid = Lattice(
        [[ids[w] for w in row] for row in words], [[math.log(x) for x in row] for row in q]
    )
    proxy = OnlineNGram(order=2, vocabulary=len(ids))
    proxy.add([ids[w] for w in text])
    best = viterbi(grid, proxy, lam=0.5)
    paths = exhaustive(grid, proxy, lam=0.5)
    assert math.isclose(paths[0].score, best.score)
    assert any(best.ranks)  # another path than the row
    for path in paths:
        axes.plot(range(4), path.ranks, color=OTHER, lw=0.6, zorder=0)
    axes.plot(range(4), [0] * 4, "--", color=DRAFT, lw=2.5, label="first choices of every place")
    axes.plot(range(4), best.ranks, color=ACCEPTED, lw=2.5, label="best by draft and proxy")
    for x, row in enumerate(words):
        for y, word in enumerate(row):
            chosen = best.ranks[x] == y
            box(axes, (x, y), f"{word}\nq = {q[x][y]:.2f}", ACCEPTED if chosen else OTHER)
    axes.set(xlim=(-0.5, 3.5), ylim=(2.1, -0.5))
    axes.axis("off")
    axes.legend(loc="lower center", ncols=2)
    return figure


def caches() -> Figure:
    """Theorem 12.1: which entries Kangaroo's three caches hold in a step."""
    figure, (axes,) = sheet(1, 3.2)
    n, drafted, kept = 4, 3, 2
    diagram(axes, 14, 6.4)
    stages = ["before", "after drafting", "after verification", f"after {kept} are kept"]
    ends = [  # last place held by the first layers, the others, the adapter; theorem 12.1's table
        (n - 2, n - 2, n - 2),
        (n - 1 + drafted, n - 2, n - 2 + drafted),
        (n - 1 + drafted, n - 1 + drafted, n - 2 + drafted),
        (n - 1 + kept, n - 1 + kept, n - 1 + kept),
    ]
    rows = [("layers 1 to l", TARGET), ("layers after l", TARGET), ("adapter", DRAFT)]
    for s, (stage, last) in enumerate(zip(stages, ends)):
        x0, y0 = 2.6 + (s % 2) * 6.1, 0.9 + (s // 2) * 3.0
        axes.text(x0, y0 - 0.35, stage, weight="bold")
        for r, ((name, colour), end) in enumerate(zip(rows, last)):
            if s % 2 == 0:
                axes.text(x0 - 0.2, y0 + r * 0.62 + 0.3, name, ha="right", va="center")
            for place in range(n + drafted):
                held = place <= end
                known = place < n
                fill = (colour if known else RESIDUAL) if held else "white"
                spot = (x0 + place * 0.62, y0 + r * 0.62)
                axes.add_patch(Rectangle(spot, 0.56, 0.56, facecolor=fill, edgecolor=OTHER))
                if held and not known:
                    axes.text(
                        spot[0] + 0.28, spot[1] + 0.28, f"{place - n + 1}", ha="center", va="center"
                    )
    axes.text(2.6, 6.2, f"{n} known tokens; places numbered 1 to {drafted} hold draft tokens")
    return figure


def slices() -> Figure:
    """Theorem 13.1: a tree cut at a depth has the leading block of the mask."""
    figure, (left, right) = sheet(2, 3.0, width_ratios=[1.1, 1])
    tree = Tree([[-1, 0, 0, 1, 1, 2, 3, 5]])
    parents, depths = tree.host[0], tree.depths[0]
    spots, seen = {}, {}
    for node, d in enumerate(depths):
        seen[d] = seen.get(d, 0) + 1
        spots[node] = (seen[d] / (depths.count(d) + 1) * 6, d)
    colours = [TARGET, DRAFT, ACCEPTED, RESIDUAL]
    for node, parent in enumerate(parents):
        if parent >= 0:
            axes = [spots[parent], spots[node]]
            left.plot([a[0] for a in axes], [a[1] for a in axes], color=OTHER, zorder=0)
    for node, (x, y) in spots.items():
        left.scatter(x, y, 360, "white", edgecolors=colours[depths[node]], linewidths=2)
        left.text(x, y, str(node), ha="center", va="center")
    left.set(xlim=(0, 6), ylim=(3.5, -0.5))
    left.axis("off")
    left.set_title("Nodes, level by level")
    mask = tree.mask[0].numpy()
    right.imshow(mask, cmap="Greys", vmin=0, vmax=2.2)
    for d in range(4):
        n = sum(x <= d for x in depths)
        right.add_patch(
            Rectangle((-0.5, -0.5), n, n, fill=False, edgecolor=colours[d], lw=2.2, zorder=5 - d)
        )
    right.set_xticks(range(len(depths)))
    right.set_yticks(range(len(depths)))
    right.set_title("Mask: depth ≤ d is a leading block")
    right.set(xlabel="sees node", ylabel="node")
    return figure


def timeline() -> Figure:
    """Theorem 14.6: a step of EasySpec on two devices, next to layers in order."""
    figure, row = sheet(1, 3.4)
    axes = row[0]
    layers, depth = 4, 3
    ways = [("in order", [(i,) for i in range(layers)]), ("side by side", [(0,), (1, 2), (3,)])]
    kinds = {"attention": TARGET, "mlp": DRAFT, "exchange": OTHER, "verify": ACCEPTED}
    ends, labels = [], []
    for w, (_, groups) in enumerate(ways):
        spans = analysis.timeline(groups, 1.0, 0.6, 0.2, 2, depth, verify=2.0)
        for span in spans:
            y = w * 2.6 + span.device
            colour = kinds[span.kind]
            labelled = span.kind not in labels
            labels += [span.kind] if labelled else []
            axes.barh(
                y,
                span.stop - span.start,
                0.8,
                span.start,
                color=colour,
                edgecolor="white",
                label=span.kind if labelled else None,
            )
        ends.append(max(span.stop for span in spans))
    axes.set_yticks(
        [w * 2.6 + d for w in range(2) for d in range(2)],
        [f"{name}, device {d}" for name, _ in ways for d in range(2)],
    )
    axes.invert_yaxis()
    axes.set_xlabel("time, an attention = 1")
    axes.set_title(
        f"A decoding step with {depth} draft steps: {ends[0]:.1f} in order, "
        f"{ends[1]:.1f} side by side"
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)
    return figure


METHODS = (loss, blocks, lattice, caches, slices, timeline)
