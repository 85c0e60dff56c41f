"""Hidden reasoning between markers: divided from the text however it is cut, counted, and timed apart."""

import httpx
import pytest

from instrumented_engine.core.reasoning import Markers, Reasoning
from instrumented_engine.settings import Settings

from .server_support import MODEL, script, served, tiny_loader
from .support import byte_tokenizer, request_span

MARKERS = Markers("<think>", "</think>")
MS = 1_000_000


def divide(pieces, prompt=""):
    """(reasoning, visible text, tokens of reasoning) of an answer with these tokens."""
    reasoning = Reasoning(MARKERS, prompt)
    parts = [reasoning.push(piece, final=i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts), reasoning.num_tokens


ANSWERS = [
    ("<think>a b</think> c", "a b", " c"),
    (" \n<think>a</think>c</think>", "a", "c</think>"),
    ("<think>a</thin</think>", "a</thin", ""),
    ("<think>a</thi", "a</thi", ""),
    ("<think></think>c", "", "c"),
    ("c <think>a</think>", "", "c <think>a</think>"),
    ("<thin", "", "<thin"),
    ("  ", "", "  "),
    ("", "", ""),
]


@pytest.mark.parametrize(("answer", "hidden", "visible"), ANSWERS)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_answer_is_divided_however_it_is_cut(answer, hidden, visible, size):
    pieces = [answer[i : i + size] for i in range(0, len(answer), size)] or [""]
    assert divide(pieces)[:2] == (hidden, visible)


def test_a_prompt_may_open_the_reasoning():
    assert divide(["a", "</think>", "c"], prompt="go <think>\n") == ("a", "c", 2)
    assert divide(["a", "</think>", "c"], prompt="<think> go") == ("", "a</think>c", 0)


def test_the_tokens_of_the_reasoning_and_its_markers_are_counted():
    assert divide(["<thi", "nk>a", "b</th", "ink>c", "d"]) == ("ab", "cd", 4)
    assert divide(["<thi", "ng", "s"]) == ("", "<things", 0)
    assert divide(["<think>", "a"]) == ("a", "", 2)


def test_text_is_held_back_only_while_it_may_be_a_marker():
    reasoning = Reasoning(MARKERS)
    assert [reasoning.push(piece) for piece in ("<think>", "a</", "b", "</think", ">c")] == [
        ("", ""), ("a", ""), ("</b", ""), ("", ""), ("", "c"),
    ]  # fmt: skip


def chat(server, name, **body):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "q"}], "temperature": 0, **body}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={"x-request-id": name}, timeout=120)


def test_a_chat_tells_its_reasoning_apart_and_so_does_its_trace():
    prompt = byte_tokenizer().encode_chat([{"role": "user", "content": "q"}])
    answers = script(plain="<think>a</think>")
    load = tiny_loader(script={tuple(prompt): byte_tokenizer().encode("<think>hm</think>yes")} | answers)
    with served(load, reasoning_start_str="<think>", reasoning_end_str="</think>") as server:
        server.until(lambda: server.service.ready)
        whole = chat(server, "whole").json()
        assert whole["choices"][0]["message"] == {
            "role": "assistant", "content": "yes", "refusal": None, "reasoning_content": "hm",
        }  # fmt: skip
        assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 17}
        lines = chat(server, "streamed", stream=True).text.splitlines()
        assert sum('"reasoning_content":"' in line for line in lines) == 2
        cut = chat(server, "cut", max_tokens=9).json()
        assert cut["choices"][0]["message"]["reasoning_content"] == "hm"
        raw = httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "plain"}, timeout=120).json()
        assert raw["choices"][0]["text"] == "<think>a</think>"
        assert raw["usage"]["completion_tokens_details"] is None
        span = request_span(server.trail, "chatcmpl-whole")
        assert span.attributes["gen_ai.usage.reasoning.output_tokens"] == 17
        tokens = sorted(server.trail.spans("tokentrail.token", parent=span), key=lambda token: token.end_ns)
        seen = span.attributes["tokentrail.time_to_first_visible_token"] * 1e9
        assert seen == pytest.approx(tokens[17].end_ns - span.start_ns, abs=2000)
        attributes = request_span(server.trail, "chatcmpl-cut").attributes
        assert attributes["gen_ai.usage.reasoning.output_tokens"] == 9
        assert "tokentrail.time_to_first_visible_token" not in attributes


def test_one_marker_alone_is_refused():
    with pytest.raises(ValueError, match="need each other"):
        Settings(reasoning_start_str="<think>")
