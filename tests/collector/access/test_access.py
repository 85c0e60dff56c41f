"""Who may call: by key, by host name, and when a collector may listen at all."""

import json
import shlex
from datetime import timedelta

import pytest

from collector.access import asgi
from collector.access.__main__ import main as make_keys
from collector.access.access import (
    Access,
    AmbiguousError,
    ForbiddenError,
    UnauthenticatedError,
    WrongHostError,
    check_exposure,
)
from collector.access.audit import AuditLog
from collector.access.caller import ANYBODY, Role
from collector.access.keyring import Keyring
from collector.access.keys import changing
from collector.app.service import open_access
from collector.pipeline.settings import Settings
from tests.support.keys import CREATED, access_to, add_key

KEYS_FILE = "/data/keys.json"
MAKE_KEY = "tokentrail keys create --role admin --data-dir /data"


def admit(access, role, headers=None, host="collector.example"):
    authorizations = [value for name, value in (headers or {}).items() if name == "authorization"]
    hosts = [] if host is None else [host]
    return access.admit(Role(role), authorizations, hosts=hosts, address="10.0.0.7", route="GET /x")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.json"


NEEDED = {"ingest": "ingest or admin", "read": "read or admin", "admin": "admin"}


@pytest.mark.parametrize(
    ("role", "may"),
    [("ingest", {"ingest"}), ("read", {"read"}), ("admin", {"ingest", "read", "admin"})],
)
def test_roles(path, role, may):
    headers = add_key(path, role, "" if role == "admin" else "acme")
    access = access_to(path)
    for wanted in ("ingest", "read", "admin"):
        if wanted in may:
            caller = admit(access, wanted, headers)
            assert (caller.role, caller.tenant, caller.address) == (role, "" if role == "admin" else "acme", "10.0.0.7")
        else:
            with pytest.raises(ForbiddenError, match=f"role {role}; this needs {NEEDED[wanted]}$"):
                admit(access, wanted, headers)


def test_a_tenant_has_several_keys_so_that_they_can_be_changed(path):
    first, second = add_key(path, "read", "acme"), add_key(path, "read", "acme")
    access = access_to(path)
    assert {admit(access, "read", headers).tenant for headers in (first, second)} == {"acme"}
    with changing(path) as keys:
        keys[0] = keys[0].model_copy(update={"revoked": CREATED})
    with pytest.raises(UnauthenticatedError, match="revoked"):
        admit(access, "read", first)
    assert admit(access, "read", second).tenant == "acme"


def test_an_expired_key_is_refused(path):
    headers = add_key(path, "read", "acme", expires=CREATED + timedelta(days=1))
    access = access_to(path, now=lambda: CREATED)
    assert admit(access, "read", headers)
    with pytest.raises(UnauthenticatedError, match="expired"):
        admit(access_to(path, now=lambda: CREATED + timedelta(days=1)), "read", headers)


@pytest.mark.parametrize("header", ["", "Basic dTpw", "\xff", "Bearerx"])
def test_any_other_scheme_is_no_key(path, header):
    assert admit(Access(), "read", {"authorization": header}).key_id == ""
    add_key(path, "read", "acme")
    with pytest.raises(UnauthenticatedError, match="asks for a key"):
        admit(access_to(path), "read", {"authorization": header})


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer x", "bearer tokentrail_1_2", "Bearer \xff"])
def test_a_wrong_key_is_refused_also_where_none_is_needed(path, header):
    for access in (access_to(path), access_to(path, allow_anonymous=True), Access()):
        with pytest.raises(UnauthenticatedError, match="does not know this key"):
            admit(access, "read", {"authorization": header})


def test_the_word_bearer_may_be_small(path):
    secret = add_key(path, "admin")["authorization"].partition(" ")[2]
    assert admit(access_to(path), "read", {"authorization": f"bearer  {secret} "}).role is Role.ADMIN


def test_without_keys_everybody_may_call_and_with_the_first_one_nobody_without(path):
    access = access_to(path)
    assert admit(access, "admin").role is ANYBODY.role
    add_key(path, "read", "acme")
    with pytest.raises(UnauthenticatedError, match="asks for a key"):
        admit(access, "admin")
    assert admit(access_to(path, allow_anonymous=True), "admin").key_id == ""


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True), ("LOCALHOST:8080", True), ("a.localhost", True), ("127.0.0.1:8080", True),
        ("[::1]:8080", True), ("10.1.2.3", True), ("collector:8080", True), ("Collector.", True), (None, True),
        ("evil.example", False), ("evil.example:8080", False), ("localhost.evil.example", False), ("", False),
        ("127.0.0.1.evil.example", False), ("notlocalhost", False), ("collector.evil.example", False),
    ],
)  # fmt: skip
def test_a_caller_without_a_key_must_use_a_name_of_the_collector(host, allowed):
    access = Access(allowed_hosts=frozenset({"collector"}))
    if allowed:
        assert admit(access, "read", host=host) == ANYBODY.__class__("", Role.ADMIN, "", "10.0.0.7")
    else:
        with pytest.raises(WrongHostError, match="TOKENTRAIL_ALLOWED_HOSTS"):
            admit(access, "read", host=host)


