"""The identity of an engine process. Two tenants may have processes of one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
PROCESS: Final = "process"
"""The dimension of requests by their engine process, which the columns of `Process` tell together."""
_BETWEEN: Final = "\0"


class Process(NamedTuple):
    """An engine process. Its columns have these names in every table (ask/sql/process.sql)."""

    service: str
    instance: str
    process_tenant: str = ""
    """The tenant that its resource names, which is that of the sender's key; empty: it belongs to all tenants."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Process:
        """The process of a row."""
        return cls(row["service"], row["instance"], row["process_tenant"])

    @property
    def of_all_tenants(self) -> Process:
        """The process of this name that belongs to all tenants. What it tells holds for a tenant's requests too."""
        return self._replace(process_tenant="")

    @classmethod
    def of_joined(cls, names: str) -> Process:
        """The process whose names `joined` has put together."""
        return cls(*names.split(_BETWEEN, 2))

    @property
    def joined(self) -> str:
        """Its names as one text, as `column_of("process")` has them."""
        return _BETWEEN.join(self)

    @property
    def title(self) -> str:
        """Its name in a sentence: `chat e1`, or `chat e1 of acme`."""
        name = f"{self.service} {self.instance}".strip()
        return f"{name} of {self.process_tenant}" if self.process_tenant else name


def by_turns(found: Iterable[T], tenant_of: Callable[[T], str]) -> list[T]:
    """Put what belongs to no tenant first, then the first of each tenant, then the second of each, and so on.

    The first hundred of a list so have a share of each tenant, however many one of them has.
    """
    turns: Counter[str] = Counter()
    places = []
    for one in found:
        tenant = tenant_of(one)
        turns[tenant] += 1
        places.append((turns[tenant] if tenant else 0, one))
    return [one for _, one in sorted(places, key=lambda place: place[0])]
