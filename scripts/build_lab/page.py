"""The family's README, from the files of a build: what was trained on what, and how well."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from specwb.core.files import OBJECT, document
from specwb.training.generate import TEMPERATURES
from specwb.training.heads import RECIPES

DOMAINS = ("code", "math", "prose")


def model_card(out: Path) -> str:
    """The family's README, from the files that the build wrote."""
    corpus = document(out / "corpus.json", {"required": ["mixture", "sources"], **OBJECT})
    models = {name: read_card(out / name) for name in ("target", "draft")}
    lines = [
        "# The lab family",
        "",
        "Small models trained on real text so that every method runs with real acceptance,",
        "offline, on any machine. They are for studying decoding, not for their answers. Layout:",
        "`target/`, `draft/` (each loads with `from_pretrained`, fp16 safetensors), `recipe.toml`,",
        "`corpus.json` (every source with counts and sha256).",
    ]
    rows = []
    for name, card in models.items():
        loss = " / ".join(f"{card['held_out_loss'][d]:.2f}" for d in DOMAINS)
        before = f" (and {card['tokens_before']:,} before)" if card.get("tokens_before") else ""
        tokens = f"{card['tokens']:,}{before}"
        rows.append([name, *_facts(out / name, card), tokens, loss, card["sha256"][:12]])
    lines += table(
        "model | parameters | files | budget, device | steps | tokens seen | "
        "held-out loss code / math / prose (nats per token) | sha256",
        rows,
    )
    lines += loops_card(models["target"])
    lines += ["", "Agreement of draft and target on held-out text (per token):"]
    agreement = models["draft"]["acceptance"].items()
    lines += table(
        "domain | greedy | sampled, T = 1",
        [(domain, f"{x['greedy']:.3f}", f"{x['sampled']:.3f}") for domain, x in agreement],
    )
    # the family's draft model is none of its heads, though there is a kind of that name
    kinds = [kind for kind in RECIPES if kind not in models]
    heads = {kind: read_card(out / kind) for kind in kinds if (out / kind / "card.json").exists()}
    lines += head_card(out, [card for kind, card in heads.items() if kind != "decision"])
    lines += budget_card([card for kind, card in heads.items() if kind != "decision"])
    if "decision" in heads:
        lines += decision_card(heads["decision"])
    if (out / "ngram" / "card.json").exists():
        lines += ngram_card(read_card(out / "ngram"))
    lines += ["", _build_line(models, corpus["mixture"])]
    if (out / "samples.json").exists():
        lines += samples_card(document(out / "samples.json", {"type": "array"}))
    lines += ["", "## Text"]
    rows = []
    for source in corpus["sources"]:
        use = "held out" if source["held_out"] else "training"
        counts = source["documents"], f"{source['tokens']:,}", source["sha256"][:12]
        rows.append([source["source"], source["domain"], source["licence"], use, *counts])
    lines += table("source | domain | licence | use | documents | tokens | sha256", rows)
    return "\n".join([*lines, ""])


def _facts(folder: Path, card: dict) -> list[str]:
    """What every table of trained things says: parameters, size of the files, budget."""
    place = f"{card['budget']}, {card['device']}"
    return [f"{card['parameters']:,}", f"{megabytes(folder):.1f} MB", place, card["steps"]]


def loops_card(card: dict) -> list[str]:
    if "before_cure" not in card:
        return []
    cure, rows = card["cure"], []
    for name, facts in (("before", card["before_cure"]), ("after", card)):
        loss = " / ".join(f"{facts['held_out_loss'][d]:.2f}" for d in DOMAINS)
        share = " / ".join(f"{facts['loops'][d]:.0%}" for d in DOMAINS)
        rows.append([name, loss, share, f"{facts['prompt_loops']:.0%}"])
    header = " | held-out loss code / math / prose | loops code / math / prose | loops, prompts"
    return [
        "",
        f"Greedy text of small models soon repeats itself. The target's last {cure['steps']} steps",
        "were to cure that (`scripts/build_lab/loops.py`): beside ordinary text, held to its",
        "former distribution, it read what it wrote itself, greedily, and unlearnt every token",
        f"that would write some {cure['n']} tokens once more that it had written",
        f"{cure['times']} times.",
        "A text loops if in 128 tokens some 8 tokens come three times; the prompts are the 48 of",
        "`data/prompts/lab.jsonl`, the others 24 tokens of held-out text.",
        *table(header, rows),
    ]


def head_card(out: Path, heads: list[dict]) -> list[str]:
    """The lines about the trained heads, from their cards: what each saw, and how often its best
    token at every depth is the target's."""
    if not heads:
        return []
    rows = []
    for card in heads:
        ranks = [card["held_out"][domain]["rank"] for domain in DOMAINS]
        accuracy = [" ".join(f"{row[0]:.2f}" for row in rank) for rank in ranks]
        facts = _facts(out / card["name"], card)
        rows.append([card["name"], *facts, f"{card['tokens']:,}", *accuracy, card["sha256"][:12]])
    return [
        "",
        "Trained heads over the frozen target (`medusa/`, `eagle/`, .., each in its published",
        "layout). Accuracy: share of held-out positions where the head's best token at depth 1, 2,",
        ".. is the target's, the text before being the windows' own.",
        *table(
            "head | parameters | files | budget, device | steps | tokens seen | "
            "accuracy by depth: code | math | prose | sha256",
            rows,
        ),
        "",
        "Each by `specwb train NAME` (options and steps in `recipe.toml`), three of four rows of a",
        "batch text that the target wrote, learning the target's distribution at every position;",
        "features are computed on the fly. Sizes and vocabularies differ: the table does not rank",
        "the methods.",
    ]


