"""`tokentrail slos init`, beside the API that it asks."""

from decimal import Decimal

import pytest

from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND
from tokentrail.cli.slos_init import starter

MS = 10**6
ENDED = {"ended": NOW - SECOND, "e2e": 4 * SECOND}


@pytest.fixture
def text(api):
    """The file that is made."""

    class Client:
        def get(self, path, **params):
            return api(path, **params)

    return lambda: starter(Client(), "-1h", "now")


@pytest.fixture
def written(text, tmp_path):
    """The SLOs of the file that is made, by name."""

    def written():
        path = tmp_path / "slos.yaml"
        path.write_text(text())
        return {slo.name: slo for slo in load_slos(path)}

    return written


def test_each_class_and_model_and_vantage_has_an_slo_with_what_it_tells(rows, written):
    chat = ENDED | {"slo_class": "chat", "model": "org/Big-Model", "tpot_ns": 20.0 * MS}
    ttfts = [100 * MS + i * MS for i in range(101)]
    rows.requests([chat | {"ttft_ns": ttft} for ttft in ttfts])
    rows.requests([chat | {"vantage": "client", "ttft_ns": None, "tpot_ns": None}] * 30)
    rows.requests([ENDED | {"model": "7: odd '"}] * 30)
    rows.requests([ENDED | {"model": "rare"}] * 19)
    found = written()
    assert found.keys() == {"chat-big-model", "chat-big-model-client", "model-7-odd"}
    of_server = found["chat-big-model"]
    # the P95 of 100 to 200 ms is 195 ms, and 195 x 1.3 = 253.5
    assert of_server.thresholds.given() == {"ttft": 260 * MS, "tpot": 26 * MS}
    assert of_server.select == {"vantage": ("server",), "slo_class": ("chat",), "model": ("org/Big-Model",)}
    assert of_server.objective == Decimal("0.95")
    assert found["chat-big-model-client"].thresholds.given() == {"e2e": 5200 * MS}
    assert found["model-7-odd"].select["model"] == ("7: odd '",)


def test_answers_that_are_not_streamed_are_promised_apart(rows, written):
    """Their TTFT is their E2E: one promise about both would be kept by no stream that is as slow."""
    streams = [ENDED | {"model": "m", "ttft_ns": 100 * MS, "labels": {"stream": "true"}}] * 30
    wholes = [ENDED | {"model": "m", "ttft_ns": 4 * SECOND, "tpot_ns": None, "labels": {"stream": "false"}}] * 30
    alone = [one | {"slo_class": "batch", "labels": {}} for one in wholes]
    rows.requests([*streams, *wholes, *alone])
    found = written()
    assert {name: one.thresholds.given().keys() for name, one in found.items()} == {
        "m": {"ttft", "tpot"}, "m-whole": {"e2e"}, "batch-m": {"e2e"}
    }  # fmt: skip
    selected = {name: one.select.get("label.stream") for name, one in found.items()}
    assert selected == {"m": ("true",), "m-whole": ("false",), "batch-m": None}


def test_names_that_would_be_the_same_are_numbered(rows, written):
    rows.requests([ENDED | {"model": name} for name in ("a/m", "b/m") for _ in range(20)])
    assert written().keys() == {"m", "m-2"}


def test_too_few_requests_make_no_file(written):
    with pytest.raises(ValueError, match="no model had 20 requests that ended ok"):
        written()


def test_long_thresholds_are_written_in_seconds(rows, text):
    rows.requests(
        [{"ended": NOW - SECOND, "e2e": 60 * SECOND, "ttft_ns": 30 * SECOND, "tpot_ns": 5e9, "model": "m"}] * 30
    )

    made = text()
    assert "ttft: 39s" in made
    assert "tpot: 6500ms" in made
