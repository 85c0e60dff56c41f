"""Labels of requests: attributes of their spans and of their announcements, within bounds."""

import enum
import hashlib

import numpy as np
import pytest

from tests.tokentrail.support import MS, T0, attributes_of, start
from tokentrail import semconv
from tokentrail.clients.observe import observe
from tokentrail.testing import MemoryTrail


class Tier(enum.StrEnum):
    GOLD = "gold"


def labels_in(attributes):
    start = semconv.LABEL_PREFIX
    return {key.removeprefix(start): value for key, value in attributes.items() if key.startswith(start)}


def labels_of(trail, given, **fields):
    start(trail, labels=given, **fields).end(T0 + MS)
    return labels_in(attributes_of(trail))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("eu", "eu"), (" ü\n", " ü\n"), (Tier.GOLD, "gold"), (3, "3"), (-1, "-1"), (0, "0"),
        (2**63 - 1, str(2**63 - 1)),
        (0.25, "0.25"), (True, "true"), (False, "false"), (np.int64(7), "7"), (np.float32(0.5), "0.5"),
        ("€" * 256, "€" * 256),
    ],
)  # fmt: skip
def test_values_are_texts(trail, value, told):
    assert labels_of(trail, {"a.b-c_1": value}) == {"a.b-c_1": told}


def test_what_is_not_given_is_no_label(trail):
    assert labels_of(trail, {"none": None, "empty": "", "a": "b"}) == {"a": "b"}
    assert labels_of(MemoryTrail(), None) == labels_of(MemoryTrail(), {}) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"": "x"}, {"a b": "x"}, {"9": "x"}, {"_cut": "x"}, {"ä": "x"}, {"a" * 65: "x"}, {"a\n": "x"}, {7: "x"},
        {("a",): "x"}, {"list": ["x"]}, {"bytes": b"x"}, {"object": object()}, {"large": 2**63}, {"larger": 10**5000},
    ],
)  # fmt: skip
def test_what_cannot_be_a_label_is_left_out_and_counted(tolerant, wrong):
    assert labels_of(tolerant, {**wrong, "good": "x"}) == {"good": "x"}
    assert tolerant.stats.errors == 1


def test_labels_that_are_no_mapping_cost_the_labels_alone(tolerant):
    assert labels_of(tolerant, 7) == {}
    assert tolerant.stats.errors == 1


def test_a_request_has_16(tolerant, trail):
    many = {f"n{i}": i for i in range(18)}
    assert labels_of(tolerant, many) == {f"n{i}": str(i) for i in range(16)}
    assert tolerant.stats.errors == 2
    assert len(labels_of(trail, {f"n{i}": i for i in range(16)})) == 16


def test_a_long_value_is_cut_as_the_collector_cuts_it(tolerant):
    value = "€" * 256 + "a"
    digits = hashlib.sha256(value.encode()).hexdigest()[:16]
    assert labels_of(tolerant, {"a": value}) == {"a": f"{'€' * 239}…{digits}"}
    assert tolerant.stats.errors == 1


def test_attributes_stay_and_announcements_have_the_labels_and_whether_it_streams(trail, clock):
    given = {"labels": {"tier": "gold", "n": 2}, "attributes": {"other": "x", semconv.REQUEST_STREAM: False}}
    request = start(trail, **given)
    trail.flush(0)
    (announced,) = trail.spans(semconv.OPEN_SPAN)
    assert labels_in(announced.attributes) == {"tier": "gold", "n": "2"}
    assert "other" not in announced.attributes
    assert announced.attributes[semconv.REQUEST_STREAM] is False
    request.end(T0 + MS)
    assert attributes_of(trail)["other"] == "x"
    assert labels_in(attributes_of(trail)) == {"tier": "gold", "n": "2"}


def test_another_process_goes_on_with_them(trail):
    core = MemoryTrail()
    core.take_over(trail.hand_over(start(trail, labels={"tier": "gold"}))).end(T0 + MS)
    assert labels_in(attributes_of(core)) == {"tier": "gold"}


def test_observe_hands_them_on(trail):
    observe(lambda: {"choices": []}, model="m", labels={"app": "2.4"}, trail=trail)
    assert labels_in(attributes_of(trail)) == {"app": "2.4"}
