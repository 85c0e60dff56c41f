"""A store of one's own, and the collector's API on it at a fixed time."""

from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from collector.access.validity import Validity
from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from tests.collector.rows import NOW, Rows
from tests.support.api import build_shared_api
from tests.support.stores import open_new_store
from tokentrail.testing import ManualClock


@pytest.fixture(scope="module")
def module_store(tmp_path_factory):
    """One process may own one chDB path at a time, so a module opens it and gives it back."""
    store = open_new_store(tmp_path_factory.mktemp("store") / "db")
    yield store
    store.close()


@pytest.fixture
def rows(module_store):
    rows = Rows(module_store)
    rows.clear()
    return rows


@pytest.fixture
def clock():
    return ManualClock(NOW)


SLOS = """
slos:
  - name: chat
    description: Interactive chat reads as fluid.
    objective: "0.95"
    window: 30d
    select: {slo_class: [chat]}
    thresholds: {ttft: 500ms, tpot: 100ms}
  - name: all
    objective: "0.9"
    window: 30d
    thresholds: {e2e: 60s}
"""


@pytest.fixture
def slos_file(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text(SLOS)
    return path


@pytest.fixture
def slo_of_each_tenant(tmp_path):
    """A file with one SLO, which promises a TTFT of 500 ms to each tenant."""
    path = tmp_path / "slos.yaml"
    path.write_text(
        'slos: [{name: each, objective: "0.9", window: 30d, group_by: [tenant], thresholds: {ttft: 500ms}}]'
    )
    return path


@pytest.fixture
def ingest_status():
    return IngestStatus()


@pytest.fixture
def app_and_live(rows, slos_file, clock, ingest_status, tmp_path):
    slos = load_slos(slos_file)
    return build_shared_api(
        rows.store,
        slos,
        ingest_status,
        lost_after_s=30.0,
        data_dir=tmp_path,
        clock=clock,
        tls=Mock(is_usable=True, validity=Validity(0, 1)),
    )


@pytest.fixture
def app(app_and_live):
    return app_and_live[0]


@pytest.fixture
def live(app_and_live):
    """The state behind /metrics. A test refreshes it; the collector does so in the background."""
    return app_and_live[1]


@pytest.fixture
def on_segment(live):
    """Tells the API that a segment is in the store, as the writer does."""
    return live.counters.on_segment


@pytest.fixture
def api(app):
    """A client that gives the JSON of an answer that must be 200."""
    client = TestClient(app)

    def get(path, **params):
        answer = client.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    get.client = client  # type: ignore[attr-defined]
    return get
