"""OpenTelemetry's two instrumentations of the openai client, recorded, against the client's own clock."""

import pytest

from tests.support.recordings import (
    billed,
    by_response_id,
    client_lines,
    e2e_differences,
    replay,
    requests,
    spread,
    tokens_of,
    ttft_differences,
)

RUNS = {
    "genai-openai-1.3": {"completed": 18, "streamed": 14, "ttft_ms": (0, 4), "e2e_ms": (0, 1)},
    "openai-v2-2.4": {"completed": 18, "streamed": 14, "ttft_ms": None, "e2e_ms": (0, 1)},
    "openai-v2-2.4-experimental": {"completed": 10, "streamed": 7, "ttft_ms": None, "e2e_ms": (0, 1)},
}
"""What is known of each recording. Two requests of each ask for a model that does not exist."""


@pytest.fixture(scope="module")
def recorded(module_store):
    """Request rows of each recording and of its edge cases, and names of the spans that are no requests."""
    found, left = {}, {}
    for file in ("traces", "edges"):
        for run in RUNS:
            if file == "edges" and run.endswith("experimental"):
                continue
            module_store.client().command("TRUNCATE TABLE requests")
            module_store.client().command("TRUNCATE TABLE spans")
            replay(module_store, run, file)
            found[run, file] = requests(module_store)
            names = module_store.query("SELECT DISTINCT name FROM spans").result_rows
            left[run, file] = {name for (name,) in names}
    return found, left


@pytest.mark.parametrize("run", RUNS)
class TestRecording:
    def test_every_completed_request_is_one_row_and_the_others_are_errors(self, recorded, run):
        rows = recorded[0][run, "traces"]
        assert len(by_response_id(rows, client_lines(run))) == RUNS[run]["completed"]
        assert len(rows) == RUNS[run]["completed"] + 2
        assert [(row["model"], row["error_type"]) for row in rows if row["status"] == "error"] == [
            ("no-such-model", "openai.NotFoundError" if run.startswith("genai") else "NotFoundError")
        ] * 2
        assert {row["status"] for row in rows} == {"ok", "error"}

    def test_only_the_application_has_other_spans(self, recorded, run):
        assert recorded[1][run, "traces"] == {"chat-turn"}

    def test_rows_name_their_origin(self, recorded, run):
        rows = recorded[0][run, "traces"]
        assert {(row["engine"], row["vantage"], row["operation"]) for row in rows} == {("genai", "client", "chat")}
        assert {row["model"] for row in rows if row["status"] == "ok"} == {"smollm2-135m-instruct"}

    def test_ttft_is_the_clients_where_the_instrumentation_tells_it(self, recorded, run):
        pairs = by_response_id(recorded[0][run, "traces"], client_lines(run))
        differences, expected = ttft_differences(pairs), RUNS[run]["ttft_ms"]
        assert len(differences) == (RUNS[run]["streamed"] if expected else 0)
        if expected:
            assert spread(differences) == expected
        not_streamed = [row for row, line in pairs if line["mode"] == "plain"]
        assert all(row["ttft_ns"] == (row["e2e_ns"] if expected else None) for row in not_streamed)

    def test_e2e_is_the_clients(self, recorded, run):
        pairs = by_response_id(recorded[0][run, "traces"], client_lines(run))
        assert spread(e2e_differences(pairs)) == RUNS[run]["e2e_ms"]

    def test_tokens_are_those_that_the_client_was_billed(self, recorded, run):
        pairs = by_response_id(recorded[0][run, "traces"], client_lines(run))
        assert all(tokens_of(row) == billed(line) for row, line in pairs)
        assert any(billed(line) == (None, None) for _, line in pairs)


def outcomes(rows):
    return {row["service"]: row["status"] for row in rows}


ENDED = {"stream": "ok", "nousage": "ok", "plain": "ok", "long150": "ok", "404": "error", "timeout": "error"}


def test_the_successor_tells_every_outcome(recorded):
    given_up = dict.fromkeys(["abandon_close", "abandon_gc", "abandon_ctx", "acancel"], "cancelled")
    rows = recorded[0]["genai-openai-1.3", "edges"]
    assert outcomes(rows) == {**ENDED, "sse_error": "error", **given_up}
    assert {row["error_type"] for row in rows if row["status"] == "cancelled"} == {""}
    assert recorded[1]["genai-openai-1.3", "edges"] == {"embeddings m"}


def test_the_older_one_does_not_tell_an_abandoned_stream(recorded):
    rows = recorded[0]["openai-v2-2.4", "edges"]
    assert outcomes(rows) == {**ENDED, "sse_error": "error", "abandon_close": "ok", "abandon_ctx": "ok"}
    assert {row["ttft_ns"] for row in rows} == {None}
