"""Every example runs as its header shows, and the real collector gets the requests that the example promises."""

import ast
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from alerts.__main__ import main as write_rules
from collector.slo.model import load_slos
from tests.instrumented_engine.server_support import served, tiny_loader
from tests.support.collector import Collector
from tokentrail import Trail
from tokentrail.cli.api import Api

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SLO_FILES = sorted((EXAMPLES / "slos").glob("*.yaml"))


def command(path):
    """The one command for this example, which its header and examples/README.md both show."""
    name = path.relative_to(EXAMPLES).as_posix()
    (row,) = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if line.startswith(f"| [{name}](")]
    (shown,) = re.findall(r"`(\.venv/bin/python [^`]*)`", row)
    assert re.search(rf"^#? {{4,5}}{re.escape(shown)}$", path.read_text(), re.MULTILINE), f"not in {name}'s header"
    return shown.replace(".venv/bin/python", sys.executable).split()


def environment(**given):
    """This process's environment without settings of its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TOKENTRAIL_"))} | given


def run(arguments, **given):
    """The output of the command, run from the repository's root."""
    done = subprocess.run(arguments, cwd=ROOT, env=environment(**given), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    slos = str(EXAMPLES / "slos" / "chat.yaml")
    with Collector(tmp_path_factory.mktemp("examples") / "data", "--slos", slos) as running:
        yield running


@pytest.fixture(scope="module")
def api(collector):
    api = Api(collector.urls["api"])
    yield api
    api.close()


def details(api, count, **filters):
    """The trails of the `count` requests with these filters, once they have arrived."""
    deadline = time.monotonic() + 120
    while len(rows := api.requests(**filters)) < count:
        assert time.monotonic() < deadline, f"{len(rows)} of {count} requests arrived"
        time.sleep(0.2)
    assert len(rows) == count
    return [api.get(f"requests/{row['trace_id']}", span_id=row["span_id"]) for row in rows]


def assert_complete(trail, output_tokens):
    """Tokens and phases both add up to the request's E2E."""
    e2e_ns = round(trail["request"]["e2e_s"] * 1e9)
    assert trail["request"]["status"] == "ok"
    assert [token["index"] for token in trail["tokens"]] == list(range(output_tokens))
    for parts in (trail["tokens"], trail["phases"]):
        assert sum(round(part["duration_s"] * 1e9) for part in parts) == e2e_ns


@pytest.mark.e2e
def test_engine(collector, api):
    printed = run(command(EXAMPLES / "engine.py"), OTEL_EXPORTER_OTLP_ENDPOINT=collector.urls["otlp-http"])
    for count in ("queued=0", "drops={}", "pending=0", "errors=0"):
        assert count in printed
    trails = details(api, 12, model="toy", slo_class="chat")
    for trail in trails:
        assert_complete(trail, trail["request"]["output_tokens"])
    assert sorted(trail["request"]["output_tokens"] for trail in trails) == [8 + i for i in range(12)]
    phases = {phase["name"] for trail in trails for phase in trail["phases"]}
    assert phases == {"queued", "prefill", "decode", "preempted"}

    (process,) = [one for one in api.get("processes")["processes"] if one["service"] == "engine-example"]
    preemptions = sum(trail["request"]["preemptions"] for trail in trails)
    assert process["preemptions"] == preemptions > 0
    assert max(step["kv_blocks_used"] for trail in trails for step in trail["steps"]) == 16
    steps = {step["step"]: step for trail in trails for step in trail["steps"]}.values()
    assert {step["running"] for step in steps} >= {1, 2, 3}
    outputs = sum(trail["request"]["output_tokens"] for trail in trails)
    assert (
        sum(step["decode_tokens"] for step in steps) == outputs - len(trails) - preemptions
    )  # the rest ended prefills
    inputs = sum(trail["request"]["input_tokens"] for trail in trails)
    assert sum(step["prefill_tokens"] for step in steps) > inputs  # the preempted were computed again
    assert sum(step["preempted"] for step in steps) == preemptions
    starts = api.get("cold_starts")["cold_starts"]
    assert [[p["name"] for p in s["phases"]] for s in starts if s["model"] == "toy"] == [["load_weights"]]


@pytest.mark.e2e
def test_transformers_generate(collector, api, monkeypatch):
    """Within this process, which has loaded torch and transformers already."""
    _, script = command(EXAMPLES / "transformers_generate.py")
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.urls["otlp-http"])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    trails = details(api, 3, model="tiny-llama")
    for trail in trails:
        assert_complete(trail, trail["request"]["output_tokens"])
        assert [phase["name"] for phase in trail["phases"]] == ["queued", "prefill", "decode"]
        assert trail["request"]["finish_reason"] == ("length" if len(trail["tokens"]) == 16 else "stop")
        first, *rest = trail["steps"]
        assert (first["prefill_tokens"], first["decode_tokens"]) == (trail["request"]["input_tokens"], 0)
        assert {(step["prefill_tokens"], step["decode_tokens"]) for step in rest} <= {(0, 1)}
    assert sorted(trail["request"]["input_tokens"] for trail in trails) == [5, 50, 500]
    numbers = sorted(token["step"] for trail in trails for token in trail["tokens"])
    assert numbers == list(range(len(numbers)))


