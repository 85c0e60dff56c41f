"""A condition is one row of conditions.yaml. Every other list of conditions follows from the table or is held to it."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from alerts.generate import PER_SLO, TICKET_AFTER
from collector.incidents.incident import Incident
from collector.incidents.incidents import FINDERS
from collector.metrics import metrics
from collector.slo.conditions import CAUSES, Condition, load_conditions
from collector.slo.severity import SEVERITIES
from tests.contract.reference.data import severities
from tokentrail.shared.durations import format_duration

ROOT = Path(__file__).parents[2]
CONDITIONS = load_conditions()
ALERTMANAGER = yaml.safe_load((ROOT / "alerts" / "alertmanager.yml").read_text())


def document(name):
    return (ROOT / "docs" / name).read_text()


def test_each_row_has_an_alert_of_its_own():
    assert len({condition.alert for condition in CONDITIONS.values()}) == len(CONDITIONS)


def test_each_row_has_a_rule_and_each_rule_a_row():
    templates = yaml.safe_load((ROOT / "alerts" / "templates" / "alerts.yml").read_text())
    assert templates.keys() == CONDITIONS.keys()
    assert set(PER_SLO) <= CONDITIONS.keys()
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / "alerts" / "rules").glob("*.yml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"] for rule in rules} == {condition.alert for condition in CONDITIONS.values()}
    names = {condition.alert: name for name, condition in CONDITIONS.items()}
    for rule in rules:
        condition = CONDITIONS[names[rule["alert"]]]
        assert rule["labels"]["severity"] in severities(names[rule["alert"]])
        lasting = format_duration(condition.lasting) if condition.lasting else None
        is_burn_ticket = (names[rule["alert"]], rule["labels"]["severity"]) == ("slo_burn", "ticket")
        assert rule.get("for") == (TICKET_AFTER if is_burn_ticket else lasting)


def test_each_cause_has_a_finder_and_is_a_value_of_the_api():
    assert FINDERS.keys() == set(CAUSES) == {name for name, c in CONDITIONS.items() if c.incident}
    assert Incident.model_json_schema()["properties"]["cause"]["enum"] == list(CAUSES)


def test_a_burn_is_as_urgent_as_its_most_urgent_window():
    assert CONDITIONS["slo_burn"].severity == severities("slo_burn")[0]


def test_each_severity_has_a_receiver_and_is_documented():
    assert [receiver["name"] for receiver in ALERTMANAGER["receivers"]] == list(SEVERITIES)
    routed = {re.sub(r'severity="(\w+)"', r"\1", route["matchers"][0]) for route in ALERTMANAGER["route"]["routes"]}
    assert routed | {ALERTMANAGER["route"]["receiver"]} == set(SEVERITIES)


def test_alertmanager_silences_what_the_table_says():
    """An SLO that pages also silences its own ticket. Every rule keeps clusters apart."""
    silenced, own = defaultdict(set), ALERTMANAGER["inhibit_rules"][0]
    for rule in ALERTMANAGER["inhibit_rules"]:
        assert rule["equal"][0] == "cluster"
        for target in re.findall(r"Tokentrail\w+", rule["target_matchers"][0]):
            silenced[target] |= set(re.findall(r"Tokentrail\w+", rule["source_matchers"][0]))
    burn = CONDITIONS["slo_burn"].alert
    silenced[burn].remove(burn)
    assert {alert: by for alert, by in silenced.items() if by} == {
        c.alert: {CONDITIONS[name].alert for name in c.silenced_by} for c in CONDITIONS.values() if c.silenced_by
    }
    page, ticket = severities("slo_burn")
    assert own["source_matchers"] == [f'alertname="{burn}"', f'severity="{page}"']
    assert own["target_matchers"][1] == f'severity="{ticket}"'
    assert own["equal"] == ["cluster", "slo", "tenant"]


@pytest.mark.parametrize("name", CONDITIONS)
def test_each_section_of_the_documentation_says_how_urgent_it_is(name):
    section = document("alerts.md").split(f"\n## {CONDITIONS[name].alert}\n")[1]
    assert section.startswith(f"\n**{' or '.join(severities(name)).capitalize()}.** ")


@pytest.mark.parametrize(
    "change",
    [{"severity": "urgent"}, {"alert": "KvFull"}, {"shown": "0s"}, {"ratio": "2"}, {"quiet": "1m"}, {"least": -1}],
)
def test_a_wrong_row_is_refused(change):
    row = {"alert": "TokentrailKvCacheFull", "severity": "ticket"}
    assert TypeAdapter(Condition).validate_python(row).incident is False
    with pytest.raises(ValidationError):
        TypeAdapter(Condition).validate_python(row | change)


LOSSES = re.compile(
    r"dropped|refused|rejected|limited|overflow|under_other|forgotten|cut|not_joined|failures|dead_lettered|duplicate|repeated|lost_total"
)


def test_whatever_is_lost_has_an_alert_or_a_reason_for_none():
    """Every count of something that is dropped, refused or set aside."""
    rules = "".join(path.read_text() for path in (ROOT / "alerts" / "rules").glob("*.yml"))
    section = document("alerts.md").split("\n# What is counted and has no alert\n")[1].split("\n# ")[0]
    counted = {metric.name + "_total" * (metric.kind == "counter") for metric in metrics.ALL}
    losses = {name.replace("_total_total", "_total") for name in counted if LOSSES.search(name)}
    assert len(losses) > 15
    assert {name for name in losses if name not in rules} <= set(re.findall(r"`(tokentrail\w+)`", section))
