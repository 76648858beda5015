"""Does a method keep the target's distribution?

This is a check on the real target, for drafters and rules under development.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import optimize, stats

from specwb.decoding import decode
from specwb.errors import ArgumentError
from specwb.inputs import Prompt, token_rows
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.verify.controls import CONTROLS

FALSE_ALARM = 1e-4
"""The p-value below which a test fails."""
POWER = 0.8
"""The probability with which a deviation is found that counts as seen."""
FIRST = 3
"""How many first tokens have their joint distribution compared."""
MIN_EXPECTED = 8
"""How many texts a cell of the chi-square test expects, at least."""
MAX_TEXTS = 4096
"""How many different texts are listed, at most."""
BATCH = 256
"""Rows of a batch."""


@dataclass(frozen=True)
class Joint:
    """The chi-square test of the first tokens: its p-value, its size, and what it can see.

    Attributes:
        statistic: chi-square.
        freedom: its degrees of freedom; at 0 nothing was compared.
        texts: how many were decoded.
        impossible: one of them that the target cannot write, or "".
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
        """The smallest total variation that is found with probability ``POWER``.

        It is a mean over the prompts. A deviation of total variation d from p has
        ``sum (r - p)^2 / p >= 4 d^2`` (Cauchy and Schwarz), so that chi-square of n texts is
        noncentral with at least ``4 n d^2``. The noncentrality that is found so often at
        ``FALSE_ALARM`` follows from the degrees of freedom. At 1 nothing is seen.
        """
        if not self.freedom:
            return 1.0

        def missing_power(noncentrality: float) -> float:
            return float(stats.ncx2.sf(self._critical, self.freedom, noncentrality)) - POWER

        needed = optimize.brentq(missing_power, 1e-6, 100 * self._critical)
        return min(1.0, (needed / (4 * self.texts)) ** 0.5)

    @property
    def power(self) -> float:
        """How often a check of this size finds a deviation like the measured one.

        It is computed from the noncentral chi-square at the measured noncentrality,
        ``chi-square - degrees of freedom``.
        """
        if self.impossible:
            return 1.0
        excess = self.statistic - self.freedom
        if not self.freedom or excess <= 0:
            return FALSE_ALARM
        return float(stats.ncx2.sf(self._critical, self.freedom, excess))

    @property
    def _critical(self) -> float:
        return float(stats.chi2.isf(FALSE_ALARM, self.freedom))


