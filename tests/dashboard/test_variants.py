"""Rows and points of the Variants page, from summaries as the API gives them."""

import pytest

from dashboard.views.variants import MOST, curve, in_order, row, shown


def summary(tokens_per_s, tpot, **more):
    quantiles = {"p50": tpot, "p99": None if tpot is None else 2 * tpot}
    return {
        "requests": {"total": 4}, "ttft_s": {"p50": 0.2, "p99": 0.9}, "tpot_s": quantiles,
        "throughput": {"output_tokens_per_s": tokens_per_s}, "goodput": {"requests_per_s": 0.5}, "attainment": 0.75,
    } | more  # fmt: skip


def test_numbers_in_names_count_as_numbers():
    names = ["batch 16", "int8", "batch 2", "", "batch 2", "baseline", "16", "batch"]
    assert in_order(names) == ["16", "baseline", "batch", "batch 2", "batch 16", "int8"]


def answer(names, total, ended=4):
    groups = [summary(1, 0.1, value=name, requests={"total": ended}) for name in names]
    return {"groups": groups, "groups_total": total}


@pytest.mark.parametrize("place", [None, 0, MOST - 1, MOST])
def test_thirty_variants_are_shown_in_the_order_of_their_names_and_the_others_counted(place):
    """One more group is asked for: that of requests without a variant is none of them."""
    names = [f"batch {size}" for size in range(MOST + 1)]
    if place is not None:
        names.insert(place, "")
    listed, left_out = shown(answer(names[: MOST + 1], total=40))
    assert [name for name, _ in listed] == [f"batch {size}" for size in range(MOST)]
    assert left_out == 40 - MOST - (place is not None)


def test_a_variant_of_which_no_request_ended_has_no_row():
    assert shown(answer(["a"], total=1, ended=0)) == ([], 0)
    assert shown(answer([""], total=1)) == ([], 0)


def test_a_row_has_its_units_and_no_number_for_what_is_unknown():
    assert row("int8", summary(120.0, None)) == {
        "variant": "int8", "requests": "4", "TTFT p50": "200 ms", "TTFT p99": "900 ms", "TPOT p50": "–",
        "TPOT p99": "–", "output tokens/s": "120 /s", "goodput": "0.500 /s", "attainment": "75 %",
    }  # fmt: skip


def test_the_curve_has_a_point_for_each_variant_that_has_both_numbers():
    measured = [("batch 1", summary(20, 0.05)), ("one token", summary(3, None)), ("batch 8", summary(90, 0.08))]
    median, tail = curve(measured)["data"]
    assert (median["x"], median["y"], median["text"]) == ([20, 90], [0.05, 0.08], ["batch 1", "batch 8"])
    assert tail["y"] == [0.1, 0.16]
    assert curve(measured)["layout"]["yaxis"]["rangemode"] == "nonnegative"


def test_names_beside_points_are_short_and_no_markup():
    one, other = curve([("<b>int8</b>", summary(20, 0.05)), ("x" * 256, summary(90, 0.08))])["data"][0]["text"]
    assert (one, other) == ("&lt;b&gt;int8&lt;/b&gt;", "x" * 39 + "…")
