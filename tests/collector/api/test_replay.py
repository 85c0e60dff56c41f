"""`/explain?replay=true`: what the replay of the same requests tells, and what was without the fault."""

import time

import numpy as np
import pytest
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.causes.answer import replayed
from collector.causes.split.replay import replay
from collector.causes.stage.backlog import Waits
from collector.causes.stage.stage import Explainer
from collector.slo.model import load_slos
from tests.collector.rows import SECOND
from tests.support.keys import access_to, add_key
from tests.support.simulated_engine import MS, Faults, Law, Load, S, chats, run
from tests.support.stored_run import StoredRun
from tokentrail.shared.formatting import percent

LIMITS = {"ttft": 150 * MS, "tpot": 20 * MS}
ASKED = {"ttft": "150ms", "tpot": "20ms", "replay": True}
AT_ONCE = Waits(soon_s=0.0, patience_s=0.0, late_s=0.0, others_s=0.0)


@pytest.fixture(scope="module")
def frozen():
    """300 chats in 30 s. The device stands still for 2 s, and the queue behind that is slow too."""
    return run(chats(300, seed=7), law=Law(), faults=Faults(freezes=((12 * S, 2 * S),)), seed=7)


@pytest.fixture(scope="module")
def plain():
    return run(chats(300, seed=7), law=Law(), seed=7)


@pytest.fixture
def put(rows, clock):
    """Store a run that ended a second ago, explained, with the limits of its engine."""
    rows.store.client().command("TRUNCATE TABLE explained_segments")

    def put(one, *, steps=True, limits=True, fields_of=None, of_steps=None, **fields):
        clock.now = time.time_ns()
        shift = clock.now - SECOND - int(one.requests["end"].max())
        stored = StoredRun(rows, one, shift, 1, lambda _: True, fields_of or fields).put(steps=False)
        if steps:
            stored.put_steps(**(of_steps or {}))
        told = one.scheduling
        names = ("max_seqs", "max_batched_tokens", "block_size", "kv_blocks", "watermark_blocks", "chunked_prefill")
        known = {name: getattr(told, name) for name in names} if limits else {}
        known |= limits if isinstance(limits, dict) else {}
        rows.cold_start(start=clock.now - 3600 * SECOND, duration=SECOND, policy="priority", **known)
        Explainer(rows.store, IngestStatus(), waits=AT_ONCE).run_once()

    return put


@pytest.fixture
def explain(api):
    return lambda **asked: api("explain", **(ASKED | asked))


def of_stall(answer):
    (part,) = [part for part in answer["parts"] if part["cause"] == "stall"]
    return part["without"]


def test_the_answer_is_that_of_the_replay_and_tells_what_was_without_the_fault(put, explain, api, frozen, plain):
    put(frozen)
    answer = explain(without=["stall,gap", "stall,busy"])
    told, truly = of_stall(answer), plain.good(**LIMITS).mean()
    found = replay(*frozen.tables, scheduling=frozen.scheduling, without=["stall"]).attainment(np.zeros(300), **LIMITS)
    assert told == {
        "causes": ["stall"], "kind": "replay", "attainment": found.attainment, "low": found.low, "high": found.high,
        "points": pytest.approx(100 * (found.attainment - frozen.good(**LIMITS).mean())),
    }  # fmt: skip
    assert told["low"] <= truly <= told["high"]
    assert told["points"] > 5
    seen = answer["replay"]
    assert (seen["requests"], seen["unknown"], seen["note"]) == (300, 0, None)
    assert seen["attainment"] == frozen.good(**LIMITS).mean() == answer["attainment"]
    assert [one["kind"] for one in answer["without"]] == ["replay", "first order"]
    assert answer["without"][0]["causes"] == ["stall", "gap"]
    assert answer["sentence"].endswith("(replay).")
    first = api("explain", **{**ASKED, "replay": False})
    assert first["replay"] is None
    assert of_stall(first)["kind"] == "first order"
    assert of_stall(first)["attainment"] < told["attainment"] - 0.02, "it leaves the queue there"


def test_what_would_be_without_the_tenant_that_sent_a_burst(put, explain, plain):
    burst = Load([12 * S + i * 1000 for i in range(80)], [[5] * 100] * 80, [120] * 80)
    load, sent = chats(300, seed=7).with_more(burst)
    found = run(load, law=Law(), seed=7)
    put(found, fields_of=lambda key: {"tenant": "globex" if key in sent else "acme"})
    answer = explain(tenant="acme")
    (place,) = [part for part in answer["parts"] if part["cause"] == "wait_batch"]
    tenants = {one["name"]: one["without"] for one in place["culprits"] if one["by"] == "tenant"}
    told, truly = tenants["globex"], plain.good(**LIMITS).mean()
    assert told["kind"] == "replay"
    assert told["low"] <= truly <= told["high"]
    assert told["attainment"] == pytest.approx(truly, abs=0.02)
    assert told["points"] == pytest.approx(100 * (told["attainment"] - answer["replay"]["attainment"]))
    assert told["points"] > 5
    assert [one["without"] for one in place["culprits"] if one["by"] == "process"] == [None]
    assert tenants["acme"] is None, "nobody else is asked about"
    whole = explain()
    told = {one["name"]: one["without"] for part in whole["parts"] for one in part["culprits"]}["globex"]
    others = found.good(**LIMITS)[np.isin(np.arange(380), sent, invert=True)].mean()
    assert others > whole["attainment"] + 0.05
    assert told["points"] == pytest.approx(100 * (told["attainment"] - others)), "its own are gone in both"
    assert f"of the others would be good instead of {100 * others:.4g} %" in whole["sentence"]