def test_a_caller_with_a_key_may_use_any_name(path):
    headers = add_key(path, "read", "acme")
    assert admit(access_to(path, allowed_hosts=frozenset()), "read", headers, host="slo.example").tenant == "acme"


def test_each_refusal_is_a_line_of_the_audit_log(path):
    headers = add_key(path, "read", "acme")
    access = access_to(path)
    admit(access, "read", headers)
    for refused in ({}, {"authorization": "Bearer x"}, headers):
        with pytest.raises(PermissionError):
            admit(access, "ingest", refused)
    lines = [json.loads(line) for line in path.with_name("audit.denied.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["denied"] * 3
    assert [line.get("key") for line in lines] == [None, None, headers["authorization"].split("_")[1]]
    assert {(line["address"], line["route"]) for line in lines} == {("10.0.0.7", "GET /x")}


def test_the_audit_log_has_the_address_of_a_client_and_the_beginning_of_a_long_path(path):
    add_key(path, "read", "acme")
    scope = {"headers": [], "method": "GET", "path": "/" + "x" * 60_000, "client": ("10.0.0.9", 1234)}
    with pytest.raises(UnauthenticatedError):
        asgi.admit(access_to(path), Role.READ, scope)
    line = json.loads(path.with_name("audit.denied.jsonl").read_text())
    assert (line["address"], line["route"]) == ("10.0.0.9", "GET /" + "x" * 195)


@pytest.mark.parametrize("name", [b"authorization", b"host"])
def test_a_header_of_identity_that_comes_twice_is_refused_by_name(path, name):
    """A proxy in front may have looked at the other one."""
    key = add_key(path, "read", "acme")["authorization"].encode()
    headers = [(b"host", b"127.0.0.1"), (b"authorization", key)]
    scope = {"headers": headers, "method": "GET", "path": "/x", "client": ("10.0.0.9", 1234)}
    access = access_to(path)
    assert asgi.admit(access, Role.READ, scope).tenant == "acme"
    for value in (dict(headers)[name], b"other"):
        with pytest.raises(AmbiguousError, match=f"{name.decode().title()} 2 times"):
            asgi.admit(access, Role.READ, scope | {"headers": [*headers, (name, value)]})


class TestExposure:
    @pytest.mark.parametrize("hosts", [["127.0.0.1", "::1"], ["localhost"], ["127.8.8.8"]])
    def test_loopback_needs_no_key(self, hosts, path):
        check_exposure(hosts, Keyring(path), allow_anonymous=False, keys_file=KEYS_FILE, make_key=MAKE_KEY)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "collector"])
    def test_any_other_address_needs_one_or_the_word_for_none(self, host, path):
        with pytest.raises(ValueError, match=f"Either make one \\({MAKE_KEY}\\), or") as refused:
            check_exposure(
                ["127.0.0.1", host], Keyring(path), allow_anonymous=False, keys_file=KEYS_FILE, make_key=MAKE_KEY
            )
        assert host in str(refused.value)
        assert "TOKENTRAIL_ALLOW_ANONYMOUS=true" in str(refused.value)
        assert KEYS_FILE in str(refused.value)
        check_exposure([host], Keyring(path), allow_anonymous=True, keys_file=KEYS_FILE, make_key=MAKE_KEY)
        add_key(path, "read", "acme")
        check_exposure([host], Keyring(path), allow_anonymous=False, keys_file=KEYS_FILE, make_key=MAKE_KEY)


def test_the_command_that_the_refusal_names_makes_the_key_that_is_missing(path, monkeypatch):
    for settings in (Settings(data_dir=path.parent / "a folder"), Settings(keys=path.parent / "its keys")):
        with pytest.raises(ValueError, match="Either make one") as refused:
            open_access(settings, ["0.0.0.0"])
        variable, _, command = str(refused.value).partition("(")[2].partition(")")[0].partition("tokentrail keys ")
        with monkeypatch.context() as patched:
            for setting in shlex.split(variable):
                patched.setenv(*setting.split("=", 1))
            assert make_keys(shlex.split(command)) == 0
        open_access(settings, ["0.0.0.0"])


@pytest.mark.parametrize("allow_anonymous", [True, False])
def test_a_file_of_keys_that_is_named_and_missing_is_warned_of(path, caplog, allow_anonymous):
    open_access(Settings(data_dir=path.parent), ["127.0.0.1"])
    assert caplog.text == ""
    open_access(Settings(keys=path, allow_anonymous=allow_anonymous), ["127.0.0.1"])
    assert (f"{path} has no keys" in caplog.text) is not allow_anonymous


@pytest.mark.parametrize(("allow_anonymous", "warned"), [(True, True), (False, False)])
def test_keys_that_nobody_needs_are_warned_of(path, caplog, allow_anonymous, warned):
    settings = Settings(data_dir=path.parent, keys=path, allow_anonymous=allow_anonymous)
    open_access(settings, ["127.0.0.1"])
    assert "although there are keys" not in caplog.text
    add_key(path, "read", "acme")
    open_access(settings, ["127.0.0.1"])
    assert ("callers without a key may do everything, although there are keys" in caplog.text) is warned


def test_the_default_log_is_no_log():
    assert isinstance(Access().audit, AuditLog)
