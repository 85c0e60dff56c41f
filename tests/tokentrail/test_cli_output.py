"""What commands print: names of others, other encodings than UTF-8, a disk that is full."""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.tokentrail.test_cli_demo import REQUEST
from tokentrail.cli import dead_letters, doctor, request, requests, spans, status
from tokentrail.cli.output import console, note
from tokentrail.shared.formatting import one_line
from tokentrail.shared.query import parse

NAME = "[/x] m[v2]\n\x1b[31mred\x9b\u2028\u202e"
"""A name as a client may send it: markup of rich, a line break, a colour, and a mark that turns the text around."""
SHOWN = r"[/x] m[v2]\n\x1b[31mred\x9b\u2028\u202e"
ROW = REQUEST | {"labels": {NAME: NAME}} | dict.fromkeys(("end", "start", "cached_tokens", "preemptions"))
ROW |= dict.fromkeys(f"{phase}_s" for phase in ("queue", "cold_start", "prefill", "decode", "preempted"))
ROW |= dict.fromkeys(("kv_transfer_s", "stalled_s", "gap_s"))
ROW |= dict.fromkeys(("error_type", "finish_reason", "model", "tenant", "slo_class", "operation", "engine"), NAME)
ROW |= dict.fromkeys(("service", "instance", "request_id", "variant", "vantage"), NAME)
MISS = {"threshold": "ttft", "limit_s": 0.1, "value_s": 0.123, "over_s": 0.023}
ROW |= {"verdict": "bad", "verdicts": [{"slo": NAME, "verdict": "bad", "missed": [MISS]}]}
SPAN = dict.fromkeys(("start", "name", "kind", "status"), NAME) | {"duration_s": 1.0, "resource": {NAME: NAME}}
SPAN |= {"attributes": {NAME: NAME}, "events": [{"name": NAME, "attributes": {NAME: NAME}}]}
NAMED = dict.fromkeys(("service", "scope", "name"), NAME) | {"spans": 1, "attribute_keys": [NAME]}
NO_WAITS: dict[str, Any] = {"waits": [], "interference": None, "longest_waits": [], "explained": None}


COUNTS = {"total": 10, "excused": 0, "undetermined": 0, "in_flight_violations": 0, "lost": 0, "good": 8}
OF_SLO = {
    "requests": COUNTS,
    "attainment": 0.8,
    "budget_left": -1.0,
    "exhausted_in_s": 0.0,
    "burn": [],
    "firing": "page",
}
SLO = OF_SLO | {"name": NAME, "objective": 0.9, "window_s": 86400.0, "groups": [OF_SLO | {"tenant": NAME}]}
SLO |= {"groups_total": 1}
BOX = {"severity": "page", "firing": True, "until_ns": None, "title": NAME, "sentence": NAME, "links": [], "inside": []}
VERDICT = {"state": "broken", "sentence": NAME, "who": NAME, "why": NAME, "without": None, "slos": [SLO]}
VERDICT |= {"links": [{"page": "explore", "params": {"slo": NAME}}], "boxes": [BOX | {"sentence": ""}, BOX]}
VERDICT |= {"slo_file_problem": NAME, "odd": [{"sentence": NAME, "who": NAME, "links": []}]}
INCIDENT = {"severity": "page", "firing": True, "cause": "engine_hung", "start": "2026-11-24T10:00:00Z", "end": None}
INCIDENT |= {"requests_affected": 3, "slo": None, "tenant": None, "title": NAME}
INCIDENT |= {"service": NAME, "instance": "", "process_tenant": NAME}
INCIDENT |= {"requests": [{"parameters": {"service": NAME, "instance": NAME, "status": "in_flight"}, "total": 3}]}


def letter(file):
    return dead_letters.DeadLetter(NAME, NAME, NAME, 1, NAME, damaged=False, file=file)


def detail():
    events = [{"kind": NAME, "reason": NAME, "blocks": 1, "own": True, "offset_s": 0.0, "duration_s": 0.0}]
    phases = [{"name": NAME, "offset_s": 0.0, "duration_s": 0.1}]
    return {"request": ROW, "phases": phases, "tokens": [], "events": events, "steps": None, **NO_WAITS}


def findings():
    return iter([doctor.Finding("engine", "warn", NAME, NAME)])


