"""The commands as a user types them. tests/e2e runs the whole of `demo`."""

import itertools
import os
import socket
import sys

import pytest
from typer.testing import CliRunner

import tokentrail
from tokentrail.cli import app
from tokentrail.cli.demo import workload
from tokentrail.cli.live import duration, percent
from tokentrail.cli.processes import Child, ProcessFailed, free_port

runner = CliRunner()


def test_help_and_version():
    assert runner.invoke(app, ["--version"]).stdout.strip() == tokentrail.__version__
    usage = runner.invoke(app, ["--help"]).stdout
    assert "demo" in usage
    assert "up" in usage


def test_bad_options_are_named():
    result = runner.invoke(app, ["demo", "--seconds", "5"])
    assert result.exit_code == 2
    assert "--seconds" in result.output


def test_a_port_in_use_is_not_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]


def test_a_child_that_dies_says_why(tmp_path):
    child = Child("worker", [sys.executable, "-c", "import sys; sys.exit('no weights')"], tmp_path / "log")
    with pytest.raises(ProcessFailed, match=r"worker ended with exit code 1(.|\n)*no weights"):
        child.wait_ready("http://127.0.0.1:9/readyz", timeout_s=20)


def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    child = Child("deaf", [sys.executable, "-c", code], tmp_path / "log")
    while "deaf" not in (tmp_path / "log").read_text():
        child.check()
    assert child.stop(timeout_s=0.2) is False
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "0 ms"), (0.01234, "12.3 ms"), (1.5, "1.5 s"), (75.25, "75.2 s"), (5000.0, "5000 s")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_undefined_is_not_zero():
    assert percent(None) == "–"
    assert percent(0.0) == "0.0%"


def test_the_demo_load_has_a_cold_start_and_bursts():
    plan = list(workload(200.0, seed=7))
    assert [p.at_s for p in plan] == sorted(p.at_s for p in plan)
    assert [p.at_s for p in plan[:2]] == [0.0, 0.0]
    bursts = [
        (at, len(list(group))) for at, group in itertools.groupby(plan, key=lambda p: p.at_s if p.ignore_eos else -1)
    ]
    assert [b for b in bursts if b[0] >= 0] == [(30.0, 8), (120.0, 8)]
