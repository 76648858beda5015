"""What `pytest --nbval notebooks` compares: text, strictly. Pictures have a line of text beside
them (specwb.show.widgets.show)."""

from __future__ import annotations

import forked
import pytest
from jupyter_client.provisioning import local_provisioner

from specwb.show.scope.pages import PACKED

PICTURES = ("application/vnd.plotly.v1+json", "text/html", "image/svg+xml", PACKED)
# in make test; the others take longer and are marked slow
QUICK = ("1_one_speculative_step", "3_many_candidates")
CELL_TIMEOUT = 120  # seconds; nbval's own 2000 is how long a dead kernel would be waited for


def pytest_configure(config):
    local_provisioner.launch_kernel = forked.Kernel
    if getattr(config.option, "nbval_cell_timeout", None) == 2000:
        config.option.nbval_cell_timeout = CELL_TIMEOUT


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.suffix == ".ipynb" and item.path.stem not in QUICK:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    collected = yield
    for item in collected:
        if hasattr(item, "skip_compare"):  # nbval's notebook collector
            item.skip_compare += PICTURES
    return collected
