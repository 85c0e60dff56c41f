"""The SDK beside a Python that it does not change: a folder on PYTHONPATH, as an init container lays it there.

`make test-unchanged` installs other versions of OpenTelemetry than ours for that Python.
"""

import http.server
import json
import os
import subprocess
import sys
import threading
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.contract.test_wheel import needed, wheel  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
BASE = ("numpy", "protobuf", "requests", "typing_extensions")
IMAGES = {
    "1.25.0": (*BASE, "opentelemetry-sdk==1.25.0", "opentelemetry-exporter-otlp-proto-http==1.25.0"),
    "newest": (*BASE, "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    "api": (*BASE, "opentelemetry-api==1.30.0"),
    "none": BASE,
}
ASKED = os.environ.get("UNCHANGED", "").split()
ENGINE = """
import json, runpy, sys
from importlib.metadata import entry_points
(of_vllm,) = entry_points(group="vllm.stat_logger_plugins")
(of_sglang,) = entry_points(group="sglang.srt.plugins")
loaded = [of_vllm.load().__name__, of_sglang.load().__name__]
import opentelemetry.sdk.trace, google.protobuf, tokentrail
trail = runpy.run_path(sys.argv[1], run_name="__main__")["trail"]
where = [module.__file__ for module in (tokentrail, opentelemetry.sdk.trace, google.protobuf)]
print(json.dumps({"loaded": loaded, "where": where, "exported": trail.stats.exported, "drops": trail.stats.drops}))
"""


@pytest.fixture(scope="module")
def tree(wheel, tmp_path_factory):  # noqa: F811
    """What the target `sdk` of the Dockerfile has, with links to what is installed here as its copies."""
    folder = tmp_path_factory.mktemp("tree")
    zipfile.ZipFile(wheel).extractall(folder)
    link(folder / "tokentrail" / "_beside", needed(["tokentrail"]) - {"numpy", "protobuf", "requests", "urllib3"})
    return folder


def link(folder, names):
    """Links in the folder to the installed files of distributions, beside those of others in one package (`google`)."""
    for name in names:
        installed = distribution(name)
        for file in installed.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).exists() or (folder / file).symlink_to(installed.locate_file(file))


def image(folder, name):
    """A Python with an engine whose plugins are loaded as vLLM loads them, and with these packages."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    package = site / "vllm" / "v1" / "metrics"
    package.mkdir(parents=True)
    (package / "loggers.py").write_text("class StatLoggerBase: pass\n")
    if name == "ours":
        link(site, needed(["tokentrail"]))
    elif name == "without":
        link(site, {one for one in needed(["tokentrail"]) if not one.startswith(("opentelemetry", "googleapis"))})
    else:
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--target",
            site,
            "--python",
            folder / "bin" / "python",
        ]
        subprocess.run([*command, *IMAGES[name]], check=True)
    return folder / "bin" / "python", site


@pytest.fixture
def collector():
    """The address of a server that takes OTLP, and the spans that it got."""
    spans = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Tests are quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", spans
        server.shutdown()


@pytest.mark.parametrize("name", ["ours", "without", *ASKED])
def test_it_records_and_leaves_the_image_as_it_is(tree, collector, tmp_path, name):
    python, site = image(tmp_path / "env", name)
    before = {path for path in site.rglob("*") if "__pycache__" not in path.parts}
    url, spans = collector
    env = {
        "PYTHONPATH": str(tree),
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_HEADERS": "a=Bearer b",
        "NO_PROXY": "*",
    }
    command = [python, "-c", ENGINE, ROOT / "examples" / "engine.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["loaded"] == ["StatLogger", "register"]
    assert told["drops"] == {}
    assert told["exported"] == len(spans) > 200
    of_us, of_sdk, of_protobuf = map(Path, told["where"])
    assert of_us.is_relative_to(tree)
    assert of_sdk.is_relative_to(tree if name in ("without", "none", "api") else site), "the image's comes first"
    assert of_protobuf.is_relative_to(site)
    assert {path for path in site.rglob("*") if "__pycache__" not in path.parts} == before


def test_the_docker_target_lays_out_what_is_tested_here():
    text = (ROOT / "docker" / "Dockerfile").read_text()
    (stage,) = [one for one in text.split("\nFROM ") if one.startswith("build AS build-sdk")]
    assert "--target /opt/tokentrail /wheel/*.whl" in stage
    assert "--target /opt/tokentrail/tokentrail/_beside --requirement docker/locks/beside.txt" in stage
    pinned = [
        line.split("==")[0]
        for line in (ROOT / "docker" / "locks" / "beside.txt").read_text().splitlines()
        if "==" in line and "'never'" not in line
    ]
    assert {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "googleapis-common-protos"} <= {*pinned}
    assert not {"numpy", "protobuf", "requests"} & {*pinned}
