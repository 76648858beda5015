"""Static, dynamic and best trees on the lab family.

    python benchmarks/trees.py [--prompts N] [--out FILE]

1. Rates: how often the candidate of rank r is accepted at depth d, sampled without replacement and
   verified by RRSw (prompt set "tune").
2. Tau of some trees predicted from these rates, and measured (prompt set "lab").
3. Expected accepted tokens by the point-mass rule, for every number of draft nodes, where nothing
   is sampled but the text: at every 12th token of texts that the target wrote at T = 1, p and q of
       all nodes are computed. Trees of the draft's top tokens: a chain, binary, the best static
       tree (for rates of the other positions), the likeliest paths under q (dynamic; for greedy
       decoding also under a sharper q), the likeliest under p (the bound).

Lesson 4 and the notebook on trees read the result. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

import specwb
from specwb import Tree
from specwb.core.flow import chain
from specwb.core.probability import Sampling
from specwb.lab.cost.calibrate import accepted_by_rank
from specwb.models.questions import interleave, load_prompts
from specwb.theory import analysis

ROOT = Path(__file__).parents[1]
TEMPERATURES = (0.0, 1.0)
WIDE, CHAIN = (8, 4, 2, 2), 8  # trees that rates are measured on
HAND = [(1,) * 2, (1,) * 4, (1,) * 8, (2, 2), (4, 2, 2), (2, 2, 2, 2)]
BUDGETS = (4, 8, 16, 32)  # nodes of best trees, root included
NODES, DEPTH, RANKS = 32, 8, 8
SHARP = (
    0.5  # how likely a token is the target's first choice is another thing than how likely it is
)
EVERY, NEW = 12, 96
STATIC = "static, best for rates"

TokenPath = tuple[int, ...]
Distribution = Callable[[TokenPath], np.ndarray]  # of the token behind a path


def distributions_after(
    model: specwb.Target, text: Sequence[int], temperature: float = 1.0
) -> Distribution:
    """Makes the function ``path -> P(next token | text, path)``, an array ``[V]``.

    The text is processed once; a path is scored as a chain behind it.
    """
    with torch.inference_mode():
        state = model.open([list(text)], [NODES], 1, Sampling(temperature), ())

    @cache
    def distribution(path: TokenPath) -> np.ndarray:
        tokens = torch.tensor([[text[-1], *path]], device=model.device)
        last = torch.tensor([len(path)], device=model.device)
        with torch.inference_mode():
            return model.score(state, chain(tokens)).p(last)[0].cpu().numpy()

    return distribution


# ----------------------------------------------------------------------------- sampled candidates


def pooled(rates: list[list[float]]) -> list[float]:
    """Returns rates by rank alone.

    They are those of all depths, weighted by how often a walk came there.
    """
    reach = analysis.reach([sum(row) for row in rates])
    by_rank = []
    for rank in range(max(map(len, rates))):
        pairs = [(row[rank], weight) for row, weight in zip(rates, reach) if rank < len(row)]
        total = sum(weight for _, weight in pairs)
        by_rank.append(sum(rate * weight for rate, weight in pairs) / total)
    return by_rank


def measured_tau(
    target: specwb.Target, rows: Sequence[Sequence[int]], tree: Tree, temperature: float
) -> tuple[float, float]:
    """Returns tau and its standard error.

    A row's last step is left out, since the limit may have cut it.
    """
    settings = {"tree": tree, "temperature": temperature, "max_new_tokens": NEW}
    lengths: list[int] = []
    for row in rows:
        out = specwb.decode(target, row, "mcsd", **settings)
        lengths += out.accepted_lengths[0][:-1]
    return 1 + fmean(lengths), stdev(lengths) / len(lengths) ** 0.5


def measure_sampled(target: specwb.Target, tune: list, lab: list) -> list[dict]:
    """Measures rates and taus, at both temperatures."""
    results = []
    for temperature in TEMPERATURES:
        shared = {"max_new_tokens": NEW, "temperature": temperature}
        wide = accepted_by_rank(target, tune, "mcsd", tree=WIDE, **shared)
        by_rank = pooled([row[:k] for row, k in zip(wide, WIDE)])
        chain = [row[0] for row in accepted_by_rank(target, tune, "sps", gamma=CHAIN, **shared)]
        trees = {"-".join(map(str, ks)): Tree.branching(*ks) for ks in HAND}
        for n in BUDGETS:
            trees[f"best of {n} nodes"] = Tree.parents(analysis.best_tree(by_rank, n))
        rows = []
        for name, tree in trees.items():
            tau, error = measured_tau(target, lab, tree, temperature)
            predicted = float(sum(analysis.tree_reach(by_rank, tree.host[0])))
            row = {
                "tree": name,
                "parents": tree.host[0],
                "predicted": predicted,
                "measured": tau,
                "standard_error": error,
            }
            rows.append(row)
            taus = f"tau predicted {predicted:.2f}, measured {tau:.2f} +- {error:.2f}"
            print(f"T = {temperature:g}  {name:20s} {taus}", flush=True)
        result = {
            "temperature": temperature,
            "chain_by_depth": chain,
            "by_depth_and_rank": wide,
            "by_rank": by_rank,
            "trees": rows,
        }
        results.append(result)
    return results


# ---------------------------------------------------------------------------- deterministic trees


def rank_paths(q_of: Distribution, parents: Sequence[int]) -> list[TokenPath]:
    """Returns a static tree's nodes as paths of the draft's top tokens."""
    tree = Tree.parents(parents)
    top: dict[TokenPath, list[int]] = {}
    paths: list[TokenPath] = [()]
    for node in range(1, tree.n):
        above = paths[parents[node]]
        if above not in top:
            top[above] = np.argsort(-q_of(above), kind="stable")[:RANKS].tolist()
        paths.append((*above, top[above][int(tree.rank[0, node])]))
    return paths[1:]


def likeliest_paths(p_of: Distribution, depth: int = DEPTH, nodes: int = NODES) -> list[TokenPath]:
    """Returns the likeliest paths, best first, so that the first n are the tree of n nodes."""

    def order(path: TokenPath) -> tuple:
        probability = np.prod([p_of(path[:i])[x] for i, x in enumerate(path)])
        return -probability, len(path), path

    return sorted(analysis.dynamic_tree(p_of, nodes, depth, nodes), key=order)


def greedy_path(p_of: Distribution, depth: int) -> TokenPath:
    path: TokenPath = ()
    for _ in range(depth):
        path = (*path, int(p_of(path).argmax()))
    return path


def one_hot(p_of: Distribution) -> Distribution:
    """Returns the distribution of greedy decoding."""

    def greedy(path: TokenPath) -> np.ndarray:
        p = p_of(path)
        return (np.arange(len(p)) == p.argmax()).astype(float)

    return greedy


def expected_accepted(p_of: Distribution, paths: Sequence[TokenPath]) -> np.ndarray:
    """Returns the expected accepted tokens of the first 1, 2, .. ``NODES`` nodes."""
    values = {(): 1.0}
    for path in paths:
        values[path] = values[path[:-1]] * float(p_of(path[:-1])[path[-1]])
    return by_nodes(np.cumsum([values[path] for path in paths]))


def by_nodes(values: Sequence[float]) -> np.ndarray:
    """Returns the values at 1, 2, .. ``NODES`` nodes; behind the last one it stays."""
    return np.array([values[min(n, len(values) - 1)] for n in range(NODES)])


def rank_rates(
    target: specwb.Target, draft: specwb.Target, prompts: list, texts: list
) -> tuple[dict[float, np.ndarray], list]:
    """Returns acceptance rates by rank and temperature, and the texts that trees are judged on.

    Every 12th position is judged; the rates are those of the other positions.
    """
    judged, positions = [], 0
    totals = {0.0: np.zeros(RANKS), 1.0: np.zeros(RANKS)}
    for text, prompt in zip(texts, prompts):
        with torch.inference_mode():
            p, q = (
                model.model(torch.tensor([text])).logits[0].softmax(-1).numpy()
                for model in (target, draft)
            )
        for end in range(len(prompt), len(text)):
            if (end - len(prompt)) % EVERY == 0:
                judged.append(text[:end])
                continue
            positions += 1
            row, top = p[end - 1], np.argsort(-q[end - 1], kind="stable")[:RANKS]
            totals[1.0] += row[top]
            totals[0.0] += top == row.argmax()
    print(f"{positions} positions for rates, {len(judged)} judged", flush=True)
    return {t: total / positions for t, total in totals.items()}, judged


class Curves:
    """Means over texts of what trees of 1, 2, .. ``NODES`` nodes reach, at one temperature."""

    def __init__(self, rates: np.ndarray, texts: int) -> None:
        self.rates, self.texts = rates, texts
        self.static_trees = [
            analysis.best_tree(rates.tolist(), n + 1, DEPTH) for n in range(1, NODES + 1)
        ]
        self.accepted: dict[str, np.ndarray] = {}
        self.depth: dict[str, np.ndarray] = {}
        self.gains: dict[str, list[np.ndarray]] = {}  # of dynamic trees over the static ones
        self.sizes = {STATIC: NODES}  # a chain ends

    def add(self, p_of: Distribution, q_of: Distribution, paths: dict[str, list]) -> None:
        """Adds one text.

        Args:
            p_of: the target's distribution behind a path.
            q_of: the draft's.
            paths: by kind of tree, its nodes in the order in which they are added.
        """
        accepted = {name: expected_accepted(p_of, nodes) for name, nodes in paths.items()}
        depth = {}
        for name, nodes in paths.items():
            depth[name] = np.maximum.accumulate(by_nodes([len(path) for path in nodes]))
            self.sizes[name] = min(NODES, len(nodes))
        statics = [rank_paths(q_of, tree) for tree in self.static_trees]
        expected = [float(analysis.expected_point(p_of, nodes)) for nodes in statics]
        accepted[STATIC] = np.array(expected)
        depth[STATIC] = np.array([max(map(len, nodes)) for nodes in statics])
        for name, values in accepted.items():
            self.accepted[name] = self.accepted.get(name, 0) + values / self.texts
            self.depth[name] = self.depth.get(name, 0) + depth[name] / self.texts
            if name.startswith("dynamic"):
                self.gains.setdefault(name, []).append(values - accepted[STATIC])

    def result(self, temperature: float) -> dict:
        def cut(curves: dict[str, np.ndarray]) -> dict[str, list]:
            return {name: values[: self.sizes[name]].tolist() for name, values in curves.items()}

        def error(rows: list[np.ndarray]) -> list[float]:
            return (np.std(rows, axis=0, ddof=1) / self.texts**0.5).tolist()

        return {
            "temperature": temperature,
            "positions": self.texts,
            "by_rank": self.rates.tolist(),
            "accepted": cut(self.accepted),
            "depth": cut(self.depth),
            "standard_error_of_dynamic_minus_static": {
                name: error(rows) for name, rows in self.gains.items()
            },
        }


def measure_positions(target: specwb.Target, draft: specwb.Target, tune: list) -> list[dict]:
    """Computes the expected accepted tokens of all trees, at both temperatures."""
    settings = {"temperature": 1.0, "max_new_tokens": NEW, "eos": ()}
    texts = [row + specwb.decode(target, row, "ar", **settings).tokens[0] for row in tune]
    rates, judged = rank_rates(target, draft, tune, texts)
    curves = {temperature: Curves(by_rank, len(judged)) for temperature, by_rank in rates.items()}
    binary = Tree.branching(2, 2, 2, 2).host[0]
    for number, text in enumerate(judged, 1):
        p_of, q_of = distributions_after(target, text), distributions_after(draft, text)
        greedy_of, sharp_of = one_hot(p_of), distributions_after(draft, text, SHARP)
        paths = {
            "chain": rank_paths(q_of, range(-1, DEPTH)),
            "binary": rank_paths(q_of, binary),
            "dynamic, by q": likeliest_paths(q_of),
        }
        best = greedy_path(greedy_of, DEPTH)
        greedy_paths = {
            **paths,
            "bound, by p": [best[: d + 1] for d in range(DEPTH)],
            f"dynamic, by q at T = {SHARP}": likeliest_paths(sharp_of),
        }
        curves[0.0].add(greedy_of, q_of, greedy_paths)
        curves[1.0].add(p_of, q_of, {**paths, "bound, by p": likeliest_paths(p_of)})
        if number % 12 == 0:
            print(f"{number} of {len(judged)}", flush=True)
    return [curve.result(temperature) for temperature, curve in curves.items()]


# --------------------------------------------------------------------------------------- the file


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prompts", type=int, default=24, help="how many prompts tau is measured on"
    )
    out = ROOT / "data" / "results" / "trees-lab.json"
    parser.add_argument("--out", type=Path, default=out)
    args = parser.parse_args()
    target = specwb.load("lab", device="cpu")
    draft = specwb.load("lab-draft", device="cpu")
    tune, lab = (
        [question.ids(target.tokenizer) for question in interleave(load_prompts(name))]
        for name in ("tune", "lab")
    )
    options = f" --prompts {args.prompts}" if args.prompts != 24 else ""
    result = {
        "command": f"python benchmarks/trees.py{options}",
        "models": [target.name, draft.name],
        "new_tokens": NEW,
        "measured_on_tree": WIDE,
        "measured_on_chain": CHAIN,
        "sampled": measure_sampled(target, tune, lab[: args.prompts]),
        "deterministic": measure_positions(target, draft, tune),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(rounded(result), indent=1) + "\n")
    print(f"written to {args.out}")


def rounded(x):
    if isinstance(x, float):
        return round(x, 5)
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list | tuple) else x


if __name__ == "__main__":
    main()
