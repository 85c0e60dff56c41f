"""Client of the collector's HTTP API: caches answers, and explains failures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from threading import current_thread
from typing import Any

import httpx
import streamlit as st
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

from dashboard import login
from tokentrail.shared.connection import KEY, ConnectionSettingError, client, in_words, remedy

API_URL_VARIABLE = "TOKENTRAIL_API_URL"
"""Address of the collector's API; a user and a password in it are sent, and never shown. Default:
`http://127.0.0.1:8080`."""
DEFAULT_API_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 60.0
"""The collector gives a query up after 30 s and says why; an answer may have several."""
OFFER_TIMEOUT_S = 10.0
"""The page waits for the lists that the filters offer, and can do without them."""
CACHE_S = 2.0
LABELS_S = 60.0
HISTORY_S = 600.0
CLIENT_S = 600.0
_OF_PROXIES = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""With these, and without JSON, a proxy answers when nobody does behind it."""

Params = Sequence[tuple[str, str]]
"""Query parameters; a name may be repeated."""


@dataclass(frozen=True)
class Problem:
    """The reason why there is no answer, and the remedy."""

    title: str
    detail: str
    status: int | None = None
    """HTTP status; None when the collector did not answer."""


@dataclass(frozen=True)
class Query:
    """One GET below `/api/v1`."""

    path: str
    params: tuple[tuple[str, str], ...] = ()


def ask(path: str, params: Params = (), **more: str | float | None) -> Query:
    """A query with the page's parameters and some of its own. Parameters that are None are left out."""
    given = [(name, str(value)) for name, value in more.items() if value is not None]
    return Query(path, (*params, *given))


def api_url() -> str:
    """URL of the collector's API, from TOKENTRAIL_API_URL."""
    return os.environ.get(API_URL_VARIABLE, "").strip().rstrip("/") or DEFAULT_API_URL


# Answers and clients are remembered for the key that asked: another person's key may read other tenants.
@st.cache_resource(ttl=CLIENT_S, max_entries=50, show_spinner=False)
def _client(base: str, key: str | None) -> httpx.Client:
    """A client for the API. Each new one reads the certificates of the machine, and its own, which may be renewed."""
    return client(f"{base}/api/v1/", TIMEOUT_S, key)


def _asked(base: str, key: str | None, query: Query, timeout_s: float) -> dict[str, Any] | Problem:
    try:
        http = _client(base, key)
    except ConnectionSettingError as error:
        return Problem("A setting of the dashboard is wrong", f"{error}.")
    return answer(http, query, timeout_s)


@st.cache_data(ttl=CACHE_S, max_entries=200, show_spinner=False)
def _fetched(base: str, key: str | None, query: Query) -> dict[str, Any] | Problem:
    return _asked(base, key, query, TIMEOUT_S)


def fetch(query: Query) -> dict[str, Any] | Problem:
    """The answer to a query. Sessions with one key that ask the same within `CACHE_S` seconds share it."""
    try:
        key = login.key()
    except PermissionError as error:
        return Problem("You have no key here", str(error), HTTPStatus.FORBIDDEN)
    return _fetched(api_url(), key, query)


_AT_ONCE = ThreadPoolExecutor(4, thread_name_prefix="ask")
"""Questions of all tabs that are asked at one time; the collector lets a few in, and others wait."""


def ask_ahead(*queries: Query) -> None:
    """Ask some questions at once. `fetch` of one of them waits for it alone, so each part is drawn as it comes."""
    try:
        key = login.key()
    except PermissionError:
        return  # `fetch` says so
    context, url, began = get_script_run_ctx(suppress_warning=True), api_url(), time.monotonic()

    def answered(query: Query) -> None:
        if time.monotonic() - began < CACHE_S:  # later, the page has asked it by itself
            add_script_run_ctx(current_thread(), context)
            _fetched(url, key, query)

    for query in queries:
        _AT_ONCE.submit(answered, query)


@st.cache_data(ttl=LABELS_S, max_entries=50, show_spinner=False)
def _found(base: str, key: str | None, query: Query) -> dict[str, Any]:
    return _offered(base, key, query)


