"""What the MCP tool `explain` leaves out of an answer with many causes and culprits."""

import json

from tokentrail.mcp.explained import explained


def culprit(by, name, share, **fields):
    return {
        "by": by,
        "name": name,
        "share": share,
        "time_s": share,
        "low_s": None,
        "span_id": "5e84d637a1d0d5aa",
    } | fields


def part(cause, share, culprits=()):
    return {
        "cause": cause, "group": cause, "share": share, "excess_s": share, "typical_s": 0.0, "time_s": share,
        "requests": 3, "advice": f"do {cause}", "culprits": [*culprits],
        "without": {"causes": [cause], "attainment": 0.9, "points": 1.0, "low": 0.8, "high": 0.95, "kind": "replay"},
        "exemplars": [{"trace_id": f"{i:032x}"} for i in range(3)],
    }  # fmt: skip


CULPRITS = [
    *(culprit("request", f"r{i}", 0.3 - i / 100, trace_id=f"{i:032x}") for i in range(8)),
    *(culprit("tenant", f"t{i}", 0.9 if not i else 0.01) for i in range(40)),
    culprit("length", "1024 to 2047 tokens", 0.03),
    culprit("length", "512 to 1023 tokens", 0.02),
    culprit("process", "of no known share", None),
]
ANSWER = {
    "text": ["a line"], "sentence": "said", "levels": [], "note": "said", "groups": [1], "typical": {},
    "attainment": 0.7, "estimated": False, "not_ended": [], "wrong": {"missed": []},
    "parts": [part("wait_kv", 0.9, CULPRITS), part("batch", 0.02, CULPRITS), *(part(f"c{i}", 0.019) for i in range(9))],
}  # fmt: skip


def test_what_is_small_has_its_sums_and_whom_to_blame_stays():
    found = explained(ANSWER)
    assert found.keys() == {"text", "attainment", "parts"}
    large, edge, small, *_ = found["parts"]
    assert small == {"cause": "c0", "excess_s": 0.019, "share": 0.019}
    assert (edge["advice"], edge["requests"]) == ("do batch", 3)
    assert large["without"] == {"attainment": 0.9, "low": 0.8, "high": 0.95, "kind": "replay"}
    assert [one["name"] for one in large["culprits"]] == ["r0", "r1", "t0", "1024 to 2047 tokens", "of no known share"]
    assert large["culprits"][0] == {"by": "request", "name": "r0", "share": 0.3, "time_s": 0.3, "trace_id": f"{0:032x}"}
    assert large["examples"] == [f"{0:032x}", f"{1:032x}"]
    assert len(json.dumps(found)) < 3000


def test_a_share_that_is_not_known_is_not_small():
    (only,) = explained(ANSWER | {"parts": [part("wait_kv", None, CULPRITS)]})["parts"]
    assert only["culprits"]
    (bare,) = explained(ANSWER | {"parts": [part("alone", 0.5) | {"without": None}]})["parts"]
    assert "without" not in bare
