"""How commands print: tables and lines, JSON, errors."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperCommand

from tokentrail.shared.formatting import UNDEFINED, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

USAGE: Final = 64
"""The status of an option or a name that is wrong, where 2 says something else (EX_USAGE of sysexits.h)."""


_OF_TYPER: Final = 2
_LINE: Final = re.compile(r"-[^-].*[:<> ]")
_SINCE: Final = re.compile(r"-\d")


class TakesLine(TyperCommand):
    """A command whose argument may begin with a dash: `'-tenant:acme slo:chat'` and `-1h` are no options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the arguments. Raises typer's error of an option that is wrong."""
        pairs = [] if "--" in args else zip(args, ["", *args], strict=False)
        lines = [arg for arg, before in pairs if _LINE.match(arg) or (_SINCE.match(arg) and before[:1] != "-")]
        return super().parse_args(ctx, [*(arg for arg in args if arg not in lines), *(["--", *lines] if lines else [])])


class WrongUse(TakesLine):
    """A gate whose wrong options end it with `USAGE`, and are the reason of its JSON and of JUnit's XML."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """The context of a call. Raises typer's error of a wrong option, which has an exit status."""
        given = [*args]
        try:
            return super().make_context(info_name, args, *more, **extra)
        except Exception as error:
            if getattr(error, "exit_code", None) == _OF_TYPER:
                _answer(error, _given(given, "--slo"), _given(given, "--junit"), "--json" in given)
            raise

    def invoke(self, ctx: Any) -> Any:
        """What the command returns. Raises typer's error of an option that the command itself finds wrong."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            of = ctx.params
            _answer(error, of["slo"], of["junit"], as_json=of["as_json"])
            raise


def _given(arguments: Sequence[str], option: str) -> str:
    """The value of an option, as `--junit FILE` or `--junit=FILE`; empty without it."""
    of_option = [next_ for name, next_ in pairwise(arguments) if name == option]
    return next(iter([*of_option, *(one[len(option) + 1 :] for one in arguments if one.startswith(f"{option}="))]), "")


def _answer(error: Any, slo: str, junit: str | Path | None, as_json: bool) -> None:
    """Write what stands in place of an answer. A file that cannot be written is no second error."""
    from tokentrail.cli.check import no_answer, write_junit

    vars(error)["exit_code"] = USAGE
    answer = no_answer(slo, error.format_message())
    if junit:
        with suppress(OSError):
            write_junit(Path(junit), answer)
    if as_json:
        print_json(answer)


UNWRAPPED = 1_000_000
"""Columns of an output that is no terminal: a line of a table stays one line for grep and awk."""

LONGEST_NAME = 256
"""Characters of a name that a filter of the API takes. All rows of a table are as wide as the widest, so a longer name
would fill the disk."""

_IN_TERMINAL: Final = sys.stdout.isatty()
HELP: Final[dict[str, Any]] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich" if _IN_TERMINAL else None,
    "context_settings": {} if _IN_TERMINAL else {"terminal_width": UNWRAPPED},
}
"""Help has boxes in a terminal, and a line for each option elsewhere, which also saves the import of rich."""


def console(*, stderr: bool = False) -> Console:
    """The terminal, or an output without colours and line breaks of its own. `:id:` stays, and becomes no picture."""
    from rich.console import Console

    output = Console(stderr=stderr, emoji=False)
    if not output.is_terminal:
        output.width = UNWRAPPED
    return output


def progress(to: Console, doing: str) -> AbstractContextManager[object]:
    """Say that something takes its time: a spinner while the block runs in a terminal, a line elsewhere."""
    if to.is_terminal:
        return to.status(doing)
    to.print(doing, highlight=False)
    return nullcontext()


def cells(*values: str | Text) -> list[Text]:
    """Cells of a table from text of others, which rich would read for its own markup: a name such as `m[v2]`."""
    from rich.text import Text

    return [value if isinstance(value, Text) else Text(one_line(value)) for value in values]


def short(name: str) -> str:
    """A name as a table shows it: `–` for none, and the end cut off where it is longer than any filter takes."""
    return f"{name[: LONGEST_NAME - 1]}…" if len(name) > LONGEST_NAME else name or UNDEFINED


def own_name() -> str:
    """The name of this command for hints that can be pasted: `tokentrail`, or `.venv/bin/tokentrail` from `make`."""
    started = Path(sys.argv[0])
    on_the_path = shutil.which("tokentrail") is not None
    return str(started) if started.name == "tokentrail" and not on_the_path else "tokentrail"


def print_line(to: Console, text: str) -> None:
    """Print a line that may have names of others in it: one line, as it is, in any width."""
    to.print(one_line(text), soft_wrap=True, markup=False, highlight=False)


def print_json(answer: Any) -> None:
    """Print JSON for people and for jq."""
    typer.echo(json.dumps(answer, indent=2))


def note(text: str) -> None:
    """Print a sentence beside the output, which stays as it is for programs that read it."""
    console(stderr=True).print(text, highlight=False, markup=False)


def fail(failure: Exception, status: int = 1) -> NoReturn:
    """Print an error and end the command with a status: an Exit whose `__cause__` is the error."""
    from rich.markup import escape

    console(stderr=True).print("[bold red]error:[/]", escape(str(failure)), highlight=False, soft_wrap=True)
    raise typer.Exit(status) from failure
