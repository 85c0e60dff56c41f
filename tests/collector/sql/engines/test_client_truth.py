"""Clients of 2026, against what the programs that called them saw: `truth.jsonl.gz` has a line for each call.

The server sends the first output after 300 ms and five tokens in 400 ms more; tests/data/README.md names the calls.
"""

import gzip
import json
from dataclasses import dataclass, field

import pytest

from tests.support.otlp import MS
from tests.support.recordings import DATA, replay, requests

LINES = [json.loads(line) for line in gzip.decompress((DATA / "clients-2026/truth.jsonl.gz").read_bytes()).splitlines()]


@dataclass(frozen=True)
class Source:
    """What an instrumentation tells. A value that it does not tell is not known."""

    silent: set[str] = field(default_factory=set)
    """Calls without a span: it ends none when a stream breaks or is left."""
    ttft_streamed: bool = False
    ttft_whole: bool = False
    tpot: bool = False
    tokens: tuple = (7, 5, 3, None)
    """Input, output, cached and reasoning tokens of an answer. The server says 7, 5, 3 and none."""
    thinking: tuple = (7, 25, 3, 20)
    other: dict[str, tuple] = field(default_factory=dict)
    """Tokens of calls that differ."""
    ends: dict[str, str] = field(default_factory=dict)
    """Ends that the source takes for others. Pydantic AI says on the agent's span alone that a stream broke."""
    tells_ends: bool = True
    """It tells whether an answer ended or was left."""
    no_ttft: set[str] = field(default_factory=set)
    """Streams of which it tells no first token, though it tells that of others."""
    error_types: bool = True
    spare: int = 25 * MS
    """By how much a span may be shorter than its call, on the busy machine of the recordings."""


