"""The columns of `causes` from what is explained of requests."""

import numpy as np
import pytest

from collector.causes.split.model import StepModel
from collector.causes.split.names import PARTS
from collector.causes.split.reasons import REASONS, Reason
from collector.causes.split.requests import UNKNOWN_US, Explained
from collector.causes.split.slower import Slower
from collector.causes.stage.models import Judges, Stored
from collector.causes.stage.rows import COPIED, Parts

NONE = Reason()
MODEL = StepModel(1, 2, 3.0, 0.1, 0.9, (1.0,), (2.0,), (3.0,), anchor_ns=1_600_000_000 * 10**9)


def columns(
    errors_us,
    *,
    ttft_us=500,
    e2e_us=2000,
    level="steps",
    shares=None,
    inflicted_us=0,
    why=NONE,
    fact=None,
    judges=None,
    **given,
):
    """The columns of requests of 2 ms, of which these errors and parts are explained."""
    count = len(errors_us)
    requests = {name: [""] * count for name in COPIED} | {
        "key": [2**40 + 7] * count, "ttft_us": [ttft_us] * count, "e2e_us": [e2e_us] * count, "tpot_us": [0] * count,
        "output_tokens": [None] * count, "vantage": ["server"] * count, **given,
    }  # fmt: skip
    parts = Parts(requests)
    ttft = np.zeros((count, len(PARTS)), np.int64)
    rest = ttft.copy()
    ttft[:, 0], rest[:, 1] = shares or (ttft_us, e2e_us - ttft_us)
    explained = Explained(
        ttft, rest, np.array([inflicted_us] * count), np.array(errors_us), np.array([level] * count),
        np.full(count, REASONS.index(why.name)), np.full(count, why.share), np.full(count, why.steps),
        MODEL, None, fact,
    )  # fmt: skip
    judges = judges or Judges(Stored(1_700_000_000, "i-1", "v", MODEL))
    parts.put(np.arange(count), explained, np.arange(count), judges)
    return parts.columns()


def test_an_error_is_told_in_permille_of_the_request_and_a_huge_one_is_not_called_unknown():
    errors_us = [0, 1, 20, 2000, 131_068, 131_069, 10**9, UNKNOWN_US]
    assert columns(errors_us)["error_permille"] == [0, 0, 10, 1000, 65534, 65534, 65534, 65535]
    for e2e_us, permille in ((1, 2000), (2, 1000), (0, 2000)):
        assert columns([2], ttft_us=e2e_us, e2e_us=e2e_us)["error_permille"] == [permille]


def test_only_steps_are_judged_by_a_model_of_a_time():
    assert columns([5])["model_at"] == [1_700_000_000]
    assert columns([5], level="estimated")["model_at"] == [0]


def test_a_request_has_its_parts_and_the_low_half_of_its_key():
    found = columns([5])
    assert found["request_key"] == [7]
    assert (found[f"ttft_{PARTS[0]}_us"], found[f"rest_{PARTS[1]}_us"]) == ([500], [1500])
    assert sum(sum(values) for name, values in found.items() if name.startswith(("ttft_", "rest_"))) == 2000


def test_the_first_token_is_known_or_none_or_not_told():
    assert columns([5])["first_token"] == [1]
    assert columns([5], ttft_us=0, shares=(2000, 0))["first_token"] == [0]
    assert columns([5], ttft_us=UNKNOWN_US, shares=(2000, 0))["first_token"] == [2]


def reason_of(why, **given):
    found = columns([5], level="phases", why=why, **given)
    return [REASONS[found["reason"][0]], found["reason_share"][0], found["reason_steps"][0]]


def test_a_reason_has_its_numbers_and_null_where_there_are_none():
    assert reason_of(Reason("scatter", 0.42, 47)) == ["scatter", 0.42, 47]
    assert reason_of(Reason("few_steps", steps=47)) == ["few_steps", None, 47]
    assert reason_of(Reason("no_phases")) == ["no_phases", None, None]
    assert reason_of(Reason("no_phases"), vantage=["client"])[0] == "client"
    assert reason_of(Reason("no_steps", steps=0), vantage=["client"]) == ["no_steps", None, 0]


def test_what_a_request_inflicted_is_null_where_it_is_not_known():
    assert columns([5], inflicted_us=UNKNOWN_US)["inflicted_us"] == [None]
    assert columns([5], inflicted_us=1000)["inflicted_us"] == [1000]


def test_what_a_process_is_slower_than_has_a_name_and_an_interval():
    found = columns([5], fact=Slower("earlier", 1.5, 1.4, 1.6))
    assert [found[name] for name in ("slower_than", "slower_name", "slower_by", "slower_low", "slower_high")] == [
        [2], ["2020-09-13T12:26:40Z"], [1.5], [1.4], [1.6],
    ]  # fmt: skip
    assert [columns([5])[name] for name in ("slower_than", "slower_by")] == [[0], [None]]


@pytest.mark.parametrize(("is_other", "told"), [(False, [3, "i-2"]), (True, [0, ""])])
def test_that_another_model_was_faster_on_the_same_device_is_no_fact(is_other, told):
    judges = Judges(sister=Stored(1_700_000_000, "i-2", "v", MODEL, is_other))
    found = columns([5], fact=Slower("sister", 1.5, 1.4, 1.6), judges=judges)
    assert [found[name][0] for name in ("slower_than", "slower_name")] == told
