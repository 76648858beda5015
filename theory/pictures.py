"""The pictures of the theory pages, drawn from what the library's own functions compute, and one,
``shared``, from shipped results.

    python theory/pictures.py [FOLDER]

draws all of them into ``theory/pictures`` or the folder named. The functions are named as the files
are; pages 1 to 8 are here, the others in ``theory/pictures_methods.py``.
"""

from __future__ import annotations

import json
import sys
import textwrap
from fractions import Fraction as F
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from drawing import HATCHES, INK, bars, box, diagram, save, sheet, tokens
from matplotlib.figure import Figure
from pictures_methods import METHODS

from specwb.core.files import data_dir
from specwb.show.palette import ACCEPTED, DRAFT, FIRST, MARK, OTHER, REJECTED, RESIDUAL, TARGET
from specwb.theory import analysis, exact, wrong_rules

P = (F(1, 2), F(3, 10), F(1, 5), F(0))  # the instance of theorem 5.4
Q = (F(1, 10), F(1, 5), F(3, 10), F(2, 5))


def rejection() -> Figure:
    """Theorem 1.1: what is accepted, what is rejected, and the residual that makes up for it."""
    figure, (left, right) = sheet(2, 2.9)
    kept = [min(a, b) for a, b in zip(P, Q)]
    bars(left, kept, ACCEPTED, "accepted: min(p, q)", width=0.7)
    over = exact.minus(Q, P)
    bars(left, over, REJECTED, "rejected: q − p", width=0.7, bottom=[float(x) for x in kept])
    left.set_title("The draft token, from q")
    bars(right, kept, ACCEPTED, "accepted: min(p, q)", width=0.7)
    rest = exact.minus(P, Q)
    bars(right, rest, RESIDUAL, "bonus token: p − q", width=0.7, bottom=[float(x) for x in kept])
    right.set_title("The token that comes out, from p")
    for axes in (left, right):
        tokens(axes, len(P))
        axes.set_ylim(0, 0.68)
        axes.legend(loc="upper right")
    left.set_ylabel("probability")
    assert sum(over) == sum(rest) == 1 - exact.overlap(P, Q)
    return figure


def overlap() -> Figure:
    """Theorems 2.1 and 2.3: acceptance as the overlap, and what temperature does to it."""
    figure, (left, right) = sheet(2, 3.0)
    x = torch.arange(16.0, dtype=torch.float64)
    p, q = (torch.softmax(-((x - m) ** 2) / w, 0) for m, w in ((6.0, 8.0), (9.0, 14.0)))
    places = np.arange(16)
    left.bar(places, torch.minimum(p, q), 1.0, color=ACCEPTED, alpha=0.75)
    left.step(places, p, where="mid", color=TARGET, label="p, target")
    left.step(places, q, where="mid", color=DRAFT, dashes=(4, 2), label="q, draft")
    rate = analysis.acceptance_rate(p, q)
    left.set_title(f"The overlap is the acceptance rate: {float(rate):.2f}")
    left.set(xlabel="token", ylabel="probability")
    left.legend(loc="upper right")
    temperatures = np.geomspace(0.05, 20, 120)
    pairs = [
        ("same best token", [1.0, 0.0], [4.0, 0.0], TARGET, "-"),
        ("another best token", [1.0, 0.0, 0.6], [0.2, 0.0, 1.0], DRAFT, "--"),
    ]
    for label, target, draft, colour, line in pairs:
        z, w = torch.tensor(target), torch.tensor(draft)
        rates = [
            float(analysis.acceptance_under_temperature(z.double(), w.double(), float(t)))
            for t in temperatures
        ]
        right.plot(temperatures, rates, line, color=colour, label=label)
    right.set(xscale="log", xlabel="temperature T", ylabel="acceptance rate α(T)", ylim=(0, 1.03))
    right.set_title("From agreement of the best tokens to 1")
    right.legend(loc="lower right")
    return figure


