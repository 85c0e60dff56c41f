"""What a finish reason says of how an answer ended: one table for proxy, `observe`, plugins and collector."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class End(StrEnum):
    """How an answer ended. `refused`: the model or its server declined to answer, which is an answer all the same."""

    OK = "ok"
    REFUSED = "refused"
    ERROR = "error"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


_WORDS: Final[dict[End, str]] = {
    End.OK: """
        stop length max_tokens max_output_tokens max_completion_tokens tool_calls tool_call tool_use function_call
        end_turn stop_sequence stop_sequences stop_token stop_words stop_str stop_string pause_turn compaction eos
        eos_token eot end_id end_of_text end_of_turn completed complete incomplete done finished success limit
        max_length model_length max_context_length context_length context_length_exceeded
        model_context_window_exceeded repetition turn_limit word
        max_new_tokens max_len max_context token_limit finish stop_criteria_met endoftext normal load unload
        eos_found stop_string_found max_predicted_tokens_reached context_length_reached
    """,
    End.REFUSED: """
        content_filter content_filtered content_filter_error refusal refused safety image_safety recitation
        image_recitation prohibited_content image_prohibited_content blocklist spii language sensitive blocked flagged
        moderation guardrail_intervened guardrails policy_violation content_policy_violation error_toxic
        model_armor jailbreak content_blocked
    """,
    End.ERROR: """
        error errored abort aborted failed failure fail timeout timed_out expired network_error connection_error
        insufficient_system_resource insufficient_system_resources insufficient_resource server_error internal_error
        internal_server_error engine_error upstream_error model_error service_unavailable overloaded overloaded_error
        rate_limit rate_limited rate_limit_exceeded error_limit out_of_memory oom shutdown malformed_function_call
        malformed_tool_use malformed_model_output malformed_response unexpected_tool_call too_many_tool_calls
        malformed_tool_call missing_thought_signature no_image image_other time_limit model_unloaded exception
        deadline_exceeded rag_query_when_rag_disabled
    """,
    End.CANCELLED: """
        cancelled canceled cancel user_cancel user_cancelled user_canceled user_stopped client_disconnect disconnected
    """,
}
ENDS: Final = {word: end for end, words in _WORDS.items() for word in words.split()}
"""The end of each known word, in lower case and with `_` between its parts."""
NOTHING: Final = ("null", "none")
"""Words by which some servers write that there is no reason."""
_GRAVEST: Final = (End.ERROR, End.CANCELLED, End.UNKNOWN, End.REFUSED, End.OK)
_ENUM: Final = re.compile(r"^[A-Za-z]+[.](\w)")
_JOINT: Final = re.compile(r"([a-z0-9])([A-Z])")
_PREFIX: Final = re.compile(r"^(?:finish_|stop_)?reason_(\w)")


def end_of(reason: str) -> End | None:
    """The end that a finish reason tells, in any spelling; None without one. A word that nobody knows is `unknown`.

    "stop", "MAX_TOKENS", "tool-calls" and "FinishReason.STOP" are ok, "content_filter" is refused, "abort" an error,
    "banana" unknown
    """
    if known := ENDS.get(reason):
        return known
    word = spelled(reason)
    return None if not word or word in NOTHING else ENDS.get(word, End.UNKNOWN)


def spelled(reason: str) -> str:
    """A finish reason as the table spells it. `collector/sql/schema/parts/end_of.sql` has the same steps.

    "MAX_TOKENS", "max-tokens", "maxTokens", "FINISH_REASON_MAX_TOKENS", "REASON_MAX_TOKENS" (xAI) and a member of an
    enum as Python prints it, "FinishReason.MAX_TOKENS", are all "max_tokens"
    """
    word = _JOINT.sub(r"\1_\2", _ENUM.sub(r"\1", reason.strip()))
    return _PREFIX.sub(r"\1", word.lower().replace("-", "_").replace(" ", "_"))


def worst(reasons: Iterable[str]) -> tuple[End | None, str]:
    """The end of a request by the reasons of its answers, and the reason that decides: an error goes before all."""
    told = {end: reason for reason in reasons if (end := end_of(reason)) is not None}
    return next(((end, told[end]) for end in _GRAVEST if end in told), (None, ""))
