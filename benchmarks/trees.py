"""Static, dynamic and best trees on the lab family. python benchmarks/trees.py [--prompts N] [--out FILE]

1. Rates: how often the candidate of rank r is accepted at depth d, sampled without replacement and verified by RRSw (prompt set "tune").
2. Tau of some trees predicted from these rates, and measured (prompt set "lab").
3. Expected accepted tokens by the point-mass rule, for every number of drafted nodes, where nothing is sampled but the text: at every 12th token
   of texts that the target wrote at T = 1, p and q of all nodes are computed. Trees of the draft's top tokens: a chain, binary, the best static
   tree (for rates of the other positions), the likeliest paths under q (dynamic; for greedy decoding also under a sharper q), the likeliest
   under p (the bound).

Notebook 03 reads the result. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

import specwb
from specwb import Tree, analysis
from specwb.evaluation.cost import accepted_by_rank
from specwb.evaluation.distributions import distributions_after
from specwb.evaluation.prompts import interleave, load_prompts

ROOT = Path(__file__).parents[1]
TEMPERATURES = (0.0, 1.0)
WIDE, CHAIN = (8, 4, 2, 2), 8  # trees that rates are measured on
HAND = [(1,) * 2, (1,) * 4, (1,) * 8, (2, 2), (4, 2, 2), (2, 2, 2, 2)]
BUDGETS = (4, 8, 16, 32)  # nodes of best trees, root included
NODES, DEPTH, RANKS = 32, 8, 8
SHARP = 0.5  # how likely a token is the target's first choice is another thing than how likely it is
EVERY, NEW = 12, 96


def pooled(rates: list[list[float]]) -> list[float]:
    """Rates by rank alone: those of all depths, weighted by how often a walk came there."""
    came = analysis.reach([sum(row) for row in rates])
    had = [[(row[r], weight) for row, weight in zip(rates, came) if r < len(row)] for r in range(max(map(len, rates)))]
    return [sum(rate * weight for rate, weight in pairs) / sum(weight for _, weight in pairs) for pairs in had]


def measured_tau(target: specwb.Target, rows: Sequence[Sequence[int]], tree: Tree, temperature: float) -> tuple[float, float]:
    """Tau and its standard error; a row's last round is left out, since the limit may have cut it."""
    out = [specwb.decode(target, row, "mcsd", tree=tree, temperature=temperature, max_new_tokens=NEW).accepted_lengths[0][:-1] for row in rows]
    lengths = [n for row in out for n in row]
    return 1 + fmean(lengths), stdev(lengths) / len(lengths) ** 0.5


def decoded(target: specwb.Target, tune: list, lab: list) -> list[dict]:
    found = []
    for temperature in TEMPERATURES:
        shared = {"max_new_tokens": NEW, "temperature": temperature}
        wide = accepted_by_rank(target, tune, "mcsd", tree=WIDE, **shared)
        by_rank = pooled([row[:k] for row, k in zip(wide, WIDE)])
        chain = [row[0] for row in accepted_by_rank(target, tune, "sps", gamma=CHAIN, **shared)]
        trees = {"-".join(map(str, ks)): Tree.branching(*ks) for ks in HAND}
        trees |= {f"best of {n} nodes": Tree.parents(analysis.best_tree(by_rank, n)) for n in BUDGETS}
        rows = []
        for name, tree in trees.items():
            tau, error = measured_tau(target, lab, tree, temperature)
            predicted = float(sum(analysis.tree_reach(by_rank, tree.host[0])))
            rows.append({"tree": name, "parents": tree.host[0], "predicted": predicted, "measured": tau, "standard_error": error})
            print(f"T = {temperature:g}  {name:20s} tau predicted {predicted:.2f}, measured {tau:.2f} +- {error:.2f}", flush=True)
        found.append({"temperature": temperature, "chain_by_depth": chain, "by_depth_and_rank": wide, "by_rank": by_rank, "trees": rows})
    return found


def rank_paths(q_of, parents: Sequence[int]) -> list[tuple[int, ...]]:
    """A static tree's nodes as paths of the draft's top tokens."""
    tree = Tree.parents(parents)
    best = {}
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, tree.n):
        above = paths[parents[node]]
        if above not in best:
            best[above] = np.argsort(-q_of(above), kind="stable")[:RANKS].tolist()
        paths.append((*above, best[above][int(tree.rank[0, node])]))
    return paths[1:]


