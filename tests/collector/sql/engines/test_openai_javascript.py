"""Three instrumentations of the openai client for JavaScript, recorded (tests/data/README.md has the nine calls)."""

import pytest

from tests.support.otlp import MS
from tests.support.recordings import replay, requests

PLAIN = ("ok", "stop", 10)
REFUSED = [("error", "", None)] * 2
GAVE_UP = ("cancelled", "", None)
EXPECTED = {
    # Neither has a span of a reader that leaves. OpenInference's has none of a call that was refused.
    "otel": ("genai", [("ok", "stop", 8), ("ok", "stop", None), PLAIN, *REFUSED, GAVE_UP, GAVE_UP, ("ok", "stop", 0)]),
    "openinference": (
        "openinference",
        [("ok", "stop", None), ("ok", "stop", None), PLAIN, GAVE_UP, GAVE_UP, ("ok", "stop", None)],
    ),
    # Traceloop's says `stop` also of a stream that was aborted or broke.
    "traceloop": ("genai", [("ok", "stop", None)] * 2 + [PLAIN] + [("ok", "stop", None)] * 3),
}


@pytest.fixture(scope="module", params=EXPECTED)
def recorded(request, module_store):
    replay(module_store, "openai-javascript", request.param)
    return request.param, requests(module_store, f"service = '{request.param}'")


def test_each_call_is_one_row_with_its_outcome(recorded):
    name, rows = recorded
    engine, expected = EXPECTED[name]
    assert [(row["status"], row["finish_reason"], row["output_tokens"]) for row in rows] == expected
    assert {(row["engine"], row["vantage"], row["operation"], row["model"]) for row in rows} == {
        (engine, "client", "chat", "tiny")
    }


def test_no_ttft_is_made_up(recorded):
    """None of them tells the first chunk of a stream. OpenInference's tells that a call is not one."""
    name, rows = recorded
    known = [row["ttft_ns"] for row in rows if row["ttft_ns"] is not None]
    assert known == ([row["e2e_ns"] for row in rows if row["output_tokens"] == 10] if name == "openinference" else [])
    assert all(row["e2e_ns"] > MS for row in rows)
