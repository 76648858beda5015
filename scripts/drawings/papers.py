"""What opens a paper's notebook: its method as one drawing, parts and what flows between them.

The colours are those of :mod:`specwb.show.palette`: what is the draft's, what is the target's, and
what became of a draft token. A draft token that nobody has judged has a dashed frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scripts.drawings.drawing import WIDTH, Drawing

Node = tuple[float, float, str, str]
"""x and y of a box's left upper corner, its word, its colour."""


def _open(height: float, title: str, desc: str, heads: Sequence[tuple[float, str]]) -> Drawing:
    """A drawing with headings of its columns at the top."""
    drawing = Drawing(WIDTH, height, title, desc)
    for x, words in heads:
        drawing.text(x, 16, words, bold=True)
    return drawing


def _nodes(
    drawing: Drawing, nodes: Sequence[Node], parents: Sequence[int], width: float = 58
) -> None:
    """Boxes with a line from each to its parent; those of the draft's colour are dashed."""
    for (x, y, word, colour), parent in zip(nodes, parents, strict=True):
        if parent >= 0:
            px, py, *_ = nodes[parent]
            drawing.line(px + width, py + 14, x, y + 14)
        open_ = colour == "draft"
        drawing.box(x, y, width, 28, word, colour=colour, hollow=open_, dashed=open_, size=13)


def mcsd() -> Drawing:
    """Several candidates per node, one forward, one walk."""
    desc = (
        "A draft model proposes two candidates per node; the target scores the tree in one "
        "forward; a walk from the root tests siblings in turn and ends with a token of the "
        "target's own."
    )
    heads = ((4, "1 draft: k candidates per node"), (312, "2 score"), (492, "3 test, in turn"))
    d = _open(236, "Multi-candidate speculative decoding", desc, heads)
    tree = [
        *((4, 100, "sun", "other"), (84, 58, "had", "draft"), (84, 142, "was", "draft")),
        *((164, 36, "set", "draft"), (164, 78, "gone", "draft")),
        *((164, 122, "low", "draft"), (164, 164, "red", "draft")),
    ]
    _nodes(d, tree, (-1, 0, 0, 1, 1, 2, 2))
    d.text(4, 214, "each level drawn from q,", size=13).text(4, 230, "the draft model", size=13)
    d.arrow(228, 114, 308, 114, "all nodes")
    d.box(312, 60, 108, 108, "target\none forward,\ntree mask", colour="target", size=14)
    d.text(312, 190, "p at every node", size=13)
    d.arrow(424, 114, 486, 114, "p, q")
    walk = [
        *((492, 94, "sun", "other"), (576, 50, "had ✗", "rejected"), (576, 132, "was", "accepted")),
        *((660, 112, "low", "accepted"), (660, 152, "red", "draft")),
    ]
    _nodes(d, walk, (-1, 0, 0, 2, 2), width=56)
    d.text(492, 198, "after ✗ the next is tested", size=13)
    d.text(492, 214, "against the residual", size=13, colour="residual")
    d.text(492, 230, "at the end: a bonus token", size=13, colour="target")
    return d


def trees() -> Drawing:
    """A tree, its mask, one forward."""
    desc = (
        "A draft tree in level order, and the mask of one forward over it: every node sees the "
        "text, its ancestors and itself; the first levels are a leading block of the mask."
    )
    d = _open(232, "Draft trees", desc, ((4, "a tree, level by level"), (352, "its mask")))
    parents = (-1, 0, 0, 1, 1, 2)
    at = ((4, 100), (96, 58), (96, 142), (188, 36), (188, 82), (188, 142))
    colours = ("other", *["draft"] * 5)
    nodes: list[Node] = [(*at[i], str(i), colours[i]) for i in range(6)]
    _nodes(d, nodes, parents)
    ancestors = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}]
    d.bar(352, 30, 60, 180, "other", "dots")
    d.text(382, 226, "text", size=13, anchor="middle")
    for i in range(6):
        d.text(342, 50 + 30 * i, str(i), size=13, anchor="end")
        d.text(432 + 30 * i, 226, str(i), size=13, anchor="middle")
        for j in range(6):
            seen = j in ancestors[i]
            d.box(418 + 30 * j, 31 + 30 * i, 27, 27, colour="draft" if seen else "other",
                  hollow=not seen)  # fmt: skip
    d.text(612, 60, "first level:", size=13).text(612, 76, "a leading", size=13)
    d.text(612, 92, "3 × 3 block", size=13)
    d.text(612, 150, "one forward,", size=13, colour="target")
    d.text(612, 166, "p at every node", size=13, colour="target")
    d.line(416, 122, 508, 122, thick=3).line(508, 122, 508, 29, thick=3)
    return d


