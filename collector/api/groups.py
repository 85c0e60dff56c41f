"""Parameters of endpoints that tell requests apart by a column."""

from __future__ import annotations

from pydantic import Field

from collector.api.parameters import WindowQuery
from collector.api.problems import bad_parameter
from collector.numbers.groups import GroupColumn
from collector.slo.model import LabelOf


class GroupsQuery(WindowQuery):
    """A column, and the number of its values that have an answer of their own."""

    group_by: GroupColumn | LabelOf | None = Field(
        None,
        description="also the answer for each value of this column, or of a label (`label.region`), and for the others "
        "together",
    )
    top: int = Field(10, ge=1, le=30, description="values that have one, those with the most requests")

    def groups(self) -> tuple[str, int] | None:
        """The column and the number; raises Problem for a number without a column."""
        must_have_column(self, self.group_by)
        return None if self.group_by is None else (self.group_by, self.top)


def must_have_column(query: WindowQuery, column: str | None) -> None:
    """Raise Problem (400) for a number of groups without the column that makes them."""
    if column is None and "top" in query.model_fields_set:
        raise bad_parameter("top", "is a number of groups: give group_by=variant or another column too")
