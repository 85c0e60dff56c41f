"""An agent finds each fault of the synthetic day by what the answers of the tools say, in a few calls."""

import pytest

from collector.app.http_server import HttpServer
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from collector.store import Store
from tests.support.agent import MOST_CALLS, find
from tests.support.day import SLOS, new_day


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """The day, and the address of an API at its end."""
    folder = tmp_path_factory.mktemp("day") / "store"
    day = new_day(folder, fresh_s=86_400)
    store = Store.open(f"chdb://{folder}")
    api, _ = build_api(store, load_slos(SLOS), IngestStatus(), lost_after_s=30.0, clock=lambda: day.end)
    server = HttpServer(api, "api", "127.0.0.1", 0)
    server.start()
    yield day, server.url
    server.stop(1.0)
    store.close()


@pytest.mark.parametrize(
    ("alert", "kind", "where", "group"),
    [
        ((3, 5), "cold_start", "sglang-b-5e77", "cold start"),
        ((8, 45), "slo_burn", "", "waiting for a place"),
        ((10, 32), "kv_eviction", "vllm-a-7f9c", "waiting for KV"),
        ((12, 40), "change", "v2.4", "slower by itself"),
        ((13, 11), "engine_hung", "sglang-a-91ee", ""),
    ],
)
def test_each_fault_of_the_day_is_found(lived, alert, kind, where, group):
    day, url = lived
    found = find(url, day.at(*alert))
    assert (found.kind, found.where, found.calls <= MOST_CALLS) == (kind, where, True), found
    if group:
        assert found.group == group
    else:
        assert found.request["status"] == "in_flight", "it leads to what hangs, and not to the few that ended"
    if kind not in ("slo_burn", "change"):
        assert found.request["instance"] == where