# The server's 7 are Anthropic's and Bedrock's without the 3 of the cache, and 2 more were written to Anthropic's.
INVOKED = {"invoke": (7, 5, None, None), "istream": (7, 5, None, None)}
TWO_ANSWERS = {"n2": (7, 10, 3, None)}
PYDANTIC_AI = Source(
    ttft_streamed=True, tpot=True, ends={"broke": "cancelled", "errev": "cancelled"}, spare=500 * MS,
    other=dict.fromkeys(("responses", "responses stream"), (7, 5, 3, 0)),
)  # fmt: skip
SOURCES = {
    "google-genai-otel": Source(ttft_streamed=True, ttft_whole=True, tpot=True, spare=50 * MS),
    "google-genai-traceloop": Source(
        {
            "stream 429", "stream break", "stream errev", "stream hang (timeout)", "left after 2", "async left",
            "async cancelled whole", "async cancelled stream",
        },
        thinking=(7, None, 3, None),
    ),
    "bedrock-botocore": Source(
        {"cstream break", "cstream hang", "cstream left", "istream left"},
        ttft_whole=True, tokens=(10, 5, 3, None), other=INVOKED,
    ),
    "bedrock-traceloop": Source(
        {
            "cstream break", "cstream exc event", "cstream hang", "cstream left", "cstream closed", "istream exc",
            "istream left",
        },
        tokens=(10, 5, 3, None), other=INVOKED,
    ),
    "bedrock-openinference": Source(
        {"cstream 429"}, ttft_whole=True, tokens=(10, 5, 3, None), other={"istream": (7, 5, None, None)}
    ),
    "anthropic-traceloop": Source(ttft_streamed=True, ttft_whole=True, tpot=True, tokens=(12, 5, 3, None)),
    "anthropic-openinference": Source(ttft_streamed=True, ttft_whole=True, tpot=True, tokens=(12, 5, 3, None)),
    # Without the client's own spans, as before 2.14.
    "anthropic-genai": Source(ttft_whole=True, tokens=(12, 5, 3, None)),
    "llama-index-agent": Source({"stream_chat", "stream 429", "left", "astream", "agent"}, spare=400 * MS),
    "dspy-openinference": Source(tokens=(None,) * 4, thinking=(None,) * 4, spare=400 * MS),
    "strands": Source(
        {"left", "cancelled"},
        ttft_streamed=True, spare=500 * MS,
        thinking=(7, 25, 3, None), other=dict.fromkeys(("bedrock", "bedrock tool", "bedrock whole"), (10, 5, 3, None)),
    ),
    "langgraph-openinference": Source({"agent left", "cancelled"}, other=TWO_ANSWERS, spare=500 * MS),
    # It counts the usage once for each answer.
    "langgraph-traceloop": Source(thinking=(7, 25, 3, None), other={"n2": (14, 20, 6, None)}, spare=500 * MS),
    "langgraph-genai": Source(
        ttft_streamed=True, tpot=True, no_ttft={"responses stream"}, other=TWO_ANSWERS, spare=500 * MS
    ),
    # Its calls of Chat Completions have no usage, and look alike when they are left.
    "agents-traceloop-chat": Source(tokens=(None,) * 4, tells_ends=False, error_types=False, spare=500 * MS),
    "agents-traceloop-responses": Source(tokens=(7, 5, 3, 0), error_types=False, spare=500 * MS),
    "pydantic-ai-agent": PYDANTIC_AI,
    "pydantic-ai-openinference": PYDANTIC_AI,
    # CrewAI lets the call of a cancelled task end.
    "crewai-openinference": Source(
        ends={"cancelled": "ok"}, error_types=False, other={"litellm": (7, 5, None, None)}, spare=500 * MS
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def recordings(module_store):
    replay(module_store, "clients-2026", *SOURCES)


@pytest.fixture(scope="module", params=SOURCES)
def told(request, module_store, recordings):
    """What the source tells, and pairs of a call and the rows that started while it ran."""
    rows = requests(module_store, f"service = '{request.param}'")
    lines = [line for line in LINES if line["service"] == request.param]
    pairs = [
        (line, [row for row in rows if 0 <= row["start_ns"] - line["send_unix_ns"] <= line["end_ns"]]) for line in lines
    ]
    assert sum(len(found) for _, found in pairs) == len(rows)
    return SOURCES[request.param], pairs


def test_each_call_of_a_model_is_one_row(told):
    source, pairs = told
    expected = {line["what"]: 0 if line["what"] in source.silent else line["calls"] for line, _ in pairs}
    assert {line["what"]: len(rows) for line, rows in pairs} == expected


def test_a_call_ends_as_its_client_saw_it(told):
    source, pairs = told
    found = [(line["what"], row["status"]) for line, rows in pairs for row in rows]
    expected = [(line["what"], source.ends.get(line["what"], line["status"])) for line, rows in pairs for _ in rows]
    if not source.tells_ends:
        expected = [(what, "error" if end == "error" else "unknown") for what, end in expected]
    assert found == expected
    errors = [row["error_type"] != "" for _, rows in pairs for row in rows if row["status"] == "error"]
    assert errors == [source.error_types] * len(errors)
    assert {row["error_type"] for _, rows in pairs for row in rows if row["status"] != "error"} == {""}


def test_e2e_is_the_clients(told):
    source, pairs = told
    for line, rows in pairs:
        if line["calls"] == 1:
            # A framework ends the span of an abandoned stream after its reader has left.
            least = -100 * MS if line["status"] == "cancelled" else 0
            found = [line["end_ns"] - row["e2e_ns"] for row in rows]
            assert all(least <= shorter <= source.spare for shorter in found), (line["what"], found)


def test_ttft_is_the_clients_or_not_known(told):
    source, pairs = told
    for line, rows in pairs:
        for row in (row for row in rows if row["status"] == "ok"):
            if line["calls"] > 1:
                assert row["ttft_ns"] is None or row["ttft_ns"] <= row["e2e_ns"]
            elif line["first_ns"] is None:
                assert row["ttft_ns"] == (row["e2e_ns"] if source.ttft_whole else None), line["what"]
            elif source.ttft_streamed and line["what"] not in source.no_ttft:
                assert 0 <= line["first_ns"] - row["ttft_ns"] <= source.spare, line["what"]
            else:
                assert row["ttft_ns"] is None, line["what"]


def test_tpot_is_the_clients_or_not_known(told):
    """Five tokens, of which four come after the first."""
    source, pairs = told
    for line, rows in pairs:
        what, streamed = line["what"], line["first_ns"] or line["what"] == "agent stream"
        known = source.tpot and streamed and line["status"] == "ok" and what not in source.no_ttft
        for row in rows:
            if known and "think" not in what and what != "auto tool stream":
                expected = (line["end_ns"] - line["first_ns"]) / 4 if line["first_ns"] else 100 * MS
                assert row["tpot_ns"] == pytest.approx(expected, abs=source.spare / 4), what
            else:
                assert row["tpot_ns"] is None, what


def test_tokens_are_those_of_the_server_or_not_known(told):
    source, pairs = told
    for line, rows in pairs:
        what = line["what"]
        expected = source.other.get(what, source.thinking if "think" in what else source.tokens)
        for row in rows:
            found = tuple(row[f"{kind}_tokens"] for kind in ("input", "output", "cached", "reasoning"))
            if row["status"] == "ok":
                assert found == expected, what
            else:
                assert found[1] is None, what
                assert found[0] in (None, 7, source.tokens[0]), what
