"""The counts of an answer: where each API and gateway tells them, and what cannot be true."""

import pytest

from tests.tokentrail.support import T0, attributes_of, start
from tokentrail import semconv
from tokentrail.clients.recording import Recording
from tokentrail.clients.usage import Usage

NAMES = ("input_tokens", "cached_tokens", "cache_creation_tokens", "output_tokens", "reasoning_tokens")


def counts(*usages, beside_output=True):
    usage = Usage()
    for one in usages:
        usage.add(one)
    found = usage.counts(beside_output=beside_output)
    assert found.keys() <= {*NAMES}
    return tuple(found.get(name) for name in NAMES)


def chat(prompt, completion, total=None, **others):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total} | others


CACHED = {"input_tokens": 15, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 7}


@pytest.mark.parametrize(
    ("usages", "known"),
    [
        ([chat(7, 9)], (7, None, None, 9, None)),
        ([None, chat(7, 9), None], (7, None, None, 9, None)),
        ([chat(7, 1), chat(7, 2), chat(7, 3)], (7, None, None, 3, None)),
        ([chat(7, 9), chat(0, 0), chat(None, None), {}], (7, None, None, 9, None)),
        ([chat(0, 9), chat(7, 0)], (7, None, None, 9, None)),
        ([chat(7, 9, prompt_tokens_details={"cached_tokens": 5})], (7, 5, None, 9, None)),
        ([chat(7, 9, prompt_tokens_details={"cached_tokens": 0})], (7, 0, None, 9, None)),
        ([chat(7, 9, prompt_tokens_details={"cached_tokens": 8})], (7, 8, None, 9, None)),
        ([chat(7, 9, cached_tokens=5)], (7, 5, None, 9, None)),
        ([chat(7, 9, prompt_cache_hit_tokens=5, prompt_cache_miss_tokens=2)], (7, 5, None, 9, None)),
        ([{"input_tokens": 7, "input_tokens_details": {"cached_tokens": 5}}], (7, 5, None, None, None)),
        # Anthropic's input is beside its caches, in whichever event they are.
        ([CACHED, {"output_tokens": 9}], (1022, 1000, 7, 9, None)),
        ([CACHED, {"input_tokens": 0, "output_tokens": 9}], (1022, 1000, 7, 9, None)),
        ([{"input_tokens": 15}, {"cache_read_input_tokens": 1000, "output_tokens": 9}], (1015, 1000, None, 9, None)),
        ([CACHED, CACHED | {"input_tokens": 20}], (1027, 1000, 7, None, None)),
        ([CACHED, {"cache_read_input_tokens": None, "cache_creation_input_tokens": "7"}], (1022, 1000, 7, None, None)),
        # A gateway's prompt contains them, unless it is too short.
        ([chat(1022, 9, **CACHED, prompt_tokens_details={"cached_tokens": 1000})], (1022, 1000, 7, 9, None)),
        ([chat(15, 9, cache_read_input_tokens=1000)], (1015, 1000, None, 9, None)),
        ([chat(1000, 9, cache_read_input_tokens=1000)], (1000, 1000, None, 9, None)),
        ([chat(999, 9, cache_read_input_tokens=1000)], (1999, 1000, None, 9, None)),
        ([chat(7, 9, input_tokens=0, output_tokens=0)], (7, None, None, 9, None)),
        ([chat(0, 0, input_tokens=7, output_tokens=9)], (7, None, None, 9, None)),
        # Reasoning: among the output, beside it, and beside it without a name.
        ([chat(7, 40, 47, completion_tokens_details={"reasoning_tokens": 32})], (7, None, None, 40, 32)),
        ([chat(7, 40, 140, completion_tokens_details={"reasoning_tokens": 93})], (7, None, None, 133, 93)),
        ([chat(7, 0, 67, completion_tokens_details={"reasoning_tokens": 60})], (7, None, None, 60, 60)),
        ([chat(7, 0, 7, completion_tokens_details={"reasoning_tokens": 60})], (7, None, None, None, None)),
        # A total without a name for what it has more: prompts of tools, or written to a cache.
        ([chat(7, 40, 140)], (7, None, None, 40, None)),
        ([chat(7, 40, 140, prompt_tokens_details={"cached_tokens": 0})], (7, 0, None, 40, None)),
        ([chat(7, 40, 140, prompt_tokens_details={"cache_write_tokens": 93})], (100, None, 93, 40, None)),
        ([chat(7, 40, 47)], (7, None, None, 40, None)),
        ([chat(7, 40, 46)], (7, None, None, 40, None)),
        ([chat(None, 40, 47)], (None, None, None, 40, None)),
        ([chat(7, 40, 140, completion_tokens_details={"reasoning_tokens": 0})], (7, None, None, 40, 0)),
        ([chat(7, 40, 140, prompt_tokens_details={"cached_tokens": 93})], (7, 93, None, 40, None)),
        ([{"output_tokens": 40, "output_tokens_details": {"thinking_tokens": 32}}], (None, None, None, 40, 32)),
        ([chat(7, 40, reasoning_tokens=32)], (7, None, None, 40, 32)),
        ([{"prompt_tokens": -7, "completion_tokens": 9.5, "total_tokens": True}], (None,) * 5),
        ([5], (None,) * 5),
    ],
    ids=str,
)  # fmt: skip
def test_counts_are_merged_and_are_in_one_form(usages, known):
    assert counts(*usages) == known


