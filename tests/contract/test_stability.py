"""Nothing public is removed or added unnoticed: docs/stability.md."""

import pytest

from tests.contract.surface import LIST, surface

pytestmark = pytest.mark.e2e


def test_the_public_surface_is_the_one_that_is_listed():
    listed, now = set(LIST.read_text().splitlines()), set(surface())
    assert not listed - now, (
        "public names are gone. docs/stability.md says when that is allowed; if it is, write them into CHANGELOG.md "
        f"under Removed and run `python -m tests.contract.surface`: {sorted(listed - now)}"
    )
    assert not now - listed, (
        "public names are new, and will have to stay (docs/stability.md). If that is meant, "
        f"run `python -m tests.contract.surface`: {sorted(now - listed)}"
    )
