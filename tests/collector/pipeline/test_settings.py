"""The store's address, user and password, as settings of their own."""

import importlib.util
import inspect
import re
from inspect import signature
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from clickhouse_connect.driver import create_client
from clickhouse_connect.driver.httpclient import HttpClient
from pydantic import ValidationError

from collector.app.scraping import open_scraper
from collector.base.status import IngestStatus
from collector.pipeline.settings import File, Settings, load_settings
from collector.store import Store, StoreError
from collector.store.definitions import Decoding

SECONDS = [name for name in Settings.model_fields if name.endswith("_s") and "per_s" not in name]


@pytest.mark.parametrize("password", ["tokentrail", "p@ss:w/rd?#%20 ü"])
def test_a_password_in_a_file_needs_no_encoding(password, tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{password}\n")
    settings = Settings(store="http://db:8123/trail?cluster=c", store_user="me@here", store_password_file=file)
    parts = urlsplit(settings.store_dsn)
    assert (unquote(parts.username), unquote(parts.password)) == ("me@here", password)
    assert (parts.hostname, parts.port, parts.path, parts.query) == ("db", 8123, "/trail", "cluster=c")


def test_a_file_that_cannot_be_read_names_its_setting(tmp_path):
    missing = tmp_path / "missing"
    settings = Settings(store="http://db:8123", store_user="me", store_password_file=missing)
    with pytest.raises(OSError, match=f"--store-password-file {missing} cannot be read: No such file"):
        _ = settings.store_dsn
    for file in (missing, Path(__file__)):
        with pytest.raises(OSError, match=f"--scrape-tls-ca {file} is no CA in PEM: "):
            open_scraper(Settings(data_dir=tmp_path, scrape="https://x", scrape_tls_ca=file), [], IngestStatus())


def test_a_user_may_have_no_password():
    assert Settings(store="https://db:8443", store_user="me").store_dsn == "https://me:@db:8443"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:secret@db:8123/trail?verify=0", "http://me:…@db:8123/trail?verify=0"),
        ("https://db/?access_token=secret&verify=0", "https://db/?access_token=…&verify=0"),
        ("https://db/?verify=0&access_token=secret", "https://db/?verify=0&access_token=…"),
        ("http://me@db:8123", "http://me@db:8123"),
    ],
)
def test_log_lines_show_the_address_of_a_store_without_its_secrets(address, shown):
    assert Store(Settings(store=address).store_dsn).safe_dsn == shown


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"store": "http://a:b@db:8123", "store_user": "me"}, "leave one of them out"),
        ({"store_user": "me"}, "the store is embedded"),
        ({"store": "http://db:8123", "store_password_file": "password"}, "a password needs its user"),
        (
            {"store": "http://db:8123/?user=me&password=x"},
            r"password and user cannot stand after the \?; write http\(s\)://user:",
        ),
        ({"store": "https://db/?cluster=c&database=trail"}, r"database cannot stand after the \?"),
        (
            {"store": "http://me:pass#word@db:8123/trail"},
            "no host, or a wrong port; #, /, . and @ in a password need %23",
        ),
        ({"store": "http://db:65536"}, "wrong port"),
        ({"store": "http://:8123/trail"}, "no host"),
        ({"store": "http://[::1/trail"}, "no host"),
        ({"scrape_timeout_s": 10.001}, "a scrape must end before the next one"),
        ({"scrape": "vllm:8000"}, "SERVICE=http://host:8000"),
        ({"api": "127.0.0.1:65536"}, "is not HOST:PORT"),
        *(({name: float("inf")}, "less than or equal to 1000000000") for name in SECONDS),
        *(({name: 0.0}, "greater than 0") for name in SECONDS),
        *(
            ({name: 2**31}, "less than 2147483648")
            for name in ("max_body_bytes", "max_decompressed_bytes", "scrape_max_bytes")
        ),
        ({"query_memory_bytes": 2**63}, "less than or equal to"),
        ({"api": "127.0.0.1:²"}, "is not HOST:PORT"),
        ({"otlp_http": "http://127.0.0.1:4318"}, "'http://127.0.0.1:4318' is not HOST:PORT"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        Settings(**wrong)


OF_AN_ADDRESS = {
    "access_token", "ca_cert", "client_cert", "client_cert_key", "client_name", "compress", "http_proxy", "https_proxy",
    "proxy_path", "query_retries", "server_host_name", "tls_mode", "verify",
}  # fmt: skip


def test_every_parameter_of_the_client_is_taken_from_an_address_or_refused():
    known = {*signature(HttpClient).parameters, *signature(create_client).parameters} - OF_AN_ADDRESS
    for name in known:
        with pytest.raises(ValidationError, match=rf"{name} cannot stand after the \?; write http\(s\)://user:"):
            Settings(store=f"http://db:8123/trail?{name}=1")
    for name in OF_AN_ADDRESS:
        address = f"https://db:8443/trail?{name}=1"
        assert Settings(store=address).store_dsn == address


@pytest.mark.parametrize("address", ["me:secret@db:8123", "http://db:8123/?user=me&password=secret"])
def test_what_is_said_of_a_wrong_address_of_a_store_has_no_password(address, capsys):
    with pytest.raises(SystemExit):
        load_settings(["--store", address, "--api", "8080"])
    told = capsys.readouterr().err
    assert "write " in told
    assert "://user:password@host:8123/database" in told
    assert "(got '8080')" in told
    assert "secret" not in told


@pytest.mark.parametrize(
    "address",
    ["chdb:///data/a:b#c", "http://db", "https://me:p%23w@[::1]:8443/trail", "http://db:65535/trail?verify=0"],
)
def test_an_address_of_a_store_is_taken_as_it_is(address):
    assert Settings(store=address).store_dsn == address


def test_the_largest_port_and_the_longest_scrape_are_taken():
    assert Settings(api="127.0.0.1:65535", scrape_timeout_s=10.0, scrape_interval_s=10.0).scrape_timeout_s == 10


def test_every_setting_is_read():
    folder = Path(inspect.getfile(Settings)).parents[1]
    code = "".join(path.read_text() for path in folder.rglob("*.py") if path.name != "settings.py")
    code += Path(inspect.getfile(Settings)).read_text().partition("class Settings")[2].partition("\n    def ")[2]
    assert [name for name in Settings.model_fields if not re.search(rf"(settings|self)[.]{name}\b", code)] == []


def test_a_data_folder_must_be_named_and_no_file(tmp_path):
    (tmp_path / "file").touch()
    for wrong in ("", str(tmp_path / "file"), tmp_path / "file"):
        with pytest.raises(ValidationError, match="is not a folder"):
            Settings(data_dir=wrong)
    assert Settings(data_dir=tmp_path).data_dir == tmp_path
    assert Settings(data_dir=str(tmp_path / "new")).data_dir == tmp_path / "new"


FILES = sorted(name for name, field in Settings.model_fields.items() if field.annotation == File | None)


def test_every_setting_of_a_file_is_checked_as_one():
    assert len(FILES) >= 9
    assert not [name for name, field in Settings.model_fields.items() if field.annotation == Path | None]


@pytest.mark.parametrize("name", FILES)
def test_an_empty_name_of_a_file_and_that_of_a_folder_are_refused_by_the_name_of_the_setting(
    name, tmp_path, monkeypatch, capsys
):
    variable = f"TOKENTRAIL_{name.upper()}"
    for wrong in ("", str(tmp_path)):
        monkeypatch.setenv(variable, wrong)
        with pytest.raises(SystemExit):
            load_settings([])
        told = capsys.readouterr().err
        assert told.startswith(f"{name}: {wrong!r} is not a file: name one, or leave the setting out; set --")
        assert variable in told


def test_a_file_may_come_later_and_have_any_name(tmp_path):
    for name in (tmp_path / "later", tmp_path / ("x" * 300)):
        assert Settings(keys=str(name)).keys_file == name
    assert Settings(data_dir=tmp_path).keys_file == tmp_path / "keys.json"


def test_an_embedded_store_without_chdb_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"pip install 'tokentrail\[collector\]'"):
        Store.open(f"chdb://{tmp_path}/store")


