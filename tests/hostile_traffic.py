"""Telemetry of a good tenant with sick engines, of one that forges these, and of one with thousands of names."""

import itertools
import time

from collector.otlp.signals import METRICS, TRACES
from tests.support.otlp import MS, Request, set_attributes
from tokentrail import semconv

GOOD = "bolt"
SECOND = 10**9
HEALTHY, HUNG, DEAD, FULL, SAMPLED, TOLD = "healthy", "hung", "dead", "full", "sampled", "told"
LAWS = "laws"
"""The service of the process that tells its steps; the forger's has the same name, and is quicker."""
ASKED = {"gen_ai.operation.name": "chat", semconv.REQUEST_MODEL: "m"}
DIES_AFTER_S = 5


class Traffic:
    """Bodies by signal for each second of a run."""

    first_trace = 1

    def __init__(self):
        self._traces = itertools.count(self.first_trace)
        self._steps = itertools.count(1)

    def engine(self, instance, service="chat", **resource):
        return Request(**{"service.name": service, "service.instance.id": instance} | resource)

    def step(self, request, *, used, ago_s=0.0, running=1):
        counts = {semconv.STEP: next(self._steps), "tokentrail.step.running": running, "tokentrail.step.waiting": 0,
                  semconv.STEP_KV_USED: used, semconv.STEP_KV_TOTAL: 100}  # fmt: skip
        start, number = time.time_ns() - round(ago_s * SECOND), counts[semconv.STEP]
        request.span(semconv.STEP_SPAN, trace=self.first_trace + 10**9, span=number, start=start, attributes=counts)

    def request(self, request, *, e2e_s, ttft_s, failed=False, ahead_s=0.0, **attributes):
        end = time.time_ns() + round(ahead_s * SECOND)
        own = {
            semconv.OUTPUT_TOKENS: 10,
            semconv.TIME_TO_FIRST_TOKEN: ttft_s,
            "tokentrail.status": "error" if failed else "ok",
        }
        start, ns = end - round(e2e_s * SECOND), round(e2e_s * SECOND)
        request.span(
            "chat m", trace=next(self._traces), start=start, ns=ns, kind=2, attributes=ASKED | own | attributes
        )

    def announce(self, request, trace, *, began_ns):
        now = time.time_ns()
        request.span(
            semconv.OPEN_SPAN, trace=trace, span=2, parent=1, start=began_ns, ns=now - began_ns, attributes=ASKED
        )

    def evict(self, request):
        lost = {semconv.KV_BLOCKS: 4, semconv.KV_REASON: "preemption"}
        trace = next(self._traces)
        request.span(f"{semconv.KV_SPAN_PREFIX}evict", trace=trace, parent=1, start=time.time_ns(), attributes=lost)

    def cold_start(self, request, seconds, **fields):
        ns = seconds * SECOND
        trace = next(self._traces)
        request.span(semconv.COLD_START_SPAN, trace=trace, start=time.time_ns() - ns, ns=ns, attributes=ASKED, **fields)

    def second(self, request, began_ns, *, speed=1.0):
        """A chat of 20 tokens in 20 steps from then on; in the ninth, another one's long prompt is computed, too."""
        at, steps = began_ns, []
        for i in range(20):
            prefill, decode = {0: (50, 0), 8: (1000, 1)}.get(i, (0, 2 if 8 < i < 13 else 1))
            ns = round(speed * MS * (20 + prefill * 0.1) * (1 + 0.001 * (i * 7 % 13)))
            steps.append((at, at + ns))
            counts = {semconv.STEP: next(self._steps), semconv.STEP_PREFILL_TOKENS: prefill,
                      semconv.STEP_DECODE_TOKENS: decode, semconv.STEP_RUNNING: 1 + (8 <= i < 13),
                      semconv.STEP_WAITING: 0, semconv.STEP_PREEMPTED: 0, semconv.STEP_KV_USED: 10,
                      semconv.STEP_KV_TOTAL: 100, semconv.STEP_KV_EVICTED: 0}  # fmt: skip
            trace, number = self.first_trace + 10**10, counts[semconv.STEP]
            request.span(semconv.STEP_SPAN, trace=trace, span=number, start=at, ns=ns, attributes=counts)
            at += ns
        for of, prompt in ((steps, 50), (steps[8:13], 1000)):
            trace, (start, first), end = next(self._traces), of[0], of[-1][1]
            own = {semconv.OUTPUT_TOKENS: len(of), semconv.INPUT_TOKENS: prompt, "tokentrail.status": "ok",
                   semconv.TIME_TO_FIRST_TOKEN: (first - start) / SECOND}  # fmt: skip
            own |= {f"{semconv.PHASE_TIME_PREFIX}prefill": (first - start) / SECOND}
            request.span("chat m", trace=trace, start=start, ns=end - start, kind=2, attributes=ASKED | own)
            for n, (name, begin, until) in enumerate((("prefill", start, first), ("decode", first, end)), 2):
                phase = {semconv.PHASE_NAME: name}
                request.span(
                    semconv.PHASE_SPAN, trace=trace, span=n, parent=1, start=begin, ns=until - begin, attributes=phase
                )


