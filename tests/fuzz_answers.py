"""Answers of models for `tests.fuzz`: finish reasons, usages and deltas in any mixture, read as the proxy does."""

from tokentrail.clients.delta import SAID, THOUGHT
from tokentrail.clients.recording import Recording
from tokentrail.clients.usage import _COUNTS
from tokentrail.semconv import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, REASONING_TOKENS, STATUS, Status
from tokentrail.shared.finish_reasons import End, end_of
from tokentrail.testing import MemoryTrail

REASONS = ["stop", "length", "abort", "error", "network_error", "insufficient_system_resource", "content_filter"]
REASONS += ["cancelled", "banana", "", "null", None, 5, ["stop"], "MAX_TOKENS", "x" * 100]
TEXTS = ["", "a", "\u200b", "\n", " word", None, 5, True, [], {}]
PIECES = [*TEXTS, [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}], [{"type": "text", "text": "a"}]]
PIECES += [[{"type": "reasoning.encrypted", "data": "a"}], {"text": {"text": {"text": "a"}}}, [[["a"]]]]
COUNTS = [0, 1, 7, 40, 2000, -1, 2**40, None, "7", 1.5, True]
KINDS = ["response.created", "response.completed", "response.output_text.delta", "response.reasoning_text.delta"]
KINDS += ["message_start", "message_delta", "content_block_delta", "message", "chunk", "error", "ping", "x"]


def usage(chance):
    """A usage with some of the counts of any API."""
    told = {}
    for names in _COUNTS.values():
        if chance.random() < 0.4:
            *path, last = chance.choice(names).split(".")
            inner = told
            for name in path:
                inner = inner.setdefault(name, {})
            inner[last] = chance.choice(COUNTS)
    return chance.choice([told, told, told, None, 5])


def event(chance):
    """An event of a stream, or an answer."""
    names = chance.sample([*sorted(SAID), *sorted(THOUGHT)], chance.randrange(3))
    delta = {name: chance.choice(PIECES) for name in names}
    choice = {"index": chance.choice([0, 0, 1, -1, 200, "x"]), chance.choice(["delta", "message"]): delta}
    choice["finish_reason"] = chance.choice([None, None, *REASONS])
    said = {"choices": chance.choice([[choice], [choice], [], None, "x", [None]])}
    if chance.random() < 0.3:
        said = {"type": chance.choice(KINDS), "delta": chance.choice([delta, *TEXTS])}
        said["response"] = chance.choice([None, {}, {"status": chance.choice(REASONS), "usage": usage(chance)}])
    if chance.random() < 0.1:
        said = chance.choice(
            [{"detail": "x"}, {"code": 5, "msg": "x"}, {"base_resp": {"status_code": 9}}, "a", 5, None]
        )
    return (
        said | {"usage": usage(chance), "model": chance.choice(["m", "gemini-x"])} if isinstance(said, dict) else said
    )


def wrong_answers(chance, count):
    """What is wrong about the recordings of so many answers."""
    wrong = []
    for _ in range(count):
        events = [event(chance) for _ in range(chance.randrange(1, 5))]
        trail = MemoryTrail()
        recording = Recording(trail.start_request(operation="chat", model="m"))
        for one in events:
            recording.event(one)
        recording.end()
        (given,) = [span.attributes for span in trail.spans() if STATUS in span.attributes]
        failing = [reason for reason in recording.answer.reasons.values() if end_of(reason) is End.ERROR]
        pairs = ((CACHED_TOKENS, INPUT_TOKENS), (REASONING_TOKENS, OUTPUT_TOKENS))
        if failing and given[STATUS] != Status.ERROR:
            wrong.append(f"{failing} made {given[STATUS]}: {events}")
        if any(given.get(part, 0) > given.get(whole, 2**62) for part, whole in pairs):
            wrong.append(f"a part is more than its whole: {events}")
    return wrong[:5]
