"""The login of the dashboard: its file, and a browser that logs in at a provider of OpenID Connect on this machine."""

import contextlib
import json
import os
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from dashboard import api, login
from dashboard.api import Query
from dashboard.login import LoginSettingError, read
from tests.dashboard.browser import streamlit
from tokentrail.cli.processes import free_port


class Provider(ThreadingHTTPServer):
    """Logs everybody in as `person`, without a question."""

    daemon_threads = True

    def __init__(self):
        self.person, self.nonce = {}, ""
        self.key = RSAKey.generate_key(2048, {"kid": "k"}, auto_kid=False)
        super().__init__(("127.0.0.1", 0), Pages)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Pages(BaseHTTPRequestHandler):
    server: "Provider"

    def do_GET(self):
        url, query = self.server.url, parse_qs(urlsplit(self.path).query)
        if self.path.startswith("/authorize"):
            self.server.nonce = query["nonce"][0]
            back = {"code": "c", "state": query["state"][0]}
            self.send_response(302)
            self.send_header("location", f"{query['redirect_uri'][0]}?{urlencode(back)}")
            self.end_headers()
        elif self.path == "/jwks":
            self.answer({"keys": [self.server.key.as_dict(private=False)]})
        else:
            places = {f"{name}_endpoint": f"{url}/{path}" for name, path in PLACES.items()}
            algorithms = {"id_token_signing_alg_values_supported": ["RS256"]}
            self.answer({"issuer": url, "jwks_uri": f"{url}/jwks", **places, **algorithms})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        now = int(time.time())
        claims = {"iss": self.server.url, "aud": "tokentrail", "sub": "1", "iat": now, "exp": now + 600}
        claims |= {"nonce": self.server.nonce, **self.server.person}
        token = jwt.encode({"alg": "RS256", "kid": "k"}, claims, self.server.key)
        self.answer({"access_token": "a", "token_type": "Bearer", "id_token": token, "expires_in": 600})

    def answer(self, body):
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


VERIFIED = {"email_verified": True}
PLACES = {"authorization": "authorize", "token": "token"}


class Api(ThreadingHTTPServer):
    """Keeps the keys that it was asked with."""

    daemon_threads = True

    def __init__(self):
        self.keys = []
        super().__init__(("127.0.0.1", 0), Asked)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Asked(Pages):
    server: "Api"

    def do_GET(self):
        self.server.keys.append(self.headers.get("authorization"))
        self.answer({})


def secret(name):
    return f"key-of-{name}-which-is-long-enough-to-sign"


def write(tmp_path, url, port=1, **changes):
    for name in ("secret", "cookie", "ann", "bolt"):
        (tmp_path / name).write_text(f"{secret(name)}\n")
    texts = {
        "issuer": url,
        "client_id": "tokentrail",
        "client_secret_file": str(tmp_path / "secret"),
        "redirect_uri": f"http://127.0.0.1:{port}/oauth2callback",
        "cookie_secret_file": str(tmp_path / "cookie"),
        **changes,
    }
    keys = f'[keys]\n"ann@acme.example" = "{tmp_path}/ann"\n"*@bolt.example" = "{tmp_path}/bolt"\n'
    file = tmp_path / "login.toml"
    file.write_text("".join(f'{name} = "{text}"\n' for name, text in texts.items() if text) + keys)
    return str(file)


def test_each_person_has_the_key_of_the_first_pattern_that_fits(tmp_path):
    login = read(write(tmp_path, "https://login.example/"))
    assert login.secrets["auth"]["server_metadata_url"] == "https://login.example/.well-known/openid-configuration"
    assert login.key({"email": "Ann@acme.example", **VERIFIED}) == secret("ann")
    assert login.key({"email": "bo@bolt.example", **VERIFIED}) == secret("bolt")
    by_name = replace(login, claim="name")
    assert by_name.key({"name": "bo@bolt.example", "email_verified": False}) == secret("bolt"), "of no address"
    (tmp_path / "ann").write_text("another")
    assert login.key({"email": "ann@acme.example", **VERIFIED}) == "another", "a new key counts at once"
    (tmp_path / "ann").unlink()
    os.mkfifo(tmp_path / "ann")
    with pytest.raises(PermissionError, match="cannot be read: it is no regular file"):
        login.key({"email": "ann@acme.example", **VERIFIED})


ABSENT = object()
"""The claim is not there."""


@pytest.mark.parametrize(
    ("told", "counts", "counts_where_trusted"),
    [
        (True, True, True),
        ("true", True, True),
        (ABSENT, False, True),
        *(
            (told, False, False)
            for told in (False, "false", "False", "True", "yes", "", 0, 1, 1.0, None, [], [True], {})
        ),
    ],
)
def test_an_address_counts_where_the_provider_says_that_it_is_verified(tmp_path, told, counts, counts_where_trusted):
    person = {"email": "bo@bolt.example"} | ({} if told is ABSENT else {"email_verified": told})
    for trusting, expected in (("false", counts), ("true", counts_where_trusted)):
        file = Path(write(tmp_path, "https://login.example"))
        file.write_text(f"trust_unverified = {trusting}\n{file.read_text()}")
        if expected:
            assert read(str(file)).key(person) == secret("bolt")
        else:
            with pytest.raises(PermissionError, match=r"does not say that the address bo@bolt\.example is verified"):
                read(str(file)).key(person)