def tokens_a_round() -> Figure:
    """Theorem 3.1: tokens per step against the acceptance rate, for several lengths of draft."""
    figure, (left, right) = sheet(2, 3.0)
    alphas = np.linspace(0, 0.99, 100)
    styles = [(1, OTHER, ":"), (2, RESIDUAL, "-."), (4, DRAFT, "--"), (8, TARGET, "-")]
    for gamma, colour, line in styles:
        tau = [analysis.expected_tokens(a, gamma) for a in alphas]
        left.plot(alphas, tau, line, color=colour, label=f"γ = {gamma}")
    left.plot(alphas, 1 / (1 - alphas), color=INK, linewidth=0.8, label="no end: 1/(1 − α)")
    left.set(xlabel="acceptance rate α", ylabel="tokens per step τ", ylim=(0.8, 9.2))
    left.set_title("Tokens against acceptance")
    left.legend()
    gammas = range(13)
    for alpha, colour, line in [(0.5, OTHER, ":"), (0.7, DRAFT, "--"), (0.9, TARGET, "-")]:
        tau = [analysis.expected_tokens(alpha, g) if g else 1.0 for g in gammas]
        right.plot(gammas, tau, line, color=colour, marker="o", markersize=3, label=f"α = {alpha}")
        right.axhline(1 / (1 - alpha), color=colour, linewidth=0.6)
    right.set(xlabel="draft tokens per step γ", ylabel="tokens per step τ", ylim=(0.8, 10.4))
    right.set_title("Tokens against γ: each adds less")
    right.legend(loc="upper left")
    return figure


def speedup() -> Figure:
    """Theorems 3.4 and 3.5: the best γ, and what a batch takes away."""
    figure, (left, right) = sheet(2, 3.0)
    gammas = list(range(1, 13))
    for c, colour, line in [(0.02, TARGET, "-"), (0.1, DRAFT, "--"), (0.3, OTHER, ":")]:
        values = [analysis.speedup(0.8, g, c) for g in gammas]
        left.plot(gammas, values, line, color=colour, label=f"c = {c}")
        best = analysis.best_gamma(0.8, c)
        left.plot(best, analysis.speedup(0.8, best, c), "o", color=colour)
    left.axhline(1, color=INK, linewidth=0.6)
    left.set(xlabel="draft tokens per step γ", ylabel="speedup σ", ylim=(0, None))
    left.set_title("α = 0.8, v = 1: the best γ is marked")
    left.legend(loc="lower left", ncols=3)
    rows, balance = np.unique(np.geomspace(1, 256, 60).astype(int)), 64
    for gamma, colour, line in [(1, OTHER, ":"), (3, DRAFT, "--"), (7, TARGET, "-")]:
        values = [
            analysis.speedup(0.8, gamma, 0.02, analysis.roofline(gamma, int(b), balance))
            for b in rows
        ]
        right.plot(rows, values, line, color=colour, label=f"γ = {gamma}")
    right.axhline(1, color=INK, linewidth=0.6)
    right.axvline(balance, color=INK, linewidth=0.6)
    right.text(balance * 1.08, 0.05, "n*", color=INK)
    right.set(xscale="log", xlabel="rows B", ylabel="speedup σ", ylim=(0, None))
    right.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    right.set_title("A batch uses up the free arithmetic")
    right.legend(loc="upper right")
    return figure


def stages() -> Figure:
    """Theorem 4.1: the residual after each rejection, beside q."""
    figure, row = sheet(3, 2.6, width_ratios=[1, 1, 1])
    p, passed = P, F(1)
    for j, axes in enumerate(row, start=1):
        bars(axes, p, TARGET if j == 1 else RESIDUAL, shift=-0.2)
        bars(axes, Q, DRAFT, shift=0.2, filled=False, linewidth=1.8, linestyle="--")
        beta = exact.overlap(p, Q)
        axes.set_title(f"$p_{j}$ and q: β = {float(beta):.2f}\nreached with {float(passed):.2f}")
        axes.set(ylim=(0, 1.0))
        axes.set_xticks(range(len(P)))
        axes.set_xlabel("token")
        passed *= 1 - beta
        p = tuple(exact.norm(exact.minus(p, Q)))
    assert 1 - passed == exact.rrs_acceptance(P, Q, 3)
    row[0].set_ylabel("probability")
    return figure