@pytest.mark.parametrize(
    ("show", "times", "lines"),
    [
        (lambda console, _: console.print(requests.table([ROW], console.width)), 7, 2),
        (lambda console, _: requests.print_rows(console, [ROW], as_json=False), 7, 1),
        (lambda console, _: request.show(console, detail()), 15, 8),
        (lambda console, _: status.show(console, VERDICT), 11, 17),  # and in JSON's words in a command
        (lambda console, _: status.show_incidents(console, [INCIDENT]), 3, 3),
        (lambda console, _: console.print(spans.names([NAMED])), 4, 2),
        (lambda console, _: spans.show(console, [SPAN]), 11, 4),
        (lambda console, file: console.print(dead_letters.table([letter(file)])), 3, 2),
        (lambda console, file: dead_letters.show(console, letter(file)), 4, 8),
        (lambda console, _: doctor.show(console, findings(), as_json=False), 2, 2),
    ],
    ids=[
        *("requests", "tail", "request", "status", "incidents", "spans", "spans NAME"),
        *("dead-letters list", "dead-letters show", "doctor"),
    ],
)
def test_a_name_of_others_is_printed_as_it_is_on_one_line(show, times, lines, tmp_path):
    file = tmp_path / "x.bin"
    file.touch()
    printed = io.StringIO()
    show(Console(file=printed, width=10_000), file)
    text = printed.getvalue()
    assert (text.count(SHOWN), len(text.splitlines())) == (times, lines)
    assert not {"\x1b", "\x9b", "\u2028", "\u202e"} & set(text)


def test_a_name_with_colons_is_no_emoji(capsys):
    row = ROW | {"model": "urn:id:key:7"}
    requests.print_rows(console(), [row], as_json=True)
    assert json.loads(capsys.readouterr().out)["model"] == row["model"]
    request.show(console(), detail() | {"request": row})
    note(row["model"])
    printed = capsys.readouterr()
    assert ("urn:id:key:7" in printed.out, printed.err) == (True, "urn:id:key:7\n")


def test_a_long_name_cuts_no_other_cell_of_a_piped_table(capsys):
    """256 characters are the longest that a filter of the API takes."""
    long = ROW | {"model": "m" * 60_000, "tenant": "t" * 60_000, "error_type": "e" * 60_000, "trace_id": "0" * 32}
    console().print(requests.table([ROW | LONG, long], console().width))
    _, shown, cut = capsys.readouterr().out.splitlines()
    assert [text in shown for text in ("organisation model 70b at fp8", "acme corporation", LONG["trace_id"])] == [
        True
    ] * 3
    assert [text in cut for text in ("m" * 255 + "…", "t" * 255 + "…", "0" * 32)] == [True] * 3
    named = NAMED | {"name": "n" * 60_000, "attribute_keys": [f"key.{number}" for number in range(2000)]}
    console().print(spans.names([named]))
    _, shown = capsys.readouterr().out.splitlines()
    assert ("n" * 255 + "…" in shown, shown.rstrip().endswith(", key.1999")) == (True, True)


def test_a_narrow_terminal_has_the_whole_name_of_a_span():
    printed = io.StringIO()
    named = {"spans": 1, "service": "s", "scope": "s", "name": "kv_cache_block_manager_evicted_a_block_of_the_prefix"}
    Console(file=printed, width=57).print(
        spans.names([named | {"attribute_keys": ["vllm.block_manager.block_count"] * 2}])
    )
    heads, *shown = printed.getvalue().splitlines()
    column = slice(heads.index("name"), heads.index("attributes"))
    assert "".join(part[column].strip() for part in shown) == named["name"]


def test_text_without_control_characters_stays():
    assert one_line("é 漢字 🙂 – a\\b") == "é 漢字 🙂 – a\\b"


def tokentrail(*arguments, **streams):
    env = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "tokentrail.cli", *map(str, arguments)]
    return subprocess.run(command, env=env, stderr=subprocess.PIPE, check=False, timeout=300, **streams)


