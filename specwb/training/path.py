"""The recipe of the path scorer: which candidate of a lattice follows which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specwb.core.options import Option
from specwb.drafters.diffuspec_parts.lattice import candidates
from specwb.models.diffusion import DiffusionModel, load_diffusion
from specwb.models.path import PathScorer, follows_in
from specwb.models.target import Target, memory_hash
from specwb.training import corpus as text
from specwb.training.diffusion import DiffusionRecipe, fill_after_end
from specwb.training.fit import TrainingError
from specwb.training.recipe import Moment, Recipe, TargetOutputs
from specwb.training.settings import count, number


@dataclass
class Lattices:
    """The lattices of all N blocks of a batch, and what the target says of their candidates.

    Attributes:
        anchor: ``[N]``, the tokens before the blocks.
        ids, logq: ``[N, k, M]``, the candidates.
        states: ``[N, k, H]``, the diffusion model's.
        p: ``[N, k, M]``, the target's probabilities of the candidates behind the text.
        best: ``[N, k]``, the target's most probable tokens there.
        rank: ``[N, k]``, the rank of the text's token among the candidates of its place, -1 where
            it is none of them.
        counted: ``[N, k]``, which places count.
        follows: ``[N, k, M, M]``, which candidate follows which in the text before the block.
    """

    anchor: Tensor
    ids: Tensor
    logq: Tensor
    states: Tensor
    p: Tensor
    best: Tensor
    rank: Tensor
    counted: Tensor
    follows: Tensor

    def scores(self, head: PathScorer) -> Tensor:
        return head(self.anchor, self.ids, self.logq, self.states, self.follows)

    def behind_the_text(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The scores ``[N, k, M]`` behind the text's token of the place before, and where there are
        any: places before which the text left the lattice have none."""
        before = torch.cat([torch.zeros_like(self.rank[:, :1]), self.rank[:, :-1]], 1)
        index = before.clamp_min(0)[:, :, None, None].expand(-1, -1, 1, scores.shape[-1])
        return scores.gather(2, index)[:, :, 0], before >= 0


