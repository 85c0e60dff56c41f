import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collector.rows import NOW, SECOND

MS = 1_000_000

latencies = st.integers(1, 2000).map(lambda ms: ms * MS)
ended = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["ok", "ok", "ok", "error", "cancelled", "unknown"]),
        "e2e": latencies,
        "ttft_ns": st.none() | latencies,
        "tpot_ns": st.none() | st.integers(1, 200).map(lambda ms: float(ms * MS)),
        "tpot_at_most_ns": st.none() | st.integers(1, 200).map(lambda ms: ms * MS - 0.5),
        "output_tokens": st.none() | st.integers(0, 3),
        "gap_ns": st.none() | latencies,
        "first_visible_ns": st.none() | latencies,
        "reasoning_tokens": st.none() | st.integers(0, 1),
    }
).map(lambda row: row if may_have_a_bound(row) else row | {"tpot_at_most_ns": None})
announced = st.fixed_dictionaries(
    {
        "elapsed": latencies,
        "ttft_ns": st.none() | latencies,
        "output_tokens": st.integers(0, 3),
        "gap_ns": st.none() | latencies,
        "since_token": latencies,
        "silent": st.booleans(),
        "hung": st.booleans(),
    }
)


def may_have_a_bound(row):
    return row["tpot_ns"] is None and row["output_tokens"] not in (0, 1)


threshold = st.none() | st.sampled_from([1, 10, 70, 100, 150, 500, 1000, 2000])


def missed(row, limits):
    """By threshold, as docs/numbers.md defines it."""
    waited = row["status"] == "cancelled" and row["ttft_ns"] is None and row["output_tokens"] == 0
    ttft_ns = row["e2e_ns"] if waited else row["ttft_ns"]
    visible_ns = ttft_ns if waited or row["first_visible_ns"] is None else row["first_visible_ns"]
    row = row | {"ttft_ns": ttft_ns, "first_visible_ns": visible_ns}  # none is visible before the first
    return {
        name
        for name, limit in limits.items()
        if limit is not None and row[f"{name}_ns"] is not None and row[f"{name}_ns"] > limit
    }


def unknown(row, limits):
    """A threshold needs a value that is not known, although the request may have had it."""
    tokens = 2 if row["output_tokens"] is None else row["output_tokens"]
    at_most = {"ttft": None, "tpot": row["tpot_at_most_ns"], "gap": None, "first_visible": None}
    if row["first_visible_ns"] is None and row["reasoning_tokens"] == 0:
        row = row | {"first_visible_ns": row["ttft_ns"]}
    return any(
        limits[name] is not None
        and row[f"{name}_ns"] is None
        and tokens >= at_least
        and (at_most[name] is None or at_most[name] > limits[name])
        for name, at_least in (("ttft", 1), ("tpot", 2), ("gap", 2), ("first_visible", 1))
    )


def missed_already(row, limits):
    out = set()
    first = min(row["elapsed"], row["elapsed"] if row["ttft_ns"] is None else row["ttft_ns"])
    out |= {name for name in ("ttft", "first_visible") if limits[name] is not None and first > limits[name]}
    gap = None if row["last_token_ns"] is None else max(row["gap_ns"] or 0, row["elapsed"] - row["last_token_ns"])
    if limits["gap"] is not None and gap is not None and gap > limits["gap"]:
        out.add("gap")
    if limits["e2e"] is not None and row["elapsed"] > limits["e2e"]:
        out.add("e2e")
    if limits["tpot"] is not None and row["hung"] and row["ttft_ns"] is not None:
        so_far = (row["elapsed"] - row["ttft_ns"]) / max(row["output_tokens"] - 1, 1)
        out |= {"tpot"} if so_far > limits["tpot"] else set()
    return out


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ended=st.lists(ended, max_size=30),
    announced=st.lists(announced, max_size=8),
    ms=st.fixed_dictionaries(dict.fromkeys(("ttft", "tpot", "e2e", "gap", "first_visible"), threshold)),
)  # fmt: skip
def test_goodput_is_what_brute_force_says(api, rows, ended, announced, ms):
    asked = {name: f"{limit}ms" for name, limit in ms.items() if limit is not None}
    if not asked:
        return
    rows.clear()
    made = rows.requests(ended) if ended else []
    rows.step(start=NOW - 4000 * SECOND, instance="hung")
    for row in announced:
        seen = NOW - (40 * SECOND if row["silent"] else 0)
        # one that hangs has waited since its engine's last step, which was longer ago than anything is given up after
        elapsed = row["elapsed"] = row["elapsed"] + (100 * SECOND if row["hung"] else 0)
        row["last_token_ns"] = None if row["gap_ns"] is None else max(elapsed - row["since_token"], 0)
        told = {name: row[name] for name in ("ttft_ns", "output_tokens", "last_token_ns", "gap_ns")}
        rows.open(start=seen - elapsed, seen=seen, instance="hung" if row["hung"] else "fine", **told)
    for at in {NOW - 40 * SECOND - r["elapsed"] for r in announced if r["hung"]}:
        assert at > NOW - 4000 * SECOND

    limits = {name: limit and limit * MS for name, limit in ms.items()}
    answer = api("goodput", **asked)

    def judge(limits):
        meets = [r for r in made if r["status"] in ("ok", "unknown") and not missed(r, limits)]
        undetermined = sum(r["status"] == "unknown" or unknown(r, limits) for r in meets)
        good = len(meets) - undetermined
        judged = [r for r in made if r["status"] != "cancelled" or missed(r, limits)]
        lost = [r for r in announced if r["silent"]]
        bad_now = [r for r in announced if not r["silent"] and missed_already(r, limits)]
        denominator = len(judged) - undetermined + len(lost) + len(bad_now)
        return good, undetermined, len(bad_now), good / denominator if denominator else None

    good, undetermined, bad_now, attainment = judge(limits)
    assert answer["requests"]["good"] == good
    assert answer["requests"]["undetermined"] == undetermined
    assert answer["requests"]["in_flight_violations"] == bad_now
    assert answer["attainment"] == attainment
    violations = dict.fromkeys(limits, 0)
    for name in violations:
        violations[name] += sum(name in missed(r, limits) for r in made)
        violations[name] += sum(name in missed_already(r, limits) for r in announced if not r["silent"])
    failed = sum(r["status"] == "error" for r in made) + sum(r["silent"] for r in announced)
    assert answer["violations"] == violations | {"failed": failed}


@pytest.mark.parametrize("bad", [{}, {"ttft": "0ms"}, {"ttft": "500"}, {"tpot": "-1s"}, {"e2e": "fast"}])
def test_thresholds_are_durations(api, bad):
    answer = api.client.get("/api/v1/goodput", params=bad)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] in {"ttft", "tpot", "e2e"}