@pytest.mark.e2e
def test_openai_client(collector, api):
    """It asks an engine that computes its tokens by a rule."""
    arguments = command(EXAMPLES / "openai_client.py")
    assert arguments[-1] == "http://127.0.0.1:8000"
    engines_trail = Trail(endpoint=collector.urls["otlp-http"], service_name="engine")
    with served(tiny_loader(), engines_trail) as engine:
        printed = run([*arguments[:-1], engine.url])
    assert engines_trail.shutdown(120)
    (trail,) = details(api, 1, tenant="acme", slo_class="chat")
    (trace_id,) = re.findall(r"/api/v1/requests/([0-9a-f]{32})$", printed, re.MULTILINE)
    assert trail["request"]["trace_id"] == trace_id
    tokens = int(re.search(r"^(\d+) tokens; TTFT", printed, re.MULTILINE)[1])
    assert_complete(trail, tokens)
    assert tokens > 1
    assert trail["request"]["vantage"] == "server"


@pytest.mark.parametrize("path", SLO_FILES, ids=lambda p: p.stem)
def test_slo_files_load_and_their_rules_are_valid(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, option, module, *arguments, folder = command(path)
    assert (option, module, folder) == ("-m", "alerts", "rules")
    assert write_rules([*arguments, str(tmp_path)]) == 0
    files = capsys.readouterr().out.split()
    subprocess.run(["promtool", "check", "rules", *files], check=True, capture_output=True)
    rules = (tmp_path / "slos.yml").read_text()
    for slo in load_slos(path):
        assert f'slo="{slo.name}"' in rules


def test_slo_files_promise_what_each_team_needs():
    promised = {p.stem: [set(slo.thresholds.given()) for slo in load_slos(p)] for p in SLO_FILES}
    assert promised == {
        "batch": [{"e2e"}],
        "chat": [{"ttft", "tpot"}, {"ttft", "tpot", "e2e"}],
        "completion": [{"ttft", "e2e"}, {"ttft", "tpot"}],
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_scripts_are_short_and_use_what_a_user_can_import(path):
    tree = ast.parse(path.read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {"tokentrail", "collector", "instrumented_engine", "alerts", "dashboard", "tests"}
    assert {name for name in imported if name.split(".")[0] in ours} <= {"tokentrail"}

    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in [n for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)]:
        node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    assert len([line for line in ast.unparse(tree).splitlines() if line]) <= 65


def test_every_file_has_its_command():
    assert all(command(path) for path in [*SCRIPTS, *SLO_FILES])