def test_what_would_be_without_one_long_prompt(put, explain, plain):
    load, (guilty,) = chats(300, seed=7).with_more(Load([12 * S], [[5] * 6000], [20]))
    put(run(load, law=Law(), seed=7), fields_of=lambda key: {"tenant": "large" if key == guilty else "acme"})
    answer = explain()
    (part,) = [part for part in answer["parts"] if part["cause"] == "others_prompts"]
    worst = next(one for one in part["culprits"] if one["by"] == "request")
    assert worst["name"].endswith("6000 tokens")
    told, truly = worst["without"], plain.good(**LIMITS).mean()
    assert told["attainment"] == pytest.approx(truly, abs=0.02)
    assert told["attainment"] > answer["attainment"]
    others = [one for one in part["culprits"] if one["by"] == "request"][1:]
    assert [one["without"] for one in others] == [None] * len(others)
    assert all(one["without"] is None for part in explain(replay=False)["parts"] for one in part["culprits"])


def test_of_many_requests_the_newest_are_replayed(put, explain, frozen, monkeypatch):
    put(frozen)
    monkeypatch.setattr(replayed, "MOST_REPLAYED", 120)
    seen = explain()["replay"]
    assert seen["requests"] == 120
    good = frozen.good(**LIMITS)[np.argsort(frozen.requests["end"])][-120:]
    assert seen["note"] == (
        "only the newest requests are replayed: at most 120 of the processes, and those of an hour; "
        f"{percent(good.mean())} of these 120 were good"
    )
    assert seen["attainment"] == pytest.approx(good.mean())
    assert seen["start"] > explain()["window"]["start"]


def test_what_takes_too_long_keeps_the_first_order_and_says_so(put, explain, frozen, monkeypatch):
    put(frozen)
    monkeypatch.setattr(replayed, "MOST_S", -1.0)
    answer = explain()
    assert of_stall(answer)["kind"] == "first order"
    assert "so some causes have the first order" in answer["replay"]["note"]


def test_one_that_misses_what_was_recorded_with_nothing_left_out_is_refused(put, explain, frozen):
    """Of an engine that ran more at once than it says."""
    put(frozen, limits={"max_seqs": 3})
    answer = explain()
    assert answer["replay"] is None
    assert answer["note"].startswith("no replay: with nothing left out it tells ")
    assert "and more than 2 are too many" in answer["note"]
    assert of_stall(answer)["kind"] == "first order"


def test_one_of_steps_with_drafts_is_refused(put, explain, frozen):
    put(frozen, of_steps={"drafted_tokens": 3})
    assert explain()["note"] == "no replay: drafts were decoded, which a replay does not simulate"


@pytest.mark.parametrize(("asked", "note"), [({}, "several are asked about: name one SLO"), ({"slo": "chat"}, None)])
def test_one_where_it_can_be_had(put, api, frozen, asked, note):
    put(frozen, slo_class="chat")
    answer = api("explain", replay="auto", **asked)
    assert (answer["replay"] is None) == bool(note)
    assert (note or "") in (answer["note"] or "")
    assert api("explain", replay="auto", metric="ttft")["note"] is None
    filters = {"model": "m", "engine": "tokentrail", "variant": "baseline"}
    filtered = api("explain", replay="auto", **asked, **filters)
    assert (filtered["replay"] is None) == bool(note), "filters name columns that the question about processes has too"


def test_a_request_that_failed_keeps_its_verdict(put, explain, frozen):
    put(frozen, status="error")
    answer = explain()
    assert answer["attainment"] == 0
    assert of_stall(answer)["kind"] == "first order", "none can be replayed"
    assert answer["replay"]["unknown"] == 300


@pytest.mark.parametrize(
    ("how", "note"),
    [
        ({"engine": "vllm"}, "no replay: a replay knows the scheduler of tokentrail alone, and not that of vllm"),
        ({"limits": False}, "no replay: the engine has not told its limits: i-1"),
        ({"weight": 2.0}, "no replay: some requests were sampled out, so nobody knows what came"),
    ],
)
def test_where_no_replay_is_possible_the_answer_says_why(put, explain, frozen, how, note):
    put(frozen, **how)
    answer = explain()
    assert (answer["note"], answer["replay"], of_stall(answer)["kind"]) == (note, None, "first order")


def test_nothing_is_replayed_where_too_little_is_explained(put, explain, frozen):
    put(frozen, steps=False)
    answer = explain()
    assert "% of the time is not explained" in answer["without_hidden"]
    assert (answer["replay"], answer["note"]) == (None, None)


def test_a_tenants_key_learns_that_there_is_none(put, frozen, rows, tmp_path, slos_file, clock):
    put(frozen, tenant="acme")
    keys = tmp_path / "keys.json"
    header = add_key(keys, "read", "acme")
    app, _ = build_api(
        rows.store, load_slos(slos_file), IngestStatus(), lost_after_s=30, access=access_to(keys), clock=clock
    )
    answer = TestClient(app).get("/api/v1/explain", params=ASKED, headers=header).json()
    assert answer["note"] == "no replay: a key of one tenant does not see the requests that ran beside its own"


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"replay": True, "metric": "ttft"}, "a percentile has none"), ({"replay": True}, "is about one promise")],
)
def test_a_replay_is_of_one_promise(api, asked, said):
    answer = api.client.get("/api/v1/explain", params=asked)
    assert answer.status_code == 400
    assert said in answer.text
