"""`tokentrail explain` as text, from answers of the API."""

import io

from rich.console import Console

from tokentrail.cli.explain import show, show_one

TRACE = "0123456789abcdef" * 2


def text(print_it, answer, *filters):
    printed = io.StringIO()
    print_it(Console(file=printed, width=300), answer, *filters)
    return printed.getvalue()


def part(cause, **fields):
    return {
        "cause": cause, "group": f"group of {cause}", "time_s": 3.28, "typical_s": 0.08, "excess_s": 3.2, "share": 0.84,
        "requests": 4, "budget_share": None, "culprits": [], "exemplars": [], "advice": "",
        "without": {"causes": [cause], "attainment": 0.991, "points": 9.1, "low": 0.9, "high": 1,
                    "kind": "first order"},
    } | fields  # fmt: skip


ANSWER = {
    "window": {"start": "2026-11-20T10:00:00Z", "end": "2026-11-20T11:00:00Z"},
    "slo": "chat",
    "metric": None,
    "selected": {"requests": 4},
    "typical": {"text": "the middle half of good requests of the same model", "ttft_from_s": 0.08, "ttft_to_s": 0.1},
    "sentence": "What 4 bad requests took …",
    "parts": [
        part(
            "wait_kv",
            advice="Give the cache more memory.",
            exemplars=[{"trace_id": TRACE, "span_id": "aa", "time_s": 0.8, "excess_s": 0.7}],
            culprits=[
                {"by": "process", "name": name, "time_s": s, "without": None}
                for name, s in (("e1", 3.0), ("e2", 0.2), ("e3", 0.1))
            ],
        ),
        part("batch", share=0.0, excess_s=-0.5, without=None, advice="Fewer at once."),
    ],
    "without": [{"causes": ["wait_kv", "batch"], "attainment": 0.995, "kind": "first order"}],
    "not_ended": [{"text": "engine i-1: 1 request waits\x1b[2J"}],
    "note": "2 of 6 requests are not explained yet",
    "without_hidden": None,
    "replay": None,
    "levels": [{"level": "phases", "requests": 1, "engines": ["vllm"], "more": "switch on more"}],
}


def test_the_sentence_comes_first_and_the_next_command_last():
    lines = text(show, ANSWER, {}).splitlines()
    assert lines[0] == "What 4 bad requests took …"
    assert lines[-2].startswith("next: ")
    assert lines[-2].endswith(f"explain {TRACE}")
    when = "--start 2026-11-20T10:00:00Z --end 2026-11-20T11:00:00Z"
    assert lines[-1].startswith("all of them: ")
    assert lines[-1].endswith(f" requests {when} --slo chat --verdict bad")
    of = {"model": ["a", "b c"], "label.region": ["eu"]}
    slowest = text(show, ANSWER | {"slo": None, "metric": "ttft"}, of).splitlines()[-1]
    assert slowest.endswith(f" requests {when} --model a --model 'b c' --sort ttft --label region=eu")
    first = next(line for line in lines if line.startswith("wait_kv"))
    assert [told for told in ("84 %", "3.20 s", "3.28 s", "99.1 %") if told not in first] == []
    assert "e1 3.00 s" in first
    assert "e2" not in first, "the worst of each kind is enough for a line"
    second = next(line for line in lines if line.startswith("batch"))
    assert "−500 ms" in second
    assert "–" in second, "what is not known is no number"


def test_what_is_missing_and_what_helps_is_told():
    told = text(show, ANSWER, {})
    assert "without wait_kv, batch: 99.5 % good (first order)" in told
    assert "typical: the middle half of good requests of the same model, TTFT 80.0 ms to 100 ms" in told
    assert "not ended: engine i-1: 1 request waits\\x1b[2J" in told, "nothing of others moves the cursor"
    assert "note: 2 of 6 requests are not explained yet" in told
    assert "1 explained by phases: switch on more" in told
    assert "against wait_kv: Give the cache more memory." in told
    assert "Fewer at once." not in told, "it took no longer than in typical requests"
    hidden = text(show, ANSWER | {"without_hidden": "40 % of the time is not explained"}, {})
    assert "without a cause: 40 % of the time is not explained" in hidden
    nothing = {"parts": [], "without": [], "not_ended": [], "note": None, "without_hidden": None, "levels": []}
    nothing |= {"replay": None, "typical": None}
    assert (
        text(show, {"sentence": "No request is bad.", "selected": {"requests": 0}, **nothing}, {})
        == "No request is bad.\n"
    )


def test_what_would_be_without_a_culprit():
    without = {"attainment": 0.97, "kind": "replay", "low": 0.96, "high": 0.98}
    burst = {"by": "tenant", "name": "globex\x1b[2J", "time_s": 9.0, "without": without}
    parts = [part(cause, culprits=[burst], advice="") for cause in ("wait_batch", "others_prompts")]
    replay = {"requests": 380, "attainment": 0.64, "note": None}
    told = text(show, ANSWER | {"parts": parts, "replay": replay}, {}).splitlines()
    said = "had the requests of tenant globex\\x1b[2J never come: 97 % (96 % to 98 %) of the others good (replay)"
    assert [line for line in told if "never come" in line] == [said]


def test_one_request():
    row = {"model": "m", "status": "ok", "ttft_s": 0.9, "e2e_s": 5.0, "trace_id": TRACE}
    cause = {"cause": "wait_kv", "of": "ttft", "time_s": 0.82, "excess_s": None, "culprits": []}
    told = text(show_one, {"request": row, "explained": {"level": "steps", "causes": [cause]}}).splitlines()
    assert told[0] == f"m · ok · TTFT 900 ms · E2E 5.00 s · trace {TRACE}"
    assert told[2].split() == ["wait_kv", "TTFT", "820", "ms", "–", "–"]
    assert told[3] == "explained by steps"
    assert told[-1].endswith(f"request {TRACE}")
    assert "not explained yet" in text(show_one, {"request": row, "explained": {"level": None, "causes": []}})
    assert "has not ended" in text(show_one, {"request": row, "explained": None})
