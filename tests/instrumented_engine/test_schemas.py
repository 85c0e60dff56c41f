"""What a request may ask for: the last value of each side that is taken, and the first that is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from instrumented_engine.server.schemas import ChatRequest, CompletionRequest, GenerationRequest
from instrumented_engine.server.strict import shown

LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "model": (["m", "m" * 1024], ["", "m" * 1025]),
    "max_tokens": ([1], [0]),
    "n": ([1, 256], [0, 257]),
    "temperature": ([0, 2], [-0.01, 2.01]),
    "top_p": ([0.01, 1], [0, 1.01]),
    "top_k": ([-1], [-2]),
    "min_p": ([0, 1], [-0.01, 1.01]),
    "seed": ([-(2**63), 2**64 - 1], [-(2**63) - 1, 2**64]),
    "stop": (["s" * 1024, ["s"] * 16], ["", "s" * 1025, ["s"] * 17, ["s", ""]]),
    "stop_token_ids": ([[1] * 128], [[1] * 129]),
    "min_tokens": ([0], [-1]),
    "presence_penalty": ([-2, 2], [-2.01, 2.01]),
    "frequency_penalty": ([-2, 2], [-2.01, 2.01]),
    "repetition_penalty": ([0.01, 10], [0.009, 10.01]),
    "logit_bias": (
        [{"1": -100, "2": 100, "9" * 9: 0}, {str(i): 1 for i in range(1024)}],
        [{"1": -100.1}, {"1": 100.1}, {"9" * 10: 0}, {str(i): 1 for i in range(1025)}],
    ),
    "priority": ([-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31]),
    "length_penalty": ([-10, 10], [-10.1, 10.1]),
    "logprobs": ([0, 20], [-1, 21]),
    "prompt": ([["a"] * 256], [["a"] * 257]),
    "top_logprobs": ([0, 20], [-1, 21]),
    "max_completion_tokens": ([1], [0]),
}
WITH = {"length_penalty": {"use_beam_search": True}, "top_logprobs": {"logprobs": True}}


@pytest.mark.parametrize("name", LIMITS)
def test_each_parameter_is_taken_up_to_its_limits_and_refused_beyond(name):
    kind: type[GenerationRequest] = CompletionRequest
    asked: dict[str, Any] = {"prompt": "a"}
    if name not in CompletionRequest.model_fields:
        kind, asked = ChatRequest, {"messages": [{"role": "user", "content": "a"}]}
    taken, refused = LIMITS[name]
    for value in taken:
        kind.model_validate({"model": "m", **asked, **WITH.get(name, {}), name: value})
    for value in refused:
        with pytest.raises(ValidationError, match=name):
            kind.model_validate({"model": "m", **asked, **WITH.get(name, {}), name: value})


def test_a_long_value_is_cut_in_a_message():
    assert shown("x" * 78) == repr("x" * 78)
    assert shown("x" * 79) == "'" + "x" * 76 + "…"
