"""`tokentrail up` shows the data that is in its folder, and judges by the SLOs that it was told once."""

import importlib.util
import os
import socket
import sys

import httpx
import pytest
from rich.console import Console

from tokentrail.cli import parts, up
from tokentrail.cli.processes import PORTS, ProcessFailed, free_port
from tokentrail.cli.stack import Stack

SHIPPED = parts.folder() / "alerts" / "slos.yaml"


@pytest.fixture
def started(monkeypatch):
    """A function that runs `up` on a folder until its collector starts: the collector's folder and its SLO file."""
    found = []

    def collector(stack, data_dir):
        found.append((data_dir, stack.slos))
        (stack.home / "of a child").touch()
        raise KeyboardInterrupt

    def run(home, slos=None):
        up.run(Console(quiet=True), data_dir=home, slos=slos, ports={})
        return found[-1]

    monkeypatch.setattr(Stack, "collector", collector)
    return run


def test_parts_whose_packages_are_missing_are_not_run_and_their_extras_are_named(monkeypatch):
    there = importlib.util.find_spec
    missing = {"grpc", "streamlit", "torch"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else there(name))
    with pytest.raises(ProcessFailed) as told:
        parts.require("collector", "dashboard", "instrumented_engine")
    assert str(told.value) == (
        "packages of the collector, the dashboard and the instrumented engine are not installed"
        " (grpc, streamlit, torch): pip install 'tokentrail[collector,dashboard,engine]'"
    )
    with pytest.raises(ProcessFailed, match=r"^packages of the dashboard are .*\(streamlit\): .*\[dashboard\]'$"):
        parts.dashboard()
    assert parts.command("alerts.generate")[2:] == ["alerts.generate"]


@pytest.mark.parametrize("made", [[], ["logs"], ["settings"], ["collector"], ["collector/wal"], ["collector/store"]])
def test_the_collectors_folder_is_inside_that_of_up(started, tmp_path, made):
    for name in made:
        (tmp_path / name).mkdir(parents=True)
    assert started(tmp_path) == (tmp_path / "collector", SHIPPED)


@pytest.mark.parametrize("made", [["store"], ["wal"], ["store", "wal"], ["store", "collector"]])
def test_a_restored_backup_and_a_collectors_own_folder_are_used_as_they_lie(started, tmp_path, made):
    for name in made:
        (tmp_path / name).mkdir()
    assert started(tmp_path) == (tmp_path, SHIPPED)
    assert started(tmp_path) == (tmp_path, SHIPPED), "also the next time"


@pytest.mark.parametrize("here", ["store", "wal"])
@pytest.mark.parametrize("within", ["store", "wal"])
def test_data_in_two_places_is_refused_since_one_would_be_hidden(started, tmp_path, here, within):
    (tmp_path / here).mkdir()
    (tmp_path / "collector" / within).mkdir(parents=True)
    with pytest.raises(ProcessFailed, match=rf"^{tmp_path} and {tmp_path}/collector have the data of a collector each"):
        started(tmp_path)


def test_the_slos_of_a_restored_backup_are_judged_by(started, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "ours.yaml").touch()
    assert started(tmp_path) == (tmp_path, tmp_path / "settings" / "ours.yaml")
    (tmp_path / "named.yaml").touch()
    assert started(tmp_path, tmp_path / "named.yaml") == (tmp_path, tmp_path / "named.yaml")


def test_the_slos_of_a_demos_recording_are_judged_by(started, tmp_path):
    (tmp_path / "slos.yaml").touch()
    assert started(tmp_path)[1] == tmp_path / "slos.yaml"


def test_the_slo_file_is_remembered_until_another_is_named(started, tmp_path, monkeypatch):
    home, first, second = tmp_path / "home", tmp_path / "first.yaml", tmp_path / "second.yaml"
    for file in (first, second):
        file.touch()
    monkeypatch.chdir(tmp_path)
    named = [None, first.relative_to(tmp_path), None, second, None, None]
    assert [started(home, slos)[1] for slos in named] == [SHIPPED, first, first, second, second, second]
    assert started(home, home / "up-slos.yaml")[1] == second, "its own note of it"
    (home / "slos.yaml").touch()  # of a demo
    assert started(home)[1] == second


def test_a_remembered_slo_file_that_has_gone_is_named(started, tmp_path):
    slos = tmp_path / "slos.yaml"
    slos.touch()
    started(tmp_path / "home", slos)
    slos.unlink()
    with pytest.raises(
        ProcessFailed, match=rf"^{slos}, the SLO file of the last `up` on .*/home, is not there: name one"
    ):
        started(tmp_path / "home")
    slos.touch()
    assert started(tmp_path / "home")[1] == slos


def test_what_up_and_its_processes_make_is_for_its_user_alone(started, tmp_path):
    before = os.umask(0)
    try:
        started(tmp_path / "home")
    finally:
        os.umask(before)
    made = [tmp_path / "home", *(tmp_path / "home").iterdir()]
    assert {path.name: path.stat().st_mode & 0o077 for path in made} == {
        "home": 0,
        "tokentrail-folder": 0,
        "of a child": 0,
    }


@pytest.mark.parametrize(("port", "told"), [(8080, False), (18080, True)])
def test_an_api_on_another_port_is_told_as_the_variable_that_the_commands_read(tmp_path, port, told, capsys):
    stack = Stack(home=tmp_path, slos=SHIPPED, addresses=dict.fromkeys(PORTS, f"127.0.0.1:{port}"))
    stack.running["collector"] = None
    stack.tell(Console(width=200), {}, 10)
    line = f"export TOKENTRAIL_API_URL=http://127.0.0.1:{port}\n"
    assert (line in capsys.readouterr().out) is told


LISTENS = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.mark.parametrize("when", ["before its start", "while it starts"])
def test_a_port_that_somebody_takes_after_the_choice_is_chosen_again(tmp_path, monkeypatch, when):
    """Streamlit ends when it finds its port taken. One that the user named is not replaced."""
    (tmp_path / "_stcore").mkdir()
    (tmp_path / "_stcore" / "health").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PORTS, "dashboard", free_port(0))
    stack = Stack(home=tmp_path, slos=SHIPPED)
    chosen = stack.addresses["dashboard"]
    taken = socket.socket()

    def command(*options):
        if when == "while it starts" and taken.fileno() >= 0 and not taken.getsockname()[1]:
            taken.bind(("127.0.0.1", int(chosen.rpartition(":")[2])))
        return [sys.executable, "-c", LISTENS, options[options.index("--server.port") + 1]]

    monkeypatch.setattr(parts, "dashboard", command)
    stack.running["collector"] = None
    with taken:
        if when == "before its start":
            taken.bind(("127.0.0.1", int(chosen.rpartition(":")[2])))
        url = stack.dashboard()
        named = Stack(home=tmp_path, slos=SHIPPED, addresses=stack.addresses | {"dashboard": chosen}, named=PORTS)
        named.running["collector"] = stack.running["collector"]
        with pytest.raises(ProcessFailed, match="Address already in use"):
            named.dashboard()
    assert url != f"http://{chosen}"
    assert httpx.get(f"{url}/_stcore/health", trust_env=False).status_code == 200
    stack.running.pop("collector")
    stack.stop()
