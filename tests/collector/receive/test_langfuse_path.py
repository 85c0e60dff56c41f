"""Langfuse's own path: an SDK of Langfuse sends to the collector in place of Langfuse."""

import base64
import gzip

import pytest
from starlette.testclient import TestClient

from collector.receive import langfuse
from collector.receive.http import BodyLimits, create_otlp_app
from tests.collector.receive.test_otlp_http import BODY, PROTOBUF, Receiver
from tests.support.keys import access_to, add_key


@pytest.fixture
def receiver(tmp_path):
    receiver = Receiver(tmp_path)
    yield receiver
    receiver.commit.stop(20)


def post(receiver, secret, *, keys=None, path=langfuse.PATH):
    """Send as Langfuse's SDK does: compressed, with its public and its secret key as user and password."""
    limits = BodyLimits(sent=4_000, decompressed=8_000)
    app = create_otlp_app([receiver.ingest], limits, access_to(keys)) if keys else None
    headers = {
        "content-type": PROTOBUF,
        "content-encoding": "gzip",
        "x-langfuse-sdk-name": "python",
        "authorization": secret if " " in secret else basic(f"pk-lf-1:{secret}"),
    }
    client = TestClient(app) if app else receiver.client
    return client.post(path, content=gzip.compress(BODY), headers=headers)


def basic(credentials):
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


def test_it_takes_traces(receiver):
    assert langfuse.PATH == "/api/public/otel/v1/traces"
    answer = post(receiver, "sk-lf-1")
    assert (answer.status_code, answer.headers["content-type"]) == (200, PROTOBUF)
    assert receiver.stored() == [BODY]


def test_the_secret_key_is_a_key_of_the_collector(receiver, tmp_path):
    keys = tmp_path / "keys.json"
    secret = add_key(keys, "ingest", "acme")["authorization"].removeprefix("Bearer ")
    reader = add_key(keys, "read", "acme")["authorization"].removeprefix("Bearer ")
    assert post(receiver, secret, keys=keys).status_code == 200
    assert post(receiver, basic(f"pk:{secret}").replace("Basic", "basic"), keys=keys).status_code == 200
    assert post(receiver, reader, keys=keys).status_code == 403
    assert post(receiver, f"Bearer {secret}", keys=keys).status_code == 200
    assert post(receiver, secret, keys=keys, path="/v1/traces").status_code == 401, "only on Langfuse's path"


@pytest.mark.parametrize(
    "header", ["sk-lf-unknown", "Basic !!!", "Basic ", "Basic /w==", basic("no-colon"), "Digest x"]
)
def test_any_other_header_is_no_key(receiver, tmp_path, header):
    add_key(tmp_path / "keys.json", "ingest", "acme")
    assert post(receiver, header, keys=tmp_path / "keys.json").status_code == 401
    assert post(receiver, header).status_code == 200
