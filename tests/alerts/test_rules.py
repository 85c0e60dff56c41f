import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from alerts.generate import generate
from collector.metrics import metrics
from collector.slo.model import load_slos
from tests.alerts.test_packs import alerts_of, names
from tokentrail.shared.durations import parse_duration

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "alerts"
RULES = sorted((ALERTS / "rules").glob("*.yml"))


def tool(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def rules():
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def test_the_committed_rules_are_what_the_generator_writes():
    written = generate(load_slos(ALERTS / "slos.yaml"))
    assert {path.name: path.read_text() for path in RULES} == written


def test_the_drift_alert_knows_the_definition_of_its_own_slo():
    slos = load_slos(ALERTS / "slos.yaml")
    drifts = [r["expr"] for r in rules() if r.get("alert") == "TokentrailSloDrift"]
    info = 'last_over_time(tokentrail_slo_info{{slo="{}", hash!="{}"}}[2m])'
    assert drifts == [info.format(slo.name, slo.hash) for slo in slos]
    changed = slos[0].model_copy(update={"description": "in other words", "team": "other"})
    assert changed.hash == slos[0].hash != slos[0].model_copy(update={"window": slos[0].window * 2}).hash


def test_every_alert_of_a_promise_to_each_tenant_names_the_tenant():
    by_tenant = {r["alert"]: r for r in rules() if re.search(r"\btenant\b|slo:\w+", r.get("expr", "")) and "alert" in r}
    assert by_tenant.keys() == {
        "TokentrailSloBurn", "TokentrailBudgetForecast", "TokentrailSloUndetermined", "TokentrailTrafficStopped",
        "TokentrailDataLeftOut",
    }  # fmt: skip
    assert all("with $labels.tenant" in rule["annotations"]["summary"] for rule in by_tenant.values())


def test_promtool_accepts_the_rules():
    out = tool("promtool", "check", "rules", *map(str, RULES))
    assert out.count("SUCCESS") == len(RULES) == 2


@pytest.mark.parametrize("path", sorted((ALERTS / "tests").glob("*.yml")), ids=lambda p: p.name)
def test_the_alerts_fire_and_resolve_as_they_should(path, tmp_path):
    """With the groups that the file orders and the alerts that a test names: promtool evaluates all of a rule file."""
    header, *tests = re.split(r"(?m)(?=^  - name: )", path.read_text())
    file = yaml.safe_load(header)
    (name,) = file["rule_files"]
    wanted = file.get("group_eval_order", ["tokentrail-conditions"])
    groups = [g for g in yaml.safe_load((path.parent / name).read_text())["groups"] if g["name"] in wanted]
    assert len(groups) == len(wanted)

    def is_named(rule, test):
        return "record" in rule or rule["alert"] in test

    for i, test in enumerate(tests):
        named = [{**group, "rules": [rule for rule in group["rules"] if is_named(rule, test)]} for group in groups]
        assert any(group["rules"] for group in named), test
        (tmp_path / f"rules_{i}.yml").write_text(yaml.safe_dump({"groups": named}))
        (tmp_path / f"{i}.yml").write_text(header.replace(name, f"rules_{i}.yml") + test)
    said = tool("promtool", "test", "rules", *(str(tmp_path / f"{i}.yml") for i in range(len(tests))))
    assert said.count("SUCCESS") == len(tests) == path.read_text().count("- name: ")


def test_every_alert_is_played_through():
    tested = "".join(path.read_text() for path in (ALERTS / "tests").glob("*.yml"))
    for alert in {r["alert"] for r in rules() if "alert" in r}:
        assert alert in tested, alert


def test_prometheus_and_alertmanager_accept_their_configuration():
    assert "SUCCESS" in tool("promtool", "check", "config", str(ALERTS / "prometheus.yml"))
    assert "SUCCESS" in tool("amtool", "check-config", str(ALERTS / "alertmanager.yml"))


def test_every_alert_says_how_urgent_it_is_what_it_means_and_what_to_do():
    receivers = {r["name"] for r in yaml.safe_load((ALERTS / "alertmanager.yml").read_text())["receivers"]}
    sections = {h.lower() for h in re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)}
    alerts = [r for r in rules() if "alert" in r]
    for alert in alerts:
        assert alert["labels"]["severity"] in receivers, alert
        more = (
            {"cause", "command"} if alert["alert"] == "TokentrailSloBurn" else {"command"} & alert["annotations"].keys()
        )
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"} | more
        assert alert["annotations"]["runbook_url"].endswith(f"docs/alerts.md#{alert['alert'].lower()}")
    assert {alert["alert"].lower() for alert in alerts} == sections


def test_a_prometheus_that_restarts_sends_no_alert_again():
    """It begins each `for` of less than ten minutes anew. Alertmanager resolves what it has not heard of for four."""
    files = [*RULES, *(ALERTS / "packs").glob("*.yml")]
    found = [r for path in files for g in yaml.safe_load(path.read_text())["groups"] for r in g["rules"] if "for" in r]
    assert len(found) > 20
    between = [r["alert"] for r in found if 2 * 60 < parse_duration(r["for"]) / 1e9 < 10 * 60]
    assert between == []


NOW = {
    "TokentrailCollectorDown": "a missing scrape is what it asks for",
    "TokentrailSloUnwatched": "so is this",
    "EngineDown": "a failed scrape has a value",
    "TokentrailEngineDown": "so has this",
}
"""Alerts that read what is there now, and may."""


def test_alerts_read_over_the_gap_of_a_restart():
    """Decisions 177 and 181. A rule over what is there now ends with each scrape that fails. Recordings have values."""
    now = re.compile(r"\b([a-zA-Z_][\w:]*)\b(?:\{[^}]*\})?(?![\w:{\[])")
    asked = {}
    for path in [*RULES, *(ALERTS / "packs").glob("*.yml")]:
        for rule in (r for g in yaml.safe_load(path.read_text())["groups"] for r in g["rules"] if "alert" in r):
            bare = re.sub(r'"[^"]*"', '""', rule["expr"])
            bare = re.sub(r"\([^()]*\)\[\w+:\w+\]", "", bare)
            found = names(bare) & set(now.findall(bare)) - {"ALERTS"}
            found = {name for name in found if not name.startswith("slo:")}
            asked.setdefault(rule["alert"], set()).update(found)
    assert {alert for alert, found in asked.items() if found} == NOW.keys()


def test_rules_use_metrics_that_exist_with_labels_that_they_have():
    exposed = {m.name: set(m.labels) for m in metrics.ALL} | {"tokentrail_slo_info": {"slo", "hash"}}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        for name, _, labels in re.findall(r"(?<![:\w])(tokentrail_\w+)(\{([^}]*)\})?", rule["expr"]):
            assert name in exposed, rule
            assert set(re.findall(r"(\w+)=", labels)) <= exposed[name], rule
        assert set(re.findall(r"slo:[\w:]+", rule["expr"])) <= recorded, rule


@pytest.mark.parametrize("pack", ["vllm", "sglang"])
def test_preemptions_that_an_engine_counts_have_the_limits_of_those_that_a_collector_counts(pack):
    (evictions,) = (rule for rule in rules() if rule.get("alert") == "TokentrailKvCacheEvictions")
    limits = [re.findall(r" > ([\d.]+)", rule["expr"]) for rule in (alerts_of(pack)["EnginePreemptions"], evictions)]
    assert limits == [["0.05", "9.5"]] * 2
