"""Does a method keep the target's text? A check for drafters and rules under development, on the real
target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import optimize, stats

from specwb.engine import Prompt, decode, token_rows
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.verify.controls import CONTROLS

FALSE_ALARM = 1e-4
POWER = 0.8
FIRST = 3  # tokens whose joint distribution is compared
FEWEST = 8  # texts that a cell of the chi-square test is expected to get, at least
CELLS = 4096  # texts that are listed, at most
TOGETHER = 256  # rows of a batch


@dataclass(frozen=True)
class Joint:
    """The chi-square test of the first tokens: its p-value, what it is of, and what it can see.

    Attributes:
        statistic, freedom: chi-square and its degrees of freedom; 0 degrees: nothing was compared.
        texts: how many were decoded. impossible: a text of them that the target cannot write, or "".
    """

    statistic: float
    freedom: int
    texts: int
    impossible: str = ""

    @property
    def pvalue(self) -> float:
        if self.impossible:
            return 0.0
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0

    @property
    def sees(self) -> float:
        """The smallest total variation (mean over the prompts) that is found with probability ``POWER``.

        A deviation of total variation d from p has ``sum (r - p)^2 / p >= 4 d^2`` (Cauchy and Schwarz),
        so that chi-square of n texts is noncentral with at least ``4 n d^2``. What noncentrality is
        found so often at ``FALSE_ALARM`` follows from the degrees of freedom. 1: nothing is seen.
        """
        if not self.freedom:
            return 1.0

        def short(noncentral: float) -> float:
            return float(stats.ncx2.sf(self._critical, self.freedom, noncentral)) - POWER

        needed = optimize.brentq(short, 1e-6, 100 * self._critical)
        return min(1.0, (needed / (4 * self.texts)) ** 0.5)

    @property
    def power(self) -> float:
        """How often a check as large as this one finds a deviation like the one found: from the noncentral
        chi-square at the noncentrality measured, ``chi-square - degrees of freedom``."""
        if self.impossible:
            return 1.0
        excess = self.statistic - self.freedom
        return float(stats.ncx2.sf(self._critical, self.freedom, excess)) if self.freedom and excess > 0 else FALSE_ALARM

    @property
    def _critical(self) -> float:
        return float(stats.chi2.isf(FALSE_ALARM, self.freedom))


@dataclass(frozen=True)
class Check:
    """What :func:`check` found.

    Attributes:
        greedy: greedy text equals plain decoding's, all prompts in one batch.
        batch: a row alone gives the text it gives in the batch, at the temperature; up to rounding, so
            that in float32 a right method can miss it, where a uniform lies on a boundary (see
            :func:`specwb.rounds`).
        joint: the test of the first three tokens' joint distribution.
        transform: the p-value of longer texts' single tokens, ``tokens`` of them.
        mean_tokens_per_round: greedy.
    """

    method: str
    greedy: bool
    batch: bool
    joint: Joint
    transform: float
    tokens: int
    mean_tokens_per_round: float

    @property
    def pvalue(self) -> float:
        """The smaller of the two p-values. A right method has one below 1e-4 in 5,000 checks or more."""
        return min(self.joint.pvalue, self.transform)

    @property
    def passed(self) -> bool:
        return self.greedy and self.batch and self.joint.freedom > 0 and self.pvalue > FALSE_ALARM

    def __str__(self) -> str:
        def word(ok: bool) -> str:
            return "yes" if ok else "NO"

        joint, same = self.joint, self.joint.pvalue > FALSE_ALARM
        seen = f"p-value {joint.pvalue:.2g}, {joint.texts} texts; a total variation of {joint.sees:.2g} is seen 8 times in 10"
        lines = [
            f"{self.method}: {'passed' if self.passed else 'FAILED'}",
            f"  greedy text is plain decoding's: {word(self.greedy)} (tau {self.mean_tokens_per_round:.2f})",
            f"  a row alone is the row in the batch: {word(self.batch)}",
            f"  the first {FIRST} tokens have the target's distribution: {word(same)} ({seen})"
            if joint.freedom
            else f"  the first {FIRST} tokens: nothing to compare in {joint.texts} texts; more rows, or a higher temperature",
            *([f"    the target cannot write {joint.impossible}"] if joint.impossible else []),
            f"  so have single tokens of longer texts: {word(self.transform > FALSE_ALARM)} (p-value {self.transform:.2g}, {self.tokens} tokens)",
        ]
        return "\n".join(lines)


def check(
    target: Target,
    method: str | Method,
    prompts: Sequence[Prompt],
    *,
    temperature: float = 1.0,
    top_k: int = 3,
    max_new_tokens: int = 8,
    rows: int = 1024,
    seed: int = 0,
    **options,
) -> Check:
    """Decode with a method and compare with what the target alone would do: the same greedy text, and
    when sampling the same distribution.

    The test that sees: with ``top_k`` three tokens can follow each other token, 27 texts of three
    tokens a prompt. Their probabilities are computed from the model's own forward (13 prefixes, three
    batches), ``rows`` texts are decoded, and the two are compared by chi-square, cells that expect
    fewer than eight texts being merged. It sees whatever moves the joint distribution of the first
    tokens, for whatever reason; the report says how small a total variation it finds with probability
    .8 (:attr:`Joint.sees`), which falls with the square root of ``rows``: four times as many see half.

    A second opinion on longer texts and the whole vocabulary, an eighth as many rows of
    ``max_new_tokens``: with the tokens sorted by falling p, a token x drawn from p gives
    ``F(x-) + w p(x)``, w uniform on (0, 1), which is uniform and independent from token to token
    (Rosenblatt 1952); Kolmogorov-Smirnov. It is blind to what swaps tokens of like rank.

    The first beginnings that rounding decides (the last token that top_k keeps is within rounding of
    the first that it drops) are not told apart further. In half precision rounding itself moves the
    distribution, so load the target in float32. "A row alone" can differ by rounding too, about once
    in 1e5 tokens.

    Args:
        method: a spec or a :class:`Method`. A rule of your own: ``rule=MyRule`` (class or instance).
        prompts: several texts or lists of token ids, better of different lengths.
        temperature: > 0, of the sampled parts: warm enough that drafts are rejected.
        top_k: of the chi-square test; 0 takes the whole vocabulary, for tiny ones.
        max_new_tokens: of the longer texts, and of the greedy ones.
        rows: texts of three tokens, shared out among the prompts.
        options: the method's own.
    Raises:
        ValueError: temperature is not > 0, rows < 1, more than 4,096 texts to be told apart, or whatever
            :func:`specwb.decode` refuses.
    """
    ids = _asked(target, prompts, temperature, rows)
    made = method if isinstance(method, Method) else make_method(method, target, **options)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos": ()}
    plain = decode(target, ids, "ar", **settings)
    greedy = decode(target, ids, made, **settings)
    hot = {**settings, "temperature": temperature}
    seeds = [seed + i for i in range(len(ids))]
    together = decode(target, ids, made, seed=seeds, **hot)
    alone = [decode(target, [row], made, seed=[s], **hot).tokens[0] for row, s in zip(ids, seeds, strict=True)]
    first = joint(target, made, ids, Sampling(float(temperature), top_k), rows, seed)
    share = -(-rows // (8 * len(ids)))
    values = []
    for i, row in enumerate(ids):
        sampled = decode(target, [row] * share, made, seed=seed + i, **hot)
        values.append(_transform(target, row, sampled.tokens, Sampling(temperature), seed + i))
    u = torch.cat(values)
    single = float(stats.kstest(u.numpy(), "uniform").pvalue)
    same = greedy.tokens == plain.tokens
    return Check(made.key, same, together.tokens == alone, first, single, len(u), greedy.mean_tokens_per_round)


def controls(
    target: Target,
    prompts: Sequence[Prompt],
    *,
    temperature: float = 1.0,
    top_k: int = 3,
    rows: int = 1024,
    seed: int = 0,
    draft: str | Target | None = None,
) -> list[dict[str, Any]]:
    """Put wrong rules to the chi-square test of :func:`check`, and the right ones beside them.

    Args: as of :func:`check`; draft: default the target's own.
    Returns:
        a row a rule: ``rule``, ``method``, ``wrong`` (what is, "" for a right rule) and ``joint``, a
        :class:`Joint` with its p-value and the power that a check of this size has against it.
    """
    ids = _asked(target, prompts, temperature, rows)
    own: dict[str, Any] = {} if draft is None else {"draft": draft}
    sampling, found = Sampling(float(temperature), top_k), []
    right = dict.fromkeys(control.spec for control in CONTROLS)
    for spec, control in [*((spec, None) for spec in right), *((c.spec, c) for c in CONTROLS)]:
        made = make_method(spec, target, **own)
        if control is not None:
            made = Method(f"{spec},rule={control.name}", made.drafter, control.rule(), made.exactness)
        name = made.rule_for(sampling).name
        first = joint(target, made, ids, sampling, rows, seed)
        found.append({"rule": name, "method": spec, "wrong": control.wrong if control else "", "joint": first})
    return found


def joint(target: Target, method: Method, prompts: Sequence[list[int]], sampling: Sampling, rows: int, seed: int) -> Joint:
    """The chi-square test of :func:`check`: the first three tokens after token ids, ``rows`` texts in all."""
    share, statistic, freedom, impossible = -(-rows // len(prompts)), 0.0, 0, ""
    for i, prompt in enumerate(prompts):
        cells = beginnings(target, prompt, sampling, FIRST)
        counts: Counter[tuple[int, ...]] = Counter()
        for at in range(0, share, TOGETHER):
            count = min(TOGETHER, share - at)
            key = torch.Generator().manual_seed(seed * 1_000_003 + i * 10_007 + at)
            out = decode(
                target, [prompt] * count, method, max_new_tokens=FIRST, eos=(), seed=key,
                temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
            )  # fmt: skip
            for row in out.tokens:
                found = [tuple(row[:n]) for n in range(FIRST + 1) if tuple(row[:n]) in cells]
                counts[found[-1] if found else tuple(row)] += 1
        for text in counts.keys() - cells.keys():
            words = target.tokenizer.decode(text) if target.tokenizer is not None else ""
            impossible = impossible or f"{text} {words!r} after prompt {i}"
        seen, wanted = _merged([(counts[text], share * chance) for text, chance in cells.items()])
        statistic += sum((a - b) ** 2 / b for a, b in zip(seen, wanted, strict=True))
        freedom += max(0, len(wanted) - 1)
    return Joint(statistic, freedom, share * len(prompts), impossible)


def beginnings(target: Target, prompt: list[int], sampling: Sampling, length: int) -> dict[tuple[int, ...], float]:
    """Every text of ``length`` tokens after a prompt with its probability, by the model's own forward.

    Where top_k's last token and the first that it drops differ by rounding only, the beginning so far
    stands for all texts that go on from it.

    Raises:
        ValueError: there are more than 4,096.
    """
    level: dict[tuple[int, ...], float] = {(): 1.0}
    cells: dict[tuple[int, ...], float] = {}
    for _ in range(length):
        rows = torch.tensor([[*prompt, *text] for text in level], device=target.device)
        with torch.inference_mode():
            logits = target.model(rows, use_cache=False).logits[:, -1].double()
        p = sampling.probabilities(logits)
        below: dict[tuple[int, ...], float] = {}
        for text, row, law in zip(level, logits, (p / p.sum(-1, keepdim=True)), strict=True):
            tokens = law.nonzero().flatten()
            if _undecided(row, sampling.top_k, target.dtype):
                cells[text] = level[text]
                continue
            below.update({(*text, x): level[text] * chance for x, chance in zip(tokens.tolist(), law[tokens].tolist(), strict=True)})
            if len(below) + len(cells) > CELLS:
                raise ValueError(f"there are more than {CELLS} texts of {length} tokens to tell apart; give a smaller top_k (got {sampling.top_k})")
        level = below
        if not level:
            break
    return {**cells, **level}


def _undecided(logits: torch.Tensor, k: int, dtype: torch.dtype) -> bool:
    """Is it within rounding which tokens are the k most probable."""
    if not 0 < k < len(logits):
        return False
    most = logits.topk(k + 1).values
    return bool(most[-2] - most[-1] < 8 * torch.finfo(dtype).eps * logits.abs().max())


def _merged(cells: Iterable[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Observed and expected counts of cells that expect ``FEWEST`` or more, small ones in one."""
    counts: list[int] = []
    wanted: list[float] = []
    rest, little = 0, 0.0
    for count, expected in sorted(cells, key=lambda cell: cell[1]):
        rest, little = rest + count, little + expected
        if little >= FEWEST:
            counts, wanted = [*counts, rest], [*wanted, little]
            rest, little = 0, 0.0
    if little and wanted:  # the most probable cell expects less than that: all together do
        counts[-1], wanted[-1] = counts[-1] + rest, wanted[-1] + little
    return counts, wanted


def _asked(target: Target, prompts: Sequence[Prompt], temperature: float, rows: int) -> list[list[int]]:
    if not temperature > 0:
        raise ValueError(f"temperature is of the sampled part and must be > 0, got {temperature}; the greedy part is always run")
    if rows < 1:
        raise ValueError(f"rows must be >= 1, got {rows}")
    if isinstance(prompts, str):
        raise ValueError("prompts must be a list of prompts, got one text")
    return token_rows(target, prompts)


def _transform(target: Target, prompt: list[int], texts: list[list[int]], sampling: Sampling, seed: int) -> torch.Tensor:
    """The probability integral transform of every token of every text."""
    whole = torch.tensor([prompt + text for text in texts], device=target.device)
    with torch.inference_mode():
        logits = target.model(whole, use_cache=False).logits[:, len(prompt) - 1 : -1]
    p = sampling.probabilities(logits).double()
    x = whole[:, len(prompt) :, None]
    px = p.gather(-1, x)
    below = torch.where((p > px) | ((p == px) & (torch.arange(p.shape[-1], device=p.device) < x)), p, 0).sum(-1)
    w = torch.rand(below.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(p.device)
    return ((below + w * px[..., 0]) / p.sum(-1)).flatten().clamp(0, 1).cpu()