def level() -> Figure:
    """Theorems 4.6 and 5.5: three rules as levels on the curve f(level) = sum min(p, level q)."""
    figure, (axes,) = sheet(1, 4.2)

    def f(c: F) -> F:
        return sum((min(a, c * b) for a, b in zip(P, Q)), F(0))

    ends = sorted({F(0), F(5, 2)} | {a / b for a, b in zip(P, Q) if b and a / b < F(5, 2)})
    axes.plot([float(c) for c in ends], [float(f(c)) for c in ends], color=TARGET, zorder=1)
    axes.text(2.5, float(f(F(5, 2))) + 0.015, "f(λ) = Σ min(p, λq)", color=TARGET, ha="right")
    m = F(1) + 1 - f(F(1))  # M_2
    assert f(m) == exact.rrs_acceptance(P, Q, 2)
    rho = float(exact.kseq_rho(P, Q, 2))
    rate = float(exact.acceptance(exact.kseq, exact.iid, P, Q, 2))
    second = []  # levels c_2 of RRSw and their weights, by the first token rejected
    for x, lost in enumerate(exact.minus(Q, P)):
        if lost:
            second.append((1 + (1 - f(F(1))) / (1 - Q[x]), lost / (1 - f(F(1)))))
    assert sum((w * f(c) for c, w in second), F(0)) == exact.rrsw_acceptance(P, Q, 2)
    marks = [(1.0, float(f(F(1))), "o", OTHER, "one candidate: λ = 1")]
    marks += [(float(m), float(f(m)), "s", DRAFT, f"RRS: λ = $M_2$, accepts {float(f(m)):.3f}")]
    marks += [(rho, rate, "D", RESIDUAL, f"k-SEQ: λ = ρ*, accepts {rate:.3f}")]
    for c, height, marker, colour, label in marks:
        axes.vlines(c, 0, height, color=colour, linewidth=0.9, linestyle=":")
        axes.plot(c, height, marker, color=colour, markersize=8, label=label)
    mean = float(exact.rrsw_acceptance(P, Q, 2))
    for i, (c, w) in enumerate(second):
        axes.vlines(float(c), 0, float(f(c)), color=ACCEPTED, linewidth=0.9)
        label = f"RRSw: $c_2$ is random, area = chance; mean {mean:.3f}"
        area = 160 * float(w)
        axes.scatter(
            float(c), float(f(c)), area, ACCEPTED, marker="^", label=None if i else label, zorder=3
        )
    best = float(exact.optimum(exact.iid, P, Q, 2))
    axes.axhline(best, color=INK, linewidth=0.8, linestyle="--")
    axes.text(0.02, best + 0.012, f"most with 2 independent candidates: {best:.2f}", color=INK)
    axes.set(xlim=(0, 2.5), ylim=(0, 0.85), xlabel="level λ", ylabel="probability of acceptance")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


def cut() -> Figure:
    """Theorems 5.1 and 5.2: the cut as the widest gap between a curve and a staircase."""
    figure, (axes,) = sheet(1, 3.6)
    k = 2
    order = sorted(range(len(P)), key=lambda x: P[x] / Q[x])
    starts = [order[:i] for i in range(len(P) + 1)]
    at = [(sum((Q[x] for x in s), F(0)), sum((P[x] for x in s), F(0))) for s in starts]
    t = np.linspace(0, 1, 101)
    axes.plot(t, t**k, "--", color=DRAFT, label="Q(S) = q(S)²: all candidates in S")
    axes.step(
        [float(a) for a, _ in at],
        [float(b) for _, b in at],
        where="post",
        color=TARGET,
        marker="o",
        label="p(S), S = the first tokens by p/q",
    )
    gaps = [a**k - b for a, b in at]
    best = max(range(len(at)), key=gaps.__getitem__)
    a, b = at[best]
    assert 1 - gaps[best] == exact.optimum(exact.iid, P, Q, k)
    axes.annotate(
        "", (float(a), float(b)), (float(a), float(a**k)), arrowprops={"arrowstyle": "<->"}
    )
    names = ", ".join(str(x) for x in sorted(starts[best]))
    text = f"widest gap: S = {{{names}}}\n1 − α* = {gaps[best]}"
    axes.text(0.62, float((b + a**k) / 2), text, ha="right", va="center")
    axes.set(xlabel="q(S)", ylabel="probability", xlim=(0, 1.02), ylim=(0, 1.03))
    axes.legend(loc="upper left")
    return figure


