"""An SLO with `group_by`, played to promtool: one page for all tenants, for one tenant, and for a small one."""

import json
import subprocess

import pytest

from alerts.generate import generate
from collector.slo.model import Slo

CHAT = Slo.model_validate(
    {"name": "chat", "objective": "0.95", "window": "30d", "thresholds": {"ttft": "1s"}, "group_by": ["tenant"]}
)
GROUPS = ["outage", "sums", "burn", "tickets"]
OF_ALL = {"groups": "all", "severity": "page"}


def counted(tenant, per_minute, bad_from, bad_to, until):
    """The two counters of a tenant, of which all requests of some minutes are bad."""
    good = f"0+{per_minute}x{bad_from} {bad_from * per_minute}x{bad_to - bad_from - 1}"
    good += f" {bad_from * per_minute}+{per_minute}x{until - bad_to}"
    of = f'{{slo="chat", tenant="{tenant}"}}'
    return [
        {"series": f"tokentrail_slo_requests_total{of}", "values": f"0+{per_minute}x{until}"},
        {"series": f"tokentrail_slo_good_requests_total{of}", "values": good},
    ]


@pytest.fixture
def firing(tmp_path):
    """What fires at some minutes, as label sets without those that all have."""
    rules = {"slos.yml": generate([CHAT])["slos.yml"]}
    (tmp_path / "slos.yml").write_text(rules["slos.yml"])

    def firing(series, wanted):
        def sample(labels):
            shown = ", ".join(f'{name}="{value}"' for name, value in labels.items())
            return {"labels": f"{{{shown}}}", "value": 1}

        asked = 'count by (groups, tenant, severity) (ALERTS{alertname="TokentrailSloBurn", alertstate="firing"})'
        tests = [
            {"expr": asked, "eval_time": f"{minute}m", "exp_samples": [sample(labels) for labels in alerts]}
            for minute, alerts in wanted.items()
        ]
        (tmp_path / "test.json").write_text(
            json.dumps({
                "rule_files": ["slos.yml"],
                "group_eval_order": [f"tokentrail-slos-{name}" for name in GROUPS],
                "evaluation_interval": "1m",
                "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
            })
        )  # fmt: skip
        done = subprocess.run(["promtool", "test", "rules", "test.json"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return firing


def test_an_outage_of_many_small_tenants_is_one_page_within_three_minutes_and_nothing_follows_it(firing):
    """Of 40 tenants with 2 requests a minute, none had a page before the 45th minute, and then each had one."""
    series = [one for i in range(40) for one in counted(f"t{i}", 2, 30, 36, 50)]
    firing(series, {30: [], 33: [OF_ALL], 36: [OF_ALL]} | {minute: [] for minute in (40, 42, 45, 50)})


def test_a_tenant_that_burned_before_all_did_has_its_own_page_and_keeps_it(firing):
    mine = {"tenant": "a", "severity": "page"}
    series = [*counted("a", 20, 10, 59, 60), *counted("b", 400, 30, 36, 60)]
    firing(series, {9: [], 13: [mine], 29: [mine], 35: [mine, OF_ALL], 58: [mine]})


def test_a_small_tenant_pages_within_a_quarter_of_an_hour_of_its_own_outage(firing):
    mine = {"tenant": "small", "severity": "page"}
    series = [*counted("small", 2, 30, 59, 60), *counted("large", 900, 1, 2, 60)]
    firing(series, {30: [], 36: [], 42: [mine], 58: [mine]})
