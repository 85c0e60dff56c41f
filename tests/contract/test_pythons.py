"""The wheel alone in a new environment of other Pythons, by pip's rules: `make test-pythons`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.contract.test_unchanged_image import collector  # noqa: F401 - a fixture
from tests.contract.test_wheel import wheel  # noqa: F401 - a fixture
from tokentrail.cli.processes import HOST, Child, free_port

ROOT = Path(__file__).parents[2]
PYTHONS = os.environ.get("PYTHONS", "").split()

pytestmark = pytest.mark.skipif(not PYTHONS, reason="make test-pythons runs it")


def uv(*words):
    done = subprocess.run([sys.executable, "-m", "uv", "--quiet", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=PYTHONS)
def python(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("env") / "env"
    uv("venv", "--python", request.param, folder)
    return folder / "bin" / "python"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_sdk_alone_sends_what_an_engine_did(python, wheel, collector, outside):  # noqa: F811
    uv("pip", "install", "--python", python, wheel)
    names = {one["name"] for one in json.loads(uv("pip", "list", "--python", python, "--format", "json"))}
    assert len(names) < 25, names
    url, spans = collector
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "NO_PROXY": "*"}
    done = subprocess.run([python, ROOT / "examples" / "engine.py"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "drops={}" in done.stdout
    assert len(spans) > 200


@pytest.mark.timeout(1800)
def test_up_stores_and_shows_it_and_the_proxy_starts(python, wheel, outside):  # noqa: F811
    uv("pip", "install", "--python", python, f"{wheel}[cli,collector,dashboard,proxy]")
    ports: dict[str, int] = {}
    for flag in ("otlp-http", "otlp-grpc", "api", "dashboard", "proxy", "admin"):
        ports[flag] = free_port(0, ports.values())
    flags = [
        word for flag in ("otlp-http", "otlp-grpc", "api", "dashboard") for word in (f"--port-{flag}", str(ports[flag]))
    ]
    command = python.parent / "tokentrail"
    api = {
        **os.environ,
        "TOKENTRAIL_API_URL": f"http://{HOST}:{ports['api']}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{ports['otlp-http']}",
    }
    up = Child("up", [command, "up", "--data-dir", outside / "data", *flags], outside / "up.log")
    listen, admin = f"{HOST}:{ports['proxy']}", f"{HOST}:{ports['admin']}"
    words = [command, "proxy", "--upstream", f"http://{HOST}:{ports['api']}", "--listen", listen, "--admin", admin]
    proxy = Child("proxy", words, outside / "proxy.log")
    try:
        up.wait_ready(f"http://{HOST}:{ports['dashboard']}/_stcore/health", timeout_s=300)
        subprocess.run([python, ROOT / "examples" / "engine.py"], env=api, check=True, capture_output=True)

        def rows():
            shown = subprocess.run([command, "requests", "--json"], env=api, capture_output=True, text=True)
            return shown.stdout.count('"trace_id"')

        for _ in range(60):
            if (found := rows()) == 12:
                break
        assert found == 12
        proxy.wait_ready(f"http://{admin}/readyz", timeout_s=60)
        assert httpx.get(f"http://{listen}/healthz", trust_env=False).json()["status"] == "ok", "what is asked passes"
    finally:
        assert up.stop(timeout_s=120), (outside / "up.log").read_text()
        proxy.stop(timeout_s=60)
