"""`tokentrail demo`, as `make demo DEMO_SECONDS=…` runs it, ends by itself and finds no disagreement."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import psutil
import pytest

from instrumented_engine.model.download import DEFAULT_MODEL, download, local_path
from tokentrail.cli.result import EVICTIONS_ALERT_FROM

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@contextmanager
def demo(home, *arguments):
    """Behind a proxy that nobody answers for: the processes talk to each other without it. It ends with the test."""
    if local_path(DEFAULT_MODEL) is None:
        download(DEFAULT_MODEL)
    command = [sys.executable, "-m", "tokentrail.cli", "demo", "--home", home, *arguments]
    env = {**os.environ, "COLUMNS": "200", "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_it_ends_by_itself_and_everything_adds_up(tmp_path):
    # The shortest demo, and a seed whose first requests take much of the cache beside the burst.
    with demo(tmp_path / "demo", "--seconds", "40", "--seed", "9") as process:
        output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, output
    assert "everything adds up" in output
    assert "cold start:" in output
    if shutil.which("prometheus"):
        assert "TokentrailColdStart" in output
        (preemptions,) = re.findall(r"KV pressure: (\d+) preemptions", output)
        # A slow machine computes too little for many of them.
        assert "TokentrailKvCacheEvictions" in output or int(preemptions) < EVICTIONS_ALERT_FROM
    assert (tmp_path / "demo" / "client.jsonl").read_text().count('"status": "ok"') > 0


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    with demo(tmp_path / "demo") as process:
        for line in process.stdout:
            if "engine" in line:
                engine = line.split()[-1]
            if "logs" in line:
                break
        assert httpx.get(f"{engine}/healthz", trust_env=False).status_code == 200
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert re.search(r"TTFT p99 .* requests good", output), "the summary"
    assert "everything adds up" in output or "does not add up" in output, "the verdict"
    assert f"up --data-dir {tmp_path / 'demo'}" in output
    assert [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE] == []
