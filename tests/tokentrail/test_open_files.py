"""A server may open as many files as the system lets it."""

import resource
import sys

import pytest

from tokentrail.shared import open_files

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "after", "warns"),
    [
        (1024, 4096, 2048, 4096, False),
        (1024, 4096, 4096, 4096, False),
        (3000, 4096, 2048, 4096, False),
        (1024, 4096, 4097, 4096, True),
        (1024, 1024, 1025, 1024, True),
        (1024, UNLIMITED, 2048, open_files.WANTED, False),
        (1024, 2**20, 2048, open_files.WANTED, False),
        (2**19, 2**20, 2048, 2**19, False),
        (UNLIMITED, UNLIMITED, 2048, UNLIMITED, False),
    ],
)
def test_the_limit_is_raised_and_never_lowered(monkeypatch, caplog, soft, hard, needed, after, warns):
    limits = {resource.RLIMIT_NOFILE: (soft, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert open_files.allow(needed) == (sys.maxsize if after == UNLIMITED else after)
    assert limits == {resource.RLIMIT_NOFILE: (after, hard)}
    assert ("ulimit -Hn" in caplog.text) is warns


@pytest.mark.parametrize(("needed", "after"), [(2048, 2048), (20_000, 256)])
def test_a_system_that_allows_less_than_it_tells(monkeypatch, caplog, needed, after):
    limits = {resource.RLIMIT_NOFILE: (256, UNLIMITED)}

    def set_limit(name, limit):
        if limit[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits[name] = limit

    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert open_files.allow(needed) == after
    assert limits == {resource.RLIMIT_NOFILE: (after, UNLIMITED)}
    assert bool(caplog.records) is (after < needed)
