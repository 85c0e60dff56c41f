"""The wall clock of the retention, which takes nothing for old because somebody has set the clock."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from collector.base.durable import write_durably
from collector.base.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)

_DAY_NS: Final = 86400 * 10**9


class SteadyClock:
    """A wall clock that follows a leap of more than a day forward only when the leap has lasted for a day.

    A machine may start with a wrong time, or somebody sets it wrong. The clock is read every hour:

        1 May 10:00, 1 May 11:00                                  follows
        1 May 11:00, 1 September 11:00                            still 1 May 11:00, with a warning
        1 May 11:00, 1 September 11:00, 1 May 13:00               follows
        1 May 11:00, 1 September 11:00, …, 2 September 11:00      follows: the time before was wrong

    A file remembers the time that it followed last, and the begin of a leap, for the next process.
    """

    def __init__(self, file: Path, clock: Callable[[], int] = time.time_ns) -> None:
        self._file = file
        self._clock = clock
        self._followed_ns: int | None = None
        self._leapt_ns: int | None = None
        self._line_due = OnceAMinute()
        with suppress(OSError, ValueError, TypeError, KeyError):  # without the file, the first time is followed
            remembered = json.loads(file.read_text())
            followed, leapt = remembered["followed_ns"], remembered["leapt_ns"]
            self._followed_ns, self._leapt_ns = int(followed), None if leapt is None else int(leapt)

    def __call__(self) -> int:
        """Unix nanoseconds."""
        now_ns = self._clock()
        if self._followed_ns is None or now_ns - self._followed_ns <= _DAY_NS or self._has_lasted(now_ns):
            self._followed_ns, self._leapt_ns = now_ns, None
        elif self._line_due.allows("leap"):
            days = (now_ns - self._followed_ns) / _DAY_NS
            logger.warning(
                "the clock has leapt by %.0f days; for a day, the retention removes no rows because of it", days
            )
        self._remember()
        return self._followed_ns

    def _has_lasted(self, now_ns: int) -> bool:
        """Tell whether a leap began a day ago. Another leap, or a time before the leap, begins a new day."""
        if self._leapt_ns is None or not 0 <= now_ns - self._leapt_ns < 2 * _DAY_NS:
            self._leapt_ns = now_ns
        return now_ns - self._leapt_ns >= _DAY_NS

    def _remember(self) -> None:
        with suppress(OSError):  # the retention may make room on a full disk
            write_durably(
                self._file, json.dumps({"followed_ns": self._followed_ns, "leapt_ns": self._leapt_ns}).encode()
            )
