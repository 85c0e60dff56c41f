"""An agent finds each fault of the simulated catalogue by what the answers of the tools say, in a few calls."""

import pytest

from collector.app.http_server import HttpServer
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.causes.stage.backlog import Waits
from collector.causes.stage.stage import Explainer
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND, Rows
from tests.support.agent import MOST_CALLS, find
from tests.support.fault_catalogue import CATALOGUE, made, reference_run
from tests.support.simulated_engine import Law
from tests.support.stored_run import StoredRun
from tests.support.stores import open_new_store

APART_NS = 7200 * SECOND
"""So much later ends each fault: none is in the hour by which the next one fires."""
SLOS = """
slos:
  - {name: chat, objective: "0.999", window: 7d, thresholds: {ttft: 150ms, tpot: 20ms, gap: 90ms}}
"""
_BY_GROUP = {fault.top[0]: fault for fault in reversed(CATALOGUE) if fault.causes and not fault.limits}
FAULTS = {fault.name: fault for fault in _BY_GROUP.values()}
"""The first of the catalogue of each group of causes."""
NOISY = {"burst of 100", "prompt of 1,500 tokens"}
"""Faults of a tenant that has no other requests."""
ENDS = {name: NOW + (2 + number) * APART_NS for number, name in enumerate(FAULTS)}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Of an API: a process that has one fault after another, each of another model, behind traffic without any."""
    folder = tmp_path_factory.mktemp("faults")
    store = open_new_store(folder / "db")
    rows = Rows(store)
    put(rows, "no fault", reference_run(1, Law()), NOW)
    for name, fault in FAULTS.items():
        case = made(fault)
        put(rows, name, case.faulty, ENDS[name], set(case.added.nonzero()[0].tolist()))
    waits = Waits(soon_s=0.0, patience_s=0.0, late_s=0.0, others_s=0.0)
    Explainer(store, IngestStatus(), waits=waits, clock=lambda: NOW // SECOND + 1800).run_once()
    (folder / "slos.yaml").write_text(SLOS)
    slos = load_slos(folder / "slos.yaml")
    api, _ = build_api(store, slos, IngestStatus(), lost_after_s=30.0, clock=lambda: max(ENDS.values()) + SECOND)
    server = HttpServer(api, "api", "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop(1.0)
    store.close()


def put(rows, name, one, end_ns, added=()):
    def fields(key):
        tenant = "noisy" if key in added else ""
        return {"model": name, "tenant": tenant, "ingested_at": end_ns, "segment": name}

    StoredRun(rows, one, end_ns - int(one.requests["end"].max()), 1, lambda _: True, fields).put(steps=True)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(url, name):
    found = find(url, ENDS[name] + SECOND, name)
    assert found.group in FAULTS[name].top, found
    assert found.calls <= MOST_CALLS
    assert found.request["model"] == name
    assert ("noisy" if name in NOISY else "engine i-1") in found.culprits, found
