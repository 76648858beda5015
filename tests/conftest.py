"""Common to all tests: small models run fastest on one thread. The order of the tests is that of
``LONGEST``, what takes longest first, so that no process is left alone with it at the end; nothing
depends on it."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from specwb.core import progress

sys.path.insert(0, str(Path(__file__).parent))  # `import tiny` from any folder of tests
sys.path.append(str(Path(__file__).parents[1]))  # `import scripts`, never another specwb
torch.set_num_threads(int(os.environ.get("SPECWB_TEST_THREADS", "1")))
# what is measured of products is shared by all processes of a run, and does not go into the
# user's own cache
os.environ.setdefault("SPECWB_CACHE", str(Path(__file__).parents[1] / "build" / "cache"))

# a slow machine must not add lines to what a test looks at
progress.FIRST = progress.EVERY = 3600.0

# by the seconds of their tests (pytest --durations=0); what is not here comes after them
LONGEST = (
    "test_browser.py",
    "test_mutants.py",
    "ablations.ipynb",
    "test_lossless.py",
    "test_site.py",
    "diffuspec.ipynb",
    "easyspec.ipynb",
    "test_certify.py",
    "test_smol_methods.py",
    "write_your_own_drafter.ipynb",
    "test_protocol.py",
    "test_graphs.py",
    "test_decoding_distribution.py",
    "test_check_power.py",
    "test_architectures.py",
    "test_dials.py",
    "9_what_a_block_cannot_know.ipynb",
    "2_the_rejection_rule.ipynb",
    "test_hf.py",
    "test_shipped.py",
    "test_decisions.py",
    "test_heads.py",
    "test_run.py",
    "test_lab.py",
    "test_loop.py",
    "mcsd_ti.ipynb",
    "test_cli.py",
    "test_player.py",
    "test_diffuspec_drafts.py",
    "test_path_scores.py",
    "test_preflight.py",
    "kangaroo.ipynb",
    "test_ranks.py",
    "test_tune.py",
    "test_front_door.py",
    "test_easyspec_drafts.py",
    "test_explorers.py",
    "test_falcon_drafts.py",
    "10_a_path_through_the_lattice.ipynb",
    "test_lessons.py",
    "test_reproduced.py",
    "5_drafters.ipynb",
    "falcon.ipynb",
    "mcsd.ipynb",
    "3_many_candidates.ipynb",
    "1_one_speculative_step.ipynb",
    "test_kernels.py",
)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pytest_collection_modifyitems(config, items):
    if not torch.cuda.is_available():
        without = [item for item in items if item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
    turn = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(turn)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """``--dist loadscope``: a process takes whole files in the order above, and of the protocol,
    which takes as long as many files, single functions."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, *rest = nodeid.split("::")
            function = rest[0].partition("[")[0] if file.endswith("test_protocol.py") else ""
            return f"{file}::{function}"

    config.option.loadscopereorder = False  # by the number of tests, which says little
    return ByFile(config, log)


@pytest.fixture
def in_float32(monkeypatch):
    """Heads are trained in float32, whatever the processor is fast at."""
    monkeypatch.setattr("specwb.training.fit.fast_bfloat16_products", lambda device: False)


@pytest.fixture
def call(monkeypatch, capsys):
    """Calls the command line: :func:`terminal.call`."""
    from terminal import call

    return partial(call, monkeypatch, capsys)


@pytest.fixture
def refused(monkeypatch, capsys):
    """Calls the command line, which refuses: :func:`terminal.refused`."""
    from terminal import refused

    return partial(refused, monkeypatch, capsys)


@pytest.fixture
def taped(monkeypatch):
    """Steps are recorded on the CPU; buckets are small, so that several come up."""
    from tape import Tape

    from specwb.core import flow
    from specwb.engine import graphs

    monkeypatch.setitem(graphs.RECORDERS, "cpu", Tape)
    monkeypatch.setattr(
        "specwb.models.products.compiled_pass", lambda: None
    )  # none of torch's operators
    monkeypatch.setattr(flow, "BUCKET", 16)
    monkeypatch.setattr("specwb.models.target.BUCKET", 16)
