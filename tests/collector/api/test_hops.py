"""One request that its client, a gateway and its server report is shown and counted once."""

import pytest

from tests.collector.rows import NOW, SECOND, trace_id

MS = 1_000_000
DAY = 86_400 * SECOND
SERVER = {
    "service": "vllm",
    "engine": "vllm",
    "vantage": "server",
    "request_id": "chatcmpl-1",
    "span_id": "00000000000000cc",
}
GATEWAY = {
    "service": "lite",
    "engine": "litellm",
    "vantage": "client",
    "request_id": "chatcmpl-1",
    "span_id": "00000000000000bb",
}
CLIENT = {"service": "app", "engine": "genai", "vantage": "client", "request_id": "chatcmpl-1"}


@pytest.fixture
def three(rows):
    """One request, of 800 ms at its server, 950 ms at the gateway and 1 s at the client, each in its own trace."""
    return rows.requests(
        [
            {**SERVER, "e2e": 800 * MS, "ttft_ns": 100 * MS},
            {**GATEWAY, "e2e": 950 * MS, "ttft_ns": None},
            {**CLIENT, "e2e": 1000 * MS, "ttft_ns": 300 * MS},
        ]
    )


def test_the_list_has_it_once_with_what_each_hop_adds(api, three):
    answer = api("requests")
    assert answer["total"] == 1
    (row,) = answer["requests"]
    assert (row["service"], row["e2e_s"]) == ("vllm", 0.8)
    assert [(hop["service"], hop["vantage"], hop["e2e_s"], hop["added_e2e_s"]) for hop in row["hops"]] == [
        ("app", "client", 1.0, 0.05), ("lite", "client", 0.95, 0.15), ("vllm", "server", 0.8, None),
    ]  # fmt: skip
    assert [hop["added_ttft_s"] for hop in row["hops"]] == [None, None, None], "the gateway's TTFT is not known"
    assert [hop["trace_id"] for hop in row["hops"]] == [made["trace_id"] for made in reversed(three)]


@pytest.mark.parametrize("asked", [0, 1, 2], ids=["server", "gateway", "client"])
def test_each_of_its_traces_shows_all_hops(api, three, asked):
    answer = api(f"requests/{three[asked]['trace_id']}")
    assert [hop["service"] for hop in answer["request"]["hops"]] == ["app", "lite", "vllm"]
    assert answer["request"]["trace_id"] == three[asked]["trace_id"]


def test_numbers_count_it_once_unless_a_vantage_is_asked_for(api, three):
    assert api("summary")["requests"]["total"] == 1
    assert api("summary")["e2e_s"]["max"] == 0.8
    assert api("goodput", e2e="2s")["requests"]["good"] == 1
    points = api("timeseries", metric="requests", step="900s")["points"]
    assert sum(point["value"] for point in points) * 900 == pytest.approx(1)
    assert api("summary", vantage="client")["requests"]["total"] == 2
    assert api("requests", vantage=["server", "client"])["total"] == 3
    assert api("summary", vantage=["server", "client"])["requests"]["total"] == 3


def test_a_filter_that_only_the_gateways_row_meets_keeps_the_request(api, rows, three):
    """The gateway alone knows the tenant and its name for the model. Another server's row is no reason to drop it."""
    for n in range(2, 4):
        named = {"request_id": f"chatcmpl-{n}"}
        rows.requests([{**SERVER, **named, "model": "llama"}, {**GATEWAY, **named, "tenant": "acme", "model": "fast"}])
    direct = {**SERVER, "request_id": "chatcmpl-9", "tenant": "acme"}

    def counted(**filters):
        points = api("timeseries", metric="requests", step="900s", **filters)["points"]
        found = api("summary", **filters)["requests"]["total"]
        assert api("goodput", e2e="2s", **filters)["requests"]["total"] == found
        assert api("requests", **filters)["total"] == found
        assert sum(point["value"] for point in points) * 900 == pytest.approx(found)
        return found

    rows.request(**direct)
    asked = ({"tenant": "acme"}, {"model": "fast"}, {"model": ["fast", "llama"]}, {})
    assert [counted(**filters) for filters in asked] == [3, 2, 2, 4]


def test_a_list_finds_a_request_by_its_gateway_and_by_each_of_its_traces(api, three):
    for made in three:
        (row,) = api("requests", trace_id=made["trace_id"])["requests"]
        assert row["trace_id"] == made["trace_id"]
        assert api("requests", service=made["service"])["total"] == 1
    (row,) = api("requests", request_id="chatcmpl-1")["requests"]
    assert row["vantage"] == "server"


