"""Common to all tests: small models run fastest on one thread. The order of the tests is that of
``LONGEST``, what takes longest first, so that no process is left alone with it at the end; nothing
depends on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `import tiny` from any folder of tests
torch.set_num_threads(int(os.environ.get("SPECWB_TEST_THREADS", "1")))
# what is measured of products is shared by all processes of a run, and does not go into the
# user's own cache
os.environ.setdefault("SPECWB_CACHE", str(Path(__file__).parents[1] / "build" / "cache"))

# by the seconds of their tests (pytest --durations=0); what is not here comes after them
LONGEST = (
    "test_lab.py",
    "test_browser.py",
    "test_ranks.py",
    "easyspec.ipynb",
    "kangaroo.ipynb",
    "diffuspec.ipynb",
    "falcon.ipynb",
    "heads.ipynb",
    "mcsd_ti.ipynb",
    "mcsd.ipynb",
    "trees.ipynb",
    "1_one_speculative_step.ipynb",
    "write_your_own_drafter.ipynb",
    "test_decoding_distribution.py",
    "test_protocol.py",
    "test_hf.py",
    "test_heads.py",
    "test_falcon_training.py",
    "test_diffusion_training.py",
    "test_kangaroo_training.py",
    "test_graphs.py",
    "test_architectures.py",
    "test_tune.py",
    "test_compare.py",
    "test_measured_dependence.py",
    "test_cost_model.py",
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
