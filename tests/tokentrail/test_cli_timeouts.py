"""`tokentrail timeouts`: its lines, and settings that the packages of the clients take."""

import asyncio
import socket
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console

from tokentrail.cli import doctor
from tokentrail.cli.timeout_settings import SETTINGS, Chosen
from tokentrail.cli.timeouts import chosen, show, undecided

ONE = Chosen("org/model-8b", 12.5, 74.0, ["other"])


def point(seconds, share=0.001, dead=0.97):
    shares = [None if one is None else {"share": one, "low": one / 2, "high": one * 2} for one in (share, dead)]
    return {
        "timeout_s": seconds, "healthy_cut": shares[0] or {"share": None, "low": 0.0, "high": 0.1},
        "dead_caught": shares[1], "saved_s": 48.0, "beyond_observed": share is None,
    }  # fmt: skip


def wait(name, suggested, **more):
    told = {"curve": [point(60.0)], "evident": [], "summary": name, "longest_s": 4.2}
    return {"wait": name, "suggested": suggested} | told | more


def answer(*groups):
    return {"summary": "all", "read_one_in": 1, "left_out": 0, "groups": [*groups]}


def group(*waits, model="m", **more):
    return {"model": model, "split": "", "value": "", "requests": 10, "waits": [*waits], "hedging": []} | more


def printed(given, *, asked=False):
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        show(console, given, asked=asked)
    return capture.get()


def test_each_kind_of_requests_has_its_sentences():
    hedging = [{"summary": "a second request"}]
    found = printed(answer(group(wait("e2e", None), split="slo_class", value="", hedging=hedging), group(model="")))
    assert [line.strip() for line in found.splitlines()] == [
        "all", "", "m, slo_class not given: 10 requests", "e2e", "a second request", "",
        "model not given: 10 requests", "nobody tells how long these requests waited",
    ]  # fmt: skip
    few = answer() | {"read_one_in": 3, "left_out": 7}
    assert "one of 3 was read" in printed(few)
    assert "7 requests of rarer models" in printed(few)


def test_time_outs_that_are_asked_for_are_a_table():
    beyond = wait("gap", None, curve=[point(9.0, None, None)])
    found = printed(answer(group(wait("e2e", None), beyond)), asked=True).splitlines()
    assert " ".join(found[4].split()) == "whole request 1 min 0.1 % (0.05 to 0.2 %) 97 % (48.5 to 194 %) 48.0 s"
    assert "at most 10 %" in found[5]
    assert "longer than any wait that was answered (4.20 s)" in found[5]


def test_of_several_parts_the_longest_counts_and_one_undecided_leaves_none():
    both = answer(
        group(wait("e2e", point(10.0)), wait("gap", point(1.0))),
        group(wait("e2e", point(30.0)), wait("gap", None)),
        group(wait("gap", point(99.0)), model="other"),
    )
    assert chosen(both, "m") == {"e2e": 30}
    assert [*undecided(both, "m")] == ["gap"]
    assert chosen(both, "other") == {"gap": 99}


@pytest.mark.parametrize(
    ("waits", "read_s", "whole_s"),
    [
        ({"first_token": 12.5, "gap": 3, "e2e": 74}, 12.5, 74),
        ({"first_token": 3, "gap": 12.5}, 12.5, None),
        ({"first_token": 3, "e2e": 74}, None, 74),
        ({"first_token": 0.1, "gap": 0.02, "e2e": 0.5}, 1, 1),
    ],
)
def test_a_read_waits_for_first_and_other_tokens(waits, read_s, whole_s):
    one = Chosen.of("m", waits)
    assert (one.read_s, one.whole_s) == (read_s, whole_s)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
@pytest.mark.parametrize("one", [ONE, Chosen("m", 12.5, None)])
def test_the_package_takes_its_settings(name, one, monkeypatch):
    pytest.importorskip(name)
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "none")
    made = {}
    exec(SETTINGS[name](one), made)
    assert (made["client"].timeout.read, made["client"].timeout.connect) == (12.5, 5)
    assert ("asyncio.timeout(74)" in SETTINGS[name](one)) == (one.whole_s is not None)
    asyncio.run(made["client"].close())


def test_litellm_gives_up_at_the_time_outs_of_its_settings(monkeypatch):
    """A server that never answers: a stream ends at `stream_timeout`, and another request at `timeout`."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    config = yaml.safe_load(SETTINGS["litellm"](Chosen("org/model-8b", 0.2, 60.0, ["other"])))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = {"api_base": f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "api_key": "none"}
        config["model_list"][0]["litellm_params"] |= at
        other = {"model_name": "other", "litellm_params": {"model": "hosted_vllm/other", "mock_response": "other"}}
        asked = {"model": "org/model-8b", "messages": [{"role": "user", "content": "?"}], "stream": True}
        alone = litellm.Router(model_list=config["model_list"], num_retries=0)
        with pytest.raises(litellm.Timeout):
            alone.completion(**asked)
        router = litellm.Router(model_list=[*config["model_list"], other], num_retries=0, **config["router_settings"])
        told = [chunk.choices[0].delta.content for chunk in router.completion(**asked)]
    assert "".join(filter(None, told)) == "other"


def test_the_settings_of_gateways():
    config = yaml.safe_load(SETTINGS["litellm"](Chosen('a"\n: {b', 12.5, 74.0, ["x: y"])))
    assert config["model_list"][0]["model_name"] == 'a"\n: {b', "a name is a text, whatever is in it"
    assert config["router_settings"]["fallbacks"] == [{'a"\n: {b': ["x: y"]}]
    given = config["model_list"][0]["litellm_params"]
    assert (given["timeout"], given["stream_timeout"]) == (74, 12.5)
    envoy = yaml.safe_load(SETTINGS["envoy"](ONE))["route"]
    assert (envoy["timeout"], envoy["idle_timeout"]) == ("74s", "12.5s")
    assert yaml.safe_load(SETTINGS["envoy"](Chosen("m", 12.5, None)))["route"]["timeout"] == "0s", "none, not 15 s"
    assert "proxy_read_timeout 12500ms;\n" in SETTINGS["nginx"](ONE)
    assert "proxy_read_timeout 74000ms;\n" in SETTINGS["nginx"](Chosen("m", None, 74.0))
    assert "timeout: { totalMs: 74000, chunkMs: 12500 }" in SETTINGS["ai-sdk"](ONE)
    assert "timeout: { totalMs: 74000 }" in SETTINGS["ai-sdk"](Chosen("m", None, 74.0))


@pytest.mark.parametrize(("low", "warned"), [(0.6, 1), (0.4, 0), (None, 0)])
def test_doctor_warns_of_a_time_out_that_cuts_healthy_requests(low, warned):
    would_have = None if low is None else {"share": 0.85, "low": low, "high": 0.9}
    is_set = {"timeout_s": 60.0, "requests": 314, "would_have": would_have, "within_s": 74.0}
    given = answer(group(wait("e2e", None, evident=[is_set])))
    found = [*doctor._time_outs(Mock(**{"get.return_value": given}))]
    assert len(found) == warned
    if found:
        told = "m: 314 requests of a day were given up at 1 min, and 85 % of them would have been answered"
        assert (found[0].state, found[0].detail) == ("warn", told)
