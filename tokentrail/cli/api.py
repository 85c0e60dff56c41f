"""Client of the collector's `/api/v1`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import httpx

from tokentrail.shared.connection import client

_PAGE: Final = 1000
_TIMEOUT_S: Final = 35
"""Longer than the collector takes before it says that an answer takes too long."""
_LOOK_BACK: Final = "-30d"
_TRACE_ID: Final = re.compile(r"[0-9a-fA-F]{32}")
_FIRST_DIGITS: Final = re.compile(r"[0-9a-fA-F]{8,31}")
_TOO_FEW_DIGITS: Final = re.compile(r"[0-9a-fA-F]{1,7}")
_ANOTHER: Final = "as a collector's API does: another server is there. The API is on port 8080 unless told otherwise"

_KEYS: Final[dict[int, str]] = {
    httpx.codes.UNAUTHORIZED: "set TOKENTRAIL_API_KEY to a key with the role read",
    httpx.codes.FORBIDDEN: "use a key with the role read for all tenants (TOKENTRAIL_API_KEY)",
}
"""By status of a refusal, the way out."""


def other_form(error: Exception) -> str:
    """Tell that an answer could not be read."""
    return f"the collector's answer is of another form than this command reads ({type(error).__name__}: {error})"


class NoSuchRequest(Exception):
    """No request has the id that was asked for. The message says where it was looked for."""


class Api:
    """Reads `/api/v1`, with a key, else that in TOKENTRAIL_API_KEY if there is one; an empty key is none.

    Methods raise httpx.HTTPError when the collector does not answer or answers with an error, and its DecodingError
    when another server answers.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Raises ConnectionSettingError."""
        self._http = client(url, timeout_s=timeout_s, key=key)

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of one endpoint, `path` being relative to /api/v1."""
        answer = self._http.get(f"/api/v1/{path}", params=params)
        answer.raise_for_status()
        return _json(answer)

    def ready(self) -> httpx.Response:
        """The collector's own answer on its readiness, with any status."""
        return self._http.get("/readyz")

    def version(self) -> str | None:
        """The collector's version; None when it does not tell."""
        told: str | None = _json(self._http.get("/healthz")).get("version")
        return told

    def requests(self, **params: Any) -> list[dict[str, Any]]:
        """All request rows of a window, fetched in pages."""
        page = self.get("requests", limit=_PAGE, **params)
        rows: list[dict[str, Any]] = page["requests"]
        while page["next"]:
            page = self.get("requests", limit=_PAGE, cursor=page["next"], **params)
            rows += page["requests"]
        return rows

    def request(self, asked: str, **params: Any) -> Any:
        """One request with its tokens and phases: by its trace id, the first eight digits of it, or its request id.

        Raises NoSuchRequest when none has this id.
        """
        if _TRACE_ID.fullmatch(asked):
            return self.get(f"requests/{asked}", **params)
        for name in ("trace_id", "request_id") if _FIRST_DIGITS.fullmatch(asked) else ("request_id",):
            if rows := self.get("requests", **{name: asked}, start=_LOOK_BACK, limit=1)["requests"]:
                row = rows[0]
                return self.get(f"requests/{row['trace_id']}", **{"span_id": row["span_id"], **params})
        trace = "and no trace id begins with it"
        if _TOO_FEW_DIGITS.fullmatch(asked):
            trace = "and of a trace id it needs the first eight digits or more"
        raise NoSuchRequest(f"no request that ended in the last 30 days has the id {asked}, {trace}")

    @staticmethod
    def key_wanted(status_code: int) -> str:
        """Which key to use after an answer with this status; empty where a key was not the reason."""
        return _KEYS.get(status_code, "")

    @staticmethod
    def problem(answer: httpx.Response) -> str:
        """The collector's own words for an answer that is an error."""
        try:
            return str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            return f"{_place(answer)} answers {answer.status_code}, not {_ANOTHER}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _place(answer: httpx.Response) -> httpx.URL:
    """The address that was asked, without a user and a password."""
    return answer.request.url.copy_with(query=None, userinfo=b"")


def _json(answer: httpx.Response) -> Any:
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise httpx.DecodingError(
            f"{_place(answer)} does not answer {_ANOTHER}",
            request=answer.request,
        )
    return content


def list_of(explained: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of `/requests` that list those which an answer of `/explain` is about; none if there are none."""
    if not explained["selected"]["requests"]:
        return {}
    times = {name: explained["window"][name] for name in ("start", "end")}
    of_slo = {"slo": explained["slo"]} if explained["slo"] else {}
    return times | of_slo | ({"sort": explained["metric"]} if explained["metric"] else {"verdict": "bad"})
