"""Early stopping: each measure of sureness by hand, where each row stops, and the law of whole
texts with every drafter that stops."""

from __future__ import annotations

import pytest
import test_decoding_distribution as decoding
import tiny
import torch

import specwb

PROMPTS = tiny.PROMPTS


# --------------------------------------------------------------------------- where each row stops


def depths(step) -> list[int | None]:
    """How many levels each row drafted; None where it had finished."""
    found = (step.draft.valid * step.draft.tree.depth).amax(1).tolist()
    return [
        None if accepted < 0 else depth
        for depth, accepted in zip(found, step.verdict.accepted.tolist(), strict=True)
    ]


TREE = specwb.Tree.branching(2, 2, 1, 1)
STOPS: dict[str, tuple[str, dict, float]] = {
    "largest": ("mcsd_ti", {"stop": "top"}, 0.15),
    "entropy": ("mcsd_ti", {"stop": "entropy"}, 0.03),
    "soft": ("mcsd_ti", {"stop": "soft"}, 0.78),
    "hard": ("mcsd_ti", {"stop": "hard"}, 0.52),
    "kangaroo scaled": ("kangaroo", {"stop": "scaled"}, 0.5),
    "kangaroo entropy": ("kangaroo", {"stop": "entropy"}, 0.1),
}


def stopping(name: str, threshold: float, tree: specwb.Tree = TREE) -> specwb.Method:
    key, options, _ = STOPS[name]
    if key == "kangaroo":
        options = options if threshold else {}  # it has no effect there and is refused
        return specwb.method(
            key, tiny.target(), head=tiny.head("kangaroo"), tree=tree, eta=threshold, **options
        )
    head = {"head": tiny.head("decision")} if options["stop"] in ("soft", "hard") else {}
    return specwb.method(
        key, tiny.target(), draft=tiny.draft(), tree=tree, threshold=threshold, **head, **options
    )


def by_hand(name: str, text: list[int], temperature: float) -> float:
    """How sure the drafter is of what follows a text, from the library's own forward."""
    ids, draft = torch.tensor([text]), tiny.draft()
    with torch.no_grad():
        if name.startswith("kangaroo"):
            head = tiny.head("kangaroo")
            logits = head.logits(
                head(tiny.states(tiny.target(), ids, (1,)))[:, -1],
                head.output(tiny.target().backbone.lm_head),
            )
        else:
            normed = draft.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
            logits = draft.model.lm_head(normed)
        if name in ("soft", "hard"):
            return float(tiny.head("decision")(name, logits, normed).sigmoid())
        q = (logits / temperature if name.endswith("scaled") else logits).softmax(-1)
        return float((q * q.log()).sum().exp() if name.endswith("entropy") else q.max())


@pytest.mark.parametrize("name", STOPS)
def test_a_row_stops_below_the_first_level_that_it_is_unsure_of(name):
    """A level's nodes are drafted whole, the one that made it stop among them; the rest of the row
    is not valid."""
    threshold, temperature, seen = STOPS[name][2], 0.4, set()
    loop = specwb.rounds(
        tiny.target(),
        PROMPTS,
        stopping(name, threshold),
        max_new_tokens=20,
        temperature=temperature,
        seed=2,
    )
    for step, _ in zip(loop, range(4)):
        tree, found = step.draft.tree, depths(step)
        assert max((d for d in found if d is not None), default=tree.D) == tree.D, (
            "on the CPU the tree is cut to the longest row"
        )
        for row, depth in enumerate(found):
            if depth is None:
                continue
            seen.add(depth)
            assert step.draft.valid[row].tolist() == [d <= depth for d in tree.depths[0]]
            text, tokens = (
                step.state.tokens[row, : int(step.length[row])].tolist(),
                step.draft.tokens[row].tolist(),
            )
            for d in range(depth):  # asked of level d when its children have been drafted
                start, stop = tree.levels[d]
                value = max(
                    by_hand(name, text + tiny.path_to(tree.host[0], tokens, node), temperature)
                    for node in range(start, stop)
                )
                if d == TREE.D - 1:
                    continue  # nothing could follow
                assert (value >= threshold) == (d < depth - 1), (value, d, depth)
    assert len(seen) > 1, "one depth alone proves little"


# ------------------------------------------------------------------- the distribution of the text


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("mcsd_ti", {"tree": (3, 1, 1), "draw": "with"}),
        ("mcsd_ti:rule=traversal", {"tree": (2, 2, 1)}),
    ],
    ids=["paths", "traversal"],
)
@pytest.mark.slow
def test_the_distribution_of_the_text_with_stopping(spec, options):
    """Theorem 12.2: whatever decides about the next level, as long as it has not been drafted
    yet."""
    v, length, rows = decoding.VOCABULARY, decoding.LENGTH, decoding.ROWS
    target, draft = tiny.pair(0.15, layers=2, vocabulary=v)
    method = specwb.method(spec, target, draft=draft, stop="top", threshold=0.5, **options)
    drafted, total = set(), 0
    run = {"max_new_tokens": length, "temperature": 1.0, "seed": 3}
    for step in specwb.rounds(target, [decoding.PROMPT] * rows, method, **run):
        total += int((step.verdict.accepted >= 0).sum())
        drafted |= {depth for depth in depths(step) if depth is not None}
    start = len(decoding.PROMPT)
    texts = step.state.tokens[:, start : start + length]
    counts = (texts * torch.tensor([v * v, v, 1])).sum(1).bincount(minlength=v**length)
    assert len(drafted) > 1, "nothing was decided"
    assert 1.2 < length * rows / total < length
    wanted = decoding.enumerated("plain", target=target)
    assert decoding.chi_square(counts, wanted) > 1e-4
