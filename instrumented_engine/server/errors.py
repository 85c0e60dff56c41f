"""Error responses in OpenAI's JSON format: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException


class ApiError(HTTPException):
    """A refusal or failure with OpenAI's fields. `code` is also the trace's `error.type`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the response."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str, message: str) -> ApiError:
    """A parameter has a bad value."""
    return ApiError(400, message, code="invalid_value", param=param)


def too_long(prompt: int, output: int, limit: int, param: str) -> ApiError:
    """Prompt and output do not fit the context."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + output} tokens "
        f"({prompt} in the prompt, {output} for the output). Please reduce the prompt or the output length."
    )
    return ApiError(400, message, code="context_length_exceeded", param=param)


def unknown_model(model: str, served: str) -> ApiError:
    """The request names another model than the served one."""
    return ApiError(404, f"The model {model!r} does not exist; this server has {served!r}.", code="model_not_found")


def body_too_large(limit: int) -> ApiError:
    """The request body is over the limit."""
    return ApiError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")


def overloaded(limit: int) -> ApiError:
    """Too many requests are waiting."""
    message = f"The server is overloaded: {limit} requests are waiting already. Please retry later."
    return ApiError(503, message, code="overloaded", headers={"Retry-After": "1"})


def too_many_connections(limit: int) -> ApiError:
    """More clients are connected than this server can have waiting."""
    message = f"The server is overloaded: {limit} connections are open. Please retry later."
    return ApiError(503, message, code="overloaded", headers={"Retry-After": "1", "Connection": "close"})


def too_many_bytes(limit: int) -> ApiError:
    """The bodies of all requests under way are large."""
    message = f"The server is overloaded: requests of {limit} bytes are under way. Please retry later."
    return ApiError(503, message, code="overloaded", headers={"Retry-After": "1"})


def busy() -> ApiError:
    """The model cannot be unloaded now."""
    return ApiError(409, "The model is loading, or requests are under way; nothing was unloaded.", code="busy")


def unavailable(reason: Exception | str) -> ApiError:
    """The engine cannot serve."""
    return ApiError(503, f"The engine is not available: {reason}", code="engine_unavailable")


def cut_off() -> ApiError:
    """The process ends, and the request took longer than it could wait."""
    return unavailable("it stops, and the request took longer than --shutdown-grace-s. Please retry")


def step_failed(reason: Exception) -> ApiError:
    """The request's step failed."""
    message = f"The engine failed while working on this request: {type(reason).__name__}: {reason}"
    return ApiError(500, message, code="engine_error")


def install(app: FastAPI, told: Counter[str]) -> None:
    """Make the app answer every error in this format, and count the answers by their code."""

    def answering(read: Callable[[Exception], ApiError]) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
        async def answer(_: Request, error: Exception) -> JSONResponse:
            answered = read(error)
            told[answered.code] += 1
            return response(answered)

        return answer

    app.add_exception_handler(StarletteHTTPException, answering(_http))
    app.add_exception_handler(RequestValidationError, answering(_validation))
    app.add_exception_handler(Exception, answering(_unexpected))


def response(error: ApiError) -> JSONResponse:
    """The HTTP answer that tells an error."""
    return JSONResponse(error.body, error.status_code, headers=error.headers)


def _http(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    assert isinstance(error, StarletteHTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return ApiError(error.status_code, str(error.detail), code=code, headers=error.headers)


def _validation(error: Exception) -> ApiError:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = [ascii(part).strip("'") for part in first["loc"] if part != "body" and not _is_type_label(part)]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        name = ascii(first["loc"][-1]).strip("'")
        message = f"Unrecognized request argument: {name}"
        return ApiError(400, message, code="unknown_parameter", param=path[0] if path else name)
    param = first.get("ctx", {}).get("param") or (path[0] if path else None)
    where = f"{'.'.join(path)}: " if path else ""
    return ApiError(400, where + first["msg"], code="invalid_value", param=param)


def _is_type_label(part: int | str) -> bool:
    """Whether pydantic put this part into an error's path to name a member of a union, such as `list[int]`."""
    return isinstance(part, str) and part.startswith(("list[", "function-"))


def _unexpected(error: Exception) -> ApiError:
    return ApiError(500, f"internal error: {type(error).__name__}", code="internal_error")
