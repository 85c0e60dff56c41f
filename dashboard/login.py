"""A login by OpenID Connect, and the collector's key of each person: TOKENTRAIL_LOGIN names a TOML file.

    issuer = "https://login.example"
    client_id = "tokentrail"
    client_secret_file = "/run/secrets/oidc"
    redirect_uri = "https://slo.example/oauth2callback"
    cookie_secret_file = "/run/secrets/cookie"

    [keys]                                         # the first that fits counts; each names a file with a key
    "ann@acme.example" = "/run/secrets/acme.key"
    "*@bolt.example" = "/run/secrets/bolt.key"

`claim` is the claim of the ID token that names a person, `email` by default. Streamlit does the login and signs its
cookie (https://docs.streamlit.io/develop/concepts/connections/authentication).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import streamlit as st

from tokentrail.shared.formatting import plain

VARIABLE: Final = "TOKENTRAIL_LOGIN"
"""A TOML file with a login by OpenID Connect and each person's key (docs/dashboard.md#login)."""
_TEXTS: Final = ("issuer", "client_id", "client_secret_file", "redirect_uri", "cookie_secret_file")
_MOST_BYTES: Final = 4096


class LoginSettingError(ValueError):
    """The file cannot be used. The message names it and what is wrong."""


@dataclass(frozen=True)
class Login:
    """The login that a file describes.

    `secrets` are Streamlit's, and `keys` are pairs of a pattern of the claim and a file with a key.
    """

    secrets: dict[str, Any]
    claim: str
    keys: tuple[tuple[str, Path], ...]

    def key(self, person: Mapping[str, Any]) -> str:
        """The key of a person by the claims of their ID token. Raises PermissionError with what they can do."""
        name = person.get(self.claim)
        if not isinstance(name, str) or not name:
            raise PermissionError(f"The login did not tell the claim {self.claim}.")
        if self.claim == "email" and person.get("email_verified") is False:
            raise PermissionError(f"The address {name} is not verified at the login.")
        for pattern, file in self.keys:
            if fnmatchcase(name.lower(), pattern.lower()):
                return _content(file)
        raise PermissionError(f"{name} has no key here. Who runs this dashboard can give one, in {VARIABLE}.")


def read(path: str) -> Login:
    """The login that a file describes. Raises LoginSettingError."""
    try:
        given = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise LoginSettingError(f"{VARIABLE}={path}: {error}") from error
    unknown = given.keys() - {*_TEXTS, "claim", "keys"}
    if unknown:
        raise LoginSettingError(f"{VARIABLE}={path}: {', '.join(sorted(unknown))} is not known")
    for name in _TEXTS:
        if not isinstance(given.get(name), str) or not given[name]:
            raise LoginSettingError(f"{VARIABLE}={path}: {name} is missing")
    keys, claim = given.get("keys"), given.get("claim", "email")
    if not isinstance(keys, dict) or not keys or not all(isinstance(file, str) for file in keys.values()):
        raise LoginSettingError(f"{VARIABLE}={path}: [keys] has no person and file, so nobody could read anything")
    if not isinstance(claim, str):
        raise LoginSettingError(f"{VARIABLE}={path}: claim is no text")
    auth = {
        "server_metadata_url": f"{given['issuer'].rstrip('/')}/.well-known/openid-configuration",
        "client_id": given["client_id"],
        "redirect_uri": given["redirect_uri"],
    }
    for name in ("client_secret", "cookie_secret"):
        try:
            auth[name] = _content(Path(given[f"{name}_file"]))
        except PermissionError as error:
            raise LoginSettingError(f"{VARIABLE}={path}: {name}_file: {error}") from error
    return Login({"auth": auth}, claim, tuple((pattern, Path(file)) for pattern, file in keys.items()))


def from_environment() -> Login | None:
    """The login of TOKENTRAIL_LOGIN; None where it is not set. Raises LoginSettingError."""
    path = os.environ.get(VARIABLE, "").strip()
    return read(path) if path else None


def required() -> None:
    """Ask who is there, where there is a login: a page goes on only for a person with a key."""
    login = from_environment()
    if login is None:
        return
    if not st.user.is_logged_in:
        st.title("tokentrail")
        st.button("Log in", on_click=st.login, type="primary")
        st.stop()
    try:
        st.session_state[_KEY] = login.key(st.user.to_dict())
    except PermissionError as error:
        st.error(plain(str(error)))
        st.button("Log out", on_click=st.logout)
        st.stop()
    with st.sidebar:
        st.button("Log out", on_click=st.logout)


def key() -> str | None:
    """The key of the person whose page is drawn; None where there is no login, and TOKENTRAIL_API_KEY counts."""
    return st.session_state.get(_KEY)


_KEY: Final = "_key"


def _content(file: Path) -> str:
    """The text of a file with a secret. It is read each time, so a key that is made anew counts at once."""
    try:
        with file.open() as opened:
            text = opened.read(_MOST_BYTES).strip()
    except (OSError, ValueError) as error:
        raise PermissionError(f"{file} cannot be read: {error}") from error
    if not text:
        raise PermissionError(f"{file} is empty")
    return text
