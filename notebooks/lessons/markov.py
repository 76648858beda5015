"""Glancing on a source whose entropies are known exactly.

The block head and the trainer's step are the real ones; a Markov chain stands for the target.
"""

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

from specwb.models.falcon import FalconHead
from specwb.theory.analysis import dependence
from specwb.training.falcon import FalconRecipe, glance_mask
from specwb.training.heads import step_loss
from specwb.training.recipe import Moment, Predictions, TargetOutputs

HIDDEN, SCALE = 32, 8.0
LENGTH, ROWS, STEPS, HELD_OUT = 24, 64, 400, 4096


@dataclass(frozen=True, eq=False)
class MarkovSource:
    """Text whose next token depends on the last one alone.

    It stands for a target: the feature is ``f_i = log P(. | t_i) / SCALE`` and the embedding
    e_{t_i}, both padded with zeros to the head's width; lm_head is SCALE times the identity. A
    token that cannot come has log P = -16.

    Args:
        transition: ``[S, S]``; row c is the distribution after token c.
    """

    transition: np.ndarray

    @classmethod
    def ring(cls, states: int = 10, reach: int = 3, seed: int = 0) -> MarkovSource:
        """Returns tokens on a ring, each followed by one of the next ``reach``.

        Each has random probabilities of its own. The chain does not come back to a token within
        ``(states - 1) // reach`` steps.
        """
        p = np.zeros((states, states))
        rows = np.random.default_rng(seed).dirichlet(np.full(reach, 2.0), states)
        for c, row in enumerate(rows):
            p[c, (c + 1 + np.arange(reach)) % states] = row
        return cls(p)

    @cached_property
    def stationary(self) -> np.ndarray:
        """``[S]``, how often each token comes."""
        s = len(self.transition)
        conditions = np.vstack([self.transition.T - np.eye(s), np.ones(s)])
        return np.linalg.lstsq(conditions, np.r_[np.zeros(s), 1], rcond=None)[0].clip(0)

    def joint(self, k: int) -> np.ndarray:
        """Returns ``[S, *[S]*k]``, the distribution of the next k tokens after each token.

        With ``weights = stationary`` it is a table of :mod:`specwb.theory.analysis.dependence`.
        """
        table = self.transition
        for _ in range(k - 1):
            table = table[..., None] * self.transition
        return table

    def entropy(self, j: int, shown: int = 0) -> float:
        """Returns ``H(X_j | C, X_{<=shown})``, where X_j is the j-th token after the context.

        It is the entropy of j - shown steps.
        """
        steps = np.linalg.matrix_power(self.transition, j - shown)
        return dependence.entropy(steps, weights=self.stationary)

    def returns(self, k: int) -> float:
        """Returns how often a token is the same as k positions before."""
        return float(self.stationary @ np.diag(np.linalg.matrix_power(self.transition, k)))

    def sample(self, rows: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """Draws texts ``[rows, length]``; their first tokens have the stationary distribution."""
        cdf = self.transition.cumsum(1)
        texts = np.empty((rows, length), dtype=np.int64)
        texts[:, 0] = rng.choice(len(cdf), rows, p=self.stationary / self.stationary.sum())
        # rounding never leads to a token that cannot come
        largest = np.array([np.flatnonzero(row)[-1] for row in self.transition])
        for t in range(1, length):
            before = texts[:, t - 1]
            drawn = (cdf[before] <= rng.random(rows)[:, None]).sum(1)
            texts[:, t] = np.minimum(drawn, largest[before])
        return texts

    def target_outputs(self, ids: Tensor) -> TargetOutputs:
        """What a target would compute from texts ``ids [B, L]``."""
        s = len(self.transition)
        logits = torch.zeros(s, HIDDEN)
        logits[:, :s] = torch.from_numpy(self.transition).log().clamp_min(-16)
        features = logits[ids] / SCALE
        embedded = torch.eye(s, HIDDEN)[ids]
        return TargetOutputs(ids, embedded, features, features, lambda x: x[..., :s] * SCALE)

    def lm_head(self) -> nn.Linear:
        """Returns the module that turns a feature into the logits of the next token."""
        head = nn.Linear(HIDDEN, len(self.transition), bias=False)
        with torch.no_grad():
            head.weight.copy_(SCALE * torch.eye(*head.weight.shape))
        return head


class BlockwiseRecipe(FalconRecipe):
    """CSGD in which every block glances with probability ``glance``.

    So the share that glances is known, where the paper takes a number of pairs from the mistakes of
    a first pass. Prefixes, replacement, the positions that the loss counts and the loss are the
    trainer's own.
    """

    def __init__(self, source: MarkovSource, k: int, glance: float, fusion: str) -> None:
        target: Any = SimpleNamespace(backbone=SimpleNamespace(lm_head=source.lm_head()))
        settings = {
            "k": k,
            "unroll": 1,
            "glance": glance,
            "fusion": fusion,
            "regression": 0.0,
            "hard": 0.0,
        }
        super().__init__(target, settings)

    def make(self, *_: Any) -> FalconHead:
        config = LlamaConfig(
            vocab_size=HIDDEN,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=8,
            max_position_embeddings=512,
            tie_word_embeddings=False,
        )
        return FalconHead(config, HIDDEN, self.k, self.settings["fusion"])

    def training_levels(
        self, head: FalconHead, outputs: TargetOutputs, moment: Moment
    ) -> Iterator[Predictions]:
        for level in super().training_levels(head, outputs, moment):
            if level.weights is None:
                level.weights = torch.ones_like(level.logits[..., 0], dtype=torch.bool)
            else:
                level.weights = level.weights.clone()
            # the last block never glances: its replacements are not in the text
            usable = (level.logits.shape[1] - 1) // self.k * self.k
            level.weights[:, usable:] = False
            yield level

    def choose(
        self,
        head: FalconHead,
        outputs: TargetOutputs,
        moment: Moment,
        pairs: tuple[Tensor, Tensor],
        offset: int,
        in_text: int,
    ) -> Tensor:
        rows, m = pairs[0].shape[:2]
        k, usable, device = self.k, (in_text - 1) // self.k, pairs[0].device
        draws = moment.uniforms(m // k, 2, device)[:, :usable].reshape(-1, 1)
        lengths = moment.uniforms(m // k, 3, device)[:, :usable].reshape(-1, 1)
        # every block is a row by itself: its whole prefix, or nothing
        count = (draws[:, 0] < self.settings["glance"]) * k
        mask = torch.zeros(rows, m, dtype=torch.bool, device=device)
        blocks = glance_mask(count, k, k, draws, lengths)
        mask[:, : usable * k] = blocks.view(rows, usable * k)
        return mask


def run(
    source: MarkovSource,
    k: int,
    ratios: Sequence[float],
    seed: int = 0,
    *,
    steps: int = STEPS,
    fusion: str = "linear",
) -> list[dict[str, Any]]:
    """Trains a block head on the source for every glancing ratio and measures its held-out loss.

    The head has two layers of width 32 and one pass, and is trained on the source's distributions
    by the loss of :mod:`specwb.training.heads`, with AdamW, on ``steps`` batches of 64 texts of 24
    tokens.

    Predictions are the least loss of any head, where it can tell what it is shown. That fails where
    a token is the same as k positions before and the next one as well, and is exact for a source
    that does not come back in k steps (:meth:`MarkovSource.returns`).

    Args:
        source: the text.
        k: the length of a block, 2..4.
        ratios: the glancing ratios, each in 0..1.
        seed: of training and of the texts.
        steps: how many batches.
        fusion: of the head.

    Returns:
        One dict for every ratio and position in a block, losses in nats per token.
        ``k``, ``ratio``, ``place`` (1..k).
        ``loss``, ``stderr``: the mean of ``-log q(token)`` over held-out positions whose own token
        is not shown, blocks glancing as in training, and its standard error over texts; None where
        every token is shown: place 1 at ratio 1.
        ``predicted``: ``sum_r P(r | place) H(X_place | C, X_{<=r})``,
        :func:`specwb.theory.analysis.dependence.glanced_loss` by place.
        ``drafting``, ``drafting_stderr``: the same with nothing shown, as a draft is made.
        ``predicted_drafting``: ``H(X_place | C)``, whatever the ratio; None where a place was never
        trained so (ratio 1).
    """
    rows = []
    for ratio in ratios:
        recipe, head = train(source, k, ratio, seed, steps, fusion)
        rng = np.random.default_rng([seed, 1])
        ids = torch.from_numpy(source.sample(HELD_OUT, LENGTH + 1, rng))
        reveal = dependence.prefix_reveal(k, ratio)
        glancing = _losses(recipe, head, source, ids, seed)
        recipe.settings["glance"] = 0.0
        drafting = _losses(recipe, head, source, ids, seed)
        for j in range(1, k + 1):
            shown = enumerate(reveal[j - 1])
            row: dict[str, Any] = {"k": k, "ratio": ratio, "place": j}
            row["loss"], row["stderr"] = glancing[j - 1]
            row["predicted"] = sum(share * source.entropy(j, r) for r, share in shown)
            row["drafting"], row["drafting_stderr"] = drafting[j - 1]
            row["predicted_drafting"] = source.entropy(j) if ratio < 1 else None
            rows.append(row)
    return rows


def train(
    source: MarkovSource, k: int, ratio: float, seed: int, steps: int, fusion: str
) -> tuple[BlockwiseRecipe, FalconHead]:
    """Trains one head of :func:`run`, and returns it behind its recipe."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        recipe = BlockwiseRecipe(source, k, ratio, fusion)
        head = recipe.make()
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 1e-2, total_steps=steps, pct_start=0.1
    )
    for step in range(steps):
        rng = np.random.default_rng([seed, 0, step])
        outputs = source.target_outputs(torch.from_numpy(source.sample(ROWS, LENGTH, rng)))
        optimiser.zero_grad()
        step_loss(recipe, head, outputs, Moment(step / steps, seed, step, ROWS)).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return recipe, head.eval()


@torch.no_grad()
def _losses(
    recipe: BlockwiseRecipe, head: FalconHead, source: MarkovSource, ids: Tensor, seed: int
) -> list[tuple[float | None, float | None]]:
    """The mean and standard error of ``-log q(token)`` by position in a block, on texts ``[B, L +
    1]``; blocks glance by ``seed``."""
    outputs = source.target_outputs(ids[:, :-1])
    (level,) = recipe.training_levels(head, outputs, Moment(1.0, seed, 10**9, len(ids)))
    tokens = level.select(ids[:, 1:])
    losses = nn.functional.cross_entropy(level.logits.transpose(1, 2), tokens, reduction="none")
    assert level.weights is not None
    losses, weights, k = losses.double(), level.weights.double(), recipe.k
    return [_mean(losses[:, j::k], weights[:, j::k]) for j in range(k)]


def _mean(value: Tensor, weights: Tensor) -> tuple[float | None, float | None]:
    """The mean over all counted positions, and its standard error, whose independent units are
    texts."""
    total = weights.sum()
    if not total:
        return None, None
    mean = (value * weights).sum() / total
    deviations = ((value - mean) * weights).sum(1)
    return float(mean), float(deviations.square().sum().sqrt() / total)
