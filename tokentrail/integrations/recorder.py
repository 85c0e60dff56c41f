"""Records the calls of an engine's hooks through a trail. It knows no engine, and no fault of it reaches one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from tokentrail import Phase, RequestTrail, Status, Trail, now_ns, semconv
from tokentrail._record.arguments import AttributeValue, Carrier, Labels
from tokentrail._record.recipient import Recipient

logger = logging.getLogger(__name__)

MAX_OPEN: Final = 100_000
"""Requests under way that are recorded at most. Further ones are counted in `unrecorded`."""


@dataclass(slots=True)
class Incoming:
    """An HTTP request that the ASGI middleware saw. `recorded`: an engine took it."""

    arrival_ns: int
    operation: str
    headers: Carrier
    tenant: str = ""
    slo_class: str = ""
    recorded: bool = False


incoming: Final[ContextVar[Incoming | None]] = ContextVar("incoming", default=None)
"""The HTTP request that the current task serves."""


@dataclass(slots=True)
class _Request:
    """A request under way. `engine` has the trail that records it: the first engine that emits a token of it."""

    trail: RequestTrail
    left: int
    answers: list[_Answer] = field(default_factory=list)
    engine: int | None = None
    cached_tokens: int | None = None
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)  # found in lists, by identity
class _Answer:
    """The answer to a request, or one of several (`n` > 1). `prefilling`: its next token ends a prefill."""

    request: _Request
    index: int
    recipient: Recipient
    prefilling: bool = True
    preempted: bool = False


@dataclass(slots=True)
class _Engine:
    """One engine of this process (data parallelism has several), with a trail of its own."""

    trail: Trail
    next_step: int
    end_ns: int = 0
    busy: bool = False


@dataclass(slots=True)
class _Step:
    """Tokens, ends and preemptions of the step that is under way."""

    emitted: list[_Answer] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ended: list[tuple[str, _Answer, dict[str, Any]]] = field(default_factory=list)
    preempted: int = 0
    scheduled_ns: int = 0


_FORMATS: Final = {
    "json": "json_schema", "json_schema": "json_schema", "json_object": "json_object", "regex": "regex",
    "choice": "choice", "grammar": "grammar", "ebnf": "grammar", "structural_tag": "structural_tag",
}  # fmt: skip
"""Fields of the parameters of vLLM and SGLang that bind an answer to a format, and what OpenAI and vLLM call it."""


def response_format(params: Any) -> str | None:
    """The format that an answer must have, of an engine's parameters; None: any."""
    return next((word for field, word in _FORMATS.items() if getattr(params, field, None)), None)


