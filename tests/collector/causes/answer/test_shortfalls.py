"""The reasons why requests are not explained step by step choose the words of the advice."""

import numpy as np
import pytest

from collector.causes.answer.shortfalls import action_of, reasons_of, words
from collector.causes.split.reasons import REASONS

NOT_RECORDED = {"no_phases", "no_steps"}


@pytest.mark.parametrize("reason", [one for one in REASONS if one != "none"])
def test_nobody_is_told_to_record_what_is_recorded(reason):
    said = words(reason, 0.42, 47, ["vllm", "tokentrail"])
    asks = "install the package" in said or "Record the engine's steps" in said
    assert asks == (reason in NOT_RECORDED)


@pytest.mark.parametrize(
    ("reason", "share", "steps", "said"),
    [
        ("few_steps", None, 47, "only 47 steps with known work were there by then, and a law needs 50"),
        ("few_steps", None, None, "too few steps with known work"),
        ("scatter", 0.42, None, "steps scatter by 42 % around their law, of 30 % allowed"),
        ("scatter", 0.42, None, "vllm: --enable-logging-iteration-details, unless it is on,"),
        ("fit", 0.3, None, "the law explains 30 % of how steps differ, of 50 % needed"),
        ("outliers", 0.12, None, "12 % of the steps are far longer than their own law, of 10 % allowed"),
        ("steps_missing", 0.6, None, "steps are there of 60 % of their time only"),
        ("steps_late", 0.6, None, "they are explained again when these come"),
    ],
)
def test_a_reason_has_its_number_and_what_is_needed(reason, share, steps, said):
    assert said in words(reason, share, steps, ["vllm"])


def test_the_reason_of_most_requests_comes_first_and_those_explained_have_none():
    reason = np.array([REASONS.index(one) for one in ("none", "scatter", "few_steps", "few_steps")], np.uint8)
    share, steps = np.array([np.nan, 0.42, np.nan, np.nan]), np.array([np.nan, np.nan, 40, 48])
    told = reasons_of(reason, share, steps, np.array([9.0, 2.0, 1.5, 1.5]), ["sglang"])
    assert [(one.reason, one.requests, one.share) for one in told] == [("few_steps", 3, None), ("scatter", 2, 0.42)]
    assert told[0].text.startswith("only 44 steps")


@pytest.mark.parametrize("reason", [one for one in REASONS if one != "none"])
def test_an_action_is_something_to_do_and_ends_the_reason(reason):
    """`do:` tells no state of things, such as steps that are longer than their law."""
    told = action_of(reason, ["tokentrail"])
    assert bool(told) == (reason in {"client", "no_phases", "no_steps", "steps_missing"})
    assert told.split(" ")[0] in {"", "export", "Record", "look"}
    assert words(reason, 0.33, 47, ["tokentrail"]).endswith(told)
