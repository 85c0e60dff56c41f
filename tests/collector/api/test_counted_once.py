"""A request that its client and its server report counts once in each answer about requests."""

from tests.collector.rows import NOW, SECOND

N = 37
ASKED = {
    "check": {"slo": "chat"},
    "compare": {"a.slo_class": "chat", "b.slo_class": "chat"},
    "goodput": {"ttft": "500ms"},
    "heatmap": {"metric": "ttft"},
    "timeseries": {"metric": "requests"},
    "differences": {"verdict": "good"},
}
AS_REPORTED = {"engines", "processes"}
"""They are about processes, of which each reports its own requests."""
ROWS = {"ended_last_day"}
"""What tells whether traffic arrives at all counts rows."""


def _paths(client):
    """The paths of the API that take filters for requests, and nothing in their path."""
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        asked = {one["name"] for one in methods.get("get", {}).get("parameters", [])}
        if "vantage" in asked and "{" not in path:
            yield path.removeprefix("/api/v1/")


def _numbers(value, where=""):
    """The numbers of an answer, each behind its place."""
    if isinstance(value, dict):
        return [found for key, one in value.items() for found in _numbers(one, f"{where}.{key}")]
    if isinstance(value, list):
        return [found for one in value for found in _numbers(one, where)]
    return [(where, value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_each_answer_counts_a_request_of_client_and_server_once(api, rows):
    made = []
    for i in range(N):
        one = {"ended": NOW - (60 + i) * SECOND, "e2e": SECOND, "ttft_ns": 2 * 10**8, "slo_class": "chat"}
        both = {**one, "request_id": f"r-{i}"}
        made += [both, {**both, "service": "app", "engine": "genai", "vantage": "client"}]
    rows.requests(made)
    paths = {*_paths(api.client)}
    assert paths >= {"summary", "labels", "differences", "requests", "compare", "check", "changes"}
    for path in sorted(paths - AS_REPORTED):
        found = [where for where, number in _numbers(api(path, **ASKED.get(path, {}))) if number == 2 * N]
        assert {place.rsplit(".", 1)[-1] for place in found} <= ROWS, path
    for path in ("summary", "labels", "differences", "requests", "compare", "check"):
        assert N in [number for _, number in _numbers(api(path, **ASKED.get(path, {})))], path