def samples(service, instance, *, running, tokens, usage, **resource):
    """A body of vLLM's metrics, as a sender has them."""
    request = METRICS.request()
    sent = request.resource_metrics.add()
    set_attributes(sent.resource, {"service.name": service, "service.instance.id": instance} | resource)
    metrics = sent.scope_metrics.add().metrics
    for name, value in (("vllm:num_requests_running", running), ("vllm:kv_cache_usage_perc", usage)):
        metrics.add(name=name).gauge.data_points.add(time_unix_nano=time.time_ns(), as_double=value)
    total = metrics.add(name="vllm:generation_tokens_total").sum
    total.aggregation_temporality, total.is_monotonic = 2, True
    total.data_points.add(time_unix_nano=time.time_ns(), as_double=tokens)
    return METRICS, request.SerializeToString()


def together(*requests):
    """One body with all these requests that have spans."""
    return TRACES, b"".join(one.body() for one in requests if one.scope_spans.spans)


class GoodTenant(Traffic):
    """Six processes: one works, one hangs, one dies, one has a full KV cache, one sends metrics and makes no token, and
    the last one tells all of its steps.
    """

    def __init__(self):
        super().__init__()
        self._began_ns = time.time_ns()

    def bodies(self, at_s):
        healthy, hung, dead, full = (self.engine(instance) for instance in (HEALTHY, HUNG, DEAD, FULL))
        if not next(self._traces) % 2:
            self.request(healthy, e2e_s=2, ttft_s=0.1)
        self.request(healthy, e2e_s=3, ttft_s=0.9)
        self.step(healthy, used=40)
        self.step(full, used=99)
        if at_s < 2:
            self.cold_start(healthy, 3)
            self.step(hung, used=99)
            self.evict(full)
        self.announce(hung, 10**6, began_ns=self._began_ns)
        if at_s < DIES_AFTER_S:
            self.step(dead, used=10)
            for trace in range(3):
                self.announce(dead, 2 * 10**6 + trace, began_ns=self._began_ns)
        sampled = samples("sampled", SAMPLED, running=3.0, tokens=100.0, usage=0.5)
        told = self.engine(TOLD, LAWS)
        self.second(told, time.time_ns() - SECOND)
        return [together(healthy, hung, dead, full, told), sampled]


class Forger(Traffic):
    """Speaks for all processes of the good tenant: heals the sick ones, and makes the healthy one sick."""

    first_trace = 10**12

    def bodies(self, at_s):
        lies = {"tokentrail.tenant": GOOD}
        healthy, hung, dead, full = (self.engine(instance, **lies) for instance in (HEALTHY, HUNG, DEAD, FULL))
        for healed in (hung, dead, full):
            self.step(healed, used=1, running=0)
        self.step(healthy, used=100)
        self.evict(healthy)
        self.cold_start(healthy, 40)
        self.announce(healthy, next(self._traces), began_ns=time.time_ns() - SECOND)
        self.announce(dead, 10**13, began_ns=time.time_ns() - SECOND)
        for n in range(20):
            more = {semconv.TENANT: GOOD, "error.type": f"error {n}"}
            self.request(healthy, e2e_s=60, ttft_s=50, failed=True, ahead_s=30, **more)
        quick = [self.engine(instance, LAWS, **lies) for instance in (TOLD, "quick")]
        for one in quick:
            self.second(one, time.time_ns() - SECOND, speed=0.3)
        grown = samples("sampled", SAMPLED, running=0.0, tokens=1000.0 * at_s, usage=0.01, **lies)
        forged = samples("chat", HEALTHY, running=9.0, tokens=1.0, usage=1.0, **lies, **{semconv.SCRAPER: "forged"})
        return [together(healthy, hung, dead, full, *quick), grown, forged]

    def past(self, seconds):
        """Bodies of so long a time, which was over 90 minutes ago: from these steps, a law is learned at once."""
        began_ns = time.time_ns() - (90 * 60 + seconds) * SECOND
        for minute in range(0, seconds, 60):
            quick = self.engine("quick", LAWS)
            for second in range(minute, min(minute + 60, seconds)):
                self.second(quick, began_ns + second * SECOND, speed=0.3)
            yield [together(quick)]


class Flood(Traffic):
    """`names` new names a second, with markup, line breaks, escapes and marks that turn the direction of a text."""

    first_trace = 10**15

    def __init__(self, names):
        super().__init__()
        self._names = names

    def bodies(self, at_s):
        sent = []
        for n in range(self._names):
            name = f"<!channel> \n\x1b[2J\u202e[{at_s:.0f}.{n}](http://example.invalid)"
            request = self.engine(name, service=name, **{semconv.VARIANT: name})
            self.request(request, e2e_s=1, ttft_s=0.1, failed=True, **{"error.type": name, semconv.REQUEST_MODEL: name})
            self.step(request, used=99)
            self.announce(request, next(self._traces), began_ns=time.time_ns() - 10 * MS)
            sent.append(request)
        return [together(*sent)]
