"""The table of SECURITY.md that says who may do what is the collector's own behaviour, route by route."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.otlp.signals import SIGNALS
from collector.receive.http import BodyLimits, create_otlp_app
from tests.collector.receive.test_otlp_http import Receiver
from tests.support.keys import access_to, add_key

SECURITY = (Path(__file__).parents[3] / "SECURITY.md").read_text()
CALLERS = ("no key", "ingest", "ingest of a tenant", "read", "read of a tenant", "admin")
REFUSED = {401, 403}


def table():
    """The cells by route and caller: `yes`, `own` or `no`."""
    header, *rows = re.findall(r"^\| (route .*?|all other .*?|`[A-Z]+ /.*?) \|$", SECURITY, re.MULTILINE)
    assert tuple(header.split(" | ")[1:]) == CALLERS
    cells = [row.split(" | ") for row in rows]
    return {
        (route, caller): cell
        for first, *found in cells
        for route in first.split(", ")
        for caller, cell in zip(CALLERS, found, strict=True)
    }


def row_of(said, method, path):
    """The row that a route stands in: by itself, or with all others of its method."""
    alone = f"`{method} {path}`"
    return alone if (alone, CALLERS[0]) in said else f"all other `{method}`"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    made = [add_key(path, name.split()[0], "acme" if "tenant" in name else "") for name in CALLERS[1:]]
    return path, dict(zip(CALLERS, [{}, *made], strict=True))


def test_each_route_of_the_api_lets_in_who_is_said(rows, clock, ingest_status, keys):
    path, headers = keys
    app, _ = build_api(rows.store, (), ingest_status, lost_after_s=30.0, clock=clock, access=access_to(path))
    client, said = TestClient(app), table()
    routes = [(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods]
    assert {row_of(said, *route) for route in routes} | {"`POST /v1/…`"} == {route for route, _ in said}
    for method, route in routes:
        for caller in CALLERS:
            # Who may ask learns that this is no time, for less than an answer costs.
            path = re.sub(r"\{.*?\}", "x", route) + "?start=never"
            status = client.request(method, path, headers=headers[caller]).status_code
            allowed = said[row_of(said, method, route), caller] != "no"
            assert (status not in REFUSED) is allowed, f"{method} {route} by {caller}: {status}"


def test_the_receivers_let_in_who_is_said(tmp_path, keys):
    path, headers = keys
    receiver, said = Receiver(tmp_path), table()
    client = TestClient(create_otlp_app([receiver.ingest], BodyLimits(sent=4_000, decompressed=8_000), access_to(path)))
    for caller in CALLERS:
        status = client.post("/v1/traces", headers=headers[caller], json={}).status_code
        assert (status not in REFUSED) is (said["`POST /v1/…`", caller] != "no"), f"{caller}: {status}"
    assert {signal.http_path.partition("/v1/")[0] for signal in SIGNALS} == {""}
    receiver.commit.stop(20)


def test_own_means_rows_of_the_keys_tenant():
    """What a tenant's key reads is compared route by route in test_tenants.py, and what it writes is stamped."""
    own = {caller for (_, caller), cell in table().items() if cell == "own"}
    assert own == {"ingest of a tenant", "read of a tenant"}
