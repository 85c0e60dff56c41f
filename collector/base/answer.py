"""The base of the models that the API answers with."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A part of an answer. The docstring under a field describes it in the OpenAPI document and in docs/api.md."""

    model_config = ConfigDict(use_attribute_docstrings=True)
