"""``make dry``: what it judges, what it keeps and what docs/gpu.md prints of it; and, where torch's
CUDA build is there, that its runtime tells good operations from bad ones."""

from __future__ import annotations

import pytest
import run
import runtime
import tables

STEP = {
    "case": "sps:gamma=4",
    "key": "sps",
    "T": 1.0,
    "mode": "graph",
    "host_reads": 0,
    "captured": True,
    "staged": False,
    "launches": 0,
    "gemms": 0,
    "nodes": 700,
    "replays": 1,
    "syncs": 1,
    "pageable": 0,
    "reads": 1,
    "violations": 0,
}


def test_a_step_as_it_must_be_has_no_faults():
    assert run.faults([STEP]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"replays": 2}, "2 replays, at most 1"),
        ({"replays": 0}, "no graph is replayed"),
        ({"reads": 2}, "2 reads, at most 1"),
        ({"syncs": 2}, "2 syncs, at most 1"),
        ({"violations": 1}, "1 violations, at most 0"),
        ({"pageable": 1}, "1 copies from pageable memory"),
        ({"error": "RuntimeError: no"}, "RuntimeError: no"),
    ],
)
def test_every_fault_of_a_step_is_said(change, said):
    (fault,) = run.faults([{**STEP, **change}])
    assert said in fault


def test_a_step_in_stages_has_a_graph_more_than_reads_and_one_for_what_follows():
    staged = {**STEP, "staged": True, "host_reads": 3, "reads": 4, "syncs": 4, "replays": 6}
    assert run.step_faults(staged) == []
    assert run.step_faults({**staged, "replays": 7}) == ["7 replays, at most 6"]


def test_where_the_host_finds_the_draft_it_may_copy_it():
    """Each copy waits, and nothing is recorded there."""
    eager = {**STEP, "mode": "eager", "replays": 0, "pageable": 3, "syncs": 4}
    assert run.step_faults({**eager, "captured": False}) == []
    assert run.step_faults({**eager, "captured": False, "syncs": 5}) == ["5 syncs, at most 4"]
    assert len(run.step_faults(eager)) == 2


def test_an_operation_that_a_driver_refuses_must_be_refused():
    row = {"operation": "nonzero", "wanted": False, "accepted": True}
    assert run.faults([row]) == ["nonzero: accepted is True, not False"]


def test_the_page_prints_what_was_kept():
    _, _, rest = tables.PAGE.read_text().partition(tables.BEGIN + "\n")
    printed, found, _ = rest.partition(tables.END)
    assert found
    assert printed == tables.printed(tables.read()), "python tests/dry/run.py --save"


def test_what_is_missing_is_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "VENV", tmp_path / "venv")
    with pytest.raises(runtime.Missing, match="no venv: make dry installs"):
        runtime.site()
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "torch"
    packages.mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").touch()
    version = packages / "version.py"
    for text, said in (
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "a torch without CUDA"),
        ("__version__ = '2.12.1'\ncuda: Optional[str] = '12.8'\n", "has torch 2.12.1"),
    ):
        version.write_text(text)
        with pytest.raises(runtime.Missing, match=said):
            runtime.site()
    version.write_text("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    assert runtime.site() == packages.parent
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    with pytest.raises(runtime.Missing, match=r"no C compiler|needs Linux"):
        runtime.compiler()


@pytest.mark.slow
def test_the_runtime_tells_good_operations_from_bad_ones():
    try:
        environment = runtime.build()
    except runtime.Missing as missing:
        pytest.skip(str(missing))
    rows = run.run("calibrate", environment, 300)
    assert len(rows) > 20
    assert run.faults(rows) == []
