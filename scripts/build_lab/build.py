"""Builds the lab family from text.

In this order: corpus, tokenizer, target, text it writes, draft model, heads, n-grams, cards. It can
be resumed at every point.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from scripts.build_lab import loops
from scripts.build_lab.compiling import COMPILE_FROM, compiled
from scripts.build_lab.page import DOMAINS, model_card, read_card
from scripts.build_lab.tokenizer import train_tokenizer
from specwb.core.files import Artifact, claim, home, weights_hash, whole_folder, write
from specwb.core.progress import lines
from specwb.engine.decoding import decode
from specwb.models.device import resolve_device
from specwb.models.load import data_dir
from specwb.models.questions import load_prompts
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training import lab_text
from specwb.training.deep import save_half
from specwb.training.fit import TrainingError, autocast, say
from specwb.training.generate import generated_text
from specwb.training.loop import TrainingRun, train
from specwb.training.ngram import count_ngram
from specwb.training.optim import Plan
from specwb.training.run import is_finished, train_head
from specwb.training.settings import lab_recipe

LAB = data_dir() / "lab"
CONTEXT = 1024
SAMPLE = 64  # tokens of a sample in the card
FAMILY = Artifact(
    "a file of scripts.build_lab",
    (
        *("{}/README.md", "{}/recipe.toml", "{}/corpus.json", "{}/samples.json"),
        *("{}/run.json", "{}/tokenizer"),
    ),
    rb'\{"recipe": ',
    "{}/run.json",
    True,
)


def build(
    out: Path,
    budget: str,
    device: str = "auto",
    start_from: Path | None = None,
    seed: int | None = None,
) -> Path:
    """Trains the family into ``out`` with a budget of the recipe, and returns it.

    Steps that are complete in ``out`` are not repeated; an interrupted one is resumed.
    ``start_from``: a family's folder, whose weights (and tokenizer) are trained on instead of fresh
    ones."""
    plan, out = lab_recipe(), home(out)
    if budget not in plan["budget"]:
        raise TrainingError(
            f"unknown budget {budget!r}; the recipe has {', '.join(plan['budget'])}"
        )
    if missing := {"target", "draft", *plan["heads"]} - set(plan["budget"][budget]):
        names = ", ".join(sorted(missing))
        raise TrainingError(f"budget {budget!r} is for some heads only, it has none for {names}")
    seed = plan["seed"] if seed is None else seed
    place = resolve_device(device)
    claim({"--out": (out, FAMILY)})
    say("reading the training text")
    docs = lab_text.documents(plan["corpus"]["packages"])
    run = _run_facts(plan, seed, docs, start_from)
    marker = out / "run.json"
    if marker.exists() and marker.read_bytes() != run.encode():
        problem = f"{out} holds a run with another recipe, seed or text"
        raise TrainingError(f"{problem}; delete it or choose another --out")
    write(run, marker)
    write((LAB / "recipe.toml").read_bytes(), out / "recipe.toml")
    with lines(lambda: "preparing the training text"):
        _make_tokenizer(out / "tokenizer", docs, plan, start_from)
        tokenizer = AutoTokenizer.from_pretrained(out / "tokenizer", trust_remote_code=False)
        data = text.encode(docs, tokenizer)
    mixture = plan["corpus"]["mixture"]
    facts = {"sha256": data.sha256, "mixture": mixture, "sources": data.manifest}
    write(json.dumps(facts, indent=1) + "\n", out / "corpus.json")
    family = _Family(out, plan, budget, seed, place, data, tokenizer, start_from)
    target = family.train("target", seed, None)
    family.train("draft", seed + 1, target)
    _train_heads(family, target)
    _write_samples(family, target)
    write(model_card(out), out / "README.md")
    return out


def _run_facts(plan: dict, seed: int, docs: list[text.Document], start_from: Path | None) -> str:
    """Returns what must not change between the parts of a run, as JSON."""
    content = "".join(d.text for d in docs).encode()
    return json.dumps(
        {
            "recipe": {k: v for k, v in plan.items() if k not in ("budget", "heads")},
            "seed": seed,
            "text": hashlib.sha256(content).hexdigest(),
            "from": None if start_from is None else weights_hash(start_from / "target"),
        }
    )


def _make_tokenizer(
    folder: Path, docs: list[text.Document], plan: dict, start_from: Path | None
) -> None:
    if folder.exists():
        return
    if start_from is not None:
        with whole_folder(folder) as part:
            for path in (start_from / "target").iterdir():
                if path.name.startswith(("tokenizer", "chat_template", "special_tokens")):
                    shutil.copy(path, part / path.name)
        return
    say("training the tokenizer")
    with whole_folder(folder) as part:
        train_tokenizer(docs, plan["tokenizer"]["vocabulary"], part)


@dataclass
class _Family:
    """What the two models' trainings share."""

    out: Path
    plan: dict
    budget: str
    seed: int
    device: torch.device
    data: text.Corpus
    tokenizer: Any
    start_from: Path | None

    @property
    def settings(self) -> dict:
        return self.plan["budget"][self.budget]

    @property
    def mixture(self) -> dict[str, float]:
        return self.plan["corpus"]["mixture"]

    def train(self, name: str, seed: int, teacher: Any) -> Any:
        """Trains ``target`` or ``draft``, writes it with its card and returns it; ``teacher``: the
        model that it is distilled from at the end, None for the target."""
        model = self._first_model(name, seed).to(self.device)
        settings = self.settings[name]
        loss = self._loss(name, model, teacher, settings, seed)
        identity = self._identity(name, settings, teacher)
        checkpoint = self.out / f"{name}.checkpoint.pt"
        plan = Plan(settings["steps"])
        log = train(TrainingRun(name, model, loss, plan, checkpoint, identity))
        cure = self.settings.get("cure") if name == "target" else None
        before = None
        if cure is not None:
            before = copy.deepcopy(model).eval().requires_grad_(False)
            identity = hashlib.sha256(f"{identity}|{json.dumps(cure)}".encode()).hexdigest()
            self._cure(model, before, cure, seed, identity)
        folder = self.out / name
        if is_finished(folder, identity):
            say(f"{folder} is finished")
            return model
        losses = self._held_out_losses(model)
        card = {
            "name": name,
            "run": identity,
            "parameters": sum(p.numel() for p in model.parameters()),
            "budget": self.budget,
            "seed": seed,
            **settings,
            "tokens": settings["steps"] * settings["rows"] * settings["length"],
            "tokens_before": _tokens_before(self.start_from, name),
            "device": self.device.type,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "corpus": self.data.sha256,
            "started_from": "random weights" if self.start_from is None else "shipped weights",
            "last_training_loss": log.recent_loss(50),
            "held_out_loss": losses,
        }
        if cure is not None:
            card["cure"] = cure
            card["before_cure"] = {
                "held_out_loss": self._held_out_losses(before),
                **self._loops(before),
            }
            card |= self._loops(model)
        if teacher is not None:
            card["target_sha256"] = weights_hash(self.out / "target")
            card["acceptance"] = {
                domain: agreement(model, teacher, self.data, domain, self.device)
                for domain in DOMAINS
            }
        with whole_folder(folder) as part:
            save_half(model, part)
            self.tokenizer.save_pretrained(part)
            card["sha256"] = weights_hash(part)
            (part / "card.json").write_text(json.dumps(card, indent=1) + "\n")
        values = ", ".join(f"{domain} {loss:.3f}" for domain, loss in losses.items())
        say(f"{name}: held-out loss {values}")
        return model

    def _cure(self, model: Any, before: Any, cure: dict, seed: int, identity: str) -> None:
        """Trains the target not to repeat itself, see :mod:`specwb.training.loops`."""
        target = Target(model, self.tokenizer, name="lab")
        folder = self.out / "written" / identity[:12]
        loss = loops.cure_loss(target, before, self.data, self.mixture, cure, seed + 7, folder)
        plan = Plan(
            cure["steps"], "adamw", lr=cure["lr"], weight_decay=0.0, warmup=20, cooldown=0.7
        )
        checkpoint = self.out / "cure.checkpoint.pt"
        train(TrainingRun("cure of loops", model, loss, plan, checkpoint, identity))

    def _held_out_losses(self, model: Any) -> dict[str, float]:
        return {
            domain: round(_held_out_loss(model, self.data, domain, self.device), 4)
            for domain in DOMAINS
        }

    def _loops(self, model: Any) -> dict[str, Any]:
        """Returns how often greedy text loops, after held-out text and after the lab's prompts."""
        target = Target(model, self.tokenizer, name="lab")
        prompts = [question.ids(self.tokenizer) for question in load_prompts("lab")]
        return {
            "loops": loops.loop_shares(target, self.data),
            "prompt_loops": loops.prompt_loops(target, prompts),
        }

    def _first_model(self, name: str, seed: int) -> Any:
        torch.manual_seed(seed)
        if self.start_from is not None:
            return AutoModelForCausalLM.from_pretrained(
                self.start_from / name, dtype=torch.float32, trust_remote_code=False
            )
        shape, tokenizer = self.plan[name], self.tokenizer
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape["hidden"],
            intermediate_size=shape["ffn"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"],
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        return LlamaForCausalLM(config)

    def _loss(
        self, name: str, model: Any, teacher: Any, settings: dict, seed: int
    ) -> Callable[[int, int], Tensor]:
        """Returns the loss of a step: next-token prediction, then distillation."""
        steps, rows, length = settings["steps"], settings["rows"], settings["length"]
        distil_from = steps - settings.get("distil", 0)
        long_from = steps - steps // 10
        own_text = None  # the target's own text: half of every batch of the distillation
        if teacher is not None and settings.get("generated"):
            own_text = generated_text(
                Target(teacher, folder=self.out / "target"),
                self.data,
                self.out / "generated",
                tokens=settings["generated"],
                length=length,
                mixture=self.mixture,
                seed=seed,
            )

        # compiled, attention written out is faster than torch's own
        model.set_attn_implementation("eager" if steps >= COMPILE_FROM else "sdpa")

        def logits_of(a_model: Any, ids: Tensor) -> Tensor:
            """Returns float32 logits ``[B (L - 1), V]`` of the tokens after the first."""
            return a_model(input_ids=ids[:, :-1], use_cache=False).logits.flatten(0, 1).float()

        def next_token(ids: Tensor) -> Tensor:
            return F.cross_entropy(logits_of(model, ids), ids[:, 1:].flatten())

        def distillation(ids: Tensor) -> Tensor:
            with torch.no_grad():
                p = logits_of(teacher, ids).softmax(-1)
            return F.cross_entropy(logits_of(model, ids), p)  # KL(p || q) up to p's entropy

        next_token, distillation = compiled(next_token, steps), compiled(distillation, steps)

        def loss(step: int, part: int) -> Tensor:
            step_rows, step_length = rows, length
            if name == "target" and step >= long_from and rows * length >= CONTEXT:
                # the target meets its full context in the last tenth; the tokens per step stay the
                # same
                step_rows, step_length = max(1, rows * length // CONTEXT), CONTEXT
            ids, _ = self.data.batch(seed, step, step_rows, step_length, self.mixture)
            if own_text is not None and step >= distil_from:
                count = step_rows // 2
                generator = np.random.Generator(np.random.Philox(key=[seed + 1, step]))
                ids[:count] = own_text[generator.integers(0, len(own_text), count)]
            batch = torch.from_numpy(ids).to(self.device)
            learns_words = teacher is None or step < distil_from
            return next_token(batch) if learns_words else distillation(batch)

        return loss

    def _identity(self, name: str, settings: dict, teacher: Any) -> str:
        """Names everything that must not change between the parts of a model's training; the
        tokenizer and, for the draft model, its teacher are among it."""
        tokenizer = (self.out / "tokenizer" / "tokenizer.json").read_bytes()
        parts = [
            name,
            (self.out / "run.json").read_text(),
            json.dumps(settings),
            self.data.sha256,
            hashlib.sha256(tokenizer).hexdigest(),
            "" if teacher is None else weights_hash(self.out / "target"),
        ]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _train_heads(family: _Family, model: Any) -> None:
    out, settings, seed = family.out, family.settings, family.seed + 1
    draft, generated = str(out / "draft"), out / "generated"
    target = Target(model, family.tokenizer, name="lab", draft=draft, folder=out / "target")
    for kind, options in family.plan["heads"].items():
        train_head(
            kind,
            target,
            out / kind,
            {**settings[kind], **options},
            family.data,
            family.mixture,
            seed=seed,
            generated=generated,
            note=family.budget,
        )
    count_ngram(
        target,
        out / "ngram",
        lambda: (family.data, family.mixture),
        tokens=settings["diffusion"]["generated"],  # the text that the heads share
        length=settings["diffusion"]["length"],
        generated=generated,
        seed=seed,
    )


def _write_samples(family: _Family, model: Any) -> None:
    """Writes ``samples.json``: what the target says to the first prompt of every domain."""
    path = family.out / "samples.json"
    if path.exists():
        return
    target = Target(model, family.tokenizer, name="lab")
    questions = [next(q for q in load_prompts("lab") if q.category == d) for d in DOMAINS]
    prompts = [question.ids(family.tokenizer) for question in questions]
    samples = []
    for temperature in (0.0, 0.7):
        output = decode(target, prompts, "ar", max_new_tokens=SAMPLE, temperature=temperature)
        for question, tokens in zip(questions, output.tokens, strict=True):
            sample = {"question_id": question.question_id, "domain": question.category}
            said = family.tokenizer.decode(tokens, skip_special_tokens=True)
            samples.append({**sample, "temperature": temperature, "text": said})
    write(json.dumps(samples, indent=1) + "\n", path)


def _tokens_before(start_from: Path | None, name: str) -> int:
    """Returns how many tokens the weights that a run starts from have been trained on."""
    if start_from is None:
        return 0
    card = read_card(start_from / name)
    return card["tokens"] + card.get("tokens_before", 0)


@torch.no_grad()
def _held_out_loss(
    model: Any,
    data: text.Corpus,
    domain: str,
    device: torch.device,
    rows: int = 32,
    length: int = 256,
) -> float:
    """Returns the cross-entropy on held-out text, in nats a token."""
    batch = torch.from_numpy(data.windows(domain, rows, length)[0]).to(device)
    with autocast(device):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return float(F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()))


@torch.no_grad()
def agreement(
    draft: Any, target: Any, data: text.Corpus, domain: str, device: torch.device
) -> dict[str, float]:
    """The acceptance per token on held-out text: ``greedy`` is how often the best tokens are equal,
    ``sampled`` the mean of sum min(p, q) at T = 1."""
    ids = torch.from_numpy(data.windows(domain, 16, 256)[0]).to(device)
    p = target(input_ids=ids, use_cache=False).logits.float().softmax(-1)
    q = draft(input_ids=ids, use_cache=False).logits.float().softmax(-1)
    greedy = (p.argmax(-1) == q.argmax(-1)).float().mean()
    sampled = torch.minimum(p, q).sum(-1).mean()
    return {"greedy": round(float(greedy), 4), "sampled": round(float(sampled), 4)}
