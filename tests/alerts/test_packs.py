"""Each alert of each pack fires, stays quiet just below, resolves, and survives a counter reset and missing scrapes."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from alerts.engine_packs import pack_metrics, pack_rules, packs, symbols
from alerts.text import template
from collector.metrics import metrics

ROOT = Path(__file__).parents[2]
PACKS = ROOT / "alerts" / "packs"
SCENARIOS = yaml.load((Path(__file__).parent / "pack_scenarios.yml").read_text(), Loader=yaml.BaseLoader)
CASES = ("fires", "quiet", "reset", "missing")
OF_PROMETHEUS = {"up", "process_start_time_seconds"}


def alerts_of(pack):
    return {rule["alert"]: rule for rule in pack_rules(pack, pack_metrics()[pack])}


def names(expr):
    """The metric names of an expression."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    bare = re.sub(r"\b(by|on|group_left|without) \([^)]*\)|\{[^}]*\}|\[[^]]*\]", " ", bare)
    words = re.findall(r"(?<![\w:])[a-zA-Z_][\w:]*(?![\w:]|\s*\()", bare)
    return (
        set(words) - {"and", "or", "unless", "offset", "by", "on", "d", "m", "inf"} - set(re.findall(r"\d+[dmh]", bare))
    )


def known(pack):
    if pack == "tokentrail":
        return {name for m in metrics.ALL for name in (m.name, f"{m.name}_bucket", f"{m.name}_count")}
    lines = (ROOT / "tests" / "data" / "metric_names" / f"{pack}.txt").read_text().splitlines()
    found = OF_PROMETHEUS.copy()
    for name, kind in (line.split() for line in lines if not line.startswith("#")):
        found |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}
    return found


def test_the_committed_packs_are_what_the_generator_writes():
    assert {path.stem: path.read_text() for path in PACKS.glob("*.yml")} == packs()


@pytest.mark.parametrize("pack", pack_metrics())
def test_a_rule_names_only_metrics_that_the_product_exposes(pack):
    for rule in alerts_of(pack).values():
        assert names(rule["expr"])
        assert names(rule["expr"]) <= known(pack), rule["alert"]


def test_a_name_without_a_recording_is_found():
    assert names("rate(vllm:num_preemptions[5m]) > 1") - known("vllm") == {"vllm:num_preemptions"}
    assert names('sum by (a) (x_total{le="+Inf"}) / on (b) y offset 10m') == {"x_total", "y"}


def test_every_alert_is_in_a_pack_and_has_a_scenario_and_every_symbol_is_used():
    used = {alert: [pack for pack in pack_metrics() if alert in alerts_of(pack)] for alert in template("packs")}
    assert all(used.values()), used
    assert SCENARIOS.keys() == used.keys()
    for pack, bound in pack_metrics().items():
        wanted = set().union(*(symbols(template("packs")[alert]["expr"]) for alert in alerts_of(pack)))
        assert set(bound) <= wanted | {"by"}, pack


def test_every_alert_has_a_runbook_that_says_how_urgent_it_is():
    text = (ROOT / "docs" / "runbooks.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n\*\*(\w+)\.\*\* ", text, re.MULTILINE))
    assert sections == {name: alert["severity"].capitalize() for name, alert in template("packs").items()}
    for name, alert in template("packs").items():
        cells = " | ".join("✓" if name in alerts_of(pack) else "" for pack in pack_metrics())
        assert f"| [{name}](#{name.lower()}) | {alert['severity']} | {cells} |" in text


@pytest.mark.parametrize("pack", pack_metrics())
def test_the_alerts_fire_and_stay_quiet_as_they_should(pack, tmp_path):
    """Each alert alone in a file of rules: promtool evaluates every rule of a file for every test."""
    (group,) = yaml.safe_load((PACKS / f"{pack}.yml").read_text())["groups"]
    files = []
    for rule in group["rules"]:
        alert = rule["alert"]
        rules, file = tmp_path / f"{alert}.rules.yml", tmp_path / f"{alert}.yml"
        rules.write_text(yaml.safe_dump({"groups": [{**group, "rules": [rule]}]}))
        test = promtool_test(alert, pack_metrics()[pack], SCENARIOS[alert])
        content = {"rule_files": [str(rules)], "evaluation_interval": test["interval"], "tests": [test]}
        file.write_text(yaml.safe_dump(content, width=1000))
        files.append(file)
    assert len(files) == len(alerts_of(pack))
    done = subprocess.run(["promtool", "test", "rules", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_test(alert, bound, scenario):
    """One test of promtool with the scenario's engines side by side, told apart by a label."""
    label = scenario.get("label", "instance")
    series = [one for case in (*CASES, "baseline") for one in input_series(case, scenario, bound, label)]
    firing = f'group by ({label}) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
    at = [{"labels": f'{{{label}="fires"}}', "value": 1}]
    return {
        "name": alert,
        "interval": scenario["step"],
        "input_series": series,
        "promql_expr_test": [
            {"expr": firing, "eval_time": scenario["at"], "exp_samples": at},
            {"expr": firing, "eval_time": scenario["over"], "exp_samples": []},
        ],
    }


def input_series(case, scenario, bound, label):
    many = scenario.get("many", {})
    for symbol, values in scenario.get(case, {}).items():
        key, suffix, own = re.fullmatch(r"(\w+?)((?:_bucket|_count)?)(?:\{(.*)\})?", symbol).groups()
        if key not in bound:
            key, suffix = symbol, ""
        name, selector = re.fullmatch(r"([\w:]+)(?:\{(.*)\})?", bound.get(key, key)).groups()
        labels = [
            f'{label}="{case}"',
            'job="engines"' if label == "instance" else "",
            own or "",
            scenario.get("labels", ""),
        ]
        labels.append(
            re.sub(r',?\w+!="[^"]*"', "", selector or "").replace('=~"5.."', '="500"').replace('=~"/v1/.*"', '="/v1/x"')
        )
        for i, text in enumerate(values if isinstance(values, list) else [values]):
            extra = [f'{many[key]}="{i}"'] if key in many else []
            yield {"series": f"{name}{suffix}{{{','.join(x for x in (*labels, *extra) if x)}}}", "values": text}
