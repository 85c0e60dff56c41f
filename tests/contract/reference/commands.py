"""Commands and their options, from the Typer application."""

from __future__ import annotations

from typing import Any

from tests.contract.commands import each_command
from tests.contract.reference.text import code, listed, sentence, split, table


def commands(_: str, __: str) -> str:
    """All commands."""
    rows = ((f"`{name}{_arguments(command)}`", sentence(command.help)) for name, command in each_command())
    return table(("command", "what it does"), rows)


def _arguments(command: Any) -> str:
    """The arguments; without those whose brackets say that they may be left out."""
    names = (p.metavar or p.name.upper() for p in command.params if not p.opts[0].startswith("-"))
    return "".join(f" {name}" for name in names if not name.startswith("["))


def options(names: str, _: str) -> str:
    """The options of commands that begin with one of these names, each option once."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, command in each_command():
        for parameter in command.params if name.split()[1] in names.split() else ():
            rows.setdefault(option(parameter), []).append(name.removeprefix("tokentrail "))
    cells = ((flag, listed(f"`{name}`" for name in of), *rest) for (flag, *rest), of in rows.items() if rest[0])
    if len(names.split()) == 1:
        return table(("option", "meaning", "default"), ((flag, *rest) for flag, _, *rest in cells))
    return table(("option", "of", "meaning", "default"), cells)


def option(parameter: Any) -> tuple[str, str, str]:
    """The flags of an option, its meaning and its default. Nothing of an argument, and of --help."""
    flags = [flag for flag in parameter.opts if flag.startswith("-")]
    if not flags or not parameter.help or "--help" in flags:
        return "", "", ""
    text, told = split(parameter.help)
    default = "" if parameter.required or isinstance(parameter.default, bool) else parameter.default
    variable = f". Variable: `{parameter.envvar}`" if parameter.envvar else ""
    values = f": {', '.join(map(code, choices))}" if (choices := parameter.type_descriptor.choices) else ""
    meaning = f"{sentence(text)}{values}{variable}"
    return ", ".join(f"`{flag}`" for flag in flags), meaning, told or code(default)