def arrivals() -> Figure:
    """Theorem 5.3: at which times x (left side) and y (right side) may arrive, and how probably."""
    figure, (axes,) = sheet(1, 3.4)
    x, y, (t1, t2, t3, omega) = 0.45, 0.7, (0.6, 1.3, 3.4, 2.6)  # rates, and a case of the times
    end = min(t3, omega)
    before, behind = np.linspace(0, t2, 60), np.linspace(t2, end, 60)
    rest = np.exp(-(x + y) * behind)
    left, right = np.exp(-x * before - y * t2), np.exp(-y * before)
    assert np.trapezoid(left, before) < t2 * np.exp(-y * t2) < np.trapezoid(right, before)
    axes.plot(before, right, "--", color=INK, label="right: y arrives at t, x at any time")
    axes.plot([0, t2], 2 * [np.exp(-y * t2)], ":", color=INK, label="a rectangle in between")
    axes.plot(before, left, color=INK, label="left: x arrives at t, y after $t_2$")
    axes.fill_between(behind, rest, color=OTHER, alpha=0.4, label="both: the other one after t")
    for name, at in (("$t_1$", t1), ("$t_2$", t2), ("$t_3$", t3), ("ω", omega)):
        axes.axvline(at, color=INK, linewidth=0.6, linestyle="-" if at in (t2, end) else ":")
        axes.text(at, 1.03, name, ha="center")
    axes.text((end + 3.9) / 2, 0.06, "never", ha="center", color=INK)
    axes.set(xlim=(0, 3.9), ylim=(0, 1.02), xlabel="time t of the arrival")
    axes.set_ylabel("density over rate")
    axes.set_xticks([0])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


def kseq() -> Figure:
    """Theorem 5.5: the smallest valid ρ is where two curves meet."""
    figure, (axes,) = sheet(1, 3.2)
    k, rho = 2, float(exact.kseq_rho(P, Q, 2))
    grid = np.linspace(1, 2, 101)
    beta = [sum(min(float(a) / r, float(b)) for a, b in zip(P, Q)) for r in grid]
    axes.plot(grid, [r * b for r, b in zip(grid, beta)], color=TARGET, label="ρβ = Σ min(p, ρq)")
    axes.plot(grid, [1 - (1 - b) ** k for b in beta], "--", color=DRAFT, label="a = 1 − (1 − β)²")
    axes.axvspan(1, rho, color=REJECTED, alpha=0.12)
    axes.axvspan(rho, 2, color=ACCEPTED, alpha=0.12)
    height = float(exact.acceptance(exact.kseq, exact.iid, P, Q, 2))
    axes.plot(rho, height, "D", color=RESIDUAL, markersize=8)
    axes.annotate(f"ρ* = {rho:.3f}: accepts {height:.3f}", (rho, height), (rho - 0.02, 0.715))
    axes.text(1.02, 0.775, "the residual would be negative", color=INK)
    axes.text(1.98, 0.775, "lossless", color=INK, ha="right")
    axes.set(xlabel="ρ", ylabel="probability", xlim=(1, 2), ylim=(0.42, 0.8))
    axes.legend(loc="lower right")
    return figure


