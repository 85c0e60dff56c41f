from hypothesis import example, given
from hypothesis import strategies as st

from instrumented_engine.core.text import TextStream

from .support import byte_tokenizer

TOKENIZER = byte_tokenizer()


def stream(text, stop=()):
    """Pieces that a stream of one-byte tokens gives, and whether it stopped."""
    out = TextStream(TOKENIZER.decode, stop)
    pieces = []
    for token in TOKENIZER.encode(text):
        piece, stopped = out.push(token)
        pieces.append(piece)
        if stopped:
            return pieces, True
    return [*pieces, out.flush()], False


@given(st.text())
@example("naïve 漢字 👩‍👩‍👧 \ufffd end")
def test_pieces_are_whole_characters_and_add_up(text):
    pieces, stopped = stream(text)
    assert "".join(pieces) == text
    assert not stopped


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text, stops):
    pieces, stopped = stream(text, tuple(stops))
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    assert stopped == bool(ends)
    if not ends:
        assert "".join(pieces) == text
        return
    completed = text[: ends[0]]
    assert "".join(pieces) == completed[: min(completed.find(stop) for stop in stops if stop in completed)]


def test_characters_wait_for_their_last_byte():
    out = TextStream(TOKENIZER.decode)
    assert [out.push(token)[0] for token in TOKENIZER.encode("a€b")] == ["a", "", "", "€", "b"]


def test_broken_bytes_come_out_at_the_end():
    out = TextStream(TOKENIZER.decode)
    first, second, _ = TOKENIZER.encode("€")
    assert [out.push(first)[0], out.push(second)[0], out.flush()] == ["", "", "\ufffd"]


def test_broken_bytes_before_a_character_are_shown_as_such():
    out = TextStream(TOKENIZER.decode)
    broken, *_ = TOKENIZER.encode("€")
    [letter] = TOKENIZER.encode("x")
    assert [out.push(token)[0] for token in (broken, letter)] == ["", "\ufffdx"]


def test_what_may_become_a_stop_string_is_held_back():
    out = TextStream(TOKENIZER.decode, ("END",))
    pieces = [out.push(token) for token in TOKENIZER.encode("xENEND")]
    assert pieces == [("x", False), ("", False), ("", False), ("EN", False), ("", False), ("", True)]
