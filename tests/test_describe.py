"""The methods as they are described: the page is the registry's, and so is what the command
says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import tiny

import specwb
from specwb.cli.describe import catalogue, methods_markdown, option_rows
from specwb.core.files import data_dir
from specwb.core.options import Option

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
WRITE = "python -c 'import specwb.cli.describe as d; print(d.methods_markdown(), end=\"\")'"


def test_the_page_is_the_registrys():
    text = PAGE.read_text("utf-8")
    assert text == methods_markdown(), f"write it anew: {WRITE} > docs/methods.md"


def test_what_the_command_reads_is_the_registrys():
    write = WRITE.replace("methods_markdown", "catalogue")
    path = data_dir() / "methods.json"
    assert path.read_text("utf-8") == catalogue(), f"write it anew: {write} > data/methods.json"


def test_the_page_has_every_method_and_option():
    sections = methods_markdown().split("\n## ")
    assert [section.partition("\n")[0] for section in sections[1:]] == list(specwb.METHODS)
    for section, entry in zip(sections[1:], specwb.METHODS.values(), strict=True):
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert [row.split("`")[1] for row in rows] == list(entry.options)
        assert "``" not in section.replace("```", "")


@dataclass(frozen=True)
class Options:
    width: Annotated[int, Option("how wide | or narrow", low=1)] = 3


def build(target: specwb.Target, options: Options) -> specwb.Drafter:
    """A method of one's own."""
    raise NotImplementedError


def bare(target, *, must, may=(2, 1)):
    raise NotImplementedError


@pytest.fixture
def own():
    specwb.register("described", build, options=Options, paper="none")
    specwb.register("bare", bare)
    yield
    specwb.unregister("described")
    specwb.unregister("bare")


def test_a_method_of_ones_own(own):
    assert "| `width` | 3 | an integer >= 1 | how wide \\| or narrow |" in methods_markdown()
    assert option_rows(specwb.METHODS["described"])[0][:2] == ("width", "3")
    rows = option_rows(specwb.METHODS["bare"])
    assert [row[:2] for row in rows] == [("must", "must be given"), ("may", "2-1"), ("rule", "")]
    with pytest.raises(specwb.MethodError, match="bare: 'must' must be given"):
        specwb.method("bare", tiny.target())
