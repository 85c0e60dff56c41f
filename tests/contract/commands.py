"""Finds the commands and flags that a text names (`tokentrail …`, `python -m …`, `make …`) and checks each."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shlex
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.main import get_command
from typer.testing import CliRunner

from collector.pipeline.settings import Settings as CollectorSettings
from instrumented_engine.settings import Settings as EngineSettings
from tokentrail.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
PACKAGES = ("tokentrail", "instrumented_engine", "collector", "alerts", "dashboard", "benchmarks")

INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console")
WORD = re.compile(r"[a-z][a-z0-9_-]*")
PLAIN = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
"""Environment in which help texts are neither coloured nor wrapped."""
FLAGS_OF_OTHERS = {
    "--gpu-memory-utilization", "--otlp-traces-endpoint", "--max-tasks-per-child", "--enable-threads", "--lazy-apps",
    "--py-call-osafterfork",
}  # fmt: skip
"""Of vLLM, Celery and uWSGI."""


def commands(text: str) -> Iterator[list[str]]:
    """Every command line in shell blocks, indented blocks and inline code, as words without prompt and comment.

    "Run `.venv/bin/tokentrail demo --seed 7`" gives [".venv/bin/tokentrail", "demo", "--seed", "7"].
    """
    lines = [line for _, language, body in FENCE.findall(text) if language in SHELL for line in _joined(body)]
    prose = FENCE.sub("", text)
    lines += [" ".join(code.split()) for code in INLINE.findall(prose)]
    lines += [line for line in _joined(prose) if line.startswith("    ")]
    for line in lines:
        command = re.sub(r"(?:^|\s)#.*", "", line).strip().removeprefix("$ ")
        for part in re.split(r"&&|\|\||[|;]", command):
            try:
                words = shlex.split(part)
            except ValueError:  # the quote was cut in two with the line
                words = part.split()
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words


def _joined(block: str) -> list[str]:
    return re.sub(r"\\\n\s*", "", block).splitlines()


def flags(words: Iterable[str]) -> list[str]:
    """`--json` of both `--json PATH` and `--json=PATH`."""
    return [match[0] for word in words if (match := re.match(r"--[a-z][a-z0-9-]*", word))]


def named_commands(text: str) -> Iterator[str]:
    """`tokentrail demo --seconds`: the command, with its subcommand, and one of its flags, or the command alone."""
    for program, *words in commands(text):
        if program.rpartition("/")[2] == "tokentrail" and words:
            name = " ".join(_command(words))
            yield from (f"tokentrail {name} {flag}".replace("  ", " ") for flag in flags(words))
            if name:
                yield f"tokentrail {name}"


def _command(words: Iterable[str]) -> Iterator[str]:
    """The words that name a command: `dead-letters list` of `dead-letters list --json`."""
    group = cli()
    for word in words:
        known = getattr(group, "commands", None)
        if known is None or not WORD.fullmatch(word):
            return
        yield word
        group = known.get(word)


@cache
def cli() -> Any:
    """The `tokentrail` command, which takes 30 ms to make."""
    return get_command(app)


def each_command() -> Iterator[tuple[str, Any]]:
    """Typer's object of each command that has none below it, and its name: `tokentrail dead-letters list`."""

    def below(group: Any, words: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, f"{words} {name}")
            else:
                yield f"{words} {name}", command

    yield from below(cli(), "tokentrail")


def is_command(name: str) -> bool:
    """Typer knows the command, and its help lists the flag."""
    *words, last = name.split()[1:]
    if not last.startswith("--"):
        return _cli_help(*words, last) is not None
    return _has_flag(_cli_help(*words), last)


@cache
def _cli_help(*words: str) -> str | None:
    with patch("os.execve", side_effect=SystemExit(0)) as become:
        shown = CliRunner().invoke(app, [*words, "--help"], env=PLAIN)
    if become.called:  # a part, which is `python -m module words --help`
        _, _, module, *arguments = become.call_args.args[1]
        return _help_of(module, *arguments)
    return shown.output if shown.exit_code == 0 else None


def _has_flag(help_text: str | None, flag: str) -> bool:
    return help_text is not None and bool(re.search(rf"(?<![\w-]){flag}(?![\w-])", help_text))


def named_modules(text: str) -> Iterator[str]:
    """`python -m collector --slos`: the module and one of its flags, or the module alone."""
    for program, *words in commands(text):
        if re.fullmatch(r"python[0-9.]*", program.rpartition("/")[2]) and words[:1] == ["-m"] and len(words) > 1:
            yield f"python -m {words[1]}"
            if words[1].partition(".")[0] in (*PACKAGES, "tests"):
                yield from (f"python -m {words[1]} {flag}" for flag in flags(words[2:]))


def is_module(name: str) -> bool:
    """The module can be run, and its help lists the flag. Modules of others must only be installed."""
    _, _, module, *flag = name.split()
    if not _runs(module):
        return False
    return not flag or _has_flag(_help_of(module, "--help"), flag[0])


@cache
def _help_of(module: str, *arguments: str) -> str | None:
    return output_of(module, *arguments)


def _runs(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(module)
        is_package = found is not None and found.submodule_search_locations is not None
        return found is not None and (not is_package or importlib.util.find_spec(f"{module}.__main__") is not None)
    return False


def output_of(module: str, *arguments: str) -> str | None:
    """The output of `python -m module arguments`, which runs in this process; None if it fails."""
    shown = io.StringIO()
    environment, words = patch.dict(os.environ, PLAIN), patch("sys.argv", [module, *arguments])
    with environment, words, contextlib.redirect_stdout(shown), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)  # another test has imported it
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return None if end.code else shown.getvalue()
    return shown.getvalue()


def named_targets(text: str) -> Iterator[str]:
    """`make demo DEMO_SECONDS=120`: `make demo` and `make DEMO_SECONDS=`."""
    for program, *words in commands(text):
        if program == "make":
            yield from (f"make {word}" for word in words if WORD.fullmatch(word))
            yield from (f"make {word.partition('=')[0]}=" for word in words if re.match(r"[A-Z_]+=", word))


def is_target(name: str) -> bool:
    """A rule of the Makefile, or a variable that it uses."""
    makefile, word = (ROOT / "Makefile").read_text(), name.removeprefix("make ")
    if word.endswith("="):
        return f"$({word[:-1]})" in makefile
    return bool(re.search(rf"^{word}:", makefile, re.MULTILINE))


def named_flags(text: str) -> Iterator[str]:
    """Inline code that is a flag alone: `--wal-max-bytes`, `--slos FILE`."""
    for code in INLINE.findall(FENCE.sub("", text)):
        if code.startswith("--"):
            yield from flags(code.split())


def is_flag(name: str) -> bool:
    """A flag of one of our commands, or one of `FLAGS_OF_OTHERS`."""
    return name in FLAGS_OF_OTHERS or name in _flags()


@cache
def _flags() -> frozenset[str]:
    settings = [*CollectorSettings.model_fields, *EngineSettings.model_fields]
    ours = {f"--{name.replace('_', '-')}" for name in settings}
    helps = [
        _help_of(module, "--help") or ""
        for module in ("alerts", "benchmarks", "benchmarks.explain", "benchmarks.sdk_span_cost", "benchmarks.sizing")
    ]
    helps += [_cli_help() or "", *(_cli_help(*name.split()[1:]) or "" for name, _ in each_command())]
    return frozenset(ours.union(*(re.findall(r"--[a-z][a-z-]*", text) for text in helps)))