@pytest.mark.parametrize(
    ("made_by", "told", "output"),
    [
        ("gemini-3-pro", chat(7, 40, 140), 133), ("models/gemini-3", chat(7, 0, 100), 93),
        ("gcp.gemini", chat(7, 40, 140), 133), ("gpt-5", chat(7, 40, 140), 40),
        ("generativelanguage.googleapis.com", chat(7, 40, 140), 133),
        ("gemini-3-pro", chat(7, 40, 140, tool_use_prompt_tokens=93), 40), ("not-gemini", chat(7, 40, 140), 40),
        ("gemini-3-pro", chat(7, 40, 140, completion_tokens_details={"reasoning_tokens": 5}), 40),
    ],
)  # fmt: skip
def test_only_of_models_that_are_known_for_it_a_total_has_more_output(made_by, told, output):
    usage = Usage()
    usage.made_by("m", made_by)
    usage.add(told)
    assert usage.counts(beside_output=True)["output_tokens"] == output


def test_zeros_are_placeholders_beside_output_and_counts_without_it():
    nothing = {"prompt_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    assert counts(nothing) == (7, None, None, None, None)
    assert counts(nothing, beside_output=False) == (7, 0, None, 0, None)
    assert counts(nothing | {"prompt_tokens": 0}, beside_output=False) == (None, 0, None, 0, None)


INPUT, OUTPUT = (f"gen_ai.usage.{{}}.{side}_tokens" for side in ("input", "output"))


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (chat(7, 9, prompt_tokens_details={"audio_tokens": 3, "image_tokens": 2},
              completion_tokens_details={"audio_tokens": 5, "image_tokens": 4}),
         {INPUT.format("audio"): 3, INPUT.format("image"): 2, OUTPUT.format("audio"): 5, OUTPUT.format("image"): 4}),
        ({"input_tokens": 7, "output_tokens": 9,
          "input_tokens_details": {"image_tokens": 2, "audio_tokens": 1, "text_tokens": 4},
          "output_tokens_details": {"image_tokens": 4, "audio_tokens": 1}},
         {INPUT.format("image"): 2, INPUT.format("audio"): 1, OUTPUT.format("image"): 4, OUTPUT.format("audio"): 1}),
        (chat(7, 9, prompt_tokens_details={"audio_tokens": 0}), {INPUT.format("audio"): 0}),
        (chat(7, 0, completion_tokens_details={"audio_tokens": 0}), {}),  # a placeholder
        (chat(0, 9, prompt_tokens_details={"audio_tokens": 0}), {}),
        (chat(7, 9), {}),
    ],
    ids=str,
)  # fmt: skip
def test_tokens_of_pictures_and_sound_are_on_the_span(trail, told, known):
    recording = Recording(start(trail))
    recording.event({"choices": [], "usage": told}, T0)
    recording.end(T0)
    assert {key: n for key, n in attributes_of(trail).items() if ".image." in key or ".audio." in key} == known


TEXT = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
LAST = {"index": 0, "delta": {}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [LAST], "usage": chat(7, 9)},
        {"choices": [], "usage": chat(7, 9)},
        {"choices": None, "usage": chat(7, 9)},
        {"usage": chat(7, 9)},
        {"choices": [LAST | {"usage": chat(7, 9)}]},
        {"choices": [LAST], "x_groq": {"id": "req_1", "usage": chat(7, 9)}},
        {"choices": [LAST | {"usage": None}], "x_groq": None, "usage": chat(7, 9)},
    ],
    ids=str,
)
def test_a_usage_is_read_where_it_is(trail, last):
    recording = Recording(start(trail))
    for event in (TEXT, TEXT, last):
        recording.event(event, T0)
    recording.end(T0)
    given = attributes_of(trail)
    assert (given[semconv.INPUT_TOKENS], given[semconv.OUTPUT_TOKENS]) == (7, 9)


def test_the_output_tokens_of_an_answer_that_begins_are_a_placeholder(trail):
    recording = Recording(start(trail))
    usage = {"input_tokens": 7, "output_tokens": 3}
    recording.event({"type": "message_start", "message": {"type": "message", "usage": usage}}, T0)
    recording.event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, T0)
    recording.end(T0)
    given = attributes_of(trail)
    assert given[semconv.INPUT_TOKENS] == 7
    assert semconv.OUTPUT_TOKENS not in given


ENDS = {
    "chat": lambda reason: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": reason}]},
    "messages": lambda reason: {"type": "message_delta", "delta": {"stop_reason": reason}},
    "message": lambda reason: {"type": "message", "stop_reason": reason},
}


@pytest.mark.parametrize("api", ENDS)
@pytest.mark.parametrize("reason", ["", "null", "None", "none", "NULL", None, "Une phrase, mot à mot.", 5])
def test_a_finish_reason_that_says_nothing_ends_nothing(trail, api, reason):
    recording = Recording(start(trail))
    recording.event(ENDS[api](reason), T0)
    assert not recording.answer.complete
    recording.end(T0)
    assert semconv.FINISH_REASON not in attributes_of(trail)


@pytest.mark.parametrize("api", ENDS)
def test_any_other_one_is_the_end(trail, api):
    recording = Recording(start(trail))
    recording.event(ENDS[api]("stop"), T0)
    assert recording.answer.complete
    recording.end(T0)
    assert attributes_of(trail)[semconv.FINISH_REASON] == "stop"
