"""Severities, causes, dimensions, phases and statuses exist once; every other list of them is equal to the one."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from collector.api.explain import ExplainQuery
from collector.api.goodput import GoodputQuery
from collector.api.parameters import WindowQuery
from collector.api.requests import RequestsQuery
from collector.ask.template import PARTS, QUERIES
from collector.count.answers import ThresholdsOut
from collector.count.request_rows import RequestRow
from collector.engines.cold_starts import ColdStartOut
from collector.incidents.standing import State
from collector.metrics import metrics
from collector.numbers.goodput import Violations
from collector.slo.conditions import CAUSES
from collector.slo.counts import Counts
from collector.slo.model import Thresholds
from collector.slo.severity import SEVERITIES, BurnSeverity
from collector.store.definitions import read_schema
from dashboard import filters, palette
from dashboard.views import happened, slos
from tests.contract.commands import PACKAGES, each_command
from tokentrail import Thresholds as SamplingThresholds
from tokentrail.cli import live
from tokentrail.semconv import Phase, Status, Wait
from tokentrail.shared.parameters import FILTERS, Dimension, Latency, Threshold

ROOT = Path(__file__).parents[2]
SQL = ROOT / "collector" / "sql"
DIMENSIONS = get_args(Dimension)
LATENCIES = ("ttft", "tpot", "e2e", "queue")


def columns(table):
    """The columns of a table, as its CREATE statement lists them."""
    return set(re.findall(r"^ *(\w+) +(?:[A-Z]\w+)", read_schema().tables[table], re.MULTILINE))


def enum(model, field):
    schema = model.model_json_schema()["properties"][field]
    return next(option["enum"] for option in [schema, *schema.get("anyOf", [])] if "enum" in option)


class TestDimensions:
    def test_the_api_filters_by_them(self):
        names = [field.alias or name for name, field in WindowQuery.model_fields.items()]
        filters = [*DIMENSIONS, "service", "instance", "label.*"]
        assert names == ["start", "end", *filters, *(f"not.{name}" for name in filters)]

    def test_both_tables_of_requests_have_them(self):
        assert {*FILTERS, "labels"} <= columns("requests") & columns("open_requests") & columns("causes")

    def test_requests_in_flight_have_them(self):
        columns = (PARTS / "in_flight_columns.sql").read_text().splitlines()[-1]
        assert {*DIMENSIONS, "labels"} <= set(columns.split(", "))

    def test_metrics_of_requests_have_them_as_labels(self):
        assert set(metrics.REQUEST_LABELS.values()) == {*DIMENSIONS, "service", "process_tenant", "operation"}
        query = QUERIES["segment_requests"].read_text()
        selected = re.search(r"^SELECT\n    (.*),$", query, re.MULTILINE)
        assert set(metrics.REQUEST_LABELS.values()) <= set(selected[1].split(", "))

    def test_the_dashboard_offers_them(self):
        assert (*DIMENSIONS, "service", "instance") == filters.LABELS

    def test_commands_have_an_option_for_each(self):
        wanted = {*DIMENSIONS, "service", "instance", "label", "without_these"}
        having = [name for name, command in each_command() if wanted <= {one.name for one in command.params}]
        asking = ("check", "compare", "differences", "explain", "incidents", "requests", "slos", "status")
        asking += ("tail", "timeouts")
        assert sorted(having) == [f"tokentrail {name}" for name in asking]

    def test_the_documentation_lists_them(self):
        listed = ", ".join(f"`{name}`" for name in DIMENSIONS)
        assert listed in (ROOT / "docs" / "slos.md").read_text()


class TestPhases:
    def test_a_request_row_has_a_duration_of_each(self):
        phases, waits = [phase for phase in Phase if phase != Phase.QUEUED], [f"wait_{lack}" for lack in Wait]
        durations = [*LATENCIES, *phases, "first_visible", "gap", *waits]
        durations.insert(durations.index("tpot") + 1, "tpot_at_most")
        assert [name for name in RequestRow.model_fields if name.endswith("_s")] == [f"{name}_s" for name in durations]
        stored = set(re.findall(r"\w+_ns\b", (PARTS / "request_columns.sql").read_text()))
        assert {f"{name}_ns" for name in durations} == stored - {"began_ns", "ended_ns"}
        assert {f"{name}_ns" for name in durations} <= columns("requests")

    def test_each_has_a_colour(self):
        assert palette.PHASES.keys() == set(Phase)

    def test_the_documentation_defines_each(self):
        section = (ROOT / "docs" / "numbers.md").read_text().split("## Phases")[1].split("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(Phase)


def test_statuses_are_the_wire_names():
    assert enum(RequestsQuery, "status") == [*Status, "in_flight", "lost"]
    assert enum(RequestRow, "status") == [*Status, "in_flight", "lost"]
    assert enum(ColdStartOut, "status") == [Status.OK, Status.ERROR]


def test_causes_and_severities_have_colours_on_the_dashboard():
    assert palette.CAUSES.keys() == set(CAUSES)
    assert happened.LOOKS.keys() == set(SEVERITIES)
    assert happened.KINDS.keys() >= set(CAUSES)
    assert happened.STATES.keys() == set(get_args(State))
    assert set(get_args(BurnSeverity)) <= slos.STATES.keys()


def test_thresholds_have_the_same_names_everywhere():
    assert [*Thresholds.model_fields] == ["ttft", "tpot", "e2e", "gap", "first_visible"]
    assert get_args(Threshold) == tuple(Thresholds.model_fields)
    assert [*ThresholdsOut.model_fields] == [f"{name}_s" for name in Thresholds.model_fields]
    assert {*Violations.model_fields} == {*Thresholds.model_fields, "failed"}
    assert {*Thresholds.model_fields} <= {*enum(RequestsQuery, "sort")} & {*get_args(Latency)}
    for query in (GoodputQuery, ExplainQuery):
        assert query.model_fields.keys() >= Thresholds.model_fields.keys()
    sampled = [field.name for field in dataclasses.fields(SamplingThresholds) if field.name.endswith("_s")]
    assert sampled == [f"{name}_s" for name in Thresholds.model_fields]


def test_the_cli_counts_the_bad_as_the_collector_does():
    requests = Counts(
        total=1000, ok=800, good=700, undetermined=60, failed=150, cancelled=50, unknown=0, excused=40, unselected=0,
        in_flight=9, in_flight_violations=7, lost=4,
    )  # fmt: skip
    slo = {
        "name": "chat", "objective": 0.9, "attainment": requests.attainment, "budget_left": 0.5, "firing": None,
        "requests": requests.model_dump(),
    }  # fmt: skip
    console = Console(width=200)
    with console.capture() as capture:
        console.print(live.slos([slo]))
    header, row = (re.split(r"\s{2,}", line.strip()) for line in capture.get().splitlines()[:2])
    assert int(row[header.index("bad")]) == requests.tally.bad


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_a_docstring_names_its_subject(package):
    found = {
        f"{path.relative_to(ROOT)}: {line}"
        for path in (ROOT / package).rglob("*.py")
        for line in re.findall(r'"""(?:The same|Those|So many)\b.*', path.read_text())
    }
    assert found == set(), "say the same as what, those of what, how many of what"
