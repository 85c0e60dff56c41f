"""Errors as RFC 9457 problem documents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from collector.base.store_errors import StoreUnavailableError
from collector.store.damage import damage_of

logger = logging.getLogger(__name__)

_REFERENCE: Final = "#/components/schemas/{model}"
_RETRY_AFTER_S: Final = 5
"""When a client should ask again while the store's server is away."""
_SHOWN_PATH: Final = 200
_KEY: Final = "A key of `tokentrail keys`, where the collector has keys."
NO_KEY: Final[dict[str, Any]] = {"security": []}
"""`openapi_extra` of a route that needs no key."""


class ParameterProblem(BaseModel):
    """A wrong parameter, and how to correct it."""

    field: str
    detail: str


class ProblemDocument(BaseModel):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ParameterProblem] | None = None


def responses(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """The errors of an endpoint, for the OpenAPI document."""
    content = {"application/problem+json": {"schema": {"$ref": _REFERENCE.format(model=ProblemDocument.__name__)}}}
    return {status.value: {"description": status.phrase, "content": content} for status in statuses}


class Problem(Exception):
    """A handler raises this to answer with an error."""

    def __init__(self, status: HTTPStatus, detail: str, errors: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors


def bad_parameter(field: str, detail: str) -> Problem:
    """A 400 that names one parameter."""
    return Problem(HTTPStatus.BAD_REQUEST, f"{field}: {detail}", [(field, detail)])


def not_found(detail: str) -> Problem:
    """A 404 with a reason."""
    return Problem(HTTPStatus.NOT_FOUND, detail)


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document, and say in the OpenAPI document how a key is sent."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StoreUnavailableError, _unavailable)
    app.add_exception_handler(Exception, unexpected)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        """The document with the errors' models, and without FastAPI's 422: a bad parameter is a 400 here."""
        document = describe()
        _, models = models_json_schema([(ProblemDocument, "serialization")], ref_template=_REFERENCE)
        document["components"]["schemas"] |= models["$defs"]
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": _KEY}}
        document["security"] = [{"key": []}, {}]
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to change it


def answer(status: int, detail: str, errors: Sequence[tuple[str, str]] = (), headers: Any = None) -> JSONResponse:
    """A problem document as an answer."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if errors:
        body["errors"] = [{"field": field, "detail": text} for field, text in errors]
    return JSONResponse(body, status, media_type="application/problem+json", headers=headers)


def _problem(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return answer(error.status, error.detail, error.errors)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [(_field(e), _text(e)) for e in error.errors()]
    return answer(HTTPStatus.BAD_REQUEST, "; ".join(f"{field}: {text}" for field, text in errors), errors)


def _field(error: Any) -> str:
    return str(error["loc"][1]) if len(error["loc"]) > 1 else "query"


def _text(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown parameter"
    return str(error["msg"]).removeprefix("Value error, ")


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:  # every other 404 is a Problem
        detail = f"this API has no path {request.url.path[:_SHOWN_PATH]}; /docs lists the paths"
    return answer(error.status_code, detail, headers=error.headers)


def _unavailable(_: Request, error: Exception) -> JSONResponse:
    return answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers={"Retry-After": str(_RETRY_AFTER_S)})


def unexpected(request: Request, error: Exception) -> JSONResponse:
    """Answer 500, and log the error. A damaged part of a table is named in both."""
    if damage := damage_of(error):
        logger.error("%s %s failed: %s", request.method, request.url.path, damage)
        return answer(HTTPStatus.INTERNAL_SERVER_ERROR, damage)
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(HTTPStatus.INTERNAL_SERVER_ERROR, "the collector could not answer; its log says why")
