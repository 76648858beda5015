"""The matrix of what works says yes, refused or wrong, each where it is so."""

from __future__ import annotations

import matrix


def test_cells_say_what_is(monkeypatch):
    methods = ["ar", "kangaroo"]
    cells = matrix.measured(["llama", "gpt2"], methods, ["f64"], ["cpu"])
    kinds = {place[:2]: kind for place, (kind, _) in cells.items()}
    assert kinds == {
        ("llama", "ar"): "yes",
        ("llama", "kangaroo"): "yes",
        ("gpt2", "ar"): "yes",
        ("gpt2", "kangaroo"): "no",
    }
    page = matrix.page(cells)
    assert "| `llama` | yes | yes |" in page
    assert "| `gpt2` | yes | – |" in page
    decode = matrix.specwb.decode

    def another(*given, **how):
        out = decode(*given, **how)
        out.tokens[1][3] = (out.tokens[1][3] + 1) % matrix.families.VOCABULARY
        return out

    monkeypatch.setattr(matrix.specwb, "decode", another)
    wrong = matrix.measured(["llama"], ["ar"], ["f64"], ["cpu"])
    assert [kind for kind, _ in wrong.values()] == ["wrong"]
    assert "WRONG: f64 cpu" in matrix.page(wrong)