def test_a_request_that_only_a_client_reports_still_counts(api, rows, three):
    rows.request(**{**CLIENT, "request_id": "chatcmpl-2"})
    rows.requests([{**CLIENT, "request_id": ""}, {**SERVER, "request_id": ""}])
    assert api("summary")["requests"]["total"] == api("requests")["total"] == 4


def test_a_trace_shows_the_server_below_its_client(api, rows, monkeypatch):
    trace = trace_id()
    own = {**CLIENT, "request_id": "", "span_id": "4142434445464700"}
    client = rows.request(**own, trace_id=trace, e2e=SECOND, ttft_ns=300 * MS)
    parent = bytes.fromhex(client["span_id"]).decode()
    below = {**SERVER, "request_id": "other", "trace_id": trace, "parent_span_id": parent}
    rows.request(**below, e2e=800 * MS, ended=NOW - SECOND - 5 * MS, ttft_ns=100 * MS)
    rows.request(**{**SERVER, "request_id": ""}, trace_id=trace_id(), e2e=SECOND)
    answer = api(f"requests/{trace}")
    assert answer["request"]["vantage"] == "server"
    assert [(hop["vantage"], hop["added_ttft_s"], hop["added_e2e_s"]) for hop in answer["request"]["hops"]] == [
        ("client", 0.2, 0.2), ("server", None, None),
    ]  # fmt: skip
    assert api(f"requests/{trace}", span_id=client["span_id"])["request"]["vantage"] == "client"
    assert api("summary")["requests"]["total"] == 2
    for module in ("count.hops", "causes.answer.request"):
        monkeypatch.setattr(f"collector.{module}.MOST_OF_A_TRACE", 1)
    of_a_long_trace = api(f"requests/{trace}")
    assert (len(of_a_long_trace["span_ids"]), len(of_a_long_trace["request"]["hops"])) == (1, 2)


def test_other_calls_of_a_trace_are_requests_of_their_own(api, rows):
    trace = trace_id()
    rows.request(**SERVER, trace_id=trace)
    rows.request(**{**CLIENT, "request_id": "chatcmpl-9"}, trace_id=trace)
    assert api("requests")["total"] == 2
    assert [row["hops"] for row in api("requests")["requests"]] == [[], []]


def test_of_several_answers_the_longest_is_the_servers_hop(api, rows):
    rows.requests([{**SERVER, "e2e": 700 * MS}, {**SERVER, "e2e": 800 * MS, "span_id": "00000000000000dd"}])
    made = rows.request(**CLIENT, e2e=SECOND)
    found = api(f"requests/{made['trace_id']}")["request"]["hops"]
    assert [(hop["service"], hop["e2e_s"]) for hop in found] == [("app", 1.0), ("vllm", 0.8)]


def test_a_client_that_left_before_its_server_adds_nothing(api, rows):
    rows.request(**SERVER, e2e=SECOND)
    made = rows.request(**CLIENT, e2e=800 * MS, status="cancelled")
    first, second = api(f"requests/{made['trace_id']}")["request"]["hops"]
    assert (first["vantage"], first["status"], first["added_e2e_s"], second["vantage"]) == (
        "client", "cancelled", None, "server",
    )  # fmt: skip


def test_rows_that_ended_more_than_an_hour_apart_are_two_requests(api, rows):
    rows.request(**SERVER, ended=NOW - 3700 * SECOND)
    rows.request(**CLIENT)
    assert api("requests", start="-2h")["total"] == 1, "the window decides, plus an hour"
    assert [row["hops"] for row in api("requests")["requests"]] == [[]]


@pytest.mark.parametrize(("apart_s", "hops"), [(-3600, 2), (3600, 2), (-3600.001, 0), (3600.001, 0)])
def test_each_row_of_a_list_has_its_own_hour(api, rows, apart_s, hops):
    """The rows of a list of thirty days may lie far from each other, on both sides of midnight."""
    long_ago = NOW // DAY * DAY - 20 * DAY + 1
    rows.request(**CLIENT, ended=long_ago)
    rows.request(**SERVER, ended=long_ago + round(apart_s * SECOND))
    for days in range(3):
        rows.request(**CLIENT | {"request_id": f"other-{days}"}, ended=NOW - days * DAY - SECOND)
    found = api("requests", start="-30d", vantage="client")["requests"]
    assert [len(row["hops"]) for row in found] == [0, 0, 0, hops]
    assert api(f"requests/{found[-1]['trace_id']}")["request"]["hops"] == found[-1]["hops"]
