"""Events are found however their bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrail.proxy.sse import Event, Events


def read(stream, size=1, **given):
    events = Events(**given)
    found = [event for at in range(0, len(stream), size) for event in events.feed(stream[at : at + size])]
    return found, events.skipped


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_all_line_ends_at_all_cuts(end, size):
    lines = [
        b"event: x",
        b"data: a",
        b"data:b",
        b"",
        b": comment",
        b"",
        b"id: 7",
        b"data",
        b"",
        b"data: c",
        b"",
        b"data: cut",
    ]
    found, skipped = read(end.join(lines), size)
    assert found == [Event(b"x", b"a\nb"), Event(b"message", b""), Event(b"message", b"c")]
    assert skipped == 0


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))),
    st.integers(1, 9),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_is_written_is_read(texts, size, end):
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    assert [event.data.decode() for event in read(stream, size)[0]] == texts


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_an_event_that_is_too_large_is_skipped_alone(size):
    stream = b"data: a\n\ndata: " + b"x" * 60 + b"\ndata: y\n\ndata: " + b"y\ndata: " * 20 + b"z\n\ndata: b\n\n"
    found, skipped = read(stream, size, max_event_bytes=50)
    assert [event.data for event in found] == [b"a", b"b"]
    assert skipped == 2


def test_an_event_of_the_largest_size_is_read_and_one_byte_more_is_not():
    for extra, want in ((b"", [b"x" * 44]), (b"x", [])):
        found, skipped = read(b"data: " + b"x" * 44 + extra + b"\n\n", max_event_bytes=50)
        assert [event.data for event in found] == want
        assert skipped == len(extra)


def test_a_byte_order_mark_is_left_out():
    assert read(b"\xef\xbb\xbfdata: a\n\n")[0] == [Event(b"message", b"a")]
