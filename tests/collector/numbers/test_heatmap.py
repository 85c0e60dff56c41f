"""`/heatmap` beside a grid that is counted request by request."""

from collections import Counter

import numpy as np
import pytest

from tests.collector.rows import NOW, SECOND

MS = 1_000_000
START = NOW - 900 * SECOND


def _traffic(n, seed=1):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        status = rng.choice(["ok", "ok", "ok", "error"])
        ttft = None if status == "error" and rng.random() < 0.7 else int(rng.lognormal(19, 1.5))
        row = {
            "ended": START + int(rng.integers(0, 900 * SECOND)),
            "e2e": 400 * SECOND,
            "ttft_ns": ttft,
            "tpot_ns": 1e7,
        }
        failed = {"status": status, "error_type": "x" if status == "error" else ""}
        rows.append({**row, **failed, "slo_class": rng.choice(["chat", "batch"])})
    return rows


def _is_bad(row):
    return row["status"] == "error" or row["e2e_ns"] > 60 * SECOND


@pytest.mark.parametrize(("columns", "rows_of_grid"), [(60, 40), (7, 3), (1, 1)])
def test_each_cell_has_the_requests_of_its_time_and_latency(api, rows, columns, rows_of_grid):
    made = rows.requests(_traffic(600))
    got = api("heatmap", columns=columns, rows=rows_of_grid)
    edges = np.array(got["edges_s"]) * 1e9
    assert len(edges) == rows_of_grid + 1
    known = [r["ttft_ns"] for r in made if r["ttft_ns"]]
    assert edges[0] <= min(known)
    assert max(known) < edges[-1]
    assert np.diff(np.log(edges)) == pytest.approx(np.diff(np.log(edges))[0])
    counted, failed, bad = Counter(), Counter(), Counter()
    for r in made:
        x = int((r["end"] - START) // (got["column_s"] * SECOND))
        y = int(np.searchsorted(edges, r["ttft_ns"], side="right")) - 1 if r["ttft_ns"] else None
        counted[x, y] += 1
        failed[x, y] += r["status"] == "error"
        bad[x, y] += _is_bad(r)
    assert {(c["x"], c["y"]): c["requests"] for c in got["cells"]} == counted
    assert {(c["x"], c["y"]): c["failed"] for c in got["cells"]} == failed
    assert {(c["x"], c["y"]): c["bad"] for c in got["cells"]} == bad


def test_an_slo_keeps_its_requests_and_says_what_is_bad(api, rows):
    made = [r for r in rows.requests(_traffic(400)) if r["slo_class"] == "chat"]
    got = api("heatmap", slo="chat", metric="ttft")
    assert got["thresholds_s"] == [0.5]
    assert sum(c["requests"] for c in got["cells"]) == len(made)
    late = sum(r["status"] == "error" or r["ttft_ns"] > 500 * MS for r in made)
    assert sum(c["bad"] for c in got["cells"]) == late
    assert api("heatmap", slo="chat", metric="queue")["thresholds_s"] == []


def test_a_map_of_some_processes_has_their_requests_alone(api, rows):
    rows.requests([{"instance": name, "ttft_ns": 100 * MS} for name in ("one", "two", "two", "three")])
    assert sum(c["requests"] for c in api("heatmap", instance=["two", "three"])["cells"]) == 3


def test_without_latencies_there_are_no_rows_and_nothing_is_lost(api, rows):
    assert api("heatmap")["cells"] == []
    assert api("heatmap")["edges_s"] == []
    rows.requests([{"ttft_ns": None, "output_tokens": 0, "status": "error", "error_type": "queue_full"}] * 3)
    got = api("heatmap")
    assert got["edges_s"] == []
    ((cell),) = got["cells"]
    assert (cell["y"], cell["requests"], cell["failed"], cell["bad"]) == (None, 3, 3, 3)
    assert cell["x"] == 59


def test_one_latency_alone_has_a_grid(api, rows):
    rows.requests([{"ttft_ns": 123_456_789}] * 2)
    got = api("heatmap", rows=10)
    ((cell),) = got["cells"]
    assert got["edges_s"][cell["y"]] <= 0.123456789 < got["edges_s"][cell["y"] + 1]
    assert got["edges_s"][-1] == pytest.approx(2 * got["edges_s"][0])


def test_sampled_requests_count_by_their_weight(api, rows):
    rows.requests([{"ttft_ns": 100 * MS, "weight": 2.5}, {"ttft_ns": 100 * MS, "weight": 4.0}])
    ((cell),) = api("heatmap")["cells"]
    assert cell["requests"] == 6.5


def test_a_grid_has_bounds(api, rows):
    for params in ({"columns": 501}, {"rows": 0}, {"metric": "itl"}, {"slo": "gone"}):
        assert api.client.get("/api/v1/heatmap", params=params).status_code in (400, 404)
