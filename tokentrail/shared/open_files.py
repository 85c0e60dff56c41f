"""The number of files that a server of ours may open: each connection is one."""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
from typing import Final

logger = logging.getLogger(__name__)

WANTED: Final = 262_144
"""As many as the packages of ClickHouse ask for."""


def allow(needed: int) -> int:
    """Raise the process's limit as far as the system lets it, and return it; warn when that is less than `needed`.

    A shell starts programs with 1,024 on most systems, for those that use `select`. None of our servers does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    for goal in (most, min(needed, most)):  # macOS has a lower limit than it tells
        if soft != resource.RLIM_INFINITY and soft < goal:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
                soft = goal
    if soft != resource.RLIM_INFINITY and soft < needed:
        logger.warning(
            "this process may open %d files and may need %d: raise its hard limit (ulimit -Hn, LimitNOFILE)",
            soft,
            needed,
        )
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
