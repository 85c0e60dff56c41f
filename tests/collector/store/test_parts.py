"""How a segment is divided into inserts."""

import numpy as np

from collector.otlp.signals import PlainRows
from collector.store.parts import parts_of, row_count
from collector.wal.frame import Frame, digest_of


def apart(payload):
    """Digits are so many plain rows, and what follows them is the rest."""
    rest = payload.lstrip(b"0123456789")
    digits = payload[: len(payload) - len(rest)]
    return ({"n": np.zeros(int(digits), "u1")} if digits else None), rest


PLAIN = PlainRows("t", {"n": "UInt8"}, apart)


def frame(payload, days=(1, 1)):
    return Frame(digest_of(payload), payload, days)


def divided(frames, plain=PLAIN):
    return [
        (part.token, row_count(part.columns) or None, [frame.payload for frame in part.frames])
        for part in parts_of("id", frames, plain)
    ]


def test_plain_rows_are_taken_out_when_they_are_worth_an_insert():
    assert divided([frame(b"600"), frame(b"raw"), frame(b"400")]) == [("id", 1000, [b"raw"])]
    assert divided([frame(b"600"), frame(b"raw"), frame(b"399")]) == [("id", None, [b"600", b"raw", b"399"])]
    assert divided([frame(b"5000")]) == [("id", 5000, [])]
    assert divided([frame(b"raw")]) == [("id", None, [b"raw"])]


def test_the_rest_of_a_payload_keeps_its_digest_and_its_days():
    whole = frame(b"1000raw", (3, 4))
    (part,) = parts_of("id", [whole], PLAIN)
    assert row_count(part.columns) == 1000
    assert part.frames == [Frame(whole.digest, b"raw", (3, 4))]
    assert divided([frame(b"999raw")]) == [("id", None, [b"999raw"])]


def test_a_signal_without_plain_rows_is_inserted_as_it_was_received():
    assert divided([frame(b"5000")], None) == [("id", None, [b"5000"])]


def test_the_days_of_an_insert_are_bounded():
    days = [(1, 1), (1, 90), (50, 100), (1, 101), (101, 120), (300, 300)]
    frames = [frame(b"%c" % (97 + n), pair) for n, pair in enumerate(days)]
    assert divided(frames) == [
        ("id.d0", None, [b"a", b"b", b"c"]),
        ("id.d1", None, [b"d"]),
        ("id.d2", None, [b"e"]),
        ("id.d3", None, [b"f"]),
    ]


def test_days_are_counted_anew_in_each_part():
    days = [(1, 1), (200, 200), (200, 201), (1, 1), (2, 2)]
    frames = [frame(b"%c" % (97 + n), pair) for n, pair in enumerate(days)]
    assert [payloads for _, _, payloads in divided(frames)] == [[b"a"], [b"b", b"c"], [b"d", b"e"]]


def test_a_payload_of_too_many_days_stands_alone():
    frames = [frame(b"a"), frame(b"b", (1, 5000)), frame(b"c")]
    assert [payloads for _, _, payloads in divided(frames)] == [[b"a"], [b"b"], [b"c"]]
    assert [token for token, _, _ in divided(frames[1:2])] == ["id"]


def test_an_earlier_day_counts_too():
    assert len(divided([frame(b"a", (200, 200)), frame(b"b", (101, 101))])) == 1
    assert len(divided([frame(b"a", (200, 200)), frame(b"b", (100, 100))])) == 2
