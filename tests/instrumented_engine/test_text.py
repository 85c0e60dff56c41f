import threading

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from instrumented_engine.core.text import MAX_PENDING_TOKENS, TextStream

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


@given(st.text(max_size=30))
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


def test_long_broken_bytes_come_out_on_the_way_and_are_decoded_once():
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return TOKENIZER.decode(ids)

    out = TextStream(decode)
    broken, *_ = TOKENIZER.encode("€")
    pieces = [out.push(token)[0] for token in [broken] * 400]
    assert "".join([*pieces, out.flush()]) == "\ufffd" * 400
    assert [(at, len(piece)) for at, piece in enumerate(pieces[:40]) if piece] == [(15, 15), (30, 15)], "one waits"
    assert max(decoded) < 50, "the work per token does not grow"


@given(st.lists(st.sampled_from(["\ufffd", "€", "a", "\U0001f469"]), max_size=60))
def test_real_replacement_characters_are_not_cut(characters):
    text = "".join(characters)
    pieces, _ = stream(text)
    assert "".join(pieces) == text


def sentencepiece_like():
    """A tokenizer like Llama 2's: a space is part of the next token, and is dropped at the start of a text."""
    words = ["<unk>", "▁The", "▁capital", "▁is", "▁Paris", "."]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return backend.decode


def test_the_space_before_the_first_word_is_kept():
    decode = sentencepiece_like()
    assert decode([1, 2]) == "The capital"
    out = TextStream(decode, prompt=[1, 2])
    assert [out.push(token)[0] for token in (3, 4, 5)] == [" is", " Paris", "."]
    broken = TextStream(TOKENIZER.decode, prompt=TOKENIZER.encode("€")[:2])
    assert [broken.push(token)[0] for token in TOKENIZER.encode("xy")] == ["x", "y"]
    alone = TextStream(decode)
    assert [alone.push(token)[0] for token in (3, 4, 5)] == ["is", " Paris", "."]


def test_other_threads_go_on_while_a_text_is_encoded():
    began, ended = threading.Event(), threading.Event()

    def encode():
        began.set()
        TOKENIZER.encode("x" * 2_000_000)
        ended.set()

    threading.Thread(target=encode).start()
    assert began.wait(120)
    turns = 0
    while not ended.wait(0.001):
        turns += 1
    assert turns > 5


@pytest.mark.parametrize("known", [1, 2, 3])
def test_broken_bytes_do_not_wait_for_the_character_behind_them_and_cut_it_nowhere(known):
    out = TextStream(TOKENIZER.decode)
    broken, *_ = TOKENIZER.encode("€")
    character = TOKENIZER.encode("😀")
    tokens = [broken] * (MAX_PENDING_TOKENS - known) + character
    pieces = [piece for token in tokens if (piece := out.push(token)[0])]
    assert pieces == ["\ufffd" * (MAX_PENDING_TOKENS - known), "😀"]
