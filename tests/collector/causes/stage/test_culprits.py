"""Whose prompts delayed one request, as the API says it of what the explainer stored."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.causes.split.learn import learn
from collector.slo.model import load_slos
from tests.collector.rows import SECOND
from tests.support.keys import access_to, add_key
from tests.support.simulated_engine import EPOCH, MS, Law, Load, chats, run

TOKENS = 1500


@pytest.fixture(scope="module")
def beside():
    """Chats, a prompt of 1,500 tokens among them, and a victim of each kind: one that decoded and one that waited."""
    random = np.random.default_rng(4)
    at = 15 * SECOND
    long = Load([at, at + 30 * MS], [random.integers(1, 30_000, n).tolist() for n in (TOKENS, 60)], [20, 20])
    load, (culprit, waiting) = chats(300, seed=4).with_more(long)
    found = run(load, seed=4, budget=512)
    start, end = (found.requests[name] - EPOCH for name in ("start", "end"))
    first = start[culprit] + found.requests["ttft_ns"][culprit]
    there = np.flatnonzero((start + found.requests["ttft_ns"] < start[culprit]) & (end > first))
    return found, culprit, int(there[0]), waiting


def told(api, one):
    causes = api(f"requests/{one['trace_id']}")["explained"]["causes"]
    return {(cause["cause"], cause["of"]): cause for cause in causes}


def truth(found, victim, culprit, after):
    """The seconds of a victim's life, from its first token on or before, in which the culprit's prompt was computed."""
    start, end = (int(found.requests[name][victim]) - EPOCH for name in ("start", "end"))
    first = start + int(found.requests["ttft_ns"][victim])
    since, until = (first, end) if after else (start, first)
    return sum(
        time * max(0, min(until, step.end) - max(since, step.start)) / (step.end - step.start) / 1e9
        for step in found.truth
        for number, _, time in step.chunks
        if number == culprit
    )


@pytest.mark.parametrize("judged_by", ["earlier traffic", "itself"])
def test_one_request_names_the_prompts_that_delayed_it_by_cause(
    traffic, explainer, api, rows, beside, simulated, judged_by
):
    found, culprit, decoding, waiting = beside
    stored = traffic(found)
    if judged_by == "earlier traffic":
        end_s = rows.store.query("SELECT toUnixTimestamp(min(end)) FROM requests").result_rows[0][0]
        named = {"service": "engine", "instance": "i-1", "process_tenant": "", "variant": "baseline", "version": 1}
        model = learn(*simulated.tables, former=None)
        rows.insert("step_models", [{**named, "at": end_s // 600 * 600 - 1200, **model.row()}])
    explainer.run_once()
    long = stored.by_key[culprit]

    causes = told(api, stored.by_key[decoding])
    first, *others = causes["others_prompts", "rest"]["culprits"]
    assert (first["by"], first["trace_id"], first["span_id"]) == ("request", long["trace_id"], long["span_id"])
    assert first["time_s"] == pytest.approx(truth(found, decoding, culprit, after=True), rel=0.1)
    assert first["share"] == pytest.approx(first["time_s"] / causes["others_prompts", "rest"]["time_s"], rel=0.1)
    steps = sum(any(number == culprit for number, _, _ in step.chunks) for step in found.truth)
    assert first["name"] == f"{long['trace_id'][:8]}, {TOKENS} tokens in {steps} steps"
    assert len(others) <= 4
    assert all(first["time_s"] >= other["time_s"] > 0 for other in others)
    assert all(not cause["culprits"] for (name, _), cause in causes.items() if name != "others_prompts")

    causes = told(api, stored.by_key[waiting])
    assert causes["wait_tokens", "ttft"]["culprits"][0]["trace_id"] == long["trace_id"]
    before = [one for name in ("others_prompts", "wait_tokens") for one in causes[name, "ttft"]["culprits"]]
    by_long = [one["time_s"] for one in before if one["trace_id"] == long["trace_id"]]
    assert sum(by_long) == pytest.approx(truth(found, waiting, culprit, after=False), rel=0.2)
    later = causes["others_prompts", "rest"]["culprits"]
    assert later
    assert long["trace_id"] not in {one["trace_id"] for one in later}


@pytest.mark.parametrize(
    ("answers", "level", "cause"), [(60, "estimated", "others_prompts"), (7, "phases", "unexplained")]
)
def test_where_no_law_holds_the_prompt_is_named_with_a_range(traffic, explainer, api, answers, level, cause):
    """A busy machine: whose prompt was in the long steps is known all the same."""
    long = Load([2 * SECOND], [np.random.default_rng(1).integers(1, 30_000, 4000).tolist()], [20])
    load, [culprit] = chats(answers, rate=4.0, seed=7).with_more(long)
    found = run(load, law=Law(step=30 * MS, noise=0.55), seed=7)
    stored = traffic(found)
    explainer.run_once()
    since = found.requests["start"][culprit]
    until = since + found.requests["ttft_ns"][culprit]
    start, end = found.requests["start"], found.requests["end"]
    beside = np.flatnonzero((start + found.requests["ttft_ns"] < since) & (end > until))
    assert len(beside)
    for victim in beside.tolist():
        detail = api(f"requests/{stored.by_key[victim]['trace_id']}")["explained"]
        assert detail["level"] == level
        [first, *_] = told(api, stored.by_key[victim])[cause, "rest"]["culprits"]
        assert first["trace_id"] == stored.by_key[culprit]["trace_id"]
        assert 0 < first["low_s"] < first["time_s"] < first["high_s"]
        assert first["low_s"] < truth(found, victim, culprit, after=True) < first["high_s"]


def test_a_caller_of_one_tenant_learns_nothing_of_prompts_in_shared_steps(
    traffic, explainer, rows, beside, slos_file, ingest_status, clock, tmp_path
):
    found, _, decoding, _ = beside
    stored = traffic(found, tenant="a")
    explainer.run_once()
    access = access_to(tmp_path / "keys.json")
    app, _ = build_api(rows.store, load_slos(slos_file), ingest_status, lost_after_s=30.0, clock=clock, access=access)
    key = add_key(tmp_path / "keys.json", "read", "a")
    asked = f"/api/v1/requests/{stored.by_key[decoding]['trace_id']}"
    causes = TestClient(app).get(asked, headers=key).json()["explained"]["causes"]
    assert {"others_prompts"} < {cause["cause"] for cause in causes}
    assert [cause["culprits"] for cause in causes if cause["culprits"]] == []


def test_a_request_whose_steps_are_gone_names_nobody(traffic, explainer, api, rows, beside):
    found, _, decoding, _ = beside
    stored = traffic(found)
    explainer.run_once()
    rows.store.client().command("TRUNCATE TABLE steps")
    causes = told(api, stored.by_key[decoding])
    assert causes["others_prompts", "rest"]["time_s"] > 0
    assert [cause["culprits"] for cause in causes.values() if cause["culprits"]] == []
