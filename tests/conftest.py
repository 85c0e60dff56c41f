"""Settings that must be made before a test module is imported, and the order in which the files run."""

import os
from pathlib import Path

import pytest

from tests.times import Times

# The engine does this for itself (instrumented_engine/startup.py). It counts only before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

ROOT = Path(__file__).parent

SLOW = (
    "e2e/test_trail.py",
    "dashboard/test_pages.py",
    "instrumented_engine/test_smollm.py",
    "e2e/test_demo.py",
    "collector/test_process.py",
    "collector/test_two_collectors.py",
    "collector/test_cluster.py",
    "collector/access/test_exposed.py",
    "collector/test_backup.py",
    "examples",
    "collector/test_server_store.py",
    "collector/test_api_goodput.py",
    "instrumented_engine/test_process.py",
    "deploy/test_images.py",
    "collector/engines/test_vllm.py",
    "contract/test_wheel.py",
    "contract/test_stability.py",
    "contract/test_docs.py",
    "alerts/test_prometheus.py",
    "tokentrail/test_process.py",
)
"""Files and folders that start processes, browsers or real models, the longest first. `make test-fast` skips them."""


def pytest_configure(config: pytest.Config) -> None:
    """Times each file (tests/times.py)."""
    config.pluginmanager.register(Times())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of SLOW, and puts them first: a long file that starts last leaves the other workers idle."""
    for item in items:
        if _rank(item) < len(SLOW):
            item.add_marker("slow")
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    path = item.path.relative_to(ROOT)
    matches = (rank for rank, part in enumerate(SLOW) if path == Path(part) or Path(part) in path.parents)
    return next(matches, len(SLOW))