def test_an_output_that_is_not_utf_8_has_the_rest_of_the_line(tmp_path):
    (tmp_path / "wal").mkdir()
    (tmp_path / "dead_letters").mkdir()
    (tmp_path / "dead_letters" / "x.bin").touch()
    (tmp_path / "dead_letters" / "x.json").write_text('{"reason": "5 \\u2192 12", "at": "now"}')
    done = tokentrail("dead-letters", "list", "--data-dir", tmp_path, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"5 ? 12" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        done = tokentrail("--version", stdout=full)
    assert (done.returncode, done.stderr) == (1, b"error: [Errno 28] No space left on device\n")


def test_ctrl_c_while_the_command_is_loaded_is_no_traceback():
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'tokentrail.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from tokentrail.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.parametrize("columns", [57, 80])
def test_a_narrow_terminal_has_the_whole_name_of_a_dead_letter(columns, tmp_path):
    name = "01795000000000000000-0123456789abcdef-" + "fedcba9876543210" * 2
    made = dead_letters.DeadLetter(name, "traces", "2026-11-25T05:00:00Z", 1, "why " * 40, damaged=False, file=tmp_path)
    printed = io.StringIO()
    Console(file=printed, width=columns).print(dead_letters.table([made]))
    heads, *shown = printed.getvalue().splitlines()
    assert shown[0].startswith("2026-11-25T05:00:00Z ")
    assert "".join(line[heads.index("name") :].strip() for line in shown) == name


@pytest.mark.parametrize(("columns", "axis"), [(57, 26), (80, 49), (95, 64), (1_000_000, 64)])
def test_the_waterfall_is_as_wide_as_the_terminal(columns, axis):
    phases = [
        {"name": "queued", "offset_s": 0.0, "duration_s": 0.5},
        {"name": "decode", "offset_s": 0.5, "duration_s": 9.5},
    ]
    tokens = [{"index": i, "offset_s": i + 1.0, "duration_s": 1.0, "step": i} for i in range(10)]
    event = {"kind": "kv.evict", "reason": "", "blocks": None, "own": True, "offset_s": 10.0, "duration_s": 0.0}
    printed = io.StringIO()
    whole = detail() | {"request": ROW | {"e2e_s": 10.0}, "phases": phases, "tokens": tokens, "events": [event]}
    request.show(Console(file=printed, width=columns), whole)
    queued, decode, made, evicted = printed.getvalue().splitlines()[6:10]
    assert queued.endswith(" 500 ms   5.0 %")
    assert max(len(line) for line in (queued, decode, made, evicted)) == len(decode) == axis + 31 <= columns
    assert (decode.index("█"), made.rindex("█"), evicted.index("▲")) == (13 + axis // 20, 12 + axis, 12 + axis)


@pytest.mark.parametrize(
    ("totals", "said"),
    [
        ({"steps_total": 3, "events_total": 1}, ["2 of 3 steps are known to this command"]),
        ({"steps_total": 2, "events_total": 1200}, ["1 of 1\u202f200 events are known to this command"]),
        ({"steps_total": 2, "events_total": 1}, []),
        ({"steps_total": None}, []),  # a key of one tenant, or an older collector
    ],
)
def test_what_the_answer_leaves_out_is_said(totals, said):
    step = {"step": 1, "prefill_tokens": None, "running": None}
    shown = request.lines(detail() | {"steps": [step, step]} | totals)
    assert [line for line in shown if "known to this command" in line] == said


LONG: dict[str, Any] = {
    "model": "organisation model 70b at fp8",
    "trace_id": "0123456789abcdef" * 2,
    "error_type": "timeout",
}
LONG |= {
    "tenant": "acme corporation",
    "slo_class": "chat",
    "ttft_s": 0.123,
    "tpot_s": 0.0191,
    "gap_s": 1.0,
    "e2e_s": 12.3,
}
LONG |= {"end": "2026-11-24T10:00:00.123Z", "prefill_s": 6.15, "variant": "v2", "engine": "vllm", "vantage": "server"}


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (40, "2026-11-24 10:00:00  ok timeo…  01234567"),
        (56, "2026-11-24 10:00:00  ok timeout  123 ms  0123456789abcde"),
        (57, "2026-11-24 10:00:00  ok timeo…  123 ms  19.1 ms  01234567"),
        (64, "2026-11-24 10:00:00  ok timeout  123 ms  19.1 ms  0123456789abcd"),
        (65, "2026-11-24 10:00:00  ok timeo…  123 ms  19.1 ms  12.3 s  01234567"),
        (76, "2026-11-24 10:00:00  ok timeout  123 ms  19.1 ms  12.3 s  0123456789abcdef01"),
        (82, "2026-11-24 10:00:00  ok timeo…  TTFT by 23.0 ms  123 ms  19.1 ms  12.3 s  01234567"),
        (
            112,
            "2026-11-24 10:00:00  ok timeout  TTFT by 23.0 ms  organisation model…  "
            "4→2     123 ms  19.1 ms  12.3 s  01234567",
        ),
        (
            10_000,
            "2026-11-24 10:00:00  ok timeout  bad      TTFT by 23.0 ms  organisation model 70b at fp8  v2       "
            "acme corporation  chat   vllm    server   4→2     123 ms  19.1 ms  1.00 s  12.3 s  prefill 50 %  "
            "0123456789abcdef0123456789abcdef",
        ),
    ],
)
def test_a_narrow_terminal_cuts_names_and_ids_and_never_a_number(width, line):
    printed = io.StringIO()
    Console(file=printed, width=width).print(requests.table([ROW | LONG], width))
    heads, shown = printed.getvalue().splitlines()
    assert shown.rstrip() == line
    assert heads.startswith("end (UTC)            status")
    assert heads.rstrip().endswith("trace")


