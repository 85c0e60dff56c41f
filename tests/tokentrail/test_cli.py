"""The commands as a user types them. tests/e2e runs the whole of `demo`."""

import importlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tokentrail
from collector.access.__main__ import main as keys
from tokentrail.cli.api import Api
from tokentrail.cli.app import _terminated, app
from tokentrail.cli.home import MARKER, owned
from tokentrail.cli.processes import PORTS, Child, ProcessFailed, free_port, terminated, uninterrupted
from tokentrail.cli.stack import Stack, choose_addresses

runner = CliRunner()


def test_help_and_version():
    told = runner.invoke(app, ["--version"]).stdout.strip()
    assert re.fullmatch(rf"{re.escape(tokentrail.__version__)}( \(commit [0-9a-f]{{8}}\))?", told), told
    usage = runner.invoke(app, ["--help"]).stdout
    assert "demo" in usage
    assert "up" in usage


def test_keys_is_the_collectors_command(tmp_path, capsys):
    """tests/collector/access has each of its actions."""

    def run(*arguments):
        command = [sys.executable, "-m", "tokentrail.cli", "keys", *arguments, "--data-dir", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    key = run("create", "--role", "read", "--tenant", "acme").stdout.strip()
    assert key.startswith("tokentrail_")
    assert keys(["revoke", key, "--data-dir", str(tmp_path)]) == 0
    assert keys(["list", "--data-dir", str(tmp_path)]) == 0
    assert "revoked" in capsys.readouterr().out
    assert run("revoke", "0").returncode == 1


def test_a_second_ctrl_c_does_not_keep_children_from_being_stopped():
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("part", ["collector", "engine", "dashboard"])
def test_a_part_without_its_packages_names_the_extra(part, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = runner.invoke(app, [part], env={"COLUMNS": "400"})
    assert result.exit_code == 1
    assert f"packages of the {'instrumented engine' if part == 'engine' else part} are not installed (" in result.output
    assert f"pip install 'tokentrail[{part}]'" in result.output


def test_rules_need_what_reads_the_slo_file(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic" else "found")
    result = runner.invoke(app, ["rules"], env={"COLUMNS": "400"})
    assert result.exit_code == 1
    assert (
        "packages of the alerts are not installed (pydantic): pip install 'tokentrail[collector-server]'"
        in result.output
    )


def test_help_has_a_line_for_each_command_where_there_is_no_terminal():
    lines = runner.invoke(app, ["--help"], env={"COLUMNS": "40"}).stdout.splitlines()
    (demo,) = [line for line in lines if line.startswith("  demo ")]
    assert demo.endswith("load, collector, dashboard, Prometheus.")
    assert not {"│", "…"} & set("".join(lines))


@pytest.mark.parametrize(("command", "extras"), [("up", "collector,dashboard"), ("demo", "collector,dashboard,engine")])
def test_all_missing_extras_are_named_before_anything_is_touched(command, extras, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    folder = {"up": "--data-dir", "demo": "--home"}[command]
    found = runner.invoke(app, [command, folder, str(tmp_path / "new")])
    assert found.exit_code == 1
    assert f"pip install 'tokentrail[{extras}]'" in found.output
    assert ("tokentrail demo --day" in found.output) is (command == "demo")
    assert not (tmp_path / "new").exists()


@pytest.mark.timeout(120)  # with a folder that is one, `up` and `demo` would run on
@pytest.mark.parametrize(
    "command",
    [
        ("up", "--data-dir"),
        ("demo", "--home"),
        ("check-store", "--data-dir"),
        ("dead-letters", "list", "--data-dir"),
        ("restore", __file__),
        ("rules", "--out"),
        ("keys", "list", "--data-dir"),
    ],
)
def test_no_command_takes_a_folder_that_is_none(command, monkeypatch, tmp_path, capfd):
    def become(_, command, __):
        _, _, module, *arguments = command
        sys.exit(importlib.import_module(f"{module}.__main__").main(arguments))

    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execve", become)
    for wrong in ("", "file", "a" * 300):
        found = runner.invoke(app, [*command, wrong])
        assert found.exit_code in (1, 2)
        said = found.stderr + capfd.readouterr().err  # of a process that it starts
        assert f"'{wrong}' is not a folder" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_loads_no_command():
    code = (
        "import sys; from tokentrail.cli.app import app; print({'httpx', 'openai', 'numpy', 'yaml'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("requests --status ", ["ok", "error", "cancelled", "unknown", "in_flight", "lost"]),
        ("explain --verdict g", []),
        ("requests --verdict g", ["good"]),
        ("requests --cause kv", ["kv_eviction", "kv_wait"]),
        ("differences --slo c", ["chat"]),
        ("status --tenant ", ["acme", "globex"]),
        ("status --model ", []),
    ],
)
def test_a_shell_completes_values(typed, offered, monkeypatch):
    """Names are those that the collector has seen, and none if it does not answer."""
    slos = [{"name": "chat"}, {"name": "batch"}]
    labels = {"tenant": [{"value": name} for name in ("acme", "", "globex")]}
    answers = {"slos": slos, "labels": labels}
    monkeypatch.setattr(Api, "get", lambda _, path, **__: {path: answers[path]})
    environment = {"_TOKENTRAIL_COMPLETE": "complete_bash", "COMP_WORDS": f"tokentrail {typed}", "COMP_CWORD": "3"}
    found = runner.invoke(app, env=environment, prog_name="tokentrail")
    assert found.stdout.split() == offered


def test_the_dashboards_help_is_ours_and_names_streamlits():
    told = runner.invoke(app, ["dashboard", "--help"]).stdout
    assert "--server.port" in told
    assert len(told.splitlines()) < 20


def test_bad_options_are_named():
    result = runner.invoke(app, ["demo", "--seconds", "5"])
    assert result.exit_code == 2
    assert "--seconds" in result.output


def test_a_port_in_use_is_not_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]


def test_a_port_that_was_given_out_is_not_given_out_again():
    """Nobody listens on it yet, so the system may choose it twice."""
    chosen = []

    class GivenOut(list):
        def __contains__(self, port):
            chosen.extend([port] if port else [])
            return bool(port) and len(chosen) == 1

    assert free_port(0, GivenOut()) == chosen[1]


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


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(ProcessFailed, match=r"holds files that `tokentrail demo` did not make"),
        owned(tmp_path, command="demo", empty=True),
    ):
        pass
    result = runner.invoke(app, ["demo", "--home", str(tmp_path)], env={"COLUMNS": "400"})
    assert result.exit_code == 1
    assert "choose an empty or a new folder" in result.stderr
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_demo_empties_its_own_folder_only(tmp_path):
    home = tmp_path / "new" / "demo"
    with owned(home, command="demo", empty=True) as folder:
        (folder / "collector").mkdir()
        (folder / "collector" / "old").touch()
        (folder / "client.jsonl").touch()
    with owned(home, command="up", empty=False):
        assert (home / "collector" / "old").exists()
    with owned(home, command="demo", empty=True):
        assert [entry.name for entry in home.iterdir()] == [MARKER]
    with owned(tmp_path / "up", command="up", empty=False):
        (tmp_path / "up" / "collector").touch()
    with (
        pytest.raises(ProcessFailed, match=r"holds the recordings of `tokentrail up`"),
        owned(tmp_path / "up", command="demo", empty=True),
    ):
        pass
    assert (tmp_path / "up" / "collector").exists()


def test_a_link_in_a_demo_folder_is_removed_and_its_target_stays(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    with owned(tmp_path / "demo", command="demo", empty=True) as folder:
        (folder / "link").symlink_to(tmp_path / "kept")
    with owned(tmp_path / "demo", command="demo", empty=True) as folder:
        assert not (folder / "link").exists()
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.parametrize("command", ["demo", "up"])
def test_a_folder_in_use_is_refused(tmp_path, command):
    with owned(tmp_path / "home", command="demo", empty=True) as folder:
        (folder / "running").touch()
        with (
            pytest.raises(ProcessFailed, match=rf"in use by `tokentrail demo \(process {os.getpid()}\)`"),
            owned(folder, command=command, empty=command == "demo"),
        ):
            pass
        assert (folder / "running").exists()
    with owned(folder, command="up", empty=False), pytest.raises(ProcessFailed, match=r"in use by `tokentrail up \("):
        owned(folder, command="demo", empty=True).__enter__()
    with owned(folder, command=command, empty=False):
        pass


@pytest.mark.parametrize("command", ["up", "demo"])
@pytest.mark.parametrize("below", ["", "new/folder"])
def test_a_file_is_no_folder(tmp_path, command, below):
    for file in (tmp_path / "file", tmp_path / "link"):
        file.touch() if file.name == "file" else file.symlink_to(tmp_path / "nowhere" / "at all")
        with (
            pytest.raises(ProcessFailed, match=rf"^{file} is a file and no folder: choose another folder$"),
            owned(file / below, command=command, empty=command == "demo"),
        ):
            pass


def test_a_folder_that_cannot_be_written_is_named_with_a_way_out(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    with (
        pytest.raises(
            ProcessFailed, match=r"cannot be used \(Permission denied\): choose a folder where you may write"
        ),
        owned(tmp_path / "new", command="up", empty=False),
    ):
        pass


def test_a_port_that_the_user_names_is_used_or_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProcessFailed, match=rf"port {port} \(API\) is in use by another process"):
            choose_addresses({"API": port})
    assert choose_addresses({"API": port})["API"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("command", [["demo"], ["demo", "--day"], ["up"]])
def test_each_part_gets_the_port_of_its_option(command, monkeypatch):
    parts = {*PORTS} - ({"engine", "Prometheus"} if command == ["up"] else set())
    given, handed = {name: 1001 + number for number, name in enumerate(sorted(parts))}, []
    for module in ("demo", "day.show", "up"):
        monkeypatch.setattr(f"tokentrail.cli.{module}.run", lambda *_, ports, **__: handed.append(ports))
    options = [f"--port-{name.lower().replace('/', '-')}={port}" for name, port in given.items()]
    assert runner.invoke(app, [*command, *options]).exit_code == 0
    assert handed == [given]


def test_no_two_listeners_get_one_port():
    port = free_port(0)
    with pytest.raises(ProcessFailed, match=rf"port {port} \(dashboard\) is in use by API: name another one"):
        choose_addresses({"API": port, "dashboard": port})
    of_another = PORTS["OTLP/gRPC"]
    if free_port(of_another) == of_another:
        chosen = choose_addresses({"API": of_another})
        assert chosen["API"] == f"127.0.0.1:{of_another}"
        assert len({*chosen.values()}) == len(PORTS)


def test_a_port_that_needs_root_is_not_called_taken(monkeypatch):
    monkeypatch.setattr(socket.socket, "bind", lambda *_: (_ for _ in ()).throw(PermissionError("Permission denied")))
    with pytest.raises(ProcessFailed, match="this user may not listen on port 80: name one above 1023"):
        choose_addresses({"API": 80})


def test_a_listener_that_moved_is_named(tmp_path):
    addresses = {name: f"127.0.0.1:{port}" for name, port in PORTS.items()} | {"OTLP/HTTP": "127.0.0.1:40123"}
    stack = Stack(home=tmp_path, slos=tmp_path, addresses=addresses)
    assert stack.moved({}) == []  # nothing listens yet
    stack.running["collector"] = stack.running["dashboard"] = None
    assert stack.moved({"OTLP/HTTP": 40123}) == []  # the user named it
    (sentence,) = stack.moved({"OTLP/HTTP": None})
    assert sentence.startswith("OTLP/HTTP listens on port 40123, not on 4318.")


def test_sigterm_ends_a_command_that_a_script_started_in_the_background():
    """Its SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            _terminated()
    finally:
        signal.signal(signal.SIGINT, before)
        terminated.clear()
