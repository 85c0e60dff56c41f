"""The release gates of examples/release ask a collector as their tools do."""

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.collector.conftest import api, app, app_and_live, clock, ingest_status, module_store, rows, slos_file  # noqa: F401
from tests.collector.rows import NOW, SECOND
from tokentrail.cli.app import app as command

RELEASE = Path(__file__).parents[2] / "examples" / "release"


@pytest.fixture
def ask(api):  # noqa: F811
    """Asks a URL of an example at the test's collector."""

    def asked(url, method="GET"):
        parts = urlsplit(url)
        assert parts.netloc == "tokentrail-collector:8080"
        return api.client.request(
            method, f"{parts.path}?{parts.query}", json={"name": "llm"} if method == "POST" else None
        )

    return asked


@pytest.fixture
def traffic(rows):  # noqa: F811
    def put(variants, bad):
        rows.requests(
            [
                {"ended": NOW - 60 * SECOND - i * SECOND, "e2e": 2 * SECOND, "slo_class": "chat", "tpot_ns": 1e7,
                 "variant": variants[new],
                 "ttft_ns": 900_000_000 if new and i * bad % 3000 < bad else (100 + i % 97) * 1_000_000}
                for i in range(3000) for new in (0, 1)
            ]
        )  # fmt: skip

    return put


def test_argo_rollouts_reads_one_number(ask, traffic):
    template = yaml.safe_load((RELEASE / "argo-rollouts.yaml").read_text())
    (metric,) = template["spec"]["metrics"]
    given = {"variant": "canary", "stable": "primary", "key": "k"}
    names = {argument["name"] for argument in template["spec"]["args"]}
    assert names == given.keys()
    url = re.sub(r"\{\{args\.(\w+)\}\}", lambda match: given[match[1]], metric["provider"]["web"]["url"])
    field = re.fullmatch(r"\{\$\.(\w+)\}", metric["provider"]["web"]["jsonPath"])[1]
    wanted = [re.fullmatch(r"result == (-?1)", metric[f"{name}Condition"])[1] for name in ("success", "failure")]
    assert ask(url).json()[field] == 0
    traffic(("primary", "canary"), bad=1000)
    assert str(ask(url).json()[field]) == wanted[1]
    traffic(("canary", "primary"), bad=3000)
    assert str(ask(url).json()[field]) == wanted[0]


def test_a_canary_of_the_last_half_hour_is_not_judged_by_the_hours_before_it(ask, rows):  # noqa: F811
    """Latency rises from 1.0 to 1.8 over six hours on both sides, which are the same."""
    rng = np.random.default_rng(1)
    ago = {"primary": np.sort(rng.random(4000)) * 21_600, "canary": np.sort(rng.random(600)) * 1800}
    rows.requests(
        [
            {"ended": NOW - int(s * SECOND) - SECOND, "e2e": 2 * SECOND, "slo_class": "chat", "tpot_ns": 1e7,
             "variant": variant, "ttft_ns": int((1.8 - 0.8 * s / 21_600) * rng.lognormal(18, 0.3))}
            for variant, of in ago.items() for s in of
        ]
    )  # fmt: skip
    canary = yaml.safe_load((RELEASE / "flagger.yaml").read_text())
    url = canary["spec"]["analysis"]["webhooks"][1]["url"]
    assert "worse" in url
    assert ask(url, "POST").status_code == 412
    answer = ask(url.replace("&ok_if=worse", "")).json()
    assert answer["verdict"] == "not decided"
    assert answer["warnings"][0].startswith("both sides are of the time in which both ran, 2026-11-21T09:30")
    assert "good needs 40 min of traffic" in answer["reason"]


def test_flagger_reads_the_status(ask, traffic):
    canary = yaml.safe_load((RELEASE / "flagger.yaml").read_text())
    urls = {hook["type"]: hook["url"] for hook in canary["spec"]["analysis"]["webhooks"]}
    assert [ask(urls[hook], "POST").status_code for hook in ("confirm-promotion", "rollback")] == [412, 412]
    traffic(("primary", "canary"), bad=1000)
    assert [ask(urls[hook], "POST").status_code for hook in ("confirm-promotion", "rollback")] == [412, 200]


def test_the_action_runs_a_command_with_options_that_exist(monkeypatch, tmp_path):
    workflow = yaml.safe_load((RELEASE / "github-actions.yaml").read_text())
    (line,) = [
        step["run"] for step in workflow["jobs"]["check"]["steps"] if step.get("run", "").startswith("tokentrail check")
    ]
    words = shlex.split(line)[1:]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, [*words, "--wait", "0s", "--api", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "does not answer" in result.output + result.stderr
    assert (tmp_path / "junit.xml").exists(), "the file that the next step reads"
