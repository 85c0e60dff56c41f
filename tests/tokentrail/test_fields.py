"""Fields of providers' answers: of the right type, or absent."""

import pytest

from tokentrail.clients import fields


@pytest.mark.parametrize("value", [None, 5, b"text", ["text"]])
def test_what_is_no_text_is_empty(value):
    assert (fields.text(value), fields.word(value), fields.reason(value)) == ("", "", "")


def test_a_text_has_at_most_256_characters():
    assert [len(fields.text("é" * length)) for length in (255, 256, 257, 1000)] == [255, 256, 256, 256]


@pytest.mark.parametrize(
    ("value", "reason"),
    [("stop", "stop"), ("null", ""), ("None", ""), ("stop sequence", "stop_sequence"), ("It ended, so.", "")],
)
def test_a_reason_is_a_word_or_words_joined_and_none_is_empty(value, reason):
    assert fields.reason(value) == reason


@pytest.mark.parametrize(
    ("values", "count"), [((None, 3, 4), 3), ((0, 4), 0), ((-1, True, 2.0, "5"), None), ((), None)]
)
def test_the_first_number_of_tokens_counts(values, count):
    assert fields.count(*values) == count
