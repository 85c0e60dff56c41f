"""Settings name attributes that give a tenant and an SLO class to requests that carry none."""

import itertools

import pytest

from collector.otlp.signals import TRACES
from collector.store.definitions import PLAIN, Decoding, read_schema
from collector.store.insert import insert_otlp
from collector.store.schema import apply_schema
from tests.support.otlp import Request
from tests.support.recordings import join

DECODING = Decoding(
    tenant_attributes=("user.team", "k8s.namespace.name"),
    slo_class_attributes=("http.request.header.x-class", "http.route"),
)
SPANS = {
    "vllm": ("vllm.llm_engine", "llm_request", {}),
    "sglang": ("sglang server", " Req 1", {"module": "sglang::request"}),
    "genai": ("any", "chat m", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}),
}
TRACE = itertools.count(1)


@pytest.fixture(scope="module")
def labelled_store(engine_store):
    apply_schema(engine_store, decoding=DECODING)
    return engine_store


def labels(store, attributes, *, engine="genai", **resource):
    scope, name, own = SPANS[engine]
    trace = next(TRACE)
    request = Request(scope=scope, **resource)
    request.span(name, trace=trace, kind=2, attributes=own | attributes)
    insert_otlp(store, TRACES, request.body(), f"labels-{trace}")
    join(store)
    sql = f"SELECT tenant, slo_class FROM requests WHERE trace_id = unhex('{trace:032x}')"
    return store.query(sql).result_rows


def test_without_these_settings_nothing_is_read(engine_store):
    """The first test, before the store is given the settings."""
    assert labels(engine_store, {"user.team": "search", "http.route": "/v1/chat"}) == [("", "")]


@pytest.mark.parametrize("engine", SPANS)
def test_a_span_or_its_resource_gives_them(labelled_store, engine):
    assert labels(labelled_store, {"user.team": "search", "http.route": "/v1/chat"}, engine=engine) == [
        ("search", "/v1/chat")
    ]
    assert labels(labelled_store, {}, engine=engine, **{"k8s.namespace.name": "shop"}) == [("shop", "")]


def test_a_header_is_a_list_and_its_first_value_counts(labelled_store):
    assert labels(labelled_store, {"http.request.header.x-class": ["batch", "chat"]}) == [("", "batch")]
    assert labels(labelled_store, {"http.request.header.x-class": []}) == [("", "")]


def test_the_first_attribute_with_a_value_counts(labelled_store):
    both = {"http.route": "/v1/chat", "http.request.header.x-class": ["batch"], "user.team": ""}
    assert labels(labelled_store, both, **{"k8s.namespace.name": "shop"}) == [("shop", "batch")]
    assert labels(labelled_store, {"user.team": "a"}, **{"k8s.namespace.name": "b"}) == [("a", "")]


def test_a_request_keeps_its_own(labelled_store):
    own = {"tokentrail.tenant": "own", "tokentrail.slo_class": "chat", "user.team": "x", "http.route": "/y"}
    assert labels(labelled_store, own) == [("own", "chat")]


def test_the_tenant_of_a_key_stands_above_all(labelled_store):
    stamped = {"tokentrail.tenant": "of-the-key"}
    assert labels(labelled_store, {"user.team": "x", "tokentrail.tenant": "y"}, **stamped) == [("of-the-key", "")]


def test_one_view_alone_depends_on_them():
    plain, labelled = read_schema(), read_schema(decoding=DECODING)
    assert plain == read_schema(decoding=PLAIN)
    assert plain.tables == labelled.tables
    assert [name for name in plain.views if plain.views[name] != labelled.views[name]] == ["flatten_spans"]