def test_attributes_are_a_list_of_names():
    settings = Settings(tenant_attributes=" user.team, http.request.header.x-team,", keep_content=True)
    assert settings.decoding == Decoding(True, ("user.team", "http.request.header.x-team"), ())
    for wrong in ("user team", "a,b'c", "$text"):
        with pytest.raises(ValidationError, match="is no attribute's name; write for example"):
            Settings(slo_class_attributes=wrong)


def test_labels_have_a_name_or_that_of_their_attribute():
    settings = Settings(label_attributes=" region=cloud.region, enduser.plan,x=http.request.header.x-a")
    pairs = (("region", "cloud.region"), ("enduser.plan", "enduser.plan"), ("x", "http.request.header.x-a"))
    assert settings.decoding == Decoding(label_attributes=pairs)
    for wrong, told in (
        ("a b", "is no attribute's name"),
        ("a=b'c", "is no attribute's name"),
        ("a=b=c", "is no attribute's name"),
        ("9=b", "is no label's name"),
        ("a/b", "is no label's name"),
        ("a'=b", "is no label's name"),
        ("=b", "is no label's name"),
        ("a=b,a=c", "each with a name of its own"),
        (",".join(f"a{i}" for i in range(17)), "at most 16 labels"),
    ):
        with pytest.raises(ValidationError, match=told):
            Settings(label_attributes=wrong)
