"""`with trail.request(…)`: the current span, and the end of the request also after an exception or a cancellation."""

import asyncio
from contextvars import copy_context

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import Decision

from tests.tokentrail.support import MS, T0, attributes_of, start
from tests.tokentrail.test_context import SAMPLED, SPAN, TRACE
from tests.tokentrail.test_request import Scripted
from tokentrail import Trail, semconv
from tokentrail.testing import MemoryTrail


def given():
    return {"operation": "chat", "model": "m"}


def test_a_block_is_the_current_span_and_ends_its_request(trail, clock):
    with trail.request(**given()) as request:
        clock.advance(2 * MS)
        current = trace.get_current_span().get_span_context()
        assert (current.trace_id, current.span_id, current.trace_flags.sampled) == (
            request.trace_id, request.span_id, True,
        )  # fmt: skip
        child = start(trail)
    assert not trace.get_current_span().get_span_context().is_valid
    assert (child.trace_id, child.started.parent.span_id) == (request.trace_id, request.span_id)
    (span,) = trail.spans("chat m")
    assert (span.duration_ns, span.attributes[semconv.STATUS]) == (2 * MS, "ok")


@pytest.mark.parametrize(
    ("error", "status", "error_type"),
    [
        (ValueError("no"), "error", "ValueError"),
        (KeyboardInterrupt(), "error", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "cancelled", None),
        (GeneratorExit(), "cancelled", None),
    ],
)
def test_an_exception_becomes_the_status_and_passes_through(trail, error, status, error_type):
    with pytest.raises(type(error)), trail.request(**given()):
        raise error
    attributes = attributes_of(trail)
    assert (attributes[semconv.STATUS], attributes.get(semconv.ERROR_TYPE)) == (status, error_type)
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_generator_whose_steps_run_in_contexts_of_their_own_ends_its_request(trail, caplog):
    """As a web framework runs a generator in its pool of threads."""

    def serve():
        with trail.request(**given()) as request:
            for chunk in "ab":
                request.token()
                yield chunk

    served = serve()
    assert [copy_context().run(next, served, None) for _ in range(3)] == ["a", "b", None]
    assert attributes_of(trail)[semconv.STATUS] == "ok"
    assert caplog.text == ""
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_end_in_the_block_is_the_end(trail, clock):
    def serve():
        with trail.request(**given()) as request:
            request.end(T0 + MS, finish_reason="stop")
            clock.advance(9 * MS)
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        serve()
    (span,) = trail.spans("chat m")
    assert (span.duration_ns, span.attributes[semconv.STATUS]) == (MS, "ok")


def test_a_task_that_is_cancelled_cancels_its_request(trail):
    async def serve():
        async with trail.request(**given()) as request:
            assert trace.get_current_span().get_span_context().span_id == request.span_id
            await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert attributes_of(trail)[semconv.STATUS] == "cancelled"


def test_a_block_that_is_not_sampled_hands_on_that_decision():
    trail = MemoryTrail(sampler=Scripted(Decision.DROP))
    with trail.request(**given()) as request:
        current = trace.get_current_span().get_span_context()
        assert (current.span_id, current.trace_flags.sampled) == (request.span_id, False)
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_block_of_a_disabled_trail_leaves_the_current_span_alone(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    trail = Trail.from_env()
    outer = trace.NonRecordingSpan(trace.SpanContext(7, 8, False))
    with trace.use_span(outer), trail.request(**given()) as request:
        assert trace.get_current_span() is outer
        headers = {}
        request.inject(headers)
        request.token()
        request.tokens([T0])
        assert headers == {}


def test_inject_writes_the_headers_of_the_context(trail):
    request = start(trail, carrier=SAMPLED)
    headers = {"accept": "text/event-stream"}
    request.inject(headers)
    assert headers == {
        "accept": "text/event-stream",
        "traceparent": f"00-{TRACE}-{request.span_id:016x}-01",
        "tracestate": "vendor=1",
    }
    assert SPAN not in headers["traceparent"]
