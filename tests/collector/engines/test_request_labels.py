"""Requests carry labels that their senders chose: attributes of spans and resources, within bounds."""

import hashlib
import itertools

import pytest

from collector.receive.checked import ItemLimits
from collector.receive.validate import check, check_if_uniform
from collector.signals import TRACES
from collector.store.definitions import Decoding
from collector.store.insert import insert_otlp
from collector.store.schema import apply_schema
from tests.support.otlp import Request
from tests.support.recordings import join
from tokentrail import semconv

DECODING = Decoding(label_attributes=(("plan", "enduser.plan"), ("n", "llm.n"), ("region", "cloud.region")))
OWN = semconv.LABEL_PREFIX
SPANS = {
    "tokentrail": (semconv.SCOPE_NAME, "chat m", {"gen_ai.operation.name": "chat"}),
    "vllm": ("vllm.llm_engine", "llm_request", {}),
    "sglang": ("sglang server", " Req 1", {"module": "sglang::request"}),
    "genai": ("any", "chat m", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}),
    "litellm": ("litellm", "litellm_request", {"gen_ai.operation.name": "chat"}),
}
TRACE = itertools.count(1)


@pytest.fixture(scope="module")
def labelled_store(engine_store):
    apply_schema(engine_store, decoding=DECODING)
    return engine_store


def span(attributes, *, engine="tokentrail", repeated=(), **resource):
    scope, name, own = SPANS[engine]
    request = Request(scope=scope, **resource)
    made = request.span(name, trace=next(TRACE), kind=2, attributes=own | attributes)
    for key, value in repeated:
        made.attributes.add(key=key).value.string_value = value
    return request.body(), made.trace_id


def stored(store, spans):
    """The labels of each span's request, all of one segment."""
    bodies = b"".join(check(body, ItemLimits()).payload for body, _ in spans)
    insert_otlp(store, TRACES, bodies, f"labels-{next(TRACE)}")
    join(store)
    found = dict(store.query("SELECT hex(trace_id), labels FROM requests").result_rows)
    return [found[trace.hex().upper()] for _, trace in spans]


def labels(store, *cases, **resource):
    return stored(store, [span({OWN + name: value for name, value in case.items()}, **resource) for case in cases])


def test_without_the_setting_only_labels_are_read(engine_store):
    """The first test, before the store is given the setting."""
    assert stored(engine_store, [span({"enduser.plan": "team", OWN + "a": "b"})]) == [{"a": "b"}]


def test_attributes_of_the_span_and_the_resource_give_them(labelled_store):
    given = {OWN + "tier": "gold", "enduser.plan": "team", "llm.n": 3, "other": "x"}
    resource = {OWN + "app": "2.4", "cloud.region": "eu"}
    told = {"app": "2.4", "n": "3", "plan": "team", "region": "eu", "tier": "gold"}
    assert stored(labelled_store, [span(given, engine=engine, **resource) for engine in SPANS]) == [told] * len(SPANS)
    assert stored(labelled_store, [span({}, engine=engine) for engine in SPANS]) == [{}] * len(SPANS)


def test_the_first_of_a_name_counts(labelled_store):
    own, named = OWN + "plan", "enduser.plan"
    found = stored(
        labelled_store,
        [
            span({own: "span", named: "named"}, **{own: "resource", named: "named resource"}),
            span({named: "named"}, **{own: "resource", named: "named resource"}),
            span({named: ""}, **{own: "resource", named: "named resource"}),
            span({own: ""}, **{own: "resource"}),
            span({}, repeated=[(own, "first"), (own, "second")]),
            span({named: ["a", "b"]}),
            span({named: []}),
        ],
    )
    values = ["span", "named", "named resource", "resource", "first", "a"]
    assert found == [*({"plan": value} for value in values), {}]


def test_values_are_texts_numbers_and_truths(labelled_store):
    told = {"text": " ü\n", "int": -3, "double": 0.25, "yes": True, "no": False, "empty": "", "large": 2**62}
    assert labels(labelled_store, told) == [
        {"double": "0.25", "int": "-3", "large": str(2**62), "no": "false", "text": " ü\n", "yes": "true"}
    ]


def test_what_is_left_out_is_counted(labelled_store):
    found = labels(
        labelled_store,
        {"a": "1", "list": ["x"], "bytes": b"x", "empty list": []},
        {"a": "1", "": "no name", "a b": "x", "9a": "x", "_a": "x", "ä": "x", "a'b": "x", "a\nb": "x"},
        {"a" * 64: "1", "b" * 65: "1"},
        {f"n{i:02}": i for i in range(30, 14, -1)},
        {f"n{i:02}": str(i) for i in range(40, 10, -1)},
    )
    assert found[0] == {"a": "1", "_cut": "3"}
    assert found[1] == {"a": "1", "_cut": "7"}
    assert found[2] == {"a" * 64: "1", "_cut": "1"}
    assert found[3] == {f"n{i}": str(i) for i in range(15, 31)}
    assert found[4] == {f"n{i}": str(i) for i in range(25, 41)} | {"_cut": "14"}


