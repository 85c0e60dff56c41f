"""Queries and their parts: every fragment is passed by name, and no file is left over."""

import re
from pathlib import Path
from typing import Any

import pytest

import collector.sql
from collector.measure import latencies
from collector.query import queries
from collector.query.queries import Queries
from collector.query.template import no_rows_without, part, render
from collector.sql.fragment import FALSE, TRUE, Fragment, all_of, any_of, negated
from collector.status import IngestStatus
from collector.store.expiry import Expiry
from collector.store.retention import parse_retention
from tests.collector.rows import NOW, SECOND, Rows, trace_id

SQL = Path(collector.sql.__file__).parent
METRICS = ("ttft", "itl", "kv_evictions", "kv_usage", "attainment")
A = Fragment("a = {a:String}", {"a": "x"})
B = Fragment("b", {"b": 1})


def names(folder):
    return {f"{folder}/{path.stem}" for path in (SQL / folder).glob("*.sql")}


class TestFragments:
    def test_predicates_are_joined_in_parentheses_with_all_their_parameters(self):
        assert all_of(A, B) == Fragment("(a = {a:String}) AND (b)", {"a": "x", "b": 1})
        assert any_of(A, B) == Fragment("(a = {a:String}) OR (b)", {"a": "x", "b": 1})
        assert negated(A) == Fragment("NOT (a = {a:String})", {"a": "x"})

    def test_all_of_nothing_is_true_and_any_of_nothing_is_false(self):
        assert all_of() == TRUE
        assert any_of() == FALSE

    def test_constants_are_worked_out_before_the_store_sees_them(self):
        assert (all_of(TRUE, A, TRUE), any_of(FALSE, A, FALSE)) == (A, A)
        assert (all_of(A, FALSE), any_of(A, TRUE)) == (FALSE, TRUE)
        assert (negated(TRUE), negated(FALSE)) == (FALSE, TRUE)


class TestRender:
    def test_parts_are_found_by_name_and_fragments_stand_in_parentheses(self):
        sql = render("queries/spans_count", {"filter": Fragment("x OR y")})
        assert sql == (
            "SELECT count() AS total FROM spans WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) "
            "AND start < fromUnixTimestamp64Nano({end_ns:Int64}) AND (x OR y)"
        )

    def test_parts_of_parts_are_put_in_and_comments_left_out(self):
        sql = render("queries/timeseries_itl", {"filter": TRUE})
        assert "{step_ns:Int64} AS bucket_ns" in sql
        assert "--" not in sql
        assert "$" not in sql

    @pytest.mark.parametrize("given", [{}, {"good": TRUE}, {"filter": TRUE, "order": TRUE}])
    def test_a_fragment_that_is_missing_or_unknown_is_an_error(self, given):
        with pytest.raises(TypeError, match=r"queries/timeseries_itl.sql takes the fragments \['filter'\], not "):
            render("queries/timeseries_itl", given)

    def test_a_file_is_never_taken_for_a_fragment(self):
        with pytest.raises(TypeError, match="takes the fragments"):
            part("itl_tokens", {})

    def test_a_part_carries_the_parameters_of_its_fragments(self):
        fragment = part("serves_requests", {"filter": A})
        assert fragment.parameters == {"a": "x"}
        assert fragment.sql.count("(a = {a:String})") == 2

    def test_values_are_bound_and_those_of_fragments_too(self):
        class Store:
            def query(self, sql, parameters, settings):
                self.parameters, self.settings = parameters, settings
                return type("Result", (), {"column_names": ("total",), "result_rows": [(7,)]})

        store: Any = Store()
        assert Queries(store).row("requests_count", {"filter": A}, start_ns=1, end_ns=2) == {"total": 7}
        assert store.parameters == {"a": "x", "start_ns": 1, "end_ns": 2}
        assert store.settings == {}
        Queries(store, lambda: {"max_threads": 1}).row("requests_count", {"filter": A}, start_ns=1, end_ns=2)
        assert store.settings == {"max_threads": 1}


def test_no_part_is_unused():
    used = set()
    for path in [path for folder in ("queries", "parts", "explain") for path in (SQL / folder).glob("*.sql")]:
        used |= set(re.findall(r"\$(parts\.\w+)", path.read_text()))
    for path in SQL.parent.rglob("*.py"):
        used |= {f"parts.{name}" for name in re.findall(r'\bpart\("(\w+)"', path.read_text())}
    assert {name.replace(".", "/") for name in used} == names("parts")


