"""`python -m instrumented_engine` with the real model, from the first byte to a clean end."""

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import openai
import pytest

from tests.support.files import few_files, may_open_many
from tokentrail.testing import parse_spans

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def receiver():
    """An OTLP/HTTP endpoint that keeps the spans that it gets; (url, spans)."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    bodies = []

    class Keep(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    def spans():
        return [span for body in bodies for span in parse_spans(body)]

    with ThreadingHTTPServer(("127.0.0.1", 0), Keep) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", spans
        server.shutdown()


@pytest.fixture(scope="module")
def process(smollm_file, receiver):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver[0])
        command = [sys.executable, "-m", "instrumented_engine", "--port", "0", "--threads", "2", "--variant", "v1"]
        command += ["--device", "cpu", "--kv-blocks", "64"]
        with few_files():
            started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def test_a_life(process, receiver):
    line = process.stdout.readline()
    url = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", line)[1]
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert may_open_many(process.pid)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
        )
        assert "Paris" in chat.choices[0].message.content, "asked while the model was loading"
        assert httpx.get(f"{url}/readyz").status_code == 200
        first = client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=12, temperature=0, stream=True, stop="\n"
        )
        assert "".join(chunk.choices[0].text for chunk in first) == " Paris."
        endless = client.completions.create(
            model=MODEL, prompt="Count:", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(endless))
        endless.close()
        deadline = time.monotonic() + 120
        while not re.search(r"^vllm:kv_cache_usage_perc\S* 0.0$", httpx.get(f"{url}/metrics").text, re.MULTILINE):
            assert time.monotonic() < deadline, "the blocks of a client that left stay used"
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0

    spans = receiver[1]()
    ended = [s for s in spans if {"tokentrail.status", "gen_ai.response.id"} <= s.attributes.keys()]
    requests = {s.attributes["gen_ai.response.id"]: s for s in ended}
    assert sorted(r.attributes["tokentrail.status"] for r in requests.values()) == ["cancelled", "ok", "ok"]
    asked = requests[chat.id]
    assert asked.attributes["gen_ai.usage.output_tokens"] == chat.usage.completion_tokens
    mine = [s for s in spans if s.parent_id == asked.span_id]
    for kind in ("tokentrail.phase", "tokentrail.token"):
        assert sum(s.duration_ns for s in mine if s.name == kind) == asked.duration_ns
    phases = {s.name.removeprefix("tokentrail.cold_start.") for s in spans if "cold_start." in s.name}
    assert phases == {"device_init", "load_weights", "compile_kernels", "tokenizer", "kv_cache", "warmup"}
    waited = [s for s in mine if s.attributes.get("tokentrail.phase.name") == "cold_start"]
    assert len(waited) == 1
    assert waited[0].duration_ns > 0
