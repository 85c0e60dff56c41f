"""Each command runs with the packages of the extras that it says it needs, and of no others."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ASK = ["--api", "http://127.0.0.1:9"]
OF_CLI = {
    **dict.fromkeys(("status", "slos", "incidents", "requests", "explain", "spans", "doctor", "tail"), ()),
    "request": ("a",),
    "differences": ("--metric", "ttft", "--at-least", "1s"),
    "compare": ("--a", "variant=a", "--b", "variant=b"),
    "check": ("--slo", "chat", "--against-variant", "a"),
}
SCRIPT = """
import json, sys

blocked = set(json.loads(sys.argv[1]))

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from typer.testing import CliRunner
from tokentrail.cli.app import app

if "--day" in sys.argv[2]:
    from tokentrail.cli.day import show
    show.run = lambda *_, **__: print("the day")
for command in json.loads(sys.argv[2]):
    done = CliRunner().invoke(app, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
    print("->", *command, done.output)
"""


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


def run(extras, commands):
    """Run commands in a process in which only modules of these extras can be imported."""
    have = needed(*extras) | {"tokentrail", "pip", "setuptools"}
    blocked = [
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & have
    ]
    assert "torch" in blocked
    assert "openai" in blocked
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(blocked), json.dumps(commands)],
        capture_output=True, text=True, env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_commands_that_ask_a_collector_run_with_the_extra_cli_alone():
    said = run(["cli"], [[command, *options, *ASK] for command, options in OF_CLI.items()])
    answers = said.split("-> ")[1:]
    assert [answer.split()[0] for answer in answers if "Connection refused" in answer] == [*OF_CLI], said


def test_the_day_is_shown_without_torch_and_openai():
    assert "the day" in run(["cli", "collector", "dashboard"], [["demo", "--day"]])
