"""Token recycling against a reimplementation in plain Python: the successors that it learns, and
the trees that it looks up in them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tiny

import specwb
from specwb.drafters import recycling
from specwb.drafters.recycling import RECYCLING_TREE, TokenRecycling


class Seen(TokenRecycling):
    """The engine's copies, to look into."""

    opened: list[TokenRecycling] = []  # noqa: RUF012

    def open(self, state, target):
        self.opened.append(self)
        super().open(state, target)


def of_prompt(prompt: list[int], most: int) -> dict[int, list[int]]:
    """The distinct tokens that followed each token, the latest first."""
    successors: dict[int, list[int]] = {}
    for token, after in pairwise(prompt):
        before = [x for x in successors.get(token, []) if x != after]
        successors[token] = [after, *before][:most]
    return successors


def looked_up(tree: specwb.Tree, token: int, successors: dict[int, list[int]]) -> list[int | None]:
    """The token of every node, None where there is none."""
    nodes: list[int | None] = [token]
    for parent, rank in zip(tree.host[0][1:], tree.rank[0, 1:].tolist()):
        above = nodes[parent]
        known = successors.get(above, []) if above is not None else []
        nodes.append(known[rank] if rank < len(known) else None)
    return nodes


@pytest.mark.parametrize("temperature", [0.0, 0.4])
@pytest.mark.parametrize("tree", [tiny.LOPSIDED, (1, 1, 1), RECYCLING_TREE], ids=str)
def test_rounds_are_those_of_a_plain_reimplementation(tree, temperature):
    """Rows of different lengths, each with lists and a dictionary of its own: the candidates of
    every round, and in the end the successors of all tokens."""
    target = tiny.loops()
    drafter = specwb.method("recycling", target, tree=tree).drafter
    tree, most = drafter.tree, drafter.tree.K
    drafter.__class__ = Seen
    texts = [list(prompt) for prompt in tiny.PROMPTS]
    known = [of_prompt(text, most) for text in texts]
    assert any(known)
    accepted, cut, twice = 0, set(), 0
    for step in specwb.rounds(
        target,
        tiny.PROMPTS,
        specwb.Method("recycling", drafter, None, drafter.exactness),
        max_new_tokens=[40, 10, 33],
        temperature=temperature,
        seed=2,
        trace=True,
    ):
        n, logits = step.draft.tree.n, step.scores.logits
        alive = [int(count) > 0 for count in step.verdict.count]
        wanted = [
            looked_up(tree, text[-1], successors) if on else [text[-1]] + [None] * (tree.n - 1)
            for text, successors, on in zip(texts, known, alive)
        ]
        depths = [d for row in wanted for x, d in zip(row, tree.depths[0]) if x is not None]
        assert step.draft.tree.host == tree.prefix(max(depths)).host, "cut to the deepest level"
        cut.add(max(depths))
        for row, text in enumerate(texts):
            tokens, valid = step.draft.tokens[row].tolist(), step.draft.valid[row].tolist()
            found = [x if ok else None for x, ok in zip(tokens, valid)]
            if not alive[row]:
                assert found[1:] == [None] * (n - 1)
                continue
            assert found == wanted[row][:n]
            drafted = [x for x in found if x is not None]
            twice += len(drafted) > len(set(drafted))
            for node, token in enumerate(found):
                if token is not None:
                    order = logits[row, node].argsort(descending=True)
                    known[row][token] = order[:most].tolist()
            count = int(step.verdict.count[row])
            accepted += count - 1
            text += step.verdict.emitted[row, :count].tolist()
    assert accepted > 10
    assert twice, "no token was at several nodes"
    assert len(cut) > 1
    for row, learnt in enumerate(Seen.opened[-1].successors.tolist()):
        if texts[row] == max(texts, key=len):  # a finished row is scored on, and not read
            held = {x: [y for y in ys if y >= 0] for x, ys in enumerate(learnt)}
            assert {x: ys for x, ys in held.items() if ys} == known[row]


def test_the_published_tree_has_the_papers_levels():
    """Of the readme of its code: 8, 21, 25, 15, 8 and 3 nodes, and the last three by name."""
    assert [stop - start for start, stop in RECYCLING_TREE.levels] == [1, 8, 21, 25, 15, 8, 3]
    ranks = RECYCLING_TREE.rank[0, RECYCLING_TREE.trail[0, -3:]].tolist()
    assert [path[1:] for path in ranks] == [[0] * 6, [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0]]


def test_a_table_that_needs_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(recycling, "MOST_BYTES", 4 * 4 * tiny.VOCABULARY)
    target = tiny.target()
    assert specwb.method("recycling:tree=4-1", target).drafter.limits.children == 4
    with pytest.raises(
        specwb.MethodError, match=r"recycling: 5 children per node .*may have 4 chi"
    ):
        specwb.method("recycling:tree=5-1", target)