def test_a_long_value_is_cut_and_stays_different_from_others(labelled_store):
    long = ["€" * 256, "€" * 257, "€" * 256 + "a", "x" * 100_000]
    whole, one, other, huge = labels(labelled_store, *({"a": value, "b": "b"} for value in long))
    assert whole == {"a": "€" * 256, "b": "b"}
    for found, value in zip((one, other, huge), long[1:], strict=True):
        digits = hashlib.sha256(value.encode()).hexdigest()[:16]
        assert found == {"a": f"{value[:239]}…{digits}", "b": "b", "_cut": "1"}
    assert len(one["a"]) == semconv.LONGEST_LABEL


def test_labels_that_are_cut_stay_cut_when_engines_spans_are_joined(labelled_store):
    told = {OWN + "a": "x" * 300, OWN + "b c": "1", OWN + "list": ["x"], OWN + "d": 7}
    engines = [span(told, engine=engine) for engine in ("tokentrail", "sglang")]
    engines.append(span(told, engine="vllm", **{semconv.DISAGGREGATION: "decode"}))
    plain, *joined = stored(labelled_store, engines)
    assert (plain["d"], plain["_cut"]) == ("7", "3")
    assert joined == [plain, plain]


def test_a_request_in_flight_has_them_too(labelled_store):
    request = Request(**{OWN + "app": "2.4"})
    attributes = {OWN + "tier": "gold", OWN + "x y": "z", semconv.REQUEST_STREAM: False}
    request.span(semconv.OPEN_SPAN, trace=next(TRACE), parent=9, attributes=attributes)
    insert_otlp(labelled_store, TRACES, check(request.body(), ItemLimits()).payload, "labels-open")
    sql = "SELECT labels FROM open_requests WHERE NOT ended"
    assert labelled_store.query(sql).result_rows == [({"app": "2.4", "tier": "gold", "_cut": "1", "stream": "false"},)]


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.output_tokens": 3}
TOLD = [
    (semconv.SCOPE_NAME, "chat m", {semconv.REQUEST_STREAM: True}, "true"),
    (semconv.SCOPE_NAME, "chat m", {semconv.REQUEST_STREAM: False}, "false"),
    (semconv.SCOPE_NAME, "chat m", {}, None),
    (semconv.SCOPE_NAME, "chat m", {semconv.REQUEST_STREAM: False, OWN + "stream": "own"}, "own"),
    ("any", "chat m", {semconv.REQUEST_STREAM: True}, "true"),
    ("any", "chat m", {semconv.REQUEST_STREAM: "false"}, "false"),
    ("any", "chat m", {}, None),
    ("any", "chat m", {semconv.REQUEST_STREAM: True, OWN + "stream": "own"}, "own"),
    ("opentelemetry.instrumentation.genai.openai", "chat m", {}, "false"),
    ("litellm", "litellm_request", {"llm.is_streaming": "True"}, "true"),
    ("litellm", "litellm_request", {"llm.is_streaming": "maybe"}, None),
    ("litellm", "chat m", {"litellm.request.streaming": True}, "true"),
    ("litellm", "chat m", {}, "false"),
    ("litellm", "chat m", {"error.type": "500"}, None),
    ("openinference.instrumentation.openai", "ChatCompletion",
     {"openinference.span.kind": "LLM", "llm.invocation_parameters": '{"stream": true}'}, "true"),
    ("vllm.llm_engine", "llm_request", {}, None),
]  # fmt: skip
"""Scope and name of a span, what it says, and the label `stream`."""


def test_whether_an_answer_is_streamed_is_a_label(engine_store):
    made = []
    for scope, name, attributes, _ in TOLD:
        request = Request(scope=scope)
        one = request.span(name, trace=next(TRACE), kind=3, attributes=CHAT | attributes)
        made.append((request.body(), one.trace_id))
    assert [found.get("stream") for found in stored(engine_store, made)] == [told for *_, told in TOLD]


def many(of_span=None, **of_resource):
    """A run of alike spans, which are checked as bytes."""
    request = Request(**of_resource)
    for i in range(64):
        request.span("chat m", trace=i + 1, attributes={semconv.OPERATION_NAME: "chat", **(of_span or {})})
    return request.body()


@pytest.mark.parametrize("wrong", [{OWN + "a b": "x"}, {OWN + "a": "x" * 257}, {OWN + "a": 3}])
def test_runs_of_alike_spans_are_bounded_too(wrong):
    good = {OWN + "a": "x" * 256}
    assert check_if_uniform(many(good, **good), ItemLimits()).items == 64
    for body in (many(wrong), many(**wrong)):
        checked = check(body, ItemLimits())
        assert checked.items == 64
        assert checked.payload != body
        assert check(checked.payload, ItemLimits()).payload == checked.payload
        assert check_if_uniform(checked.payload, ItemLimits()), "once bounded, it stays as it is"
