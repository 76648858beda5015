"""Gumbel coupling: draft and target race with the same exponential variables (Daliri et al.; Rowan,
Phan and Khisti 2506.05632).

In plain Python; ``p(text)`` is the distribution after a part of a path, ``race[i][k]`` are path k's
exponential variables at place i. It returns the accepted tokens and the bonus token::

    def coupled(p, race, paths):
        text, agreeing = [], list(range(len(paths)))
        while True:
            variables = zip(*(race[len(text)][k] for k in agreeing))
            times = [min(one) / a for one, a in zip(variables, p(text))]
            y = times.index(min(times))
            agreeing = [k for k in agreeing if paths[k][len(text) :][:1] == [y]]
            if not agreeing:
                return text, y
            text.append(y)
"""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.core.flow import Draft, RuleMismatch, Scheme, Scores, Verdict
from specwb.core.tree import Limits
from specwb.rules.rule import Rule


class Coupled(Rule):
    """The next token is ``Y = argmin over x of min over k of E_x^(k) / p(x)``, over the paths k
    that still agree with the text; path k drafted ``argmin E_x^(k) / q(x)`` with the same
    variables. Exact: a minimum of independent exponential variables is again exponential.

    Nothing is tested, no residual is needed and q is not read: given the candidates, the output
    does not depend on the draft model (drafter invariance), and with one path the whole text is a
    function of the noise and the target alone. With one path ``P(match) = sum over y of 1 / sum
    over x of max(p_x / p_y, q_x / q_y)``, at least (1 - TV) / (1 + TV); with K paths at least ``sum
    over y of K / (sum over x of max(p_x / p_y, q_x / q_y) + (K - 1) / p_y)`` (list matching lemma).
    This is usually less than rejection rules accept.

    ``draft.race [B,D+1,K,V]`` are the variables at the D + 1 next places; where the paths end,
    those of the next place decide the bonus token. The noise is shared on purpose, the opposite of
    what every rejection rule needs. The bonus token's distribution is one-hot. The rule takes no
    uniforms.
    """

    name = "coupled"
    schemes = frozenset({Scheme.COUPLED})
    fixed_number = True

    def check(self, scheme: Scheme, limits: Limits, independent: bool = True) -> None:
        super().check(scheme, limits, independent)
        if limits.depth and not limits.paths:
            raise RuleMismatch(
                "rule 'coupled' follows whole paths; give a tree such as 4-1-1, which is four paths"
                " of three tokens"
            )

    def uniforms(self, limits: Limits) -> int:
        return 0

    def verify(self, draft: Draft, scores: Scores, u: Tensor | None = None) -> Verdict:
        assert draft.race is not None
        tree, K, rows = draft.tree, draft.race.shape[2], len(draft.tokens)
        paths = 1 + torch.arange(tree.D * K, device=draft.tokens.device).view(tree.D, K)
        agree = torch.ones((rows, K), dtype=torch.bool, device=draft.tokens.device)
        node = torch.zeros_like(draft.tokens[:, 0])
        accepted, bonus = torch.zeros_like(node), torch.zeros_like(node)
        going = torch.ones_like(agree[:, 0])
        # has Y a probability: NaN must show in the bonus token's distribution
        held = torch.ones_like(agree[:, :1])
        for d in range(tree.D + 1):
            if not self.some(going):
                break
            p = scores.p(node)
            soonest = torch.where(agree[:, :, None], draft.race[:, d], torch.inf).amin(1)
            y = (soonest / p).argmin(1)
            py = p.gather(1, y[:, None])
            bonus = torch.where(going, y, bonus)
            held = torch.where(going[:, None], py > 0, held)
            if d == tree.D:
                break
            same = (draft.tokens[:, paths[d]] == y[:, None]) & draft.valid[:, paths[d]]
            agree = agree & (py > 0) & same
            going = going & agree.any(1)
            # rows that have stopped: anything but a row of infinities
            agree = agree | ~going[:, None]
            node = torch.where(going, paths[d][agree.int().argmax(1)], node)
            accepted = accepted + going
        one_hot = torch.zeros_like(p).scatter_(1, bonus[:, None], held.to(p.dtype))
        return Verdict(tree.trail[0, node], accepted, torch.empty(0), one_hot)
