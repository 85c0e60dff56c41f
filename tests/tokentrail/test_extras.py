"""Each command runs with the packages of the extras that it says it needs, and of no others."""

import json
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ASK = ["--api", "http://127.0.0.1:9"]
OF_CLI = {
    **dict.fromkeys(("status", "slos", "incidents", "requests", "explain", "spans", "doctor", "tail", "timeouts"), ()),
    "request": ("a",),
    "differences": ("--metric", "ttft", "--at-least", "1s"),
    "compare": ("--a", "variant=a", "--b", "variant=b"),
    "check": ("--slo", "chat", "--against-variant", "a"),
}
SCRIPT = """
import json, os, runpy, sys

blocked = set(json.loads(sys.argv[1]))

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from typer.testing import CliRunner
from tokentrail.cli.app import app

def become(_, command, __):
    # Where a command becomes the process of a part, the part's module runs here.
    sys.argv = command[2:]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)

os.execve = become
exec(sys.argv[3])
for command in json.loads(sys.argv[2]):
    done = CliRunner().invoke(app, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
    print("->", *command, done.output)
"""


distributions = cache(packages_distributions)
"""The packages of each module."""


def needed(*extras):
    """The names of all packages that these extras bring, themselves and by others."""
    found, left = set(), [("tokentrail", frozenset(extras))]
    while left:
        name, asked = left.pop()
        if (name, asked) in found:
            continue
        found.add((name, asked))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        left += [
            (canonicalize_name(one.name), frozenset(one.extras))
            for one in map(Requirement, lines)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *asked))
        ]
    return {name for name, _ in found}


def run(extras, commands, before=""):
    """Run commands in a process in which only modules of these extras can be imported, behind some code."""
    have = needed(*extras) | {"tokentrail", "pip", "setuptools"}
    blocked = [
        module for module, names in distributions().items() if not {canonicalize_name(name) for name in names} & have
    ]
    others = {"cli": "torch", "collector": "torch", "proxy": "mcp", "mcp": "aiohttp", "engine": "streamlit"}
    assert {others[extra] for extra in extras if extra in others} <= {*blocked}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(blocked), json.dumps(commands), before],
        capture_output=True, text=True, env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_commands_that_ask_a_collector_run_with_the_extra_cli_alone():
    said = run(["cli"], [[command, *options, *ASK] for command, options in OF_CLI.items()])
    answers = said.split("-> ")[1:]
    assert [answer.split()[0] for answer in answers if "Connection refused" in answer] == [*OF_CLI], said


DAY = "from tokentrail.cli.day import show; show.run = lambda *_, **__: print('the day')"
PROXY = "from tokentrail.proxy import server; server.run = lambda of: print('proxied', of.upstream) or True"
MCP = "from tokentrail.mcp import server; server.run_stdio = lambda url: server.make(url) and print('its tools')"
OTHERS = {
    "cli,collector,dashboard": (DAY, {"the day": ["demo", "--day"]}),
    "proxy": (PROXY, {"proxied http://127.0.0.1:9": ["proxy", "--upstream", "http://127.0.0.1:9"]}),
    "mcp": (MCP, {"its tools": ["mcp", *ASK]}),
    "engine": ("", {"usage: tokentrail engine": ["engine", "--help"]}),
    "cli,collector-server": (
        "",
        {f"usage: tokentrail {name}": [name, "--help"] for name in ("collector", "rules", "keys")},
    ),
}
"""What replaces that which would run for ever, and commands with what they say, by their extras."""


@pytest.mark.parametrize("extras", OTHERS)
def test_other_commands_run_with_their_own_extras(extras):
    before, commands = OTHERS[extras]
    told = run(extras.split(","), [*commands.values()], before)
    assert [said for said in commands if said not in told] == [], told