def _offered(base: str, key: str | None, query: Query) -> dict[str, Any]:
    answer = _asked(base, key, query, OFFER_TIMEOUT_S)
    if isinstance(answer, Problem):
        raise _Unanswered
    return answer


class _Unanswered(Exception):
    """There is no answer. An exception is not cached, so the next run asks again."""


def fetch_seldom(query: Query) -> dict[str, Any]:
    """A list that a filter offers: an answer is used for `LABELS_S` seconds. A Problem gives nothing."""
    try:
        return _found(api_url(), login.key(), query)
    except (_Unanswered, PermissionError):
        return {}


@st.cache_data(ttl=HISTORY_S, max_entries=200, show_spinner=False)
def _kept(base: str, key: str | None, query: Query) -> dict[str, Any]:
    return _offered(base, key, query)


def fetch_kept(query: Query) -> dict[str, Any]:
    """What is over and changes no more: an answer is used for `HISTORY_S` seconds. A Problem gives nothing."""
    try:
        return _kept(api_url(), login.key(), query)
    except (_Unanswered, PermissionError):
        return {}


def forget() -> None:
    """Forget all answers."""
    for remembered in (_fetched, _found, _kept):
        remembered.clear()


def answer(http: httpx.Client, query: Query, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | Problem:
    """Run one query: the JSON object of the answer, or a Problem."""
    base = http.base_url.copy_with(userinfo=b"", path="/")
    try:
        response = http.get(query.path, params=list(query.params), timeout=timeout_s)
        body = response.json() if response.content else {}
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        return Problem(
            f"{API_URL_VARIABLE} is not a URL of the collector", f"{error} It should look like {DEFAULT_API_URL}."
        )
    except httpx.TimeoutException:
        return Problem(
            "The collector is too slow", f"{base} did not answer within {timeout_s:.0f} s. Try a shorter range."
        )
    except httpx.HTTPError as error:
        return Problem(
            "The collector cannot be reached",
            f"{base} does not answer ({in_words(error)}). "
            + _sentence(remedy(error) or f"start it with tokentrail up, or set {API_URL_VARIABLE} to its address"),
        )
    except ValueError:
        body = None
    if (body is None or not response.content) and response.status_code in _OF_PROXIES:
        return Problem(
            "The collector cannot be reached",
            f"{base} answers {response.status_code} without a reason, as a proxy does when nobody answers behind it. "
            "Is the collector up?",
        )
    if body is None:
        return Problem("This is not the collector's API", f"{base} answers, but not in JSON. Check {API_URL_VARIABLE}.")
    if response.is_error:
        return _refusal(response.status_code, body)
    if not isinstance(body, dict) or not body:  # no answer of the API is empty
        return Problem(
            "This is not the collector's API", f"{base} does not answer with an object. Check {API_URL_VARIABLE}."
        )
    return body


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _refusal(status: int, body: Any) -> Problem:
    """The Problem of an error status, from its RFC 9457 body when it has one."""
    if not isinstance(body, dict):
        body = {}
    errors = [f"{e.get('field')}: {e.get('detail')}" for e in body.get("errors") or [] if isinstance(e, dict)]
    if status == HTTPStatus.UNAUTHORIZED and login.is_asked():
        told = f"The key that {login.VARIABLE} gives you is wrong, revoked or has expired."
        return Problem("The collector does not know your key", told, status)
    if status == HTTPStatus.UNAUTHORIZED and os.environ.get(KEY, "").strip():
        told = f"The key in {KEY} is wrong, revoked or has expired. Set {KEY} to a key with the role read."
        return Problem("The collector does not know the key", told, status)
    if status == HTTPStatus.UNAUTHORIZED:
        return Problem("The collector asks for a key", f"Set {KEY} to a key with the role read.", status)
    detail = "; ".join(errors) or str(body.get("detail") or "The collector gave no reason; its log may.")
    return Problem(str(body.get("title") or f"HTTP {status}"), detail, status)
