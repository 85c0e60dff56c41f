"""Client of the collector's `/api/v1`."""

from __future__ import annotations

import os
from typing import Any

import httpx

_PAGE = 1000


class Api:
    """Reads `/api/v1`, with the key in TOKENTRAIL_API_KEY if there is one.

    Methods raise httpx.HTTPError when the collector does not answer or answers with an error.
    """

    def __init__(self, url: str) -> None:
        key = os.environ.get("TOKENTRAIL_API_KEY", "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False, headers=headers)

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of one endpoint, `path` being relative to /api/v1."""
        answer = self._http.get(f"/api/v1/{path}", params=params)
        answer.raise_for_status()
        return answer.json()

    def ready(self) -> httpx.Response:
        """The collector's own answer on its readiness, with any status."""
        return self._http.get("/readyz")

    def requests(self, **params: Any) -> list[dict[str, Any]]:
        """All request rows of a window, fetched in pages."""
        page = self.get("requests", limit=_PAGE, **params)
        rows: list[dict[str, Any]] = page["requests"]
        while page["next"]:
            page = self.get("requests", limit=_PAGE, cursor=page["next"], **params)
            rows += page["requests"]
        return rows

    @staticmethod
    def problem(answer: httpx.Response) -> str:
        """The collector's own words for an answer that is an error."""
        try:
            return str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            return f"{answer.request.url} answers {answer.status_code}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