def heads() -> Drawing:
    """Three heads on the same target."""
    desc = (
        "Medusa's heads read one state each for themselves; EAGLE's head reads a state and the "
        "token drawn from it, and goes on from its own output; EAGLE-3's reads states of three "
        "layers."
    )
    columns = ((4, "Medusa"), (252, "EAGLE"), (500, "EAGLE-3"))
    d = _open(246, "Trained heads", desc, columns)
    for x, _ in columns:
        d.box(x, 196, 204, 40, "target's layers", colour="target")
    d.box(64, 140, 84, 26, "state f", colour="target", size=13).arrow(106, 196, 106, 168)
    for i in range(3):
        d.box(4 + 71 * i, 76, 62, 32, f"head {i + 1}", colour="draft")
        d.arrow(106, 140, 35 + 71 * i, 110).arrow(35 + 71 * i, 76, 35 + 71 * i, 56)
        d.text(35 + 71 * i, 48, f"+{i + 2}", anchor="middle")
    d.box(252, 140, 84, 26, "state f", colour="target", size=13).arrow(294, 196, 294, 168)
    d.box(372, 140, 84, 26, "token t", colour="target", hollow=True, size=13)
    d.box(282, 76, 144, 32, "one layer", colour="draft")
    d.arrow(294, 140, 326, 110).arrow(414, 140, 382, 110).arrow(354, 76, 354, 56)
    d.text(354, 48, "+2, then on from its own", anchor="middle", size=13)
    for i in range(3):
        d.box(500 + 46 * i, 140, 42, 26, ("low", "mid", "top")[i], colour="target", size=13)
        d.arrow(521 + 46 * i, 196, 521 + 46 * i, 168).arrow(521 + 46 * i, 140, 574 + 16 * i, 110)
    d.box(644, 140, 68, 26, "token t", colour="target", hollow=True, size=13)
    d.arrow(672, 140, 640, 110)
    d.box(530, 76, 144, 32, "one layer", colour="draft").arrow(602, 76, 602, 56)
    d.text(602, 48, "+2, then on from its own", anchor="middle", size=13)
    return d


def falcon() -> Drawing:
    """Pairs in, a block out."""
    desc = (
        "Pairs of a state and the next token go through one pass; the last block of k pairs says "
        "k tokens at once, none of which knows the others; the tree below shares the second list."
    )
    top = ((4, "pairs (state, next token)"), (252, "one pass: a block of k"), (484, "tree"))
    d = _open(244, "Falcon: drafting in blocks", desc, top)
    for i in range(5):
        last = i > 2
        d.box(4 + 42 * i, 164, 38, 34, f"f{i + 1}\nt{i + 2}",
              colour="target", hollow=last, size=12)  # fmt: skip
    d.text(4, 222, "the target's states", size=13)
    d.text(132, 222, "newest block", size=13)
    d.arrow(216, 181, 248, 160)
    d.box(252, 118, 180, 44, "LSTM, relaxed causal\nmask: a block sees itself", colour="draft",
          size=13)  # fmt: skip
    for i, words in enumerate(("X₁ | context", "X₂ | context")):
        x = 252 + 96 * i
        d.box(x, 56, 84, 32, words, colour="draft", hollow=True, dashed=True, size=13)
        d.arrow(x + 42, 118, x + 42, 90)
    d.text(342, 196, "X₂ was said without", size=13, anchor="middle")
    d.text(342, 212, "knowing X₁", size=13, anchor="middle", colour="rejected")
    d.arrow(438, 88, 478, 88)
    nodes: list[Node] = [(484, 96, "root", "other")]
    nodes += [(562, y, f"X₁ {i}", "draft") for i, y in ((1, 52), (2, 140))]
    nodes += [(646, y, f"X₂ {i}", "draft") for y, i in ((30, 1), (70, 2), (120, 1), (160, 2))]
    _nodes(d, nodes, (-1, 0, 0, 1, 1, 2, 2))
    d.text(484, 214, "cousins share one list;", size=13)
    d.text(484, 230, "next pass: a block below each", size=13)
    return d