class EngineRecorder:
    """Takes the calls of an engine's hooks, from one thread. `open_trail` makes the trail of an engine (0 is the only
    one, or the first) when it is needed first; `several` says that there is more than one. Answers are known by the ids
    that the engine gives them, `key`. Stamps are unix ns.

    `sharing` processes may serve the same engines (vLLM's API servers). Each of them records its part of a step, and
    numbers its steps apart by its `rank`: 0, 2, 4 … and 1, 3, 5 … for two. `knows_all` says that this process hears of
    every request of its engines, and so of every preemption in a step.

    A request arrives, its answer enters phases, emits tokens and finishes, in any order within a step; then `stepped`
    closes the step that brought all this. `model` is the name of requests that name none.
    """

    def __init__(
        self, engine: str, model: str, open_trail: Callable[[int], Trail], clock: Callable[[], int] = now_ns
    ) -> None:
        self.on = True
        self.model = model
        self.several = False
        self.rank, self.sharing = 0, 1
        self.knows_all = True
        self.unrecorded = 0
        self.on_fault: Callable[[], object] = lambda: None
        self._name = engine
        self._open_trail = open_trail
        self._clock = clock
        self._engines: dict[int, _Engine] = {}
        self._open: dict[str, _Answer] = {}
        self._shared: dict[str, _Request] = {}  # requests with several answers of which some have not arrived
        self._step = _Step()
        self._first_arrival_ns = 0  # since the last step

    def after(self, method: Callable[..., Any], work: Callable[..., object]) -> Callable[..., Any]:
        """`method` of a class, and then, guarded, `work` with the object, the result and the arguments."""

        @wraps(method)
        def wrapper(owner: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(owner, *args, **kwargs)
            self.guarded(lambda: work(owner, result, *args, **kwargs))
            return result

        return wrapper

    def guarded(self, work: Callable[[], object]) -> None:
        """Calls `work` while it records. A fault of `work` switches the recording off and goes no further."""
        if self.on:
            try:
                work()
            except Exception:
                self.fault()

    def fault(self) -> None:
        """Logs the error at hand once and stops recording. Open requests end as cancelled: their end is not known."""
        if not self.on:
            return
        self.on = False
        logger.exception("tokentrail has a fault and stops recording %s; answers are not affected", self._name)
        self.end_all(status=Status.CANCELLED)
        self.on_fault()

    def trail(self, engine: int = 0) -> Trail:
        """The trail of an engine."""
        return self._engine(engine).trail

    def arrived(
        self,
        key: str,
        *,
        operation: str,
        request_id: str,
        arrival_ns: int,
        input_tokens: int | None,
        model: str = "",
        carrier: Carrier | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        labels: Labels | None = None,
        choices: int = 1,
        index: int = 0,
        parent: str = "",
    ) -> None:
        """The engine took a request, or one of its `choices` answers; those have one `parent` and an `index` each. The
        middleware's arrival, tenant and class are the request's own, when there are any.
        """
        if choices > 1 and parent in self._shared:
            self._answer(key, self._shared[parent], index)
            if len(self._shared[parent].answers) == choices:
                del self._shared[parent]
            return
        seen = incoming.get()
        if seen is not None:
            seen.recorded = True
            arrival_ns, carrier = min(arrival_ns, seen.arrival_ns), seen.headers
            operation = seen.operation or operation
        if len(self._open) >= MAX_OPEN:
            if not self.unrecorded:
                logger.warning("tokentrail records %d requests at a time and leaves out further ones", MAX_OPEN)
            self.unrecorded += 1
            return
        trail = self.trail().start_request(
            operation=operation,
            model=model or self.model,
            request_id=request_id,
            carrier=carrier,
            arrival_ns=arrival_ns,
            input_tokens=input_tokens,
            provider=self._name,
            tenant=seen.tenant if seen else "",
            slo_class=seen.slo_class if seen else "",
            labels={"n": choices if choices > 1 else None, **(labels or {})},
            attributes=attributes if choices == 1 else {**(attributes or {}), semconv.CHOICE_COUNT: choices},
        )
        request = _Request(trail, choices)
        if choices > 1:
            self._shared[parent] = request
        self._answer(key, request, index if choices > 1 else -1)
        self._first_arrival_ns = self._first_arrival_ns or arrival_ns

    def refused(self, seen: Incoming, status_code: int) -> None:
        """The server answered an HTTP request with an error before an engine took it."""
        self._untaken(seen).end(self._clock(), status=Status.ERROR, error_type=str(status_code))

    def left(self, seen: Incoming) -> None:
        """The client of an HTTP request left before an engine took it."""
        self._untaken(seen).end(self._clock(), status=Status.CANCELLED)

    def _untaken(self, seen: Incoming) -> RequestTrail:
        return self.trail().start_request(
            operation=seen.operation,
            model=self.model,
            carrier=seen.headers,
            arrival_ns=seen.arrival_ns,
            provider=self._name,
            tenant=seen.tenant,
            slo_class=seen.slo_class,
        )

    def is_open(self, key: str) -> bool:
        """Whether the request is under way and recorded."""
        return key in self._open

    def entered(self, key: str, phase: Phase, at_ns: int) -> None:
        """A request entered a phase. It goes from PREFILL to DECODE by itself, with the token that it emits next."""
        answer = self._open.get(key)
        if answer is None:
            return
        step = self._step
        if phase is Phase.PREEMPTED:
            step.preempted += 1
            answer.preempted = True
        elif answer.index > 0 and not answer.preempted:
            return  # until one of them is preempted, a request has the phases of its first answer
        if phase is Phase.PREFILL:
            answer.prefilling = True
            step.scheduled_ns = min(step.scheduled_ns or at_ns, at_ns)
        answer.request.trail.phase(phase, at_ns)

    def cached(self, key: str, tokens: int | None) -> None:
        """The prompt tokens that a request found in the prefix cache. The first value counts: a preempted request finds
        its own blocks later.
        """
        answer = self._open.get(key)
        if answer is not None and answer.request.cached_tokens is None:
            answer.request.cached_tokens = tokens

    def emitted(self, keys: Sequence[str], counts: Sequence[int]) -> None:
        """Answers got so many tokens each in the step under way. This is the hot path."""
        answers = list(map(self._open.get, keys))
        if None in answers or 0 in counts:
            known = [(one, count) for one, count in zip(answers, counts, strict=True) if one is not None and count]
            answers, counts = [one for one, _ in known], [count for _, count in known]
        self._step.emitted += answers  # type: ignore[arg-type]  # None is not in it
        self._step.counts += counts

    def finished(self, key: str, **outcome: Any) -> None:
        """A request ends with the step under way. `outcome` are arguments of `RequestTrail.end`."""
        answer = self._open.get(key)
        if answer is not None:
            self._step.ended.append((key, answer, outcome))

    def aborted(self, key: str, **outcome: Any) -> None:
        """An answer ends now, outside of a step. One that is not OK ends its request, also when
        others of it are open.
        """
        answer = self._open.pop(key, None)
        if answer is not None:
            self._end(answer, self._clock(), outcome)

    def end_all(self, **outcome: Any) -> None:
        """All open requests end now: the engine has died, or the recording ends."""
        now = self._clock()
        step, self._step = self._step, _Step()
        left, self._open = self._open, {}
        self._shared.clear()
        ended = [(found, known) for _, found, known in step.ended]
        for found, known in ended + [(found, outcome) for found in left.values()]:
            try:
                self._end(found, now, known)
            except Exception:
                logger.debug("a request could not be ended", exc_info=True)

    def stepped(
        self, engine: int, *, emitted_ns: int, end_ns: int, duration_ns: int | None = None, **numbers: int | None
    ) -> None:
        """The step is over: it ended at `end_ns`, its tokens reached this process at `emitted_ns`. `numbers` are those
        of `Trail.step`; None is unknown and stays absent. Without a duration, a step of a busy engine began with the
        end of the one before, and the first one after an idle time when its first request was scheduled.
        """
        step, self._step = self._step, _Step()
        of = self._engine(engine)
        if self.several:
            self._settle(step, engine, emitted_ns)
        if duration_ns is not None:
            began = end_ns - duration_ns
        else:
            began = (of.end_ns if of.busy else step.scheduled_ns or self._first_arrival_ns) or end_ns
        for found in step.emitted:
            if found.prefilling:
                found.prefilling = False
                found.request.trail.phase(Phase.DECODE, emitted_ns)
        known = {name: value for name, value in numbers.items() if value is not None}
        counts = step.counts
        of.trail.step(
            of.next_step,
            min(began, end_ns),
            end_ns,
            [found.recipient for found in step.emitted],
            counts=None if counts.count(1) == len(counts) else counts,
            emitted_ns=emitted_ns,
            preempted=step.preempted if self.knows_all else None,
            **known,
        )
        of.next_step += self.sharing
        of.end_ns = end_ns
        self._first_arrival_ns = 0
        for key, found, outcome in step.ended:
            if self._open.get(key) is found:
                del self._open[key]
            self._end(found, emitted_ns, outcome)
        of.busy = bool(known["running"] or known.get("waiting")) if "running" in known else bool(self._open)

    def _answer(self, key: str, request: _Request, index: int) -> None:
        """One more answer; -1 is the only one."""
        recipient = request.trail if index < 0 else request.trail.choice(index)
        self._open[key] = answer = _Answer(request, index, recipient, prefilling=index <= 0)
        request.answers.append(answer)

    def _settle(self, step: _Step, engine: int, emitted_ns: int) -> None:
        """Requests go on in the trail of the engine that emits their first token. Where several engines answer one
        request, tokens of the others have no step.
        """
        here: list[_Answer] = []
        counts: list[int] = []
        for found, count in zip(step.emitted, step.counts, strict=True):
            request = found.request
            if request.engine is None:
                request.engine = engine if request.answers[0].prefilling else 0  # there was only one engine before
                if request.engine:
                    request.trail = self.trail(engine).take_over(self.trail().hand_over(request.trail))
                    for answer in request.answers:
                        answer.recipient = request.trail if answer.index < 0 else request.trail.choice(answer.index)
            if request.engine == engine:
                here.append(found)
                counts.append(count)
            else:
                found.recipient.tokens([emitted_ns] * count)
        step.emitted, step.counts = here, counts

    def _end(self, found: _Answer, at_ns: int, outcome: dict[str, Any]) -> None:
        """An answer ends; the last one ends its request, with the reasons of all."""
        request = found.request
        request.left -= 1
        request.reasons[found.index] = outcome.get("finish_reason", "")
        if request.left > 0 and outcome.get("status", Status.OK) is Status.OK:
            return
        if found.index >= 0:
            reasons = [request.reasons[index] for index in sorted(request.reasons)]
            outcome = {**outcome, "finish_reason": "", "finish_reasons": reasons}
        request.trail.end(at_ns, cached_tokens=request.cached_tokens, **outcome)

    def _engine(self, index: int) -> _Engine:
        known = self._engines.get(index)
        if known is None:
            known = self._engines[index] = _Engine(self._open_trail(index), self.rank)
        return known


_active: EngineRecorder | None = None


def activate(recorder: EngineRecorder | None) -> None:
    """Makes it the recorder of this process, which the ASGI middleware tells of refused requests."""
    global _active
    _active = recorder


def active() -> EngineRecorder | None:
    """The recorder of this process, while it records."""
    return _active if _active is not None and _active.on else None