def ordering() -> Figure:
    """Theorems 4.6, 5.1, 5.5 and 5.9: which rule accepts at least as often as which."""
    figure, (left, right) = sheet(2, 3.6, width_ratios=[1.25, 1])
    spots = {"RRS": (2, 5.2), "k-SEQ": (0.9, 3.7), "RRSw": (3.3, 3.0)}
    spots |= {"α* independent": (0.9, 2.2), "α* distinct": (2, 0.6)}
    edges = [("RRS", "k-SEQ", "5.5"), ("k-SEQ", "α* independent", "5.1")]
    edges += [("α* independent", "α* distinct", "5.9"), ("RRS", "RRSw", "4.6")]
    edges += [("RRSw", "α* distinct", "5.1")]
    diagram(left, 4.3, 5.9)
    counts = (1, 2, 3, 4)
    rates = {
        "RRS": [exact.rrs_acceptance(P, Q, k) for k in counts],
        "k-SEQ": [exact.acceptance(exact.kseq, exact.iid, P, Q, k) for k in counts],
        "RRSw": [exact.rrsw_acceptance(P, Q, k) for k in counts],
        "α* independent": [exact.optimum(exact.iid, P, Q, k) for k in counts],
        "α* distinct": [exact.optimum(exact.without_replacement, P, Q, k) for k in counts],
    }
    for low, high, theorem in edges:
        assert all(a <= b for a, b in zip(rates[low], rates[high]))
        left.annotate(
            "",
            spots[high],
            spots[low],
            arrowprops={"arrowstyle": "->", "color": OTHER, "shrinkA": 15, "shrinkB": 15},
        )
        x, y = ((a + b) / 2 for a, b in zip(spots[low], spots[high]))
        left.text(x + 0.12, y, theorem, color=INK, fontsize=8)
    # RRSw and k-SEQ: each is ahead somewhere, so that no arrow joins them
    other = (F(1, 3), F(1, 4), F(1, 3), F(1, 12)), (F(1, 3), F(1, 3), F(1, 5), F(2, 15))
    assert rates["k-SEQ"][1] < rates["RRSw"][1]
    k_seq = exact.acceptance(exact.kseq, exact.iid, *other, 2)
    assert k_seq > exact.rrsw_acceptance(*other, 2)
    looks = {"RRS": (DRAFT, "s", ":"), "k-SEQ": (RESIDUAL, "D", "-."), "RRSw": (ACCEPTED, "^", "-")}
    looks |= {"α* independent": (TARGET, "o", "--"), "α* distinct": (INK, "v", "-")}
    for name, (colour, marker, line) in looks.items():
        box(left, spots[name], name, colour)
        heights = [float(a) for a in rates[name]]
        right.plot(counts, heights, line, marker=marker, color=colour, label=name, markersize=5)
    left.set_title("An arrow leads to what never accepts less")
    right.set(xlabel="candidates k", ylabel="probability of acceptance", xticks=counts)
    right.legend(fontsize=8)
    return figure


def tree() -> Figure:
    """Theorems 6.2 and 3.3: what a tree is worth is the sum of its nodes' values."""
    figure, (axes,) = sheet(1, 3.2)
    rates = [F(3, 5), F(1, 5), F(1, 10)]  # by rank, at every depth
    parents = [-1, 0, 0, 0, 1, 1, 2, 4]
    values = [float(v) for v in analysis.path_values(rates, parents)]
    spots = {0: (0, 0), 1: (-2.4, 1), 2: (0.6, 1), 3: (2.6, 1), 4: (-3.3, 2), 5: (-1.5, 2)}
    spots |= {6: (0.6, 2), 7: (-3.3, 3)}
    sums = [float(v) for v in analysis.tree_reach([rates] * 3, parents)]
    for node, parent in enumerate(parents):
        x, y = spots[node]
        if parent >= 0:
            axes.plot([spots[parent][0], x], [spots[parent][1], y], color=OTHER, zorder=0)
        colour = TARGET if node == 0 else DRAFT
        axes.scatter(x, y, 300 + 1500 * values[node], "white", edgecolors=colour, linewidths=2)
        axes.text(x, y, f"{values[node]:.3g}", ha="center", va="center", fontsize=9)
    for d, total in enumerate(sums):
        axes.text(3.5, d, f"reach({d}) = {total:.3g}", va="center")
    axes.text(3.5, 3.6, f"τ = sum = {sum(values):.3g}", va="center", weight="bold")
    axes.set(xlim=(-4.3, 5.6), ylim=(3.9, -0.6))
    axes.axis("off")
    assert abs(sum(sums) - sum(values)) < 1e-9
    return figure


