"""llm-d's spans around vLLM's, made by hand from its documentation: there is no recording."""

import re
import textwrap
from pathlib import Path

from collector.signals import TRACES
from collector.slo.model import load_slos
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request

ROUTER = ("gateway.request", "gateway.request_orchestration", "run_scheduler_profile", "llm_d.pd_proxy.request")


def test_vllms_span_is_the_request_and_the_routers_spans_are_kept_beside_it(engine_store):
    router = Request(scope="llm-d-router", **{"service.name": "epp"})
    for span, name in enumerate(ROUTER, 1):
        router.span(name, span=span, parent=span - 1 or None, start=T0, ns=(50 - span) * MS)
    engine = Request(scope="vllm.llm_engine", **{"service.name": "llama"})
    attributes = {
        "gen_ai.latency.time_to_first_token": 0.01,
        "gen_ai.latency.e2e": 0.04,
        "gen_ai.usage.completion_tokens": 4,
    }
    engine.span("llm_request", span=9, parent=4, start=T0 + 5 * MS, ns=40 * MS, kind=2, attributes=attributes)
    insert_otlp(engine_store, TRACES, router.body() + engine.body(), "llm-d")
    sql = "SELECT engine, model, output_tokens, ttft_ns, e2e_ns FROM requests"
    assert engine_store.query(sql).result_rows == [("vllm", "llama", 4, 10 * MS, 40 * MS)]
    kept = engine_store.query("SELECT name FROM spans ORDER BY name").result_rows
    assert kept == [(name,) for name in sorted(ROUTER)]


def test_the_rule_of_the_page_keeps_prefill_instances_out_of_the_shipped_chat_slo(tmp_path):
    root = Path(__file__).parents[3]
    (rule,) = re.findall(r"```yaml\n(.*?)```", (root / "docs" / "engines" / "llm-d.md").read_text(), re.DOTALL)
    file = tmp_path / "slos.yaml"
    file.write_text((root / "alerts" / "slos.yaml").read_text() + textwrap.dedent("  " + rule.lstrip()))
    chat = next(slo for slo in load_slos(file) if slo.name == "chat")
    assert [(label.when, label.slo_class) for label in chat.labels] == [({"service": ("llama-prefill",)}, "prefill")]
    assert "prefill" not in chat.select["slo_class"]
