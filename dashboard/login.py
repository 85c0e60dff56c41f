"""A login by OpenID Connect, and the collector's key of each person: TOKENTRAIL_LOGIN names a TOML file.

    issuer = "https://login.example"
    client_id = "tokentrail"
    client_secret_file = "/run/secrets/oidc"
    redirect_uri = "https://slo.example/oauth2callback"
    cookie_secret_file = "/run/secrets/cookie"

    [keys]                                         # the first that fits counts; each names a file with a key
    "ann@acme.example" = "/run/secrets/acme.key"
    "*@bolt.example" = "/run/secrets/bolt.key"

`claim` is the claim of the ID token that names a person, `email` by default. An address needs the claim
`email_verified` with true; `trust_unverified = true` is for a provider that has no such claim. Streamlit does the
login and signs its cookie (https://docs.streamlit.io/develop/concepts/connections/authentication).
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import streamlit as st

from tokentrail.shared import regular_files
from tokentrail.shared.formatting import plain

logger = logging.getLogger(__name__)

VARIABLE: Final = "TOKENTRAIL_LOGIN"
"""A TOML file with a login by OpenID Connect and each person's key (docs/dashboard.md#login)."""
_TEXTS: Final = ("issuer", "client_id", "client_secret_file", "redirect_uri", "cookie_secret_file")
_MOST_BYTES: Final = 4096
_ADDRESS: Final = re.compile(r"[a-z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-z0-9-]+(\.[a-z0-9-]+)*", re.ASCII | re.IGNORECASE)
"""One address, as browsers take it: https://html.spec.whatwg.org/multipage/input.html#valid-e-mail-address."""
_VERIFIED: Final = (True, "true")
"""JSON of providers that keep to OpenID Connect Core 1.0, 5.1, and of those that write it as a text."""


class LoginSettingError(ValueError):
    """The file cannot be used. The message names it and what is wrong."""


@dataclass(frozen=True)
class Login:
    """The login that a file describes.

    `secrets` are Streamlit's, and `keys` are pairs of a pattern of the claim and a file with a key. With
    `trust_unverified`, an address counts of which the provider does not say whether it is verified.
    """

    secrets: dict[str, Any]
    claim: str
    keys: tuple[tuple[str, Path], ...]
    trust_unverified: bool = False

    def key(self, person: Mapping[str, Any]) -> str:
        """The key of a person by the claims of their ID token. Raises PermissionError with what they can do.

        A pattern with an `@` fits one address and nothing else.
        """
        name = person.get(self.claim)
        if not isinstance(name, str) or not name:
            raise PermissionError(f"The login did not tell the claim {self.claim}.")
        if self.claim == "email" and not self._is_verified(person):
            raise PermissionError(f"The login does not say that the address {name} is verified.")
        for pattern, file in self.keys:
            is_one = "@" not in pattern or _ADDRESS.fullmatch(name)
            if is_one and fnmatchcase(name.lower(), pattern.lower()):
                return _content(file)
        raise PermissionError(f"{name} has no key here. Who runs this dashboard can give one, in {VARIABLE}.")

    def _is_verified(self, person: Mapping[str, Any]) -> bool:
        if "email_verified" not in person:
            return self.trust_unverified
        told = person["email_verified"]
        return type(told) in (bool, str) and told in _VERIFIED  # 1 == True


def read(path: str) -> Login:
    """The login that a file describes. Raises LoginSettingError."""
    try:
        given = tomllib.loads(regular_files.read(path).decode())
    except (OSError, ValueError) as error:
        raise LoginSettingError(f"{VARIABLE}={path}: {error}") from error
    unknown = given.keys() - {*_TEXTS, "claim", "keys", "trust_unverified"}
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
    trust_unverified = given.get("trust_unverified", False)
    if not isinstance(trust_unverified, bool):
        raise LoginSettingError(f"{VARIABLE}={path}: trust_unverified is neither true nor false")
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
    patterns = tuple((pattern, Path(file)) for pattern, file in keys.items())
    return Login({"auth": auth}, claim, patterns, trust_unverified)


def from_environment() -> Login | None:
    """The login of TOKENTRAIL_LOGIN; None where it is not set. Raises LoginSettingError."""
    path = os.environ.get(VARIABLE, "").strip()
    return read(path) if path else None


def is_asked() -> bool:
    """Whether there is a login."""
    return bool(os.environ.get(VARIABLE, "").strip())


def required() -> None:
    """Ask who is there, where there is a login: a page goes on only for a person with a key."""
    if not is_asked():
        return
    if not st.user.is_logged_in:
        st.title("tokentrail")
        st.button("Log in", on_click=st.login, type="primary")
        st.stop()
    try:
        key()
    except PermissionError as error:
        st.error(plain(str(error)))
        st.button("Log out", on_click=st.logout)
        st.stop()
    with st.sidebar:
        st.button("Log out", on_click=st.logout)


def key() -> str | None:
    """The key of the person whose page is drawn; None where there is no login, and TOKENTRAIL_API_KEY counts.

    It is looked up each time: a person who was removed has none from then on, also in a tab that is open. Raises
    PermissionError.
    """
    try:
        login = from_environment()
    except LoginSettingError as error:
        logger.error("%s", error)
        raise PermissionError("The login of this dashboard cannot be used at present; its log says why.") from error
    return login.key(st.user.to_dict()) if login else None


def _content(file: Path) -> str:
    """The text of a file with a secret. It is read each time, so a key that is made anew counts at once."""
    try:
        text = regular_files.read(file, _MOST_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        raise PermissionError(f"{file} cannot be read: {error}") from error
    if not text:
        raise PermissionError(f"{file} is empty")
    return text