def kangaroo() -> Drawing:
    """Out of the target early, and on from there."""
    desc = (
        "The target's first layers and a trained adapter draft token by token while the drafter "
        "is sure; the remaining layers verify all of them in one pass."
    )
    top = ((4, "draft: again while sure"), (300, "verify: once per step"))
    d = _open(240, "Kangaroo: two exits", desc, top)
    d.box(4, 168, 190, 44, "first l layers", colour="target")
    d.arrow(99, 168, 99, 146)
    d.box(4, 104, 190, 40, "adapter", colour="draft")
    d.arrow(99, 104, 99, 82)
    d.box(4, 42, 190, 38, "the target's own head", colour="target", size=14)
    d.arrow(196, 61, 234, 61).line(234, 61, 234, 190).arrow(234, 190, 198, 190)
    d.text(242, 54, "on, as long", size=13).text(242, 70, "as it is sure", size=13)
    d.arrow(196, 206, 296, 206).text(204, 226, "states are kept", size=12)
    d.box(300, 150, 190, 66, "the other layers,\nall draft tokens at once", colour="target")
    d.arrow(395, 150, 395, 128)
    d.box(300, 88, 190, 38, "the target's own head", colour="target")
    d.arrow(492, 107, 524, 107)
    for i, (word, colour) in enumerate(
        (("a", "accepted"), ("b", "accepted"), ("c", "rejected"), ("B", "target"))
    ):
        d.box(528 + 48 * i, 92, 42, 30, word, colour=colour)
    d.text(528, 146, "kept, kept, not; bonus", size=13)
    d.text(528, 186, "the first layers have run:", size=13)
    d.text(528, 202, "what they did is kept", size=13)
    return d


def mcsd_ti() -> Drawing:
    """A mask that is sliced, a net that says stop, roots that the target draws."""
    desc = (
        "Improved MCSD: a decision model stops the draft below a level, whose mask is a leading "
        "block of the whole one; with several roots the target draws W first tokens and the "
        "longest path stays, which is LOSSY."
    )
    top = ((4, "1 one mask, sliced"), (220, "2 a decision model"), (478, "3 several roots: LOSSY"))
    d = _open(236, "Improved multi-candidate decoding", desc, top)
    for i in range(7):
        for j in range(7):
            seen = j == 0 or j == i or (i > 2 and j == i - 2) or (i > 4 and j == i - 4)
            d.box(6 + 24 * j, 32 + 24 * i, 21, 21, colour="draft" if seen else "other",
                  hollow=not seen)  # fmt: skip
    for n in (3, 5, 7):
        d.line(4, 30 + 24 * n, 4 + 24 * n, 30 + 24 * n, thick=3)
        d.line(4 + 24 * n, 30 + 24 * n, 4 + 24 * n, 30, thick=3)
    d.text(4, 226, "cut at any level", size=13)
    for i in range(3):
        d.box(220, 164 - 58 * i, 92, 32, f"level {i + 1}", colour="draft", hollow=i > 1,
              dashed=i > 1)  # fmt: skip
        if i < 2:
            d.arrow(266, 164 - 58 * i, 266, 140 - 58 * i)
    d.box(346, 126, 104, 44, "net: go on?", colour="residual")
    d.arrow(314, 176, 344, 160).arrow(314, 120, 344, 136)
    d.text(346, 196, "reads h, or the", size=13).text(346, 212, "entropy of q", size=13)
    d.text(220, 226, "below a threshold: stop", size=13)
    d.box(478, 110, 62, 34, "p", colour="target")
    for i, (word, colour) in enumerate(
        (("r₁", "rejected"), ("r₂", "accepted"), ("r₃", "rejected"))
    ):
        y = 48 + 62 * i
        d.arrow(542, 127, 574, y + 16)
        d.box(576, y, 40, 32, word, colour=colour)
        for j in range(2 if i == 1 else 1):
            d.line(616 + 50 * j, y + 16, 626 + 50 * j, y + 16)
            d.box(626 + 50 * j, y + 2, 40, 28, "", colour=colour)
    d.text(478, 226, "the longest stays: no draw from p", size=13, colour="rejected")
    return d


