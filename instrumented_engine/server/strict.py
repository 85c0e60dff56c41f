"""JSON objects that refuse unknown fields, and strings that can be tokenised."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


def _no_lone_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("surrogates", "half a surrogate pair is not a character") from error
    return text


Text = Annotated[str, AfterValidator(_no_lone_surrogates)]
"""A string that can be tokenised. JSON can escape half a surrogate pair, which has no encoding."""


class Strict(BaseModel):
    """A JSON object without unknown fields. A field that is null counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def refused(param: str, message: str) -> PydanticCustomError:
    """The error of a parameter with a message for the client."""
    return PydanticCustomError("refused", "{message}", {"message": message, "param": param})


def equal(value: Any, accepted: Any) -> bool:
    """Equality of JSON values; Python's own takes true for 1 and false for 0."""
    return isinstance(value, bool) == isinstance(accepted, bool) and bool(value == accepted)


def shown(value: Any) -> str:
    """A value in a message, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
