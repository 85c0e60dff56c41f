"""The lines of a process's log. Names in them are of others, who may write what looks like a line of its own."""

from __future__ import annotations

import logging
from typing import IO, Final

from tokentrail.shared.formatting import one_line

LONG: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Lines(logging.Formatter):
    r"""Escapes what draws nothing, moves a cursor or turns the text, and indents further lines of a message.

    a name `x\n2026-01-01 ERROR collector: lost`    is shown as    … of the process x
                                                                       2026-01-01 ERROR collector: lost
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, with its traceback below."""
        return "\n    ".join(map(one_line, super().format(record).split("\n")))


def begin(form: str = LONG, stream: IO[str] | None = None) -> None:
    """Log from INFO on, to standard error or another stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
