"""An explainer on a store whose rows are of a simulated engine."""

import time
from types import SimpleNamespace

import pytest

from collector.ask.template import part
from collector.base.status import IngestStatus
from collector.causes.stage.backlog import Waits
from collector.causes.stage.stage import Explainer
from tests.collector.rows import SECOND
from tests.support.simulated_engine import chats, run
from tests.support.stored_run import StoredRun

AT_ONCE = Waits(soon_s=0.0, patience_s=0.0, late_s=0.0, law_s=(), others_s=0.0)
LATENCIES = ("ttft_us", "tpot_us", "e2e_us")


@pytest.fixture(scope="session")
def simulated():
    """300 chats in 30 s."""
    return run(chats(300, seed=4), seed=4)


@pytest.fixture
def status():
    return IngestStatus()


@pytest.fixture
def rows(rows):
    rows.store.client().command("TRUNCATE TABLE explained_segments")
    return rows


@pytest.fixture
def explainer(rows, status):
    return Explainer(rows.store, status, waits=AT_ONCE)


@pytest.fixture
def traffic(rows, simulated):
    """Puts the rows of a run into the store, as if the last request had ended now."""

    def put(one=simulated, *, segments=1, steps=True, ago_s=1.0, only=lambda row: True, **fields):
        shift = int(time.time_ns() - ago_s * SECOND) - int(one.requests["end"].max())
        return StoredRun(rows, one, shift, segments, only, fields).put(steps=steps)

    return put


@pytest.fixture
def explained(rows):
    """The rows of `causes`, as objects."""

    def read(where="1"):
        sql = f"SELECT *, {', '.join(LATENCIES)}, error_us FROM causes FINAL WHERE {where} ORDER BY end, request_key"
        return [SimpleNamespace(**row) for row in rows.store.query(sql).named_results()]

    return read


@pytest.fixture
def latencies(rows):
    """The latencies of all requests, and those of their causes: equal when each is explained once."""

    def read():
        key = f"toUInt32({part('request_key', {}).sql})"
        return [
            rows.store.query(
                f"SELECT end, {k} AS key, {', '.join(LATENCIES)} FROM {table} ORDER BY end, key"
            ).result_rows
            for k, table in ((key, "requests"), ("request_key", "causes FINAL"))
        ]

    return read
