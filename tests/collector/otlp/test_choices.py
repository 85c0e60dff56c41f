"""Requests with several answers: the gaps between tokens are those within an answer."""

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.rows import NOW, SECOND
from tests.support.otlp import Request
from tokentrail import semconv

NAN = float("nan")


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ({semconv.OUTPUT_TOKENS: 3, semconv.CHOICES: 3, semconv.TIME_BETWEEN_TOKENS: 0.0}, "good"),
        ({semconv.OUTPUT_TOKENS: 1}, "good"),
        ({semconv.OUTPUT_TOKENS: 4, semconv.CHOICES: 3, semconv.TIME_BETWEEN_TOKENS: 0.1}, "bad"),
        ({semconv.OUTPUT_TOKENS: 4, semconv.CHOICES: 3, semconv.TIME_BETWEEN_TOKENS: NAN}, "undetermined"),
        ({semconv.OUTPUT_TOKENS: 3, semconv.CHOICES: 5, semconv.TIME_BETWEEN_TOKENS: 0.0}, "undetermined"),
        ({semconv.OUTPUT_TOKENS: 3, semconv.CHOICES: NAN, semconv.TIME_BETWEEN_TOKENS: 0.0}, "undetermined"),
        ({semconv.CHOICES: 3, semconv.TIME_BETWEEN_TOKENS: 0.0}, "undetermined"),
    ],
)
def test_answers_of_one_token_each_have_no_tpot_that_could_miss_a_threshold(api, rows, told, verdict):
    request = Request()
    attributes = {semconv.OPERATION_NAME: "chat", semconv.SLO_CLASS: "chat", semconv.TIME_TO_FIRST_TOKEN: 0.01}
    request.span("chat m", start=NOW - 2 * SECOND, ns=SECOND, attributes=attributes | told)
    insert_otlp(rows.store, TRACES, request.body(), str(told))
    counts = api("goodput", ttft="100ms", tpot="50ms")
    assert (counts["requests"]["good"], counts["requests"]["undetermined"]) == (
        verdict == "good",
        verdict == "undetermined",
    )
    assert counts["attainment"] == {"good": 1.0, "undetermined": None, "bad": 0.0}[verdict]
    assert counts["violations"]["tpot"] == (verdict == "bad")
    assert api("summary")["tpot_s"]["count"] == (verdict == "bad")