def growth() -> Figure:
    """Theorems 6.4 and 6.5: each further node is worth less, in the end less than its time."""
    figure, (left, right) = sheet(2, 3.0)
    rates, most, price = [0.6, 0.2, 0.1], 40, 0.04
    taus = [
        sum(analysis.path_values(rates, analysis.grow_tree(rates, n))) for n in range(1, most + 1)
    ]
    nodes = np.arange(1, most + 1)
    time = 1 + price * (nodes - 1)
    speed = np.array(taus) / time
    best = int(speed.argmax())
    left.step(nodes[:-1], np.diff(taus), where="mid", color=TARGET, label="value of the next node")
    left.plot(nodes, speed * price, "--", color=DRAFT, label="what its time is worth")
    left.axvline(nodes[best], color=INK, linewidth=0.7)
    left.set(xlabel="nodes n", ylabel="tokens", ylim=(0, 0.3))
    left.legend()
    right.plot(nodes, speed, color=TARGET)
    right.plot(nodes[best], speed[best], "o", color=TARGET)
    right.annotate(
        f"best: {nodes[best]} nodes", (nodes[best], speed[best]), (14, speed[best] + 0.02)
    )
    right.set(xlabel="nodes n", ylabel="speedup σ(n)")
    for axes, title in ((left, "A node pays while its value is above"), (right, "Speedup")):
        axes.set_title(title)
    return figure


def block() -> Figure:
    """Theorem 7.1: the weights of block verification are the lower envelope of all ratios."""
    figure, (axes,) = sheet(1, 3.4)
    p, q = [F(3, 4), F(1, 4)], [F(1, 4), F(3, 4)]
    path = [1, 0, 0, 1, 1, 0]
    ratios = [p[x] / q[x] for x in path]
    token, starts = [F(1)], []
    for i, ratio in enumerate(ratios):
        token.append(token[-1] * min(F(1), ratio))
        starts.append([F(1)])
        for factor in ratios[i:]:
            starts[i].append(starts[i][-1] * factor)
    for j, products in enumerate(starts):
        label = "p(x)/q(x), multiplied from each place on" if j == 0 else None
        places = range(j, j + len(products))
        axes.plot(places, [float(x) for x in products], color=OTHER, label=label, lw=0.9)
    weights = [F(1)]
    for ratio in ratios:
        weights.append(min(F(1), weights[-1] * ratio))
    lowest = [min([F(1)] + [starts[j][i - j] for j in range(i)]) for i in range(len(path) + 1)]
    assert weights == lowest
    axes.plot(
        range(7),
        [float(w) for w in weights],
        "-o",
        color=ACCEPTED,
        label="w: keeps i tokens, by blocks",
        lw=2,
    )
    axes.plot(
        range(7),
        [float(v) for v in token],
        "--s",
        color=DRAFT,
        label="v: keeps i tokens, token by token",
    )
    axes.set(yscale="log", ylim=(0.02, 60), ylabel="weight")
    axes.set_xticks(range(7), ["start", *(f"{i}: token {x}" for i, x in enumerate(path, 1))])
    axes.legend(loc="upper left")
    return figure


