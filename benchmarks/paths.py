"""What chooses a path through a diffusion drafter's lattice: n-grams or a learned score.

    python benchmarks/paths.py [--target lab] [--prompts 48] [--places 3] [--tokens 64]
        [--path FOLDER] [--out FILE]

First the tokens kept at T = 0 of the k that one pass drafts, at ``--places`` places of the target's
own greedy text behind every prompt: ``row`` takes the best token of each place, ``own`` is the
paper's search with n-grams that were counted beforehand, ``cps`` the same with those of the text
as well (the default), ``pair`` is the greedy walk by the learned score, and ``lattice`` is the most
that any path through the M candidates keeps. Before that stand two shares of the target's next
tokens: of those that follow the token before them as they did earlier in the text
(``follows_again``), and of those that are among the best candidates of their place (``recall``, by
how many and by place). Then tau of whole decodings at T = 0 (one path) and T = 1 (row and walk are
drawn, own and cps are point masses). Ratios are to cps; 95 % intervals are over prompts
(bootstrap). Last the time of a walk next to a plain step.

``--path FOLDER`` has the scorer in ``FOLDER/pair`` (default: the target's own, ``data/lab/path``):
one, or several that were trained with different seeds. Then its number for a prompt is the mean
over its runs, behind its interval stand the lowest and the highest run, and ``--out`` has each
run's mean.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

import specwb
from specwb.core.files import weights_hash
from specwb.drafters.diffuspec_parts.proxy import read_along
from specwb.engine.machine import commit
from specwb.lab.bench.conditions import conditions
from specwb.lab.bench.statistics import bootstrap, interval
from specwb.lab.evaluation import lattices
from specwb.models.diffusion import load_diffusion
from specwb.models.path import KIND, load_path
from specwb.models.questions import interleave, load_prompts


def cell(record: list[dict], runs: np.ndarray, reference: np.ndarray, **what: object) -> str:
    """Notes the mean of ``runs [R, prompts]``, its ratio to the reference's and each run's mean,
    and writes them."""
    values, means = runs.mean(0), runs.mean(1)
    found, (low, high) = bootstrap(np.stack([values, reference.mean(0)])), interval(values)
    numbers = {"mean": values.mean(), "low": low, "high": high}
    record.append(
        {
            **what,
            **{name: round(float(x), 4) for name, x in numbers.items()},
            "ratio": [round(x, 4) for x in found],
            "runs": [round(float(x), 4) for x in means],
        }
    )
    words = f"{values.mean():.2f}"
    if runs is not reference:
        words += " x{:.2f} ({:.2f}-{:.2f})".format(*found)
    return words + (f" [{means.min():.2f}..{means.max():.2f}]" if len(means) > 1 else "")


def places_along(target: specwb.Target, prompts: list[list[int]], each: int) -> list[list[int]]:
    """Texts that end at places spread over the target's greedy continuations: one behind every
    prompt, then again, ``each`` times."""
    written = specwb.decode(target, prompts, "ar", max_new_tokens=12 * each, eos=()).tokens
    return [
        [*prompt, *row[: 1 + (i + 12 * j) % (12 * each)]]
        for j in range(each)
        for i, (prompt, row) in enumerate(zip(prompts, written, strict=True))
    ]


def follows_again(place: lattices.BlockCandidates) -> list[bool]:
    """Tells of every token that the target writes next whether it follows the token before it as
    it did earlier in the text."""
    pairs = list(pairwise([*place.text, *place.greedy]))
    first = len(place.text) - 1
    return [pair in pairs[: first + i] for i, pair in enumerate(pairs[first:])]


def recall(places: list[lattices.BlockCandidates], top: int) -> list[float]:
    """The share of the target's tokens that are among the ``top`` best candidates, by place."""
    k = max(len(place.ranks) for place in places)
    by_place = [[p.ranks[i] < top for p in places if i < len(p.ranks)] for i in range(k)]
    return [round(float(np.mean(row)), 4) for row in by_place]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="lab")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--places", type=int, default=3, help="behind every prompt")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--k", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--top", type=int, nargs="*", default=[4, 15])
    parser.add_argument("--path", type=Path, help="the scorer of each training run, in FOLDER/pair")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    target, console = specwb.load(options.target), Console(width=130)
    folder = target.own_head("diffusion")
    assert folder is not None, f"{options.target} has no diffusion model"
    model = load_diffusion(folder, target)
    trained = options.path or folder.parent / "path"
    # one folder for each training run
    folders = [config.parent for config in sorted((trained / KIND).rglob("config.json"))]
    scorers = [load_path(folder, target, model) for folder in folders]
    questions = interleave(load_prompts("lab" if options.target == "lab" else "chat"))
    prompts = [q.ids(target.tokenizer) for q in questions[: options.prompts]]
    sums = [weights_hash(folder) for folder in folders]
    on = conditions(target)
    where = {"system": "paths", **on["models"], "device": on["device"], "dtype": on["dtype"]}
    where |= {"sha256": target.sha256, "scorers": sums}
    command = shlex.join(["python", "benchmarks/paths.py", *sys.argv[1:]])
    record: dict = {"arguments": where, "command": command, "commit": commit()}
    record |= {"prompts": len(prompts), "places": options.places}
    record |= {"kept": [], "tau": [], "walk": {}}
    searches = {
        "own": specwb.method("diffuspec", target, k=max(options.k), ngram="own"),
        "cps": specwb.method("diffuspec", target, k=max(options.k)),
    }

    texts = places_along(target, prompts, options.places)
    longest = lattices.places(target, model, texts, k=max(options.k), top=max(options.top))
    told = [seen for place in longest for seen in follows_again(place)]
    record["follows_again"] = round(sum(told) / len(told), 4)
    record["recall"] = {top: recall(longest, top) for top in (1, *options.top)}
    console.print({name: record[name] for name in ("follows_again", "recall")})
    table = Table("k", "M", "row", *searches, KIND, "lattice", title="tokens kept, T = 0")
    for k in options.k:
        sample = lattices.places(target, model, texts, k=k, top=max(options.top))
        for top in options.top:
            names = ("row", *searches, KIND, "lattice")
            kept: dict[str, list] = {name: [] for name in names}
            for place in sample:
                for name, method in searches.items():
                    proxy = method.drafter.proxy()
                    read_along(proxy, place.text)
                    row = lattices.lengths([place], proxy, top=top).iloc[0]
                    kept[name].append(row["beam"])
                kept["row"].append(row["row"])
                kept["lattice"].append(row["top"])
                kept[KIND].append([place.kept(place.walk(one, top)) for one in scorers])
            arrays = {  # [runs, prompts]: the mean over the places behind a prompt
                name: np.array(values, dtype=float)
                .reshape(options.places, len(prompts), -1)
                .mean(0)
                .T
                for name, values in kept.items()
            }
            cells = [
                cell(record["kept"], runs, arrays["cps"], k=k, M=top, score=name)
                for name, runs in arrays.items()
            ]
            table.add_row(str(k), str(top), *cells)
    console.print(table)

    table = Table("T", "k", "row", *searches, KIND, title="tau of whole decodings")
    for temperature in (0.0, 1.0):
        for k in options.k:
            drawn: dict = {"draw": "sample"} if temperature else {}
            ways: dict[str, list[dict]] = {
                "none": [drawn or {"score": "none"}],
                "own": [{"ngram": "own"}],
                "cps": [{}],
                KIND: [{**drawn, "score": one} for one in scorers],
            }
            taus = {}
            for name, settings in ways.items():
                counts = [
                    specwb.decode(
                        target,
                        prompts,
                        specwb.method("diffuspec", target, k=k, **setting),
                        max_new_tokens=options.tokens,
                        temperature=temperature,
                        seed=list(range(len(prompts))),
                        eos=(),
                    ).step_counts
                    for setting in settings
                ]
                taus[name] = options.tokens / np.array(counts, dtype=float)
            cells = [
                cell(record["tau"], runs, taus["cps"], T=temperature, k=k, score=name)
                for name, runs in taus.items()
            ]
            table.add_row(f"{temperature:g}", str(k), *cells)
    console.print(table)

    place = lattices.places(target, model, texts[:1], k=8, top=max(options.top))[0]
    record["walk"][KIND] = timed(lambda: place.walk(scorers[0]))
    began = time.perf_counter()
    specwb.decode(target, prompts[:1], "ar", max_new_tokens=options.tokens, eos=())
    record["walk"]["plain step"] = (time.perf_counter() - began) / options.tokens
    console.print({name: f"{1e3 * seconds:.2f} ms" for name, seconds in record["walk"].items()})
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def timed(work) -> float:
    """The median seconds of 50 calls, after 5."""
    seconds = []
    for _ in range(55):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return median(seconds[5:])


if __name__ == "__main__":
    main()