def budget_card(heads: list[dict]) -> list[str]:
    """A table of all heads at one budget of tokens and one of time, the least that a head had.

    What a head could do by then is its last measurement before, when the learning rate was not yet
    lowered as it is at the end. Heads without times are left out."""
    timed = [card for card in heads if card.get("step_seconds")]
    if len(timed) < 2:
        return []
    tokens = min(card["tokens"] for card in timed)
    seconds = min(card["steps"] * card["step_seconds"] for card in timed)
    rows = [
        (
            card["name"],
            f"{card['step_seconds']:.2f}",
            _accuracy_at(card, tokens / (card["tokens"] / card["steps"])),
            _accuracy_at(card, seconds / card["step_seconds"]),
        )
        for card in timed
    ]
    return [
        "",
        "The same at one budget of tokens and at one of time, mean over the domains, by what the",
        "training measured on the way (in brackets the step). The time is that of the head which",
        "took least, by the median seconds of a step where all were trained, one after another.",
        *table(f"head | seconds a step | {tokens:,} tokens | {seconds / 60:.1f} minutes", rows),
    ]


def _accuracy_at(card: dict, step: float) -> str:
    measured = [entry for entry in card["progress"] if entry[0] <= math.ceil(step - 1e-6)]
    if not measured:
        return "not measured yet"
    last, by_depth = measured[-1]
    return f"{' '.join(f'{x:.2f}' for x in by_depth)} ({last})"


def decision_card(card: dict) -> list[str]:
    """The lines about the decision models: how much better than the mean they predict
    acceptance."""
    domains = card["held_out"].values()
    parts = []
    for kind in ("soft", "hard"):
        loss, base, area = (sum(d[kind][i] for d in domains) / len(domains) for i in range(3))
        comparison = f"{loss:.3f} where the mean has {base:.3f}"
        parts.append(f"{kind} {comparison}, area under the ROC curve {area:.3f}")
    return [
        "",
        "`decision/`: two nets that guess whether a token drafted by the draft model is accepted "
        f"({card['parameters']:,} parameters, {card['steps']} steps, {card['tokens']:,} tokens, "
        f"sha256 {card['sha256'][:12]}), by `specwb train decision`. "
        f"Held-out cross-entropy, mean of the domains: {'; '.join(parts)}.",
    ]


def ngram_card(card: dict) -> list[str]:
    """The lines about the counted n-grams: of what, how many, and how well they predict."""
    nats = "; ".join(f"{domain} {loss['backoff']:.2f}" for domain, loss in card["held_out"].items())
    sizes = " + ".join(f"{n:,}" for n in card["sizes"])
    read, generated = card["tokens"]["read"], card["tokens"]["generated"]
    return [
        "",
        f"`ngram/`: n-grams of 1 to {card['order']} tokens ({sizes}, those of two and more seen "
        f"{card['least']} times or more; {card['bytes'] / 1e6:.1f} MB) of {read:,} tokens read "
        f"and {generated:,} that the target wrote, by `specwb train ngram`. "
        f"Minus the mean score of held-out text, in nats per token: {nats}.",
    ]


def _build_line(models: dict[str, dict], mixture: dict[str, float]) -> str:
    target, draft = models["target"], models["draft"]
    own_text = ""
    if tokens := draft.get("generated"):
        temperatures = ", ".join(map(str, TEMPERATURES))
        own_text = (
            f", half of each batch text that the target wrote ({tokens:,} tokens, "
            f"temperatures {temperatures})"
        )
    domains = ", ".join(f"{domain} {weight:.2f}" for domain, weight in mixture.items())
    return (
        f"Built by `python -m scripts.build_lab --budget {target['budget']}` "
        f"(seed {target['seed']}, torch {target['torch']}, Python {target['python']}; "
        f"{target['started_from']}): "
        f"Muon on matrices, AdamW on the rest, {target['rows']} rows x {target['length']} tokens "
        f"per step, the target's last tenth at 1024; the draft's last {draft['distil']} "
        f"of {draft['steps']} steps distilled from the target{own_text}. "
        f"Mixture by tokens: {domains}. Standard-library text depends on the Python version, "
        "so another machine's corpus hash may differ."
    )


def samples_card(samples: list[dict]) -> list[str]:
    lines = ["", "## What the target writes", ""]
    lines += ["After the first prompt of every domain in `data/prompts/lab.jsonl`:"]
    for sample in samples:
        title = f"{sample['domain']}, T = {sample['temperature']:g}"
        lines += ["", f"{title}:", "", *(f"    {line}" for line in sample["text"].splitlines())]
    return lines


def table(header: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table behind an empty line; ``header``: its columns' names, with bars between."""
    names = header.split(" | ")
    return ["", _row(names), "|" + "---|" * len(names), *map(_row, rows)]


def _row(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def megabytes(folder: Path) -> float:
    """The size of a folder's safetensors files, in 10^6 bytes."""
    return sum(p.stat().st_size for p in folder.glob("*.safetensors")) / 1e6


def read_card(folder: Path) -> dict:
    """The card of a model or head in its folder."""
    return document(folder / "card.json", OBJECT)
