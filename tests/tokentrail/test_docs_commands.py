"""Commands of the documentation that change files do what the page says, in a folder of their own."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.wal.dead_letters import DeadLetters
from tests.alerts.test_openslo import OPENSLO
from tests.contract.commands import PAGES, commands, output_of
from tests.support.otlp import token_body
from tokentrail.cli.app import app

ROOT = Path(__file__).parents[2]
PARTS = {"keys": "collector.access", "rules": "alerts"}
SHOWN = sorted(
    {
        tuple(words)
        for page in PAGES
        for program, *words in commands(page.read_text())
        if program.rpartition("/")[2] == "tokentrail" and words[:1] and words[0] in (*PARTS, "dead-letters")
    }
    - {("keys",), ("rules",), ("dead-letters",)}
)
OTHERS_RUN = {"replay", "revoke", "--prometheus"}
"""Commands with these words need a collector, a key or a Prometheus; tests of their own have them."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with our SLO file twice, one of OpenSLO and data folders of collectors, each with a dead letter."""
    shutil.copytree(ROOT / "alerts", tmp_path / "alerts")
    shutil.copyfile(ROOT / "alerts" / "slos.yaml", tmp_path / "slos.yaml")
    (tmp_path / "FILE").write_text(OPENSLO)
    for data in (".data", "data", "tokentrail-data/collector", "FOLDER"):
        (tmp_path / data / "wal").mkdir(parents=True)
        DeadLetters(tmp_path / data / "dead_letters", "traces").keep("NAME", token_body(), "refused")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENTRAIL_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("TOKENTRAIL_AUDIT", str(tmp_path / "audit"))
    return tmp_path


def run(folder, words):
    """The output of a command; an AssertionError when it fails."""
    given = [word.replace("/var/lib/tokentrail", str(folder / "data")) for word in words]
    if words[:2] == ("rules", "generate") and "--out" not in words:
        given += ["--out", str(folder / "alerts" / "rules")]  # without it, they go into the checkout
    if words[0] in PARTS:
        shown = output_of(PARTS[words[0]], *given[1:])
        assert shown is not None, f"tokentrail {' '.join(words)} failed"
        return shown
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("words", [words for words in SHOWN if OTHERS_RUN.isdisjoint(words)], ids=" ".join)
def test_a_command_does_what_the_page_says(folder, words):
    assert run(folder, words)


def test_a_key_of_the_page_is_revoked(folder):
    (revoke,) = [words for words in SHOWN if "revoke" in words]
    run(folder, ("keys", "create", "--role", "ingest", "--all-tenants"))
    listed = run(folder, ("keys", "list"))
    run(folder, (*revoke[:-1], listed.splitlines()[-1].split()[0]))
    assert run(folder, ("keys", "list")) != listed
