"""Glancing on a source whose entropies are known exactly: the real block head and the trainer's own step, with a Markov chain for the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from specwb.analysis import dependence
from specwb.models.falcon import FalconHead
from specwb.training.falcon import FalconRecipe, glanced
from specwb.training.heads import step_loss
from specwb.training.recipe import Found, Level, Moment

HIDDEN, SCALE = 32, 8.0
LENGTH, ROWS, STEPS, HELD_OUT = 24, 64, 400, 4096


@dataclass(frozen=True, eq=False)
class MarkovSource:
    """Text whose next token depends on the last one alone: ``transition [S,S]``, row c the law after token c.

    A stand-in for a target: feature ``f_i = log P(. | t_i) / SCALE``, embedding e_{t_i}, padded with zeros to the head's width; lm_head SCALE times
    the identity. A token that cannot come has log P = -16.

    Raises:
        ValueError: rows that are no laws, more than one stationary law, or more tokens than the head is wide.
    """

    transition: np.ndarray

    def __post_init__(self) -> None:
        p = np.asarray(self.transition, dtype=float)
        if p.ndim != 2 or p.shape[0] != p.shape[1] or not ((p >= 0).all() and np.allclose(p.sum(1), 1)):
            raise ValueError(f"a transition is a square table whose rows are laws, got shape {list(p.shape)} and sums {p.sum(-1).tolist()}")
        if np.linalg.matrix_rank(p - np.eye(len(p)), tol=1e-9) != len(p) - 1:
            raise ValueError("the chain must have one stationary law; this one has several parts that never meet")
        if len(p) > HIDDEN:
            raise ValueError(f"a source has at most {HIDDEN} tokens here, got {len(p)}")
        object.__setattr__(self, "transition", p)

    @classmethod
    def ring(cls, states: int = 10, reach: int = 3, seed: int = 0) -> MarkovSource:
        """Tokens on a ring, each followed by one of the next ``reach``, with random probabilities of its own. It does not come back to a token within
        ``(states - 1) // reach`` steps.

        Raises:
            ValueError: reach outside 1..states.
        """
        if not 1 <= reach <= states:
            raise ValueError(f"reach must be 1..{states}, the number of states, got {reach}")
        p = np.zeros((states, states))
        for c, law in enumerate(np.random.default_rng(seed).dirichlet(np.full(reach, 2.0), states)):
            p[c, (c + 1 + np.arange(reach)) % states] = law
        return cls(p)

    @cached_property
    def stationary(self) -> np.ndarray:
        """``[S]`` how often each token comes."""
        s = len(self.transition)
        conditions = np.vstack([self.transition.T - np.eye(s), np.ones(s)])
        return np.linalg.lstsq(conditions, np.r_[np.zeros(s), 1], rcond=None)[0].clip(0)

    def joint(self, k: int) -> np.ndarray:
        """``[S, *[S]*k]``: law of the next k tokens after each token; with ``weights = stationary`` a table of :mod:`specwb.analysis.dependence`."""
        table = self.transition
        for _ in range(k - 1):
            table = table[..., None] * self.transition
        return table

    def entropy(self, j: int, shown: int = 0) -> float:
        """``H(X_j | C, X_{<=shown})``, X_j the j-th token after the context: that of j - shown steps."""
        return dependence.entropy(np.linalg.matrix_power(self.transition, j - shown), weights=self.stationary)

    def returns(self, k: int) -> float:
        """How often a token is the same as k places before."""
        return float(self.stationary @ np.diag(np.linalg.matrix_power(self.transition, k)))

    def sample(self, rows: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """``[rows, length]`` texts, from the stationary law on."""
        up = self.transition.cumsum(1)
        out = np.empty((rows, length), dtype=np.int64)
        out[:, 0] = rng.choice(len(up), rows, p=self.stationary / self.stationary.sum())
        last = np.array([np.flatnonzero(row)[-1] for row in self.transition])  # rounding never leads to a token that cannot come
        for t in range(1, length):
            before = out[:, t - 1]
            out[:, t] = np.minimum((up[before] <= rng.random(rows)[:, None]).sum(1), last[before])
        return out

    def found(self, ids: Tensor) -> Found:
        """What a target would say of texts ``[B,L]``."""
        s = len(self.transition)
        law = torch.zeros(s, HIDDEN)
        law[:, :s] = torch.from_numpy(self.transition).log().clamp_min(-16)
        features = law[ids] / SCALE
        return Found(ids, torch.eye(s, HIDDEN)[ids], features, features, features[..., :s] * SCALE)

    def lm_head(self) -> nn.Linear:
        """What turns a feature into the logits of the next token."""
        made = nn.Linear(HIDDEN, len(self.transition), bias=False)
        with torch.no_grad():
            made.weight.copy_(SCALE * torch.eye(*made.weight.shape))
        return made


class BlockwiseRecipe(FalconRecipe):
    """CSGD, but for how much is glanced: every block with probability ``glance``, so that the share is known, where the paper takes a number of
    pairs from the mistakes of a first pass. Prefixes, replacement, the loss's places and the loss are the trainer's own."""

    def __init__(self, source: MarkovSource, k: int, g: float, fusion: str) -> None:
        target: Any = SimpleNamespace(backbone=SimpleNamespace(lm_head=source.lm_head()))
        super().__init__(target, {"k": k, "unroll": 1, "glance": g, "fusion": fusion, "regression": 0.0, "hard": 0.0})

    def make(self, *_: Any) -> FalconHead:
        config = LlamaConfig(
            vocab_size=HIDDEN, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, head_dim=8, max_position_embeddings=512, tie_word_embeddings=False,
        )  # fmt: skip
        return FalconHead(config, HIDDEN, self.k, self.settings["fusion"])

    def training(self, head: FalconHead, found: Found, moment: Moment) -> Iterator[Level]:
        for level in super().training(head, found, moment):
            # the last block is never glanced: its replacements are not in the text
            able = (level.logits.shape[1] - 1) // self.k * self.k
            level.counted = torch.ones_like(level.logits[..., 0], dtype=torch.bool) if level.counted is None else level.counted.clone()
            level.counted[:, able:] = False
            yield level

    def choose(self, head: FalconHead, found: Found, moment: Moment, pairs: tuple[Tensor, Tensor], o: int, said: int) -> Tensor:
        rows, m = pairs[0].shape[:2]
        k, able = self.k, (said - 1) // self.k
        which, lengths = (moment.uniforms(m // k, stream, pairs[0].device)[:, :able].reshape(-1, 1) for stream in (2, 3))
        # a block alone: all that its prefix wishes, or nothing
        count = (which[:, 0] < self.settings["glance"]) * k
        mask = torch.zeros(rows, m, dtype=torch.bool, device=pairs[0].device)
        mask[:, : able * k] = glanced(count, k, k, which, lengths).view(rows, able * k)
        return mask


def run(source: MarkovSource, k: int, ratios: Sequence[float], seed: int = 0, *, steps: int = STEPS, fusion: str = "linear") -> list[dict[str, Any]]:
    """Train a block head on the source once for every glancing ratio, and measure its loss on held-out text by place of the block, in nats a token.

    Returns one dict for every ratio and place: ``k``, ``ratio``, ``place`` (1..k);
        ``loss``, ``stderr``: mean of ``-log q(token)`` over held-out places whose own token is not shown, blocks being glanced as in training (None
        where every one is shown: place 1 at ratio 1), and its standard error over texts; ``predicted``:
        ``sum_r P(r | place) H(X_place | C, X_{<=r})``, :func:`specwb.analysis.dependence.glanced_loss` by place;
        ``drafting``, ``drafting_stderr``: the same with nothing shown, as a draft is made; ``predicted_drafting``: ``H(X_place | C)``, whatever the
        ratio, None where a place was never trained so (ratio 1).

    Predictions are the least loss of any head, where it can tell what it is shown: that fails where a token is the same as k places before and the
    next one as well, and is exact for a source that does not come back in k steps (:meth:`MarkovSource.returns`).

    The head: two layers of width 32, one pass, trained on the source's laws by the loss of :mod:`specwb.training.heads`. AdamW, ``steps`` batches
    of 64 texts of 24 tokens.

    Raises:
        ValueError: k outside 2..4, a ratio outside 0..1, steps < 1, an unknown fusion.
    """
    if not 2 <= k <= 4:
        raise ValueError(f"k must be 2..4, got {k}: a block of one token shows nothing")
    if bad := [g for g in ratios if not 0 <= g <= 1]:
        raise ValueError(f"glancing ratios are 0..1, got {bad}")
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    out = []
    for g in ratios:
        recipe, head = train(source, k, g, seed, steps, fusion)
        ids = torch.from_numpy(source.sample(HELD_OUT, LENGTH + 1, np.random.default_rng([seed, 1])))
        reveal = dependence.prefix_reveal(k, g)
        glancing = _measured(recipe, head, source, ids, seed)
        recipe.settings["glance"] = 0.0
        drafting = _measured(recipe, head, source, ids, seed)
        for j in range(1, k + 1):
            out.append({
                "k": k, "ratio": g, "place": j,
                "loss": glancing[j - 1][0], "stderr": glancing[j - 1][1],
                "predicted": sum(share * source.entropy(j, r) for r, share in enumerate(reveal[j - 1])),
                "drafting": drafting[j - 1][0], "drafting_stderr": drafting[j - 1][1],
                "predicted_drafting": source.entropy(j) if g < 1 else None,
            })  # fmt: skip
    return out


def train(source: MarkovSource, k: int, g: float, seed: int, steps: int, fusion: str) -> tuple[BlockwiseRecipe, FalconHead]:
    """One head of :func:`run`, and the recipe that it was trained by."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        recipe = BlockwiseRecipe(source, k, g, fusion)
        head = recipe.make()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        ids = torch.from_numpy(source.sample(ROWS, LENGTH, np.random.default_rng([seed, 0, step])))
        optimizer.zero_grad()
        step_loss(recipe, head, source.found(ids), Moment(step / steps, seed, step, ROWS)).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return recipe, head.eval()


@torch.no_grad()
def _measured(recipe: BlockwiseRecipe, head: FalconHead, source: MarkovSource, ids: Tensor, seed: int) -> list[tuple[float | None, float | None]]:
    """By place: mean and standard error of ``-log q(token)`` over texts ``ids [B, L + 1]``."""
    (level,) = recipe.training(head, source.found(ids[:, :-1]), Moment(1.0, seed, 10**9, len(ids)))
    said = torch.nn.functional.cross_entropy(level.logits.transpose(1, 2), level.of(ids[:, 1:]), reduction="none").double()
    assert level.counted is not None
    counted = level.counted.double()
    return [_mean(said[:, j :: recipe.k], counted[:, j :: recipe.k]) for j in range(recipe.k)]


def _mean(value: Tensor, counted: Tensor) -> tuple[float | None, float | None]:
    """Over all counted places, and its standard error with texts as independent units."""
    total = counted.sum()
    if not total:
        return None, None
    mean = (value * counted).sum() / total
    away = ((value - mean) * counted).sum(1)
    return float(mean), float(away.square().sum().sqrt() / total)
