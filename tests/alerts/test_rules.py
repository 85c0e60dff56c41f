import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from alerts.generate import generate
from collector.exposition import metrics
from collector.slo.model import load_slos

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "alerts"
RULES = sorted((ALERTS / "rules").glob("*.yml"))


def tool(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules():
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def test_the_committed_rules_are_what_the_generator_writes():
    written = generate(load_slos(ALERTS / "slos.yaml"))
    assert {path.name: path.read_text() for path in RULES} == written


def test_the_drift_alert_knows_the_definition_of_its_own_slo():
    slos = load_slos(ALERTS / "slos.yaml")
    drifts = [r["expr"] for r in rules() if r.get("alert") == "TokentrailSloDrift"]
    assert drifts == [f'tokentrail_slo_info{{slo="{slo.name}", hash!="{slo.hash}"}}' for slo in slos]
    changed = slos[0].model_copy(update={"description": "in other words", "team": "other"})
    assert changed.hash == slos[0].hash != slos[0].model_copy(update={"window": slos[0].window * 2}).hash


def test_promtool_accepts_the_rules():
    out = tool("promtool", "check", "rules", *map(str, RULES))
    assert out.count("SUCCESS") == len(RULES) == 2


@pytest.mark.parametrize("path", sorted((ALERTS / "tests").glob("*.yml")), ids=lambda p: p.name)
def test_the_alerts_fire_and_resolve_as_they_should(path):
    assert "SUCCESS" in tool("promtool", "test", "rules", str(path))


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
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"].endswith(f"docs/alerts.md#{alert['alert'].lower()}")
    assert {alert["alert"].lower() for alert in alerts} == sections


def test_rules_use_metrics_that_exist_with_labels_that_they_have():
    exposed = {m.name: set(m.labels) for m in metrics.ALL} | {"tokentrail_slo_info": {"slo", "hash"}}
    for rule in rules():
        for name, _, labels in re.findall(r"(?<![:\w])(tokentrail_\w+)(\{([^}]*)\})?", rule["expr"]):
            assert name in exposed, rule
            assert set(re.findall(r"(\w+)=", labels)) <= exposed[name], rule
        recorded = {r["record"] for r in rules() if "record" in r}
        assert set(re.findall(r"slo:[\w:]+", rule["expr"])) <= recorded, rule


class TestCommand:
    def run(self, *arguments):
        return subprocess.run([sys.executable, "-m", "alerts", *arguments], capture_output=True, text=True, cwd=ROOT)

    def test_it_writes_rules_that_promtool_accepts(self, tmp_path):
        slos = tmp_path / "mine.yaml"
        slos.write_text(
            'slos:\n  - {name: half, objective: "0.5", window: 7d, thresholds: {ttft: 1.5s, e2e: 2m}}\n'
            '  - {name: strict, objective: "0.9999", window: 28d, thresholds: {tpot: 33ms}}\n'
        )
        done = self.run("--slos", str(slos), "--out", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(tmp_path / "out" / name) for name in ("conditions.yml", "slos.yml")]
        tool("promtool", "check", "rules", *done.stdout.split())
        text = (tmp_path / "out" / "slos.yml").read_text()
        assert (
            '{slo="half"} > 0.8\n' in text or '{slo="half"} > 0.8 and' in text
        )  # 2 % of a week in an hour is 3.36; 2 is the most
        assert '{slo="strict"} > 0.001344 and' in text

    def test_without_slos_there_are_no_slo_rules(self, tmp_path):
        slos = tmp_path / "none.yaml"
        slos.write_text("slos: []")
        done = self.run("--slos", str(slos), "--out", str(tmp_path / "out"))
        assert [p.name for p in (tmp_path / "out").iterdir()] == ["conditions.yml"], done.stderr

    def test_a_bad_file_is_named_with_its_problem(self, tmp_path):
        slos = tmp_path / "bad.yaml"
        slos.write_text('slos: [{name: x, objective: "2", window: 30d, thresholds: {ttfs: 1s}}]')
        done = self.run("--slos", str(slos), "--out", str(tmp_path / "out"))
        assert done.returncode == 2
        assert f"{slos}: slos[0].objective: '2' must be between 0 and 1" in done.stderr
        assert "slos[0].thresholds.ttfs: unknown field" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()
