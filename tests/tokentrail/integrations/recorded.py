"""Tells a recorder about an engine, and reads the spans that it made."""

from tests.tokentrail.support import MS, T0
from tokentrail import semconv


def arrive(recorder, key="a", at=T0, **given):
    known = {"operation": "chat", "request_id": f"chatcmpl-{key}", "arrival_ns": at, "input_tokens": 7}
    recorder.arrived(key, **known | given)


def step(recorder, end, *, engine=0, later=2 * MS, **numbers):
    recorder.stepped(engine, emitted_ns=end + later, end_ns=end, **numbers)


def rows(trail):
    return trail.spans("chat m")


def tokens(trail, row):
    return [
        round(token.duration_ns / MS, 3) for token in trail.spans(semconv.TOKEN_SPAN) if token.parent_id == row.span_id
    ]


def steps(trail):
    return sorted(trail.spans(semconv.STEP_SPAN), key=lambda span: span.attributes[semconv.STEP])


def phases(trail, row):
    return [
        (span.attributes[semconv.PHASE_NAME], span.duration_ns / MS)
        for span in sorted(trail.spans(semconv.PHASE_SPAN), key=lambda span: span.start_ns)
        if span.parent_id == row.span_id
    ]
