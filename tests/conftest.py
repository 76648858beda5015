"""Common to all tests: small models run fastest on one thread, and nothing depends on the order of the tests."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `import tiny` from any folder of tests
torch.set_num_threads(1)
# what is measured of products is shared by all processes of a run, and does not go into the user's own cache
os.environ.setdefault("SPECWB_CACHE", str(Path(__file__).parents[1] / "build" / "cache"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """``--dist loadscope``: a process takes whole files. The protocol takes as long as many of them together, so its pairs of models go apart;
    the heads that a pair's tests train are theirs alone."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByPair(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            scope = super()._split_scope(nodeid)
            pair = re.search(r"test_protocol\.py.*[-\[](qwen2|qwen3)\b", nodeid)  # what names no pair, or all, goes with the first
            return f"{scope} {pair[1]}" if pair else scope

    return ByPair(config, log)
