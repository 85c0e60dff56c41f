"""OTEL_* settings, as the documentation lists them."""

import re
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.sdk.resources import Resource

from tokentrail import Trail, config
from tokentrail._send.compression import body_compression
from tokentrail._send.http import GRPC, HTTP, Endpoint, tls_files
from tokentrail.config import Settings, with_instance


def settings(**env):
    return Settings.from_env(env)


def test_defaults_need_no_environment():
    found = settings()
    assert found == Settings(found.endpoint)
    assert found.endpoint.url == "http://localhost:4318/v1/traces"
    assert found.endpoint.headers["content-type"] == "application/x-protobuf"


def test_what_the_page_calls_a_default_is_one():
    page = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
    defaults = dict(re.findall(r"^\| `((?:OTEL|TOKENTRAIL)_\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    del defaults["OTEL_PROPAGATORS"], defaults["OTEL_EXPORTER_OTLP_ENDPOINT"]  # none of Settings; for HTTP alone
    assert len(defaults) >= 9
    assert settings(**defaults) == settings()
    assert [settings(**{name: value}) for name, value in defaults.items()] == [settings()] * len(defaults)


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example"}, "https://c.example/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example/otlp/"}, "https://c.example/otlp/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c.example/in"}, "https://c.example/in"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://b/x"},
            "https://b/x",
        ),
    ],
)
def test_endpoint(env, url):
    assert settings(**env).endpoint.url == url


def test_a_traces_setting_goes_before_the_general_one():
    found = settings(
        OTEL_EXPORTER_OTLP_HEADERS="x-a=1",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=Bearer%20abc,x-b=2",
        OTEL_EXPORTER_OTLP_TIMEOUT="3",
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="4.5",
        OTEL_EXPORTER_OTLP_COMPRESSION="deflate",
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION="gzip",
        OTEL_EXPORTER_OTLP_CERTIFICATE="/ca.pem",
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE="/c.pem",
        OTEL_EXPORTER_OTLP_CLIENT_KEY="/k.pem",
    ).endpoint
    assert found.headers | {"user-agent": ""} == {
        "content-type": "application/x-protobuf",
        "user-agent": "",
        "authorization": "Bearer abc",
        "x-b": "2",
        "content-encoding": "gzip",
    }
    assert (found.timeout_s, found.compression) == (4.5, Compression.Gzip)
    assert (found.verify, found.cert) == ("/ca.pem", ("/c.pem", "/k.pem"))


def test_batching_and_bounds():
    found = settings(
        OTEL_BSP_SCHEDULE_DELAY="250",
        OTEL_BSP_MAX_QUEUE_SIZE="1000",
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE="100",
        TOKENTRAIL_MAX_QUEUE_BYTES="4096",
    )
    assert (found.schedule_delay_s, found.max_queue_spans, found.max_payload_spans, found.max_queue_bytes) == (
        0.25, 1000, 100, 4096,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "nan"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "inf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1e10"),  # longer than sockets take
        ("OTEL_BSP_SCHEDULE_DELAY", "1e13"),
        ("TOKENTRAIL_MAX_REQUEST_AGE_S", "1e10"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "console"),
    ],
)
def test_a_bad_value_is_named_and_the_default_used(caplog, name, value):
    assert settings(**{name: value}) == settings()
    (record,) = caplog.records
    assert name.replace("_TRACES", "") in record.message.replace("_TRACES", "")
    assert value in record.message


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({"OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_SDK_DISABLED": "yes"}, True),  # the specification knows `true` alone
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_disabling(env, enabled):
    assert settings(**env).enabled is enabled


def test_grpc_goes_to_its_own_port_and_adds_no_path():
    found = settings(OTEL_EXPORTER_OTLP_PROTOCOL="grpc").endpoint
    assert (found.protocol, found.url, found.headers) == (GRPC, "http://localhost:4317", {})
    env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example:4317"}
    assert settings(**env).endpoint.url == "https://c.example:4317"


def test_grpc_without_grpcio_is_told_and_http_used(monkeypatch, caplog):
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert settings(OTEL_EXPORTER_OTLP_PROTOCOL="grpc").endpoint.protocol == HTTP
    assert "pip install tokentrail[grpc]" in caplog.text


def test_an_endpoint_without_environment():
    found = Endpoint.to(
        "https://c.example", headers={"authorization": "Bearer x"}, compression="gzip", timeout_s=2.0,
        certificate="/ca.pem", client_certificate="/c.pem", client_key="/k.pem",
    )  # fmt: skip
    assert found == settings(
        OTEL_EXPORTER_OTLP_ENDPOINT="https://c.example", OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer x",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip", OTEL_EXPORTER_OTLP_TIMEOUT="2", OTEL_EXPORTER_OTLP_CERTIFICATE="/ca.pem",
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE="/c.pem", OTEL_EXPORTER_OTLP_CLIENT_KEY="/k.pem",
    ).endpoint  # fmt: skip
    assert Endpoint.to() == settings().endpoint
    assert Endpoint.to("https://c.example/in").url == "https://c.example/in"
    assert tls_files(found) == {"CERTIFICATE": "/ca.pem", "CLIENT_CERTIFICATE": "/c.pem", "CLIENT_KEY": "/k.pem"}
    assert tls_files(Endpoint.to(client_certificate="/both.pem")) == {"CLIENT_CERTIFICATE": "/both.pem"}


def test_a_grpc_channel_compresses_its_messages_itself():
    assert body_compression(Endpoint.to(protocol=GRPC, compression="gzip")) is Compression.NoCompression
    assert body_compression(Endpoint.to(compression="gzip")) is Compression.Gzip


def test_each_process_has_an_instance_of_its_own(monkeypatch):
    def instance(given):
        return with_instance(Resource(given)).attributes["service.instance.id"]

    mine = instance({})
    assert instance({}) == mine
    assert instance({"service.instance.id": "given"}) == "given"
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert instance({}) not in ("", mine)


def test_limits_of_opentelemetrys_spans_are_not_read(monkeypatch):
    for name in ("", "SPAN_", "EVENT_", "LINK_"):
        monkeypatch.setenv(f"OTEL_{name}ATTRIBUTE_COUNT_LIMIT", "many")
    for name in ("SPAN_EVENT_COUNT", "SPAN_LINK_COUNT", "ATTRIBUTE_VALUE_LENGTH", "SPAN_ATTRIBUTE_VALUE_LENGTH"):
        monkeypatch.setenv(f"OTEL_{name}_LIMIT", "many")
    assert Trail(background=False).start_request(operation="chat", model="m").sampled