@dataclass(frozen=True)
class Check:
    """The result of :func:`check`.

    Attributes:
        method: the method's key.
        greedy: whether greedy text equals plain decoding's, all prompts in one batch.
        batch: whether a row alone gives the text that it gives in the batch, at the temperature and
            top_k of the chi-square test. Rounding can make a right method miss it: where two
            computations of a distribution differ by 1e-7 at each of k boundaries of its cumulated
            probabilities, a uniform falls between them with probability k 1e-7.
        joint: the test of the first three tokens' joint distribution.
        transform: the p-value of single tokens of longer texts.
        tokens: how many single tokens there are.
        mean_tokens_per_step: of greedy decoding.
    """

    method: str
    greedy: bool
    batch: bool
    joint: Joint
    transform: float
    tokens: int
    mean_tokens_per_step: float

    @property
    def pvalue(self) -> float:
        """The smaller of the two p-values.

        For a right method it is below 1e-4 once in 5,000 checks or more rarely.
        """
        return min(self.joint.pvalue, self.transform)

    @property
    def passed(self) -> bool:
        return self.greedy and self.batch and self.joint.freedom > 0 and self.pvalue > FALSE_ALARM

    def __str__(self) -> str:
        def answer(yes: bool) -> str:
            return "yes" if yes else "NO"

        greedy, batch = answer(self.greedy), answer(self.batch)
        single = answer(self.transform > FALSE_ALARM)
        verdict = "passed" if self.passed else "FAILED"
        if not self.joint.freedom and self.greedy and self.batch and self.pvalue > FALSE_ALARM:
            verdict = "not decided"
        lines = [
            f"{self.method}: {verdict}",
            f"  greedy text is plain decoding's: {greedy} (tau {self.mean_tokens_per_step:.2f})",
            f"  a row alone is the row in the batch: {batch}",
        ]
        joint = self.joint
        if joint.freedom:
            same = answer(joint.pvalue > FALSE_ALARM)
            lines.append(
                f"  the first {FIRST} tokens have the target's distribution: {same} "
                f"(p-value {joint.pvalue:.2g}, {joint.texts} texts; "
                f"a total variation of {joint.sees:.2g} is seen 8 times in 10)"
            )
        else:
            lines.append(
                f"  the first {FIRST} tokens: nothing to compare in {joint.texts} texts; "
                "more rows, or a higher temperature"
            )
        if joint.impossible:
            lines.append(f"    the target cannot write {joint.impossible}")
        lines.append(
            f"  so have single tokens of longer texts: {single} "
            f"(p-value {self.transform:.2g}, {self.tokens} tokens)"
        )
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
    """Decode with a method and compare with what the target alone would write.

    Greedy text must be the same, and sampled text must have the same distribution.

    The main test is a chi-square test of the first three tokens. With ``top_k`` three tokens can
    follow each other token, which makes 27 texts of three tokens a prompt. Their probabilities are
    computed from the model's own forward (13 prefixes, three batches), ``rows`` texts are decoded,
    and the two are compared; cells that expect fewer than eight texts are merged. The test sees
    whatever moves the joint distribution of the first tokens, for whatever reason. The report says
    how small a total variation it finds with probability .8 (:attr:`Joint.sees`). That falls with
    the square root of ``rows``: four times as many see a deviation half as large.

    A second test looks at longer texts and the whole vocabulary, on an eighth as many rows of
    ``max_new_tokens``. With the tokens sorted by falling p, a token x drawn from p gives
    ``F(x-) + w p(x)``, w uniform on (0, 1), which is uniform and independent from token to token
    (Rosenblatt 1952); it is tested by Kolmogorov-Smirnov. It is blind to what swaps tokens of like
    rank.

    Texts are not told apart beyond a beginning where rounding decides: where the last token that
    top_k keeps is within rounding of the first that it drops. In half precision rounding itself
    moves the distribution, so load the target in float32. A row alone is compared with the row in a
    batch under ``top_k`` too: of k tokens a draw rounding changes one about k 1e-7 times, of a
    whole vocabulary of thousands often enough to meet it.

    Args:
        target: the target model.
        method: a spec or a :class:`Method`. A rule of your own is given as ``rule=MyRule`` (class
            or instance).
        prompts: several texts or lists of token ids, better of different lengths.
        temperature: of the sampled parts, > 0 and high enough that drafts are rejected.
        top_k: of the chi-square test; 0 takes the whole vocabulary, for tiny ones.
        max_new_tokens: of the longer texts, and of the greedy ones.
        rows: texts of three tokens, distributed among the prompts.
        seed: of the sampling.
        options: the method's own.
    Raises:
        ValueError: temperature is not > 0, rows < 1, there are more than 4,096 texts to tell apart,
            or whatever :func:`specwb.decode` refuses.
    """
    ids = _checked_prompts(target, prompts, temperature, rows)
    chosen = method if isinstance(method, Method) else make_method(method, target, **options)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos": ()}
    plain = decode(target, ids, "ar", **settings)
    greedy = decode(target, ids, chosen, **settings)

    settings["temperature"] = temperature
    seeds = [seed + i for i in range(len(ids))]
    in_batch = decode(target, ids, chosen, seed=seeds, top_k=top_k, **settings)
    alone = [
        decode(target, [row], chosen, seed=[row_seed], top_k=top_k, **settings).tokens[0]
        for row, row_seed in zip(ids, seeds, strict=True)
    ]
    first = joint(target, chosen, ids, Sampling(float(temperature), top_k), rows, seed)

    texts = -(-rows // (8 * len(ids)))  # a prompt, rounded up
    values = []
    for row, row_seed in zip(ids, seeds, strict=True):
        sampled = decode(target, [row] * texts, chosen, seed=row_seed, **settings)
        values.append(_transform(target, row, sampled.tokens, Sampling(temperature), row_seed))
    uniforms = torch.cat(values)
    return Check(
        method=chosen.key,
        greedy=greedy.tokens == plain.tokens,
        batch=in_batch.tokens == alone,
        joint=first,
        transform=float(stats.kstest(uniforms.numpy(), "uniform").pvalue),
        tokens=len(uniforms),
        mean_tokens_per_step=greedy.mean_tokens_per_step,
    )


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

    Args:
        target, prompts, temperature, top_k, rows, seed: as of :func:`check`.
        draft: the draft model, default the target's own.
    Returns:
        One row a rule with

        - rule: its name.
        - method: the spec it is used in.
        - wrong: what is wrong with it, "" for a right rule.
        - joint: a :class:`Joint` with its p-value and the power that a check of this size has
          against the rule.
    """
    ids = _checked_prompts(target, prompts, temperature, rows)
    options: dict[str, Any] = {} if draft is None else {"draft": draft}
    sampling = Sampling(float(temperature), top_k)
    table = []

    def add(method: Method, spec: str, wrong: str) -> None:
        test = joint(target, method, ids, sampling, rows, seed)
        rule = method.rule_for(sampling).name
        table.append({"rule": rule, "method": spec, "wrong": wrong, "joint": test})

    for spec in dict.fromkeys(control.spec for control in CONTROLS):
        add(make_method(spec, target, **options), spec, "")
    for control in CONTROLS:
        right = make_method(control.spec, target, **options)
        key = f"{control.spec},rule={control.name}"
        method = Method(key, right.drafter, control.rule(), right.exactness)
        add(method, control.spec, control.wrong)
    return table


def joint(
    target: Target,
    method: Method,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    rows: int,
    seed: int,
) -> Joint:
    """Run the chi-square test of :func:`check` on the first three tokens.

    Args:
        target: the target model.
        method: a built method.
        prompts: token ids of every prompt.
        sampling: temperature and filters.
        rows: texts in all, over the prompts.
        seed: of the sampling.
    """
    texts = -(-rows // len(prompts))  # a prompt, rounded up
    statistic, freedom, impossible = 0.0, 0, ""
    for i, prompt in enumerate(prompts):
        cells = beginnings(target, prompt, sampling, FIRST)
        counts: Counter[tuple[int, ...]] = Counter()
        for start in range(0, texts, BATCH):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + i * 10_007 + start)
            output = decode(
                target,
                [prompt] * min(BATCH, texts - start),
                method,
                max_new_tokens=FIRST,
                eos=(),
                seed=generator,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
            )
            counts.update(_cell(row, cells) for row in output.tokens)
        for text in counts.keys() - cells.keys():
            words = target.tokenizer.decode(text) if target.tokenizer is not None else ""
            impossible = impossible or f"{text} {words!r} after prompt {i}"
        observed, expected = _merged(
            [(counts[text], texts * probability) for text, probability in cells.items()]
        )
        statistic += sum((a - b) ** 2 / b for a, b in zip(observed, expected, strict=True))
        freedom += max(0, len(expected) - 1)
    return Joint(statistic, freedom, texts * len(prompts), impossible)


def _cell(row: list[int], cells: dict[tuple[int, ...], float]) -> tuple[int, ...]:
    """The longest beginning of a text that is a cell; the text itself where none is."""
    for n in range(FIRST, -1, -1):
        if tuple(row[:n]) in cells:
            return tuple(row[:n])
    return tuple(row)


def beginnings(
    target: Target, prompt: list[int], sampling: Sampling, length: int
) -> dict[tuple[int, ...], float]:
    """List every text of ``length`` tokens after a prompt with its probability.

    The probabilities are the model's own forward's. Where top_k's last token and the first that it
    drops differ by rounding only, the beginning so far stands for all texts that go on from it.

    Raises:
        ValueError: there are more than 4,096.
    """
    level: dict[tuple[int, ...], float] = {(): 1.0}
    undecided: dict[tuple[int, ...], float] = {}
    for _ in range(length):
        rows = torch.tensor([[*prompt, *text] for text in level], device=target.device)
        with torch.inference_mode():
            logits = target.model(rows, use_cache=False).logits[:, -1].double()
        p = sampling.probabilities(logits)
        p = p / p.sum(-1, keepdim=True)
        next_level: dict[tuple[int, ...], float] = {}
        for (text, probability), row, distribution in zip(level.items(), logits, p, strict=True):
            if _undecided(row, sampling.top_k, target.dtype):
                undecided[text] = probability
                continue
            tokens = distribution.nonzero().flatten()
            chances = distribution[tokens].tolist()
            for token, chance in zip(tokens.tolist(), chances, strict=True):
                next_level[(*text, token)] = probability * chance
            if len(next_level) + len(undecided) > MAX_TEXTS:
                raise ArgumentError(
                    f"there are more than {MAX_TEXTS} texts of {length} tokens to tell apart; "
                    f"give a smaller top_k (got {sampling.top_k})"
                )
        level = next_level
        if not level:
            break
    return {**undecided, **level}


def _undecided(logits: torch.Tensor, k: int, dtype: torch.dtype) -> bool:
    """Whether rounding decides which tokens are the k most probable."""
    if not 0 < k < len(logits):
        return False
    largest = logits.topk(k + 1).values
    rounding = 8 * torch.finfo(dtype).eps * logits.abs().max()
    return bool(largest[-2] - largest[-1] < rounding)


def _merged(cells: Iterable[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Observed and expected counts of cells that expect ``MIN_EXPECTED`` or more.

    Small cells are merged. If all cells together expect less than that, there is none.
    """
    observed: list[int] = []
    expected: list[float] = []
    count_sum, expected_sum = 0, 0.0
    for count, expectation in sorted(cells, key=lambda cell: cell[1]):
        count_sum += count
        expected_sum += expectation
        if expected_sum >= MIN_EXPECTED:
            observed.append(count_sum)
            expected.append(expected_sum)
            count_sum, expected_sum = 0, 0.0
    if expected_sum and expected:  # what remains joins the last cell
        observed[-1] += count_sum
        expected[-1] += expected_sum
    return observed, expected


def _checked_prompts(
    target: Target, prompts: Sequence[Prompt], temperature: float, rows: int
) -> list[list[int]]:
    """The prompts' token ids, after a check of the arguments."""
    if not temperature > 0:
        raise ArgumentError(
            f"temperature is of the sampled part and must be > 0, got {temperature}; "
            "the greedy part is always run"
        )
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError(f"rows must be >= 1, got {rows!r}")
    if isinstance(prompts, str):
        raise ArgumentError("prompts must be a list of prompts, got one text")
    return token_rows(target, prompts)


def _transform(
    target: Target, prompt: list[int], texts: list[list[int]], sampling: Sampling, seed: int
) -> torch.Tensor:
    """The probability integral transform of every token of every text.

    For a token x it is ``F(x-) + w p(x)``, where F(x-) is the mass of the tokens before x in the
    order of falling p (of equal ones by id), and w is uniform.
    """
    ids = torch.tensor([prompt + text for text in texts], device=target.device)
    with torch.inference_mode():
        logits = target.model(ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
    p = sampling.probabilities(logits).double()
    x = ids[:, len(prompt) :, None]
    px = p.gather(-1, x)
    vocabulary = torch.arange(p.shape[-1], device=p.device)
    before = (p > px) | ((p == px) & (vocabulary < x))
    below = torch.where(before, p, 0).sum(-1)
    generator = torch.Generator().manual_seed(seed)
    w = torch.rand(below.shape, dtype=torch.float64, generator=generator).to(p.device)
    transform = (below + w * px[..., 0]) / p.sum(-1)
    return transform.flatten().clamp(0, 1).cpu()