def test_every_query_is_run_with_the_fragments_that_it_names(api, rows, on_segment, live, monkeypatch):
    run = set()

    def recorded(path, fragments):
        run.add(path)
        return render(path, fragments)

    monkeypatch.setattr(queries, "render", recorded)
    made = rows.requests([{"segment": "one", "status": "error"} for _ in range(20)])
    rows.tokens(rows.request(), [400_000, 1])
    rows.phases(made[0], [("decode", SECOND)])
    rows.step(start=NOW - SECOND)
    rows.kv_event(start=NOW - SECOND)
    rows.cold_start(start=NOW - SECOND, duration=SECOND)
    sample = {"time": NOW // 10**6 - 1000, "service": "s", "instance": "i", "name": "up", "kind": "gauge", "value": 1.0}
    rows.insert("samples", [sample])
    rows.causes(
        [(made[0], {"rest_preempted_us": 99, "ttft_others_prompts_us": 9, "inflicted_us": 7}), (rows.request(), {})]
    )
    victim = {"trace_id": made[0]["trace_id"], "request_span_id": bytes.fromhex(made[0]["span_id"])}
    rows.kv_event(start=NOW - 3 * SECOND // 2, beneficiary=made[1]["trace_id"], **victim)
    api("summary")
    assert "queries/ended_since" not in run, "no request ended after a window that ends now"
    api("summary", end="-1m")
    with monkeypatch.context() as patch:
        patch.setattr(Queries, "remembers", False)
        patch.setattr(latencies, "_FEW", 0)
        api("summary", start="-6d")
        api("summary")
    api("summary", start="-6d")
    rows.request(weight=2.0)
    rows.open(start=NOW - 90 * SECOND, seen=NOW)
    for segment in ("one", "two"):  # the second one may have the end of a request that is counted already
        on_segment(segment)
        live.counters.on_explained(segment)
        live.refresh()
    for path in ("slos", "requests", "kv", "cold_starts", "engines", "processes", "incidents"):
        api(path)
    api("summary", model="m")
    api("goodput", ttft="1s", surface=1)
    for metric in METRICS:
        api("timeseries", metric=metric)
    api("timeseries", metric="requests", slo="chat")
    api("requests", status="in_flight")
    api("requests", limit=1)
    api("summary", group_by="model")
    api("compare", **{"a.model": "m", "b.model": "n"})
    rows.causes([(rows.request(tenant="t"), {"ttft_busy_us": 500_000, "rest_batch_us": 500_000})])
    api("explain", tenant="t", e2e="10ms", replay=True)
    api("explain", metric="ttft")
    for path in ("samples/latencies", "explain", "differences", "heatmap", "labels", "changes"):
        api(path)
    api(f"requests/{made[0]['trace_id']}")
    api("processes/timeline", **{name: made[0][name] for name in ("service", "instance")})
    api("verdict", end="-1h", start="-2h")
    for path in ("spans", "spans/names", "storage"):
        api(path)
    Expiry(rows.store, parse_retention("90d,acme/requests=1d"), IngestStatus()).run_once()
    assert run - names("parts") == names("queries")


def test_a_query_that_says_which_tables_it_needs_reads_these(module_store):
    stored = module_store.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
    needed = {name: no_rows_without(name.removeprefix("queries/")) for name in names("queries")}
    assert needed["queries/request_events"] == ("kv_events", "cold_starts")
    assert needed["queries/requests"] == ()
    for name, tables in needed.items():
        text = (SQL / f"{name}.sql").read_text()
        parts = [(SQL / f"parts/{part}.sql").read_text() for part in re.findall(r"\$parts\.(\w+)", text)]
        read = set(re.findall(r"FROM (\w+)", "".join([text, *parts])))
        assert {*tables} <= {table for (table,) in stored} & read, name


def test_tokens_of_a_few_minutes_are_found_by_the_primary_key(module_store):
    sql = render("queries/requests_with_tokens", {})
    explained = module_store.query(f"EXPLAIN indexes = 1 {sql}", {"minutes": [60, 120], "trace_ids": ["00" * 16]})
    assert "(minute in 2-element set)" in "".join(str(row[0]) for row in explained.result_rows)


def test_every_file_begins_with_a_comment():
    for path in [*(SQL / "queries").glob("*.sql"), *(SQL / "parts").glob("*.sql")]:
        assert path.read_text().startswith("-- "), path.name


class TestMargin:
    """`parts/end_margin.sql`: a request's end outranks late announcements, and is looked for up to so much later."""

    def test_the_views_and_the_rows_of_tests_use_it(self, rows):
        (hours,) = re.findall(r"^INTERVAL (\d+) HOUR$", (SQL / "parts" / "end_margin.sql").read_text(), re.MULTILINE)
        views = "".join(path.read_text() for path in (SQL / "engines").rglob("*.sql"))
        assert re.findall(r"end \+ INTERVAL (\d+) HOUR, end\) AS seen", views) == [hours]
        end = rows.request()["end"]
        ((seen,),) = rows.store.query("SELECT toUnixTimestamp64Nano(seen) FROM open_requests").result_rows
        assert seen - end == int(hours) * 3600 * SECOND

    def test_a_late_announcement_within_it_does_not_reopen_a_request(self, api, rows):
        ended = rows.request(ended=NOW - 20 * SECOND)
        same = {name: ended[name] for name in ("trace_id", "span_id", "start")}
        rows.open(**same, seen=NOW - 10 * SECOND)
        assert api("summary")["requests"]["in_flight"] == 0

    @pytest.mark.parametrize(("after_s", "in_flight"), [(3599, 1), (3600, 0)])
    def test_a_request_that_was_in_flight_is_found_by_its_end(self, api, rows: Rows, after_s, in_flight):
        at = NOW - 7200 * SECOND
        rows.request(trace_id=trace_id(), ended=at + after_s * SECOND, e2e=4000 * SECOND)
        assert api("summary", end="-2h", start="-3h")["requests"]["in_flight"] == in_flight
