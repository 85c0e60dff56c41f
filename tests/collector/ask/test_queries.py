"""Queries and their parts: every fragment is passed by name, and no file is left over."""

import re
from pathlib import Path
from typing import Any

import pytest

import collector.sql
from collector.ask.queries import Queries
from collector.ask.template import PARTS, QUERIES, no_rows_without, part, render
from collector.sql.fragment import FALSE, TRUE, Fragment, Table, all_of, any_of, negated
from tests.collector.rows import NOW, SECOND, Rows, trace_id

SQL = Path(collector.sql.__file__).parent
A = Fragment("a = {a:String}", {"a": "x"})
B = Fragment("b", {"b": 1})


COLLECTOR = SQL.parent
FILES = [*QUERIES.values(), *PARTS.glob("*.sql"), *COLLECTOR.glob("causes/stage/*.sql")]


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
    def test_parts_are_found_by_name_and_fragments_stand_in_parentheses_but_tables(self):
        during = part("started_in_window", {})
        sql = render("rows_in_window", {"table": Table("spans"), "in_window": during, "filter": Fragment("x OR y")})
        assert sql == (
            "SELECT count() AS n FROM spans WHERE (start >= fromUnixTimestamp64Nano({start_ns:Int64}) "
            "AND start < fromUnixTimestamp64Nano({end_ns:Int64})) AND (x OR y)"
        )
        assert "grouping(of_0) AS" in render(
            "value_counts", dict.fromkeys(("columns", "filter", "names", "rows", "selected", "sets"), Fragment("of_0"))
        )

    def test_parts_of_parts_are_put_in_and_comments_left_out(self):
        sql = render("timeseries_itl", {"filter": TRUE})
        assert "{step_ns:Int64} AS bucket_ns" in sql
        assert "--" not in sql
        assert "$" not in sql

    @pytest.mark.parametrize("given", [{}, {"good": TRUE}, {"filter": TRUE, "order": TRUE}])
    def test_a_fragment_that_is_missing_or_unknown_is_an_error(self, given):
        with pytest.raises(TypeError, match=r"timeseries_itl.sql takes the fragments \['filter'\], not "):
            render("timeseries_itl", given)

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
                return type("Result", (), {"column_names": ("n",), "result_rows": [(7,)]})

        store: Any = Store()
        assert Queries(store).count("requests", "ended_in_window", A, start_ns=1, end_ns=2) == 7
        assert store.parameters == {"a": "x", "start_ns": 1, "end_ns": 2}
        assert store.settings == {}
        Queries(store, lambda: {"max_threads": 1}).count("requests", "ended_in_window", A, start_ns=1, end_ns=2)
        assert store.settings == {"max_threads": 1}


def test_no_part_is_unused():
    used = {name for path in FILES for name in re.findall(r"\$parts\.(\w+)", path.read_text())}
    for path in COLLECTOR.rglob("*.py"):
        used |= set(re.findall(r'\bpart\("(\w+)"', path.read_text()))
    assert used == {path.stem for path in PARTS.glob("*.sql")}


def test_no_query_is_unused_and_none_has_the_name_of_another():
    """Queries of an endpoint, a counter or a round are run by its tests."""
    used = {f"{table}_by_hour" for table in ("requests", "tokens")}
    used |= {f"segment_{table}" for table in ("requests", "kv_events", "cold_starts", "causes")}
    for path in COLLECTOR.rglob("*.py"):
        used |= set(re.findall(r'"(\w+)"', path.read_text()))
    assert used >= QUERIES.keys()
    assert len(QUERIES) == len([*COLLECTOR.rglob("queries/*.sql")])


def test_a_query_that_says_which_tables_it_needs_reads_these(module_store):
    stored = module_store.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
    watched = set(re.findall(r"'(\w+)'", QUERIES["day_versions"].read_text()))
    needed = {name: no_rows_without(name) for name in QUERIES}
    assert needed["request_events"] == ("kv_events", "cold_starts")
    assert needed["requests"] == ()
    for name, tables in needed.items():
        text = QUERIES[name].read_text()
        parts = [(PARTS / f"{part}.sql").read_text() for part in re.findall(r"\$parts\.(\w+)", text)]
        read = set(re.findall(r"FROM (\w+)", "".join([text, *parts])))
        assert {*tables} <= {table for (table,) in stored} & watched & read, name


def test_tokens_of_a_few_minutes_are_found_by_the_primary_key(rows):
    rows.tokens(rows.request(), [400_000, 1])
    sql = render("requests_with_tokens", {})
    explained = rows.store.query(f"EXPLAIN indexes = 1 {sql}", {"minutes": [60, 120], "trace_ids": ["00" * 16]})
    assert "(minute in 2-element set)" in "".join(str(row[0]) for row in explained.result_rows)


def test_every_file_begins_with_a_comment():
    for path in FILES:
        assert path.read_text().startswith("-- "), path.name


class TestMargin:
    """`ask/sql/end_margin.sql`: a request's end outranks late announcements, and is looked for up to so much later."""

    def test_the_views_and_the_rows_of_tests_use_it(self, rows):
        (hours,) = re.findall(r"^INTERVAL (\d+) HOUR$", (PARTS / "end_margin.sql").read_text(), re.MULTILINE)
        views = "".join(path.read_text() for path in (SQL / "engines").rglob("*.sql"))
        assert re.findall(r"end \+ INTERVAL (\d+) HOUR, end\) AS seen", views) == [hours]
        end = rows.request()["end"]
        rows.open(start=end, seen=end)
        ((seen,),) = rows.store.query("SELECT toUnixTimestamp64Nano(seen) FROM open_requests WHERE ended").result_rows
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