@pytest.mark.parametrize("claim", ["email", "name"])
@pytest.mark.parametrize(
    "name",
    ["evil@evil.example, x@bolt.example", "evil@evil.example,x@bolt.example", "a@b@bolt.example", "@bolt.example",
     "Bo <bo@bolt.example", "\"evil@evil.example\" x@bolt.example", "evil@evil.example\nx@bolt.example",
     "x@bolt.example\n", " x@bolt.example", "evil@evil.example;x@bolt.example", "(x)@bolt.example",
     "x@bolt.example\u0130"],
)  # fmt: skip
def test_a_pattern_of_addresses_fits_exactly_one_address(tmp_path, claim, name):
    login = replace(read(write(tmp_path, "https://login.example")), claim=claim)
    with pytest.raises(PermissionError, match="has no key here"):
        login.key({claim: name, **VERIFIED})


def test_a_pattern_without_an_address_fits_any_name(tmp_path):
    login = replace(read(write(tmp_path, "https://login.example")), claim="group", keys=(("ops, *", tmp_path / "ann"),))
    assert login.key({"group": "ops, night"}) == secret("ann")


def test_a_tab_that_is_open_asks_with_the_key_of_the_moment(tmp_path, monkeypatch, caplog):
    api.forget()
    asked = []
    monkeypatch.setattr(api, "_asked", lambda _base, key, *_: asked.append(key) or {"answer": key})
    file, person = Path(write(tmp_path, "https://login.example")), {"email": "bo@bolt.example", **VERIFIED}
    monkeypatch.setattr(login, "st", SimpleNamespace(user=SimpleNamespace(to_dict=lambda: person)))
    monkeypatch.setenv(login.VARIABLE, str(file))
    fetches = (api.fetch, api.fetch_seldom, api.fetch_kept)

    def found():
        return [fetch(Query("summary")) for fetch in fetches]

    assert found() == [{"answer": secret("bolt")}] * 3
    (tmp_path / "bolt").write_text("renewed")
    assert found() == [{"answer": "renewed"}] * 3
    whole = file.read_text()
    for content, told in (
        (whole.replace("*@bolt.example", "*@bolt2.example"), "bo@bolt.example has no key here"),
        (whole.partition("[keys]")[0], "cannot be used at present"),
    ):
        file.write_text(content)
        problem, *lists = found()
        assert (problem.status, lists) == (403, [{}, {}])
        assert told in problem.detail
    assert "nobody could read anything" in caplog.text
    assert asked == [secret("bolt")] * 3 + ["renewed"] * 3
    api.forget()


@pytest.mark.parametrize(
    ("person", "word"),
    [
        ({"email": "eve@acme.example", **VERIFIED}, "eve@acme.example has no key"),
        ({"email": "x@bolt.example.evil", **VERIFIED}, "no key"),
        ({"email": ["ann@acme.example"], **VERIFIED}, "claim email"),
        ({}, "claim email"),
    ],
)
def test_nobody_else_has_one(tmp_path, person, word):
    with pytest.raises(PermissionError, match=word):
        read(write(tmp_path, "https://login.example/")).key(person)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"issuer": ""}, "issuer is missing"),
        ({"isuer": "x"}, "isuer is not known"),
        ({"client_id": ""}, "client_id is missing"),
        ({"cookie_secret_file": "/nowhere"}, "cookie_secret_file: /nowhere cannot be read"),
        ({"trust_unverified": "yes"}, "trust_unverified is neither true nor false"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, changes, word):
    with pytest.raises(LoginSettingError, match=f"TOKENTRAIL_LOGIN=.*{word}"):
        read(write(tmp_path, "https://login.example", **changes))


def test_a_login_without_keys_is_refused(tmp_path):
    file = tmp_path / "login.toml"
    write(tmp_path, "https://login.example")
    file.write_text(file.read_text().partition("[keys]")[0])
    with pytest.raises(LoginSettingError, match="nobody could read"):
        read(str(file))


def shows(browser, url, cookies, locate):
    """Another browser with these cookies shows what `locate` finds on its page."""
    with contextlib.closing(browser.new_context()) as context:
        context.add_cookies(cookies)
        other = context.new_page()
        other.goto(f"{url}/explore")
        locate(other).first.wait_for()


def test_a_browser_reads_with_the_key_of_the_person_and_with_none_before(page, tmp_path):
    provider, api, port = Provider(), Api(), free_port(0)
    for server in (provider, api):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {"TOKENTRAIL_LOGIN": write(tmp_path, provider.url, port), "TOKENTRAIL_API_KEY": "everything"}
    log_in, log_out = (page.get_by_role("button", name=name) for name in ("Log in", "Log out"))
    with (
        contextlib.closing(provider.socket),
        contextlib.closing(api.socket),
        streamlit(api.url, tmp_path, port=port, **settings) as url,
    ):
        for email, key in (("ann@acme.example", "ann"), ("bo@bolt.example", "bolt")):
            provider.person = {"email": email, **VERIFIED}
            page.goto(f"{url}/explore")
            log_in.wait_for()
            assert api.keys == [], "nothing is asked before"
            before = page.context.cookies()
            log_in.click()
            page.get_by_text("This is not the collector's API").first.wait_for()
            assert {*api.keys} == {f"Bearer {secret(key)}"}
            after = page.context.cookies()
            log_out.click()
            log_in.wait_for()
            api.keys.clear()
        browser = page.context.browser
        assert before, "there are cookies before a login, which somebody may have planted"
        shows(browser, url, before, lambda other: other.get_by_role("button", name="Log in"))
        assert api.keys == [], "the cookies from before a login are nobody's after it"
        shows(browser, url, after, lambda other: other.get_by_text("This is not the collector's API"))
        assert {*api.keys} == {f"Bearer {secret('bolt')}"}, "those from after it are the person's"
        api.keys.clear()
        provider.person = {"email": "eve@acme.example", **VERIFIED}
        log_in.click()
        page.get_by_text("eve@acme.example has no key here").wait_for()
        assert api.keys == []
        page.goto("about:blank")
        provider.shutdown()
        api.shutdown()