def most() -> Figure:
    """Theorem 7.9: what rules keep of two paths of two tokens, over the most that any could."""
    parents, random = (-1, 0, 0, 1, 2), Random(1)

    def model() -> exact.Model:
        @cache
        def row(prefix: exact.Tokens) -> exact.Dist:
            return exact.norm([F(random.randint(1, 12) ** 2) for _ in range(3)])

        return row

    by_tree, by_node = exact.TREE_RULES, exact.expected_accepted
    rules = {
        "RRSw, without replacement": lambda *m: by_node(exact.rrsw, exact.without_replacement, *m),
        "traversal, without replacement": lambda *m: exact.mean_accepted(
            by_tree["traversal"].outcomes("WITHOUT_REPLACEMENT", *m)
        ),
        "RRS, two paths": lambda *m: exact.mean_accepted(exact.paths_outcomes(exact.rrs, *m)),
        "traversal, two paths": lambda *m: exact.mean_accepted(
            by_tree["traversal"].outcomes("IID", *m)
        ),
        "GBV, two paths": lambda *m: exact.mean_accepted(by_tree["gbv"].outcomes("IID", *m)),
    }
    shares: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(24):
        given = model(), model(), parents
        best = {s: analysis.tree_optimum(*given, s) for s in ("iid", "without")}
        for name, kept in rules.items():
            scheme = "without" if name.endswith("replacement") else "iid"
            shares[name].append(float(kept(*given)) / best[scheme])
    assert max(map(max, shares.values())) < 1 + 1e-9
    figure, (axes,) = sheet(1, 2.8)
    for y, values in enumerate(reversed(shares.values())):
        axes.plot(values, [y] * len(values), "o", color=ACCEPTED, alpha=0.45, mec="none")
        axes.plot(np.median(values), y, "|", color=INK, ms=18)
        axes.annotate(f"median {np.median(values):.2f}", (1.02, y), va="center", fontsize=9)
    axes.set_yticks(range(len(rules)), list(reversed(shares)))
    axes.axvline(1, color=OTHER)
    axes.set(
        xlabel="E[N] over the most that any lossless rule keeps",
        xlim=(None, 1.12),
        ylim=(-0.6, len(rules) - 0.4),
        xticks=np.arange(0.75, 1.01, 0.05),
    )
    return figure


def wrong() -> Figure:
    """Page 8: rules that are almost right, how far off they are and what they accept."""
    figure, (axes,) = sheet(1, 5.4)
    rows = []
    for mutant in wrong_rules.AT_ONE_NODE:
        drawn = exact.SCHEMES[mutant.scheme]
        rate = exact.acceptance(mutant.node, drawn, P, Q, mutant.k)
        rows.append((float(exact.tv(mutant.output(P, Q), P)), float(rate), mutant.wrong))
    rows.sort()
    places = range(len(rows))
    axes.barh(
        places, [off for off, _, _ in rows], color=REJECTED, hatch=HATCHES[REJECTED], edgecolor=INK
    )
    for y, (off, rate, _) in enumerate(rows):
        axes.text(off + 0.004, y, f"{off:.3f}, accepts {rate:.2f}", va="center")
    axes.set_yticks(places, [textwrap.fill(name, 52) for _, _, name in rows], fontsize=8)
    axes.set(xlabel="total variation between output and p", xlim=(0, 1.45 * rows[-1][0]))
    axes.tick_params(axis="y", length=0)
    return figure


def shared() -> Figure:
    """Theorem 7.8: what shared noise accepts where candidates are drawn, by the shipped results."""
    rows = json.loads((data_dir() / "results" / "acceptance-lab.json").read_text("utf-8"))["rows"]
    found = {
        (row["temperature"], row["rule"], row["k"]): row for row in rows if row["domain"] == "all"
    }
    temperatures, ks = sorted({t for t, _, _ in found}), sorted({k for _, _, k in found})
    figure, panels = sheet(len(temperatures), 2.7)
    for axes, temperature in zip(panels, temperatures, strict=True):
        of = {rule: [found[temperature, rule, k] for k in ks] for rule in ("rrsw", "exact_text")}
        lines = (
            ([row["optimum"] for row in of["rrsw"]], "optimum", MARK, ":", ""),
            ([row["mean"] for row in of["exact_text"]], "shared noise", FIRST, "-", "o"),
            ([row["mean"] for row in of["rrsw"]], "RRSw", INK, "--", "s"),
        )
        for heights, label, colour, dash, marker in lines:
            axes.plot(range(len(ks)), heights, dash, color=colour, marker=marker, label=label)
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        axes.set(title=f"T = {temperature:g}", xlabel="candidates K", ylim=(0.45, 0.95))
    panels[0].set_ylabel("accepted")
    panels[-1].legend(loc="lower right")
    return figure


PICTURES = (
    rejection,
    overlap,
    tokens_a_round,
    speedup,
    stages,
    level,
    cut,
    arrivals,
    kseq,
    ordering,
    tree,
    growth,
    block,
    shared,
    most,
    wrong,
    *METHODS,
)


def draw(folder: Path) -> None:
    """Draws every picture into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        save(picture(), folder / f"{picture.__name__}.svg")


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("pictures")
    draw(place)
    print(place)
