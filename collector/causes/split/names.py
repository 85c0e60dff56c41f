"""The causes among which a request's time is divided: the rows of causes.yaml, which explains the columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

_Text = Annotated[str, Field(min_length=1)]


class Cause(BaseModel):
    """One row of causes.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: _Text
    means: _Text
    colour: Annotated[str, Field(pattern=r"^#[0-9a-f]{6}$")]
    advice: dict[str, _Text]
    source: _Text


@cache
def load_causes() -> Mapping[str, Cause]:
    """The causes by name, in the order of the file, which is that of the columns of the table `causes`."""
    text = resources.files(__package__).joinpath("causes.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Cause]).validate_python(yaml.safe_load(text))


PARTS: Final = tuple(load_causes())
"""The names of the causes; the last is `unexplained`."""


def causes_of(group: str) -> list[str]:
    """The causes that people call by one name."""
    return [name for name, cause in load_causes().items() if cause.group == group]