class PathRecipe(Recipe):
    """A path scorer over the target's frozen diffusion model.

    Every text is cut into blocks that are fully masked, as one pass of drafting sees them. At each
    place the scorer learns the target's distribution given the text's own token a of the place
    before: ``- sum_b p(b) log q_i(b | a)``, times ``decay**i``, with q that of a sampled walk. All
    tokens outside the candidates count as one, with the diffusion model's probability. Places
    before which the text's token is no candidate are left out; so is what follows an end of text.

    Measured are ``rank``, the share of held-out places at which the best candidate is the target's
    best token, ``row``, the same of the diffusion model's own first choices, and ``sampled``, the
    mean of sum min(p, q) over the candidates at T = 1; all by place, after the text's own tokens.

    Settings: rank, block (the longest that is scored; k is log-uniform in 2..block), top
    (candidates of a place), decay, diffusion (a folder; default the target's own diffusion model).
    """

    name = "path"
    options = {  # noqa: RUF012
        "rank": count(64),
        "block": count(16, 2),
        "top": count(15),
        "decay": number(0.9, "(0, 1]"),
        "diffusion": Option(kind="a folder", default="", types=(str,)),
    }
    depth_option = "block"
    measured_levels = 8
    own_loss = True
    training = {**Recipe.training, "lr": 2e-3, "weight_decay": 0.1}  # noqa: RUF012

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, settings)
        s = self.settings
        place = s["diffusion"] or target.own_head("diffusion")
        if place is None:
            way_out = "train one first and name its folder: --set diffusion=FOLDER"
            raise TrainingError(f"{target.name!r} has no diffusion model of its own; {way_out}")
        load = lambda: load_diffusion(place, target)  # noqa: E731
        self.diffusion: DiffusionModel = target.loaded(("diffusion",), place, load)
        sha256 = self.diffusion.card.get("sha256")
        self.diffusion_sha256 = sha256 or memory_hash(self.diffusion)
        if not self.diffusion.causal or not self.diffusion.shift:
            kind = "path scorers are trained for diffusion models whose text looks back only"
            raise TrainingError(f"path: {kind}; {place} is another")

    def initial_weights(self) -> str:
        return f"over diffusion {self.diffusion_sha256}"

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> PathScorer:
        s, hidden = self.settings, self.diffusion.net.config.hidden_size
        scorer = PathScorer(self.target, hidden, s["block"], s["top"], s["rank"])
        return scorer

    def min_tokens(self) -> int:
        return 2 * max(self.measured_levels, self.settings["block"]) - 1

    def adam_matrices(self, head: PathScorer) -> set[str]:
        return {name for name, _ in head.named_parameters()}

    def save(self, head: PathScorer, folder: Any, card: dict[str, Any]) -> None:
        head.save(folder, {**card, "diffusion_sha256": self.diffusion_sha256})

    def lattices(self, outputs: TargetOutputs, first: int, k: int) -> Lattices:
        """The lattices of the blocks of k tokens that begin at ``first``, one after another."""
        key = "lattices", self.diffusion, first, k, self.settings["top"]
        found = outputs.once(key, lambda: self._lattices(outputs, first, k))
        if outputs.counted is None:
            return found
        # heads may count other places of the same texts
        blocks = (outputs.ids.shape[1] - first) // k
        mine = outputs.counted[:, first - 1 : first - 1 + blocks * k]
        return replace(found, counted=found.counted & mine.reshape(found.counted.shape))

    @torch.no_grad()
    def _lattices(self, outputs: TargetOutputs, first: int, k: int) -> Lattices:
        model, ids = self.diffusion, outputs.ids
        (rows, length), device = ids.shape, ids.device
        blocks = (length - first) // k
        masked = torch.ones(rows, blocks, k - 1, dtype=torch.bool, device=device)
        text_states, later = DiffusionRecipe.states(model, outputs, first, k, masked)
        before = slice(first - 1, first - 1 + blocks * k)
        states = torch.cat([text_states[:, before].unflatten(1, (blocks, k))[:, :, :1], later], 2)
        states = states.flatten(0, 1)
        logits = model.logits(states)
        vocabulary = self.target.vocabulary
        best = candidates(logits, self.settings["top"], vocabulary, model.banned, model.words)
        tokens = ids[:, first : first + blocks * k].view(rows, blocks, k)
        _, is_after_end = fill_after_end(tokens, model.ends)
        found = best[0].long()
        p, likeliest = self._target_says(outputs, found.view(rows, blocks * k, -1), first - 1)
        is_text = found == tokens.flatten(0, 1)[:, :, None]
        anchor = ids[:, before].view(rows, blocks, k)[:, :, 0].flatten()
        begins = (first + k * torch.arange(blocks, device=device)).repeat(rows)
        texts = ids.repeat_interleave(blocks, 0)
        return Lattices(
            anchor=anchor,
            follows=follows_in(texts, begins, anchor, found),
            ids=found,
            logq=best[1].float(),
            states=states.float(),
            p=p.view_as(found),
            best=likeliest.view(-1, k),
            rank=torch.where(is_text.any(-1), is_text.int().argmax(-1), -1),
            counted=~is_after_end.flatten(0, 1),
        )

    def _target_says(
        self, outputs: TargetOutputs, ids: Tensor, start: int
    ) -> tuple[Tensor, Tensor]:
        """The target's probabilities of the candidates ``ids [B, m, M]``, which are those of the
        tokens behind positions start, start + 1, .., and its best tokens ``[B, m]``."""
        p, best = torch.empty(ids.shape, device=ids.device), torch.empty_like(ids[..., 0])
        for row in range(len(ids)):
            at = -start  # which of the m positions a part begins with
            for logits in outputs.parts(slice(row, row + 1)):
                low, high = max(at, 0), min(at + len(logits), ids.shape[1])
                if low < high:
                    part = logits[low - at : high - at]
                    chosen = part.gather(-1, ids[row, low:high])
                    p[row, low:high] = (chosen - part.logsumexp(-1, keepdim=True)).exp()
                    best[row, low:high] = part.argmax(-1)
                at += len(logits)
        return p, best

    def loss(self, head: PathScorer, outputs: TargetOutputs, moment: Moment) -> Tensor:
        k = int(2 * (self.settings["block"] / 2) ** moment.number(0) + 0.5)
        found = self.lattices(outputs, 1 + int(moment.number(1) * k), k)
        rows, is_known = found.behind_the_text(found.scores(head))
        p, logits = with_the_rest(found.p, found.logq, rows)
        # a candidate that may not be drafted has -inf, and costs nothing
        cost = -(p * logits.log_softmax(-1).masked_fill(logits == -torch.inf, 0.0)).sum(-1)
        weight = self.settings["decay"] ** torch.arange(k, device=cost.device)
        counts = (is_known & found.counted) * weight
        return (cost * counts).sum() / counts.sum().clamp_min(1)

    @torch.no_grad()
    def measure(self, head: PathScorer, outputs: TargetOutputs) -> dict[str, Any]:
        found = self.lattices(outputs, 1, min(self.measured_levels, head.places))
        rows, is_known = found.behind_the_text(found.scores(head))
        rows = torch.where(is_known[..., None], rows, found.logq)
        chosen = found.ids.gather(-1, rows.argmax(-1, keepdim=True))[..., 0]
        p, logits = with_the_rest(found.p, found.logq, rows)
        overlap = torch.minimum(p, logits.softmax(-1))[..., :-1].sum(-1)
        counted = found.counted.float()

        def by_place(values: Tensor) -> list[float]:
            mean = (values.float() * counted).sum(0) / counted.sum(0).clamp_min(1)
            return [round(float(x), 4) for x in mean]

        return {
            "rank": [[x] for x in by_place(chosen == found.best)],
            "row": by_place(found.ids[..., 0] == found.best),
            "sampled": by_place(overlap),
        }


def with_the_rest(p: Tensor, logq: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates' probabilities and scores ``[N, k, M]``, and last those of all other tokens
    together ``[N, k, M + 1]``: the target's, and the diffusion model's log-probability."""
    rest = (1 - logq.exp().sum(-1, keepdim=True)).clamp_min(1e-6).log()
    others = (1 - p.sum(-1, keepdim=True)).clamp_min(0)
    return torch.cat([p, others], -1), torch.cat([scores, rest], -1)
