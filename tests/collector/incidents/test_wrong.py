"""The texts of alerts and verdicts: failed, missed, never known, not known yet."""

import pytest

from collector.causes.answer.answer import LevelOut
from collector.incidents.incident import TopCause
from collector.incidents.wrong import NEVER_AT_CLIENTS, NO_TYPICAL, NOT_YET, Wrong, unexplained
from tests.collector.rows import NOW, SECOND

MS = 10**6
GOOD = {"slo_class": "chat", "ttft_ns": 100 * MS, "tpot_ns": 20.0 * MS, "e2e": 2 * SECOND, "ended": NOW - SECOND}
LATE = GOOD | {"tpot_ns": 112.0 * MS}
UNTOLD = "Their cause is never known: this source tells neither phases nor steps."
ALL_SLOW = "All missed TPOT: 112 ms at the median, 100 ms promised."
MOSTLY_UNEXPLAINED = "99.99 % of what they took beyond good requests is unexplained."
CAUSE_UNKNOWN = "Their cause is not known:"
ERROR = GOOD | {"status": "error", "error_type": "500"}


@pytest.fixture
def why(rows, api):
    """What the verdict says of the bad requests of chat, which are among so many good ones."""

    def why(*requests, good=2, **asked):
        rows.requests([*[GOOD] * good, *requests])
        answer = api("verdict", start="-1h", **asked)
        assert answer["slo"] == "chat", answer["sentence"]
        return answer["why"]

    return why


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([ERROR] * 20, "All ended with the error 500."),
        ([ERROR] * 15 + [ERROR | {"error_type": "a" * 60}] * 5,
         f"All ended with an error: 500 (75 %), {'a' * 39}… (25 %)."),
        ([ERROR | {"error_type": ""}] * 20, "All ended with an error of no name."),
        ([ERROR | {"ttft_ns": 900 * MS}] * 20, "All ended with the error 500."),
        ([ERROR] * 15 + [LATE] * 5, f"75 % ended with the error 500. {ALL_SLOW.replace('All', '25 %')}"),
        ([LATE] * 20, f"{ALL_SLOW} {NOT_YET}"),
        ([LATE | {"ttft_ns": 900 * MS}] * 15 + [LATE] * 5,
         f"{ALL_SLOW} 75 % missed TTFT: 900 ms at the median, 500 ms promised. {NOT_YET}"),
    ],
)  # fmt: skip
def test_the_verdict_begins_with_the_error_or_the_threshold(why, requests, text):
    assert why(*requests) == text


def test_requests_of_another_slo_or_time_or_good_ones_say_nothing(why):
    others = [ERROR | {"slo_class": "other"}, ERROR | {"ended": NOW - 7 * 3600 * SECOND}, GOOD | {"tpot_ns": 99.0 * MS}]
    assert why(*[LATE] * 20, *others, good=0).startswith("All missed TPOT: 112 ms")


def test_a_wait_of_clients_that_gave_up_is_missed_without_a_median(why):
    gave_up = GOOD | {"status": "cancelled", "ttft_ns": None, "tpot_ns": None, "e2e": 5 * SECOND, "output_tokens": 0}
    assert why(*[gave_up] * 20) == f"All missed TTFT (500 ms promised). {NOT_YET}"


@pytest.mark.parametrize(
    ("failed", "is_client", "is_told", "is_any", "text"),
    [
        (0.0, False, False, False, NOT_YET),
        (0.0, False, False, True, f"{UNTOLD} Record the engine's steps and phases (docs/engines/README.md)."),
        (0.0, False, True, True, NO_TYPICAL),
        (0.0, True, False, False, NEVER_AT_CLIENTS),
        (0.7, False, False, False, ""),
    ],
)
def test_why_no_cause_is_known(failed, is_client, is_told, is_any, text):
    wrong = Wrong("It was so.", 9, failed, ["unknown"], is_client)
    assert wrong.with_cause(None, is_told=is_told, is_any=is_any) == f"It was so. {text}".rstrip()
    assert wrong.with_cause("Cause: x.", is_told=is_told, is_any=is_any) == "It was so. Cause: x."


def test_what_is_unexplained_is_no_cause():
    def top(cause):
        return TopCause(cause=cause, group=cause, share=0.9999, sentence="")

    more = unexplained(top("unexplained"))
    assert (more, unexplained(top("stall")), unexplained(None)) == (MOSTLY_UNEXPLAINED, None, None)
    wrong = Wrong("It was so.", 9, 0.0, ["unknown"], is_client=False)
    assert wrong.with_cause(None, is_told=True, is_any=True, more=more) == f"It was so. {CAUSE_UNKNOWN} {more}"
    (phases,) = [LevelOut(level="phases", requests=2, engines=[], reasons=[], more="Record steps.")]
    assert wrong.with_levels(None, [phases], more) == f"It was so. {CAUSE_UNKNOWN} Record steps."
    assert wrong.with_levels(None, [phases.model_copy(update={"more": ""})], more).endswith(more)
    few = phases.model_copy(update={"requests": 1, "more": "Record less."})
    assert wrong.with_levels(None, [few, phases], more).endswith("Record steps."), "what most of them lack"
