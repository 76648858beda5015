"""Builds the lab family from text: corpus, tokenizer, target, text it writes, draft, cards; in this order, resumable at every point."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specwb.files import weights_hash, whole_folder
from specwb.models.load import data_dir, resolve_device
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training.deep import save_half
from specwb.training.fit import Plan, TrainingError, autocast, console, fit, save_atomically, say, writing
from specwb.training.generate import TEMPERATURES, generated_text
from specwb.training.heads import RECIPES, finished, train_head
from specwb.training.ngram import count_ngram

LAB = data_dir() / "lab"
CONTEXT = 1024


def recipe(path: Path | None = None) -> dict:
    return tomllib.loads((path or LAB / "recipe.toml").read_text())


def build(out: Path, budget: str, device: str = "auto", start_from: Path | None = None, seed: int | None = None) -> Path:
    """Train the family into ``out`` and return it.

    ``start_from`` is a family folder whose weights (and tokenizer) are trained on instead of fresh ones.
    Steps that are complete in ``out`` are not repeated; an interrupted one resumes.

    Raises:
        TrainingError, DataError: see :func:`specwb.training.fit.fit`, :func:`specwb.files.read`.
    """
    plan, out = recipe(), out.expanduser()
    if budget not in plan["budget"]:
        raise TrainingError(f"unknown budget {budget!r}; the recipe has {', '.join(plan['budget'])}")
    if missing := {"target", "draft", *plan["heads"]} - set(plan["budget"][budget]):
        raise TrainingError(f"budget {budget!r} is for some heads only, it has none for {', '.join(sorted(missing))}")
    seed = plan["seed"] if seed is None else seed
    place = resolve_device(device)
    settings = plan["budget"][budget]
    console.print("reading the training text")
    docs = text.documents(plan["corpus"]["packages"])
    content = hashlib.sha256("".join(d.text for d in docs).encode()).hexdigest()
    from_hash = None if start_from is None else weights_hash(start_from / "target")
    run = json.dumps({"recipe": {k: v for k, v in plan.items() if k not in ("budget", "heads")}, "seed": seed, "text": content, "from": from_hash})
    try:
        out.mkdir(parents=True, exist_ok=True)
        marker = out / "run.json"
        if marker.exists() and marker.read_text() != run:
            raise TrainingError(f"{out} holds a run with another recipe, seed or text; delete it or choose another --out")
        save_atomically(lambda path: path.write_text(run), marker)
        save_atomically(lambda path: path.write_text((LAB / "recipe.toml").read_text()), out / "recipe.toml")
        if start_from is not None and not (out / "tokenizer").exists():
            with whole_folder(out / "tokenizer") as part:
                for path in (start_from / "target").iterdir():
                    if path.name.startswith(("tokenizer", "chat_template", "special_tokens")):
                        shutil.copy(path, part / path.name)
        if not (out / "tokenizer").exists():
            console.print("training the tokenizer")
            with whole_folder(out / "tokenizer") as part:
                text.train_tokenizer(docs, plan["tokenizer"]["vocabulary"], part)
        tokenizer = AutoTokenizer.from_pretrained(out / "tokenizer", trust_remote_code=False)
        data = text.encode(docs, tokenizer)
        facts = {"sha256": data.sha256, "mixture": plan["corpus"]["mixture"], "sources": data.manifest}
        save_atomically(lambda path: path.write_text(json.dumps(facts, indent=1) + "\n"), out / "corpus.json")
        target = _model(plan["target"], tokenizer, seed, start_from and start_from / "target").to(place)
        _train("target", target, None, data, plan, settings["target"], seed, out, place, budget, start_from, tokenizer)
        draft = _model(plan["draft"], tokenizer, seed + 1, start_from and start_from / "draft").to(place)
        _train("draft", draft, target, data, plan, settings["draft"], seed + 1, out, place, budget, start_from, tokenizer)
        frozen = Target(target, tokenizer, name="lab", draft=str(out / "draft"), folder=out / "target")
        for kind, own in plan["heads"].items():
            mixture, written = plan["corpus"]["mixture"], out / "generated"
            train_head(kind, frozen, out / kind, own, settings[kind], data, mixture, seed=seed + 1, generated=written, note=budget)
        tokens, length = settings["diffusion"]["generated"], settings["diffusion"]["length"]  # the text that the heads share
        mixture, written = plan["corpus"]["mixture"], out / "generated"
        count_ngram(frozen, out / "ngram", data, mixture, tokens=tokens, length=length, generated=written, seed=seed + 1)
        save_atomically(lambda path: path.write_text(model_card(out)), out / "README.md")
    except OSError as error:
        raise TrainingError(f"cannot write to {out}: {error}; what is complete there is kept, the same command goes on from it") from error
    return out


def model_card(out: Path) -> str:
    """The family's README: what was trained on what, how, and how well, from the files the build wrote."""
    corpus = json.loads((out / "corpus.json").read_text())
    lines = [
        "# The lab family",
        "",
        "Small models trained on real text so that every method runs with real acceptance, offline, on any machine. They are for studying",
        "decoding, not for their answers. Layout: `target/`, `draft/` (each loads with `from_pretrained`, fp16 safetensors), `recipe.toml`,",
        "`corpus.json` (every source with counts and sha256).",
        "",
        "| model | parameters | files | budget, device | steps | tokens seen | held-out loss code / math / prose (nats a token) | sha256 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    facts = {name: json.loads((out / name / "card.json").read_text()) for name in ("target", "draft")}
    for name, f in facts.items():
        size = sum(p.stat().st_size for p in (out / name).glob("*.safetensors")) / 1e6
        loss = " / ".join(f"{f['held_out_loss'][d]:.2f}" for d in text.DOMAINS)
        before = f" (and {f['tokens_before']:,} before)" if f.get("tokens_before") else ""
        lines.append(
            f"| {name} | {f['parameters']:,} | {size:.1f} MB | {f['budget']}, {f['device']} | {f['steps']} | {f['tokens']:,}{before} "
            f"| {loss} | {f['sha256'][:12]} |"
        )
    lines += ["", "Agreement of draft and target on held-out text (per token):", "", "| domain | greedy | sampled, T = 1 |", "|---|---|---|"]
    lines += [f"| {d} | {a['greedy']:.3f} | {a['sampled']:.3f} |" for d, a in facts["draft"]["acceptance"].items()]
    cards = {kind: json.loads((out / kind / "card.json").read_text()) for kind in RECIPES if (out / kind / "card.json").exists()}
    lines += head_card(out, [card for kind, card in cards.items() if kind != "decision"])
    if "decision" in cards:
        lines += decision_card(cards["decision"])
    counted = out / "ngram" / "card.json"
    if counted.exists():
        lines += ngram_card(json.loads(counted.read_text()))
    t, written = facts["target"], facts["draft"].get("generated")
    own = f", half of each batch text that the target wrote ({written:,} tokens, temperatures {', '.join(map(str, TEMPERATURES))})" if written else ""
    lines += [
        "",
        f"Built by `specwb train lab --budget {t['budget']}` (seed {t['seed']}, torch {t['torch']}, Python {t['python']}; {t['started_from']}): "
        f"Muon on matrices, AdamW on the rest, {t['rows']} rows x {t['length']} tokens a step, the target's last tenth at {CONTEXT}; the draft's "
        f"last {facts['draft']['distil']} of {facts['draft']['steps']} steps distilled from the target{own}. Mixture by tokens: "
        + ", ".join(f"{d} {w:.2f}" for d, w in corpus["mixture"].items())
        + ". Standard-library text depends on the Python version, so another machine's corpus hash may differ.",
        "",
        "## Text",
        "",
        "| source | domain | licence | use | documents | tokens | sha256 |",
        "|---|---|---|---|---|---|---|",
    ]
    for s in corpus["sources"]:
        use = "held out" if s["held_out"] else "training"
        lines.append(f"| {s['source']} | {s['domain']} | {s['licence']} | {use} | {s['documents']} | {s['tokens']:,} | {s['sha256'][:12]} |")
    return "\n".join([*lines, ""])


def head_card(out: Path, heads: list[dict]) -> list[str]:
    """Of the trained heads: what each saw, and how often its best token at every depth is the target's."""
    if not heads:
        return []
    lines = [
        "",
        "Trained heads over the frozen target (`medusa/`, `eagle/`, .., each in its published layout). Accuracy: share of held-out places where",
        "the head's best token at depth 1, 2, .. is the target's, the text before being the windows' own.",
        "",
        "| head | parameters | files | budget, device | steps | tokens seen | accuracy by depth: code | math | prose | sha256 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for f in heads:
        size = sum(p.stat().st_size for p in (out / f["name"]).glob("*.safetensors")) / 1e6
        found = " | ".join(" ".join(f"{row[0]:.2f}" for row in f["held_out"][d]["rank"]) for d in text.DOMAINS)
        lines.append(
            f"| {f['name']} | {f['parameters']:,} | {size:.1f} MB | {f['budget']}, {f['device']} | {f['steps']} | {f['tokens']:,} | {found} "
            f"| {f['sha256'][:12]} |"
        )
    return [
        *lines,
        "",
        "Each by `specwb train NAME` (options and steps in `recipe.toml`), three of four rows of a batch text that the target wrote, learning the",
        "target's law at every place; features are computed on the fly. Steps, sizes and vocabularies differ: the table does not rank the methods.",
    ]


def decision_card(card: dict) -> list[str]:
    """Of the decision models: how much better than the mean they say what is accepted."""
    found = card["held_out"].values()
    mean = {kind: [sum(x[kind][i] for x in found) / len(found) for i in range(3)] for kind in ("soft", "hard")}
    said = "; ".join(
        f"{kind} {loss:.3f} where the mean has {base:.3f}, area under the ROC curve {area:.3f}" for kind, (loss, base, area) in mean.items()
    )
    return [
        "",
        f"`decision/`: two nets that guess whether a token drafted by the draft model is accepted ({card['parameters']:,} parameters, "
        f"{card['steps']} steps, {card['tokens']:,} tokens, sha256 {card['sha256'][:12]}), by `specwb train decision`. "
        f"Held-out cross-entropy, mean of the domains: {said}.",
    ]


def ngram_card(card: dict) -> list[str]:
    """Of the counted n-grams: of what, how many, and how well they say held-out text."""
    nats = "; ".join(f"{domain} {found['kn']:.2f}" for domain, found in card["held_out"].items())
    return [
        "",
        f"`ngram/`: n-grams of 1 to {card['order']} tokens ({' + '.join(f'{n:,}' for n in card['sizes'])}, those of two and more seen "
        f"{card['least']} times or more; {card['bytes'] / 1e6:.1f} MB) of {card['tokens']['read']:,} tokens read and {card['tokens']['generated']:,} "
        f"that the target wrote, by `specwb train ngram`. Interpolated Kneser-Ney, held-out nats a token: {nats}.",
    ]


def _model(shape: dict, tokenizer, seed: int, weights: Path | None) -> Any:
    torch.manual_seed(seed)
    if weights is not None:
        return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, trust_remote_code=False)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=shape["hidden"], intermediate_size=shape["ffn"], num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"], max_position_embeddings=CONTEXT, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip


def _train(
    name: str, model: Any, teacher: Any, data: text.Corpus, plan: dict, settings: dict, seed: int,
    out: Path, device: torch.device, budget: str, start_from: Path | None, tokenizer: Any,
) -> None:  # fmt: skip
    steps, rows, length = settings["steps"], settings["rows"], settings["length"]
    distil_from = steps - settings.get("distil", 0)
    own = None  # the target's own text: half of every batch of the distillation
    long_from = steps - steps // 10
    mixture = plan["corpus"]["mixture"]
    if teacher is not None and settings.get("generated"):
        writer = Target(teacher, folder=out / "target")
        own = generated_text(writer, data, out / "generated", tokens=settings["generated"], length=length, mixture=mixture, seed=seed)

    def loss(step: int) -> Tensor:
        # the target meets its full context in the last tenth; the tokens a step stay the same
        n, t = (max(1, rows * length // CONTEXT), CONTEXT) if name == "target" and step >= long_from and rows * length >= CONTEXT else (rows, length)
        drawn = data.batch(seed, step, n, t, mixture)
        if own is not None and step >= distil_from:
            drawn[: n // 2] = own[np.random.Generator(np.random.Philox(key=[seed + 1, step])).integers(0, len(own), n // 2)]
        batch = torch.from_numpy(drawn).to(device)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits.flatten(0, 1).float()
        if teacher is None or step < distil_from:
            return F.cross_entropy(logits, batch[:, 1:].flatten())
        with torch.no_grad():
            p = teacher(input_ids=batch[:, :-1], use_cache=False).logits.flatten(0, 1).float().softmax(-1)
        return F.cross_entropy(logits, p)  # KL(p || q) up to the target's entropy

    # everything that must not change between the parts of a run; the tokenizer and, for the draft, its teacher are parts of it
    parts = [
        (out / "run.json").read_text(),
        json.dumps(settings),
        data.sha256,
        hashlib.sha256((out / "tokenizer" / "tokenizer.json").read_bytes()).hexdigest(),
    ]
    identity = hashlib.sha256("|".join([name, *parts, "" if teacher is None else weights_hash(out / "target")]).encode()).hexdigest()
    history = fit(name, model, loss, Plan(steps), out / f"{name}.checkpoint.pt", identity).loss
    if finished(out / name, identity):
        say(f"{out / name} is finished")
        return
    losses = {domain: round(_held_out(model, data, domain, device), 4) for domain in text.DOMAINS}
    facts = {
        "name": name, "run": identity, "parameters": sum(p.numel() for p in model.parameters()), "budget": budget, "seed": seed, **settings,
        "tokens": steps * rows * length, "tokens_before": _tokens_before(start_from, name),
        "device": device.type, "torch": torch.__version__, "python": platform.python_version(),
        "corpus": data.sha256, "started_from": "random weights" if start_from is None else "shipped weights",
        "last_training_loss": round(sum(history[-50:]) / max(1, len(history[-50:])), 4),
        "held_out_loss": losses,
    }  # fmt: skip
    if teacher is not None:
        facts["target_sha256"] = weights_hash(out / "target")
        facts["acceptance"] = {d: agreement(model, teacher, data, d, device) for d in text.DOMAINS}
    with writing(out / name), whole_folder(out / name) as part:
        save_half(model, part)
        tokenizer.save_pretrained(part)
        facts["sha256"] = weights_hash(part)
        (part / "card.json").write_text(json.dumps(facts, indent=1) + "\n")
    console.print(f"{name}: held-out loss " + ", ".join(f"{d} {v:.3f}" for d, v in losses.items()), highlight=False)


def _tokens_before(start_from: Path | None, name: str) -> int:
    """Tokens the weights that a run starts from have been trained on."""
    if start_from is None:
        return 0
    card = json.loads((start_from / name / "card.json").read_text())
    return card["tokens"] + card.get("tokens_before", 0)


@torch.no_grad()
def _held_out(model: Any, data: text.Corpus, domain: str, device: torch.device, rows: int = 32, length: int = 256) -> float:
    batch = torch.from_numpy(data.windows(domain, rows, length)).to(device)
    with autocast(device):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return float(F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()))


@torch.no_grad()
def agreement(draft: Any, target: Any, data: text.Corpus, domain: str, device: torch.device) -> dict[str, float]:
    """Per-token acceptance on held-out text: ``greedy`` = equal argmax, ``sampled`` = mean of sum min(p, q) at T = 1."""
    ids = torch.from_numpy(data.windows(domain, 16, 256)).to(device)
    p = target(input_ids=ids, use_cache=False).logits.float().softmax(-1)
    q = draft(input_ids=ids, use_cache=False).logits.float().softmax(-1)
    greedy = (p.argmax(-1) == q.argmax(-1)).float().mean()
    return {"greedy": round(float(greedy), 4), "sampled": round(float(torch.minimum(p, q).sum(-1).mean()), 4)}
