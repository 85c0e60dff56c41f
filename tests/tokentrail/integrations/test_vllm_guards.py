"""The hooks never harm vLLM: unknown releases, faults inside, switches."""

import json
import logging
from pathlib import Path

import pytest

from tests.tokentrail.integrations import fake_vllm
from tokentrail import semconv
from tokentrail.integrations import recorder

SIGNATURES = json.loads((Path(__file__).parents[2] / "data" / "vllm-hooks" / "signatures.json").read_text())
HOOKED = ("add_request", "process_outputs", "abort_requests", "propagate_error")


def wrapped(fake):
    methods = [getattr(fake.OutputProcessor, name) for name in HOOKED] + [fake.AsyncLLM.add_request]
    return [hasattr(method, "__wrapped__") for method in methods]


@pytest.mark.parametrize("release", SIGNATURES)
def test_the_hooks_fit_the_signatures_of_every_release(plugin, release, monkeypatch):
    module, fake = plugin(SIGNATURES[release])
    monkeypatch.setattr(module, "engine_trail", lambda _: pytest.fail("no start is recorded here"))
    monkeypatch.setattr(module, "process_start_ns", lambda: None)
    module.StatLogger(fake_vllm.config())
    assert wrapped(fake) == [True] * 5
    assert issubclass(module.StatLogger, fake.StatLoggerBase), "vLLM does not start with a plugin that is none"


def test_the_releases_are_those_that_the_page_names():
    assert next(iter(SIGNATURES)).startswith("0.12.")
    assert list(SIGNATURES)[-1].startswith("0.33.")


@pytest.mark.parametrize(
    ("owner", "method", "parameters", "said"),
    [
        (
            "OutputProcessor",
            "process_outputs",
            ["self", "outputs"],
            "OutputProcessor.process_outputs(engine_core_outputs)",
        ),
        ("OutputProcessor", "add_request", ["self", "req"], "OutputProcessor.add_request(request)"),
        ("OutputProcessor", "abort_requests", ["self", "ids"], "OutputProcessor.abort_requests(request_ids)"),
        ("OutputProcessor", "propagate_error", ["self", "error"], "OutputProcessor.propagate_error(e)"),
        ("AsyncLLM", "add_request", ["self", "request_id"], "AsyncLLM.add_request(trace_headers)"),
        ("StatLoggerBase", "record", ["self", "stats"], "StatLoggerBase.record(engine_idx)"),
        ("EngineCoreOutput", None, ["request_id", "new_token_ids", "finish_reason"], "EngineCoreOutput.events"),
        (
            "EngineCoreRequest",
            None,
            ["request_id", "prompt_token_ids", "sampling_params"],
            "EngineCoreRequest.arrival_time",
        ),
    ],
)
def test_another_signature_is_one_warning_and_nothing_is_patched(plugin, caplog, owner, method, parameters, said):
    module, fake = plugin({owner: {method: parameters} if method else parameters})
    with caplog.at_level(logging.WARNING):
        loggers = [module.StatLogger(fake_vllm.config(), index) for index in (0, 1)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text
    assert wrapped(fake) == [False] * 5
    assert recorder.active() is None
    loggers[0].record(None, None, engine_idx=0)


def test_a_release_without_an_event_is_not_patched(plugin, monkeypatch):
    module, fake = plugin()
    import enum
    import sys

    monkeypatch.setattr(sys.modules["vllm.v1.engine"], "EngineCoreEventType", enum.Enum("E", ["QUEUED", "SCHEDULED"]))
    module.StatLogger(fake_vllm.config())
    assert wrapped(fake) == [False] * 5


def test_a_release_without_is_tracing_enabled_fits(plugin, monkeypatch):
    module, fake = plugin()
    del fake.AsyncLLM.is_tracing_enabled
    monkeypatch.setattr(module, "process_start_ns", lambda: None)
    module.StatLogger(fake_vllm.config())
    assert wrapped(fake) == [True] * 5


def test_an_error_while_the_hooks_are_set_stays_here(plugin, caplog, monkeypatch):
    module, _ = plugin()
    with caplog.at_level(logging.ERROR):
        logger = module.StatLogger(object())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    logger.record(None, None, engine_idx=0)
    logger.log_engine_initialized()


@pytest.mark.parametrize("switch", [{"TOKENTRAIL_VLLM": "false"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}])
def test_the_switch_and_a_missing_endpoint_turn_it_off(plugin, monkeypatch, switch):
    for name, value in switch.items():
        monkeypatch.setenv(name, value)
    module, fake = plugin()
    logger = module.StatLogger(fake_vllm.config())
    assert wrapped(fake) == [False] * 5
    logger.record(None, None, engine_idx=0)


def test_two_loggers_wrap_once(vllm):
    v = vllm()
    v.plugin.StatLogger(fake_vllm.config(), 1)
    assert not hasattr(v.fake.OutputProcessor.add_request.__wrapped__, "__wrapped__")


HOOK_FAULTS = ["arrived", "emitted", "entered", "cached", "finished", "stepped", "aborted", "end_all"]


@pytest.mark.parametrize("call", HOOK_FAULTS)
def test_a_fault_in_any_hook_ends_the_recording_and_no_answer(vllm, monkeypatch, caplog, call):
    v = vllm()
    open_one = v.add("z", "chatcmpl-z")
    recorder, broken = v.hooks.recorder, []
    original = getattr(recorder, call)

    def break_once(*args, **kwargs):
        if not broken:
            broken.append(call)
            raise RuntimeError("mine")
        return original(*args, **kwargs)

    monkeypatch.setattr(recorder, call, break_once)
    with caplog.at_level(logging.ERROR):
        key = v.add()
        v.step(10, v.output(key, events=(("SCHEDULED", 3),)))
        [result] = v.step(20, v.output(key, 4, cut_to=1))
        assert result.reqs_to_abort == [key]
        assert v.processor.abort_requests([open_one]) == [open_one]
        v.processor.propagate_error(ValueError())
        v.add("b", "chatcmpl-b")
        v.step(30, v.output("b", finish="STOP"))
    assert broken == [call]
    assert v.processor.request_states == {}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert not recorder.on
    assert all(row.attributes[semconv.STATUS] in ("cancelled", "ok") for row in v.rows())
    assert "chatcmpl-b" not in [row.attributes[semconv.RESPONSE_ID] for row in v.rows()]


def test_an_error_of_vllm_itself_is_vllm_s(vllm):
    v = vllm()
    with pytest.raises(AttributeError):
        v.processor.add_request(None, None)
    assert v.hooks.recorder.on