def diffuspec() -> Drawing:
    """Masks in, a lattice out, a path through it."""
    desc = (
        "A diffusion model fills k masks in one forward; each place keeps its likely tokens, a "
        "lattice; a search with a trigram takes one path; the target verifies it; what it keeps "
        "sets the next k."
    )
    top = ((4, "1 one forward"), (214, "2 lattice and path search (CPS)"), (560, "3 verify"))
    d = _open(246, "DiffuSpec: a diffusion model drafts", desc, top)
    for i, word in enumerate(("text", "[M]", "[M]", "[M]")):
        d.box(4 + 46 * i, 160, 42, 30, word, colour="other" if not i else "draft", hollow=i > 0,
              dashed=i > 0, size=13)  # fmt: skip
    d.arrow(96, 160, 96, 128)
    d.box(4, 84, 180, 42, "diffusion model", colour="draft")
    d.arrow(186, 105, 210, 105)
    for i, column in enumerate(("the a its", "old cat sun", "sun sat old", "set on sat")):
        x = 214 + 84 * i
        for j, word in enumerate(column.split()):
            best = j == 1
            d.box(x, 48 + 48 * j, 58, 30, word, colour="draft", hollow=not best, dashed=not best)
        if i:
            d.line(x - 26, 63 + 48, x, 63 + 48, thick=4, colour="draft")
            d.line(x - 26, 63, x, 63 + 96, dashed=True).line(x - 26, 63 + 96, x, 63, dashed=True)
    d.text(214, 204, "top row: each place's first choice, no sentence", size=13)
    d.text(214, 222, "path: λ log q + (1 − λ) log r of a trigram", size=13)
    d.arrow(528, 111, 556, 111)
    d.box(560, 84, 150, 52, "target\none forward", colour="target")
    d.text(560, 160, "kept: A of L tokens", size=13, colour="accepted")
    d.line(634, 168, 634, 236).line(634, 236, 94, 236).arrow(94, 236, 94, 194)
    d.text(104, 228, "next k (ADL)", size=13)
    return d


def easyspec() -> Drawing:
    """Layers one after the other, and side by side."""
    desc = (
        "Above, a draft model's layers run one after the other; below, the attentions of a group "
        "read the same input and run side by side, and the MLPs follow in order; the first pass of "
        "a step is exact and mends the cache."
    )
    d = _open(250, "EasySpec: layers side by side", desc, ((4, "exact step"),))
    x = 4
    for i in range(1, 5):
        d.box(x, 28, 76, 34, f"attention {i}", colour="draft", size=13)
        d.box(x + 82, 28, 44, 34, f"MLP {i}", colour="other", size=12)
        x += 134
    d.text(548, 42, "each layer waits", size=13).text(548, 58, "for the one before", size=13)
    d.text(4, 96, "fuzzy step: layers 2 to 4 are a group", bold=True)
    d.box(4, 144, 76, 34, "attention 1", colour="draft", size=13)
    d.box(86, 144, 44, 34, "MLP 1", colour="other", size=12)
    for i in range(3):
        y = 106 + 40 * i
        d.arrow(132, 161, 162, y + 17)
        d.box(164, y, 84, 32, f"attention {i + 2}", colour="draft", size=13)
        d.line(248, y + 16, 268, 161)
    for i in range(3):
        d.box(270 + 54 * i, 144, 48, 34, f"MLP {i + 2}", colour="other", size=12)
    d.text(440, 148, "the same input: attentions on", size=13)
    d.text(440, 164, "several devices, at once", size=13)
    d.text(440, 180, "what comes out is not quite q", size=13, colour="rejected")
    d.text(4, 240, "a step:", size=14, bold=True)
    for i, (word, colour) in enumerate(
        (("exact", "draft"), ("fuzzy", "draft"), ("fuzzy", "draft"), ("target verifies", "target"))
    ):
        d.box((84, 176, 268, 360)[i], 222, 84 if i < 3 else 130, 26, word, colour=colour,
              hollow=word == "fuzzy", dashed=word == "fuzzy", size=13)  # fmt: skip
    d.text(504, 240, "exact: the cache is mended", size=13)
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "mcsd": mcsd,
    "mcsd_ti": mcsd_ti,
    "falcon": falcon,
    "kangaroo": kangaroo,
    "diffuspec": diffuspec,
    "easyspec": easyspec,
    "heads": heads,
    "trees": trees,
}
"""Name of a paper's notebook -> what draws its picture."""
