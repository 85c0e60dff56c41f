"""Answers about an SLO of clients, where the server reported the same requests too."""

import pytest

from collector.incidents.wrong import NEVER_AT_CLIENTS
from tests.collector.rows import NOW, SECOND

GOOD = {"ttft_ns": 10**8, "tpot_ns": 2e7, "e2e": SECOND, "ended": NOW - SECOND, "vantage": "client", "engine": "openai"}
REASON = f"All missed TTFT: 900 ms at the median, 500 ms promised. {NEVER_AT_CLIENTS}"


@pytest.fixture
def slos_file(tmp_path):
    path = tmp_path / "slos.yaml"
    select = "select: {vantage: [client]}"
    path.write_text(f"slos: [{{name: app, objective: '0.9', window: 30d, {select}, thresholds: {{ttft: 500ms}}}}]")
    return path


@pytest.fixture
def half_bad(rows):
    """Clients waited too long for twenty of forty requests, which the server answered in time."""
    at_clients = [GOOD | {"request_id": f"r{i}", "ttft_ns": (9 if i % 2 else 1) * 10**8} for i in range(40)]
    at_servers = [one | {"vantage": "server", "engine": "vllm", "ttft_ns": 10**8} for one in at_clients]
    rows.requests([*at_clients, *at_servers])


@pytest.mark.parametrize("asked", [{}, {"slo": "app"}, {"slo": "app", "vantage": "client"}])
def test_the_requests_that_are_bad_for_clients_are_explained(half_bad, api, asked):
    answer = api("explain", **asked)
    assert (answer["selected"]["requests"], answer["attainment"], answer["wrong"]) == (20, 0.5, REASON)


def test_what_bad_requests_of_clients_share_is_told(half_bad, api):
    answer = api("differences", slo="app")
    assert (answer["selected"], answer["others"]) == (20, 20)


def test_the_verdict_tells_it_too(half_bad, api):
    assert api("verdict")["why"] == REASON
