"""The limit of open files of processes that a test starts."""

import resource
from contextlib import contextmanager

from tokentrail.shared import open_files

FEW = 512


@contextmanager
def few_files():
    """Processes that are started meanwhile begin with a low limit, which they may raise."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def may_open_many(pid):
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return FEW < soft == (open_files.WANTED if hard == resource.RLIM_INFINITY else min(hard, open_files.WANTED))