def positions(target: specwb.Target, draft: specwb.Target, tune: list) -> list[dict]:
    texts = [row + specwb.decode(target, row, "ar", temperature=1.0, max_new_tokens=NEW, eos=()).tokens[0] for row in tune]
    judged, fitted = [], 0
    by_rank = {0.0: np.zeros(RANKS), 1.0: np.zeros(RANKS)}
    for text, row in zip(texts, tune):
        with torch.inference_mode():
            p, q = (model.model(torch.tensor([text])).logits[0].softmax(-1).numpy() for model in (target, draft))
        for end in range(len(row), len(text)):
            if (end - len(row)) % EVERY == 0:
                judged.append(text[:end])
                continue
            fitted += 1
            law, top = p[end - 1], np.argsort(-q[end - 1], kind="stable")[:RANKS]
            by_rank[1.0] += law[top]
            by_rank[0.0] += top == law.argmax()
    by_rank = {t: total / fitted for t, total in by_rank.items()}
    print(f"{fitted} positions for rates, {len(judged)} judged", flush=True)

    best_trees = {t: [analysis.best_tree(rates.tolist(), n + 1, DEPTH) for n in range(1, NODES + 1)] for t, rates in by_rank.items()}
    sums: dict[float, dict[str, np.ndarray]] = {t: {} for t in by_rank}
    deep: dict[float, dict[str, np.ndarray]] = {t: {} for t in by_rank}
    ahead: dict[float, dict[str, list[np.ndarray]]] = {t: {} for t in by_rank}
    sizes: dict[str, int] = {}  # a chain ends
    for at, text in enumerate(judged, 1):
        warm, q_of = distributions_after(target, text), distributions_after(draft, text)

        def greedy(prefix, warm=warm):
            law = warm(prefix)
            return (np.arange(len(law)) == law.argmax()).astype(float)

        grown = ranked(q_of, analysis.dynamic_tree(q_of, NODES, DEPTH, NODES))
        best = ranked(warm, analysis.dynamic_tree(warm, NODES, DEPTH, NODES))
        for t, p_of in ((0.0, greedy), (1.0, warm)):
            order = {
                "chain": rank_paths(q_of, range(-1, DEPTH)),
                "binary": rank_paths(q_of, Tree.branching(2, 2, 2, 2).host[0]),
                "dynamic, by q": grown,
                "bound, by p": best if t else [greedy_path(greedy, DEPTH)[: d + 1] for d in range(DEPTH)],
            }
            if not t:
                sharp = distributions_after(draft, text, SHARP)
                order[f"dynamic, by q at T = {SHARP}"] = ranked(sharp, analysis.dynamic_tree(sharp, NODES, DEPTH, NODES))
            curves = {name: gained(p_of, paths) for name, paths in order.items()}
            depths = {name: np.maximum.accumulate(stretched([len(path) for path in paths])) for name, paths in order.items()}
            sizes |= {f"{name} {t}": min(NODES, len(paths)) for name, paths in order.items()}
            statics = [rank_paths(q_of, tree) for tree in best_trees[t]]
            curves["static, best for rates"] = np.array([float(analysis.expected_point(p_of, paths)) for paths in statics])
            depths["static, best for rates"] = np.array([max(map(len, paths)) for paths in statics])
            for name, values in curves.items():
                sums[t][name] = sums[t].get(name, 0) + values / len(judged)
                deep[t][name] = deep[t].get(name, 0) + depths[name] / len(judged)
                if name.startswith("dynamic"):
                    ahead[t].setdefault(name, []).append(values - curves["static, best for rates"])
        if at % 12 == 0:
            print(f"{at} of {len(judged)}", flush=True)
    return [
        {
            "temperature": t,
            "positions": len(judged),
            "by_rank": by_rank[t].tolist(),
            "accepted": {name: values[: sizes.get(f"{name} {t}", NODES)].tolist() for name, values in sums[t].items()},
            "depth": {name: values[: sizes.get(f"{name} {t}", NODES)].tolist() for name, values in deep[t].items()},
            "standard_error_of_dynamic_minus_static": {
                name: (np.std(rows, axis=0, ddof=1) / len(judged) ** 0.5).tolist() for name, rows in ahead[t].items()
            },
        }
        for t in by_rank
    ]


def ranked(law, paths: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Likeliest first, so that the first n are the tree of n nodes."""
    return sorted(paths, key=lambda path: (-np.prod([law(path[:i])[x] for i, x in enumerate(path)]), len(path), path))


def greedy_path(law, depth: int) -> tuple[int, ...]:
    path: tuple[int, ...] = ()
    for _ in range(depth):
        path = (*path, int(law(path).argmax()))
    return path


def gained(p_of, paths: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Expected accepted tokens of the first 1, 2, .. ``NODES`` nodes; fewer nodes than that stay what they are."""
    values = {(): 1.0}
    for path in paths:
        values[path] = values[path[:-1]] * float(p_of(path[:-1])[path[-1]])
    return stretched(np.cumsum([values[path] for path in paths]))


def stretched(values: Sequence[float]) -> np.ndarray:
    """At 1, 2, .. ``NODES`` nodes."""
    return np.array([values[min(n, len(values) - 1)] for n in range(NODES)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=24, help="how many prompts tau is measured on")
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "results" / "trees-lab.json")
    args = parser.parse_args()
    target, draft = specwb.load("lab", device="cpu"), specwb.load("lab-draft", device="cpu")
    tune, lab = ([q.ids(target.tokenizer) for q in interleave(load_prompts(name))] for name in ("tune", "lab"))
    result = {
        "command": "python benchmarks/trees.py" + (f" --prompts {args.prompts}" if args.prompts != 24 else ""),
        "models": [target.name, draft.name], "new_tokens": NEW, "measured_on_tree": WIDE, "measured_on_chain": CHAIN,
        "sampled": decoded(target, tune, lab[: args.prompts]),
        "deterministic": positions(target, draft, tune),
    }  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(rounded(result), indent=1) + "\n")
    print(f"written to {args.out}")


def rounded(x):
    if isinstance(x, float):
        return round(x, 5)
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    return [rounded(v) for v in x] if isinstance(x, list | tuple) else x


if __name__ == "__main__":
    main()