def test_a_terminal_of_twenty_columns_has_the_eight_digits_that_find_a_request():
    printed = io.StringIO()
    Console(file=printed, width=20).print(requests.table([ROW | LONG], 20))
    assert [line.split() for line in printed.getvalue().splitlines()] == [
        ["status", "trace"],
        ["ok", "timeout", "01234567"],
    ]


def test_the_next_command_can_be_pasted_into_a_shell_and_has_all_that_the_list_needs():
    hostile = "a b'; rm -rf ~ #\n\x1b[2J"
    made = status.command({"service": hostile, "slo_class": "chat", "cause_start": "now", "process_tenant": ""})
    (line,) = shlex.split(made)[2:]
    assert (line.isprintable(), parse(line)) == (True, {"service": [hostile], "slo_class": ["chat"]})
    assert status.command({"slo": "chat", "trace_id": "abcd"}).endswith(" incidents --json"), "it has no such option"


def test_the_worst_miss_of_each_threshold_is_told():
    misses = [(MISS | {"over_s": over, "threshold": name}) for over, name in ((0.5, "ttft"), (0.1, "ttft"), (2, "e2e"))]
    verdicts = [{"slo": "chat", "verdict": "bad", "missed": [one]} for one in misses]
    assert requests.missed({"verdicts": verdicts}) == "TTFT by 500 ms, E2E by 2.00 s"
    assert requests.missed({"verdicts": []}) == "–"


def test_the_worst_tenants_stand_below_their_slo():
    groups = [OF_SLO | {"tenant": f"t{n}", "attainment": n / 10 if n else None} for n in range(8)]
    burn = [
        {"firing": False, "long_burn": 9.0, "long_s": 3600.0},
        {"firing": True, "long_burn": 2.0, "long_s": 86400.0},
    ]
    printed = io.StringIO()
    Console(file=printed, width=200).print(status.slos([SLO | {"groups": groups, "groups_total": 12, "burn": burn}]))
    _, slo, *tenants = printed.getvalue().splitlines()
    assert " 2.0× 1 d " in slo, "the rule that fires, and not the fastest burn"
    assert [line.split()[0] for line in tenants] == ["t1", "t2", "t3", "t4", "t5", "7"]
    assert "7 more tenants" in tenants[-1]

    printed = io.StringIO()
    Console(file=printed, width=200).print(status.slos([SLO | {"groups": groups[:5], "groups_total": 5}]))
    assert "more tenants" not in printed.getvalue()


@pytest.mark.parametrize(("boxes", "told"), [(10, None), (11, "1 more: tokentrail status --json")])
def test_the_first_boxes_are_printed_and_the_others_counted(boxes, told):
    printed = io.StringIO()
    status.show(Console(file=printed, width=200), VERDICT | {"boxes": [BOX] * boxes, "slos": [], "links": []})
    lines = printed.getvalue().splitlines()
    assert next((line for line in lines if " more: " in line), None) == told
    assert sum(line.startswith("page ") for line in lines) == 10


def test_what_is_odd_is_told_below_the_boxes_with_the_command_that_lists_it():
    params = {"start": "2026-11-21T02:00:00Z", "end": "2026-11-21T04:00:00Z", "metric": "ttft", "at_least": "451000us"}
    odd = {"sentence": "From 02:00 UTC. 60 waited.", "who": "All are of globex.", "links": [
        {"page": "engines", "params": {}}, {"page": "explore", "params": params},
    ]}  # fmt: skip
    printed = io.StringIO()
    kept = VERDICT | {"boxes": [], "slos": [], "links": [], "slo_file_problem": None}
    status.show(Console(file=printed, width=200), kept | {"odd": [odd, odd | {"who": None}]})
    assert printed.getvalue().splitlines()[-5:] == [
        "",
        "odd    From 02:00 UTC. 60 waited. All are of globex.",
        "odd    From 02:00 UTC. 60 waited.",
        "",
        "next: tokentrail requests 'ttft>451000us 2026-11-21T02:00:00Z/2026-11-21T04:00:00Z'",
    ]
