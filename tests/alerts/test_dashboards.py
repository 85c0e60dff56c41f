"""Every query of a Grafana dashboard is PromQL, and names metrics that the collector exposes or the rules record."""

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from alerts.dashboards import dashboards
from collector.metrics import metrics
from tests.alerts.test_packs import names
from tests.alerts.test_rules import rules

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "alerts" / "grafana"
BOARDS = {name: json.loads(text) for name, text in dashboards().items()}


def queries(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_committed_dashboards_are_what_the_generator_writes():
    assert {path.name: path.read_text() for path in (GRAFANA / "dashboards").glob("*.json")} == dashboards()


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_has_the_fields_that_grafana_asks_for_and_no_others(name):
    schema = json.loads((ROOT / "tests" / "data" / "grafana" / "dashboard.schema.json").read_text())
    jsonschema.validate(BOARDS[name], schema)
    with pytest.raises(jsonschema.ValidationError, match="annotations"):
        jsonschema.validate({key: value for key, value in BOARDS[name].items() if key != "annotations"}, schema)


def test_every_query_is_promql(tmp_path):
    exprs = [re.sub(r"\$__rate_interval", "1m", q) for board in BOARDS.values() for q in queries(board)]
    recorded = [{"record": f"query_{i}", "expr": expr} for i, expr in enumerate(exprs)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert f"SUCCESS: {len(exprs)} rules found" in done.stdout, done.stderr
    assert len(exprs) > 30


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_names_metrics_and_labels_that_exist(name):
    exposed = {n: m for m in metrics.ALL for n in (m.name, f"{m.name}_bucket")}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    board = BOARDS[name]
    for query in queries(board):
        for metric in names(query.replace("$__rate_interval", "1m")):
            assert metric in exposed.keys() | recorded | {"ALERTS"}, query
        for metric, labels in re.findall(r"(\w+)\{([^}]*)\}", query):
            if metric in exposed:
                known = {*exposed[metric].labels, "cluster"}
                assert set(re.findall(r"(\w+)=", labels)) <= known, query
    for variable in board["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
        assert metric == "up" or label in exposed[metric].labels


def test_series_of_tenants_and_of_vantages_are_told_apart():
    """A request that its client reports too is in both vantages: added, it counts twice."""
    exposed = {n: m for m in metrics.ALL for n in (m.name, f"{m.name}_bucket")}
    for target in (target for board in BOARDS.values() for panel in board["panels"] for target in panel["targets"]):
        query, legend = target["expr"], target["legendFormat"]
        if re.search(r"slo:tokentrail_(?!objective)|ALERTS", query):
            assert {"{{slo}}", "{{tenant}}"} <= set(legend.split()), query
        if any(
            "vantage" in exposed[metric].labels
            for metric in names(query.replace("$__rate_interval", "1m")) & {*exposed}
        ):
            assert "{{vantage}}" in legend, query
            assert re.search(r"sum by \(.*\bvantage\b.*?\)", query), query


def test_latencies_are_those_of_requests_that_ended_ok():
    for query in queries(BOARDS["overview.json"]):
        assert ("request_duration_seconds" in query) == ('error_type=""' in query), query


def test_what_fires_elsewhere_is_not_shown_for_the_chosen_cluster():
    local = [q for board in BOARDS.values() for q in queries(board) if "slo:tokentrail_objective" not in q]
    assert all('cluster=~"$cluster"' in query for query in local)


def test_every_service_with_requests_can_be_chosen():
    """Few engines announce their requests, so the requests in flight do not name all services."""
    (service,) = (v for v in BOARDS["overview.json"]["templating"]["list"] if v["name"] == "service")
    assert service["query"] == "label_values(tokentrail_requests_total, service_name)"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_fill_their_rows_and_nothing_overlaps(name):
    cells = [
        (position["y"], x)
        for position in (panel["gridPos"] for panel in BOARDS[name]["panels"])
        for x in range(position["x"], position["x"] + position["w"])
    ]
    assert len(cells) == len(set(cells)) == 24 * len({y for y, _ in cells})
    ids = [panel["id"] for panel in BOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))


def test_grafana_finds_the_dashboards_where_compose_puts_them():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/tokentrail.yml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in compose["volumes"])
    assert mounts[provider["options"]["path"]] == "./alerts/grafana/dashboards"
    assert mounts["/etc/grafana/provisioning"] == "./alerts/grafana/provisioning"
