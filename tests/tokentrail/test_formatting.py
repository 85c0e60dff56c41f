from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrail.shared.formatting import (
    age,
    cell,
    clock,
    clock_text,
    count,
    counted,
    data_until,
    duration,
    estimate,
    instant,
    of_tenant,
    on_clock,
    one_line,
    pace,
    percent,
    plain,
    rate,
    significant,
    tpot,
    whole_answers,
    without_user,
)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0, "0 s"),
        (0.0000004, "0.400 µs"),
        (0.00048, "480 µs"),
        (0.0213, "21.3 ms"),
        (0.5, "500 ms"),
        (0.9996, "1.00 s"),
        (1.254, "1.25 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3599.9, "1 h"),
        (11_400, "3 h 10 min"),
        (2_592_000, "30 d"),
        (1_051_200, "12 d 4 h"),
        (-0.25, "−250 ms"),
    ],
)
def test_duration(seconds, shown):
    assert duration(seconds) == shown


@given(st.floats(min_value=1e-6, max_value=59))
def test_a_duration_says_the_same_within_half_a_percent(seconds):
    number, unit = duration(seconds).split(" ")[:2]
    if unit != "min":
        assert float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.99999, "99.99 %"),
        (0.95, "95 %"),
        (0.999, "99.9 %"),
        (-0.176, "−17.6 %"),
        (-15.0975, "−1509 %"),
        (1.9999, "199.99 %"),
        (-2.2581, "−225 %"),
    ],
)
def test_percent_never_rounds_up_to_all(ratio, shown):
    assert percent(ratio) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.07123, "0.0712"), (21.26, "21.3"), (480.4, "480"), (999.9, "1000"), (12_345, "12345")],
)
def test_significant(value, shown):
    assert significant(value) == shown


def test_counts_and_rates():
    assert count(1234567) == "1\u202f234\u202f567"
    assert count(None) == "–"
    assert [counted(n, "step") for n in (0, 1, 1200)] == ["0 steps", "1 step", "1\u202f200 steps"]
    assert rate(0, "/s") == "0 /s"
    assert rate(12345.6, "/s") == "12\u202f346 /s"
    assert rate(None, "/s") == "–"
    assert [pace(value) for value in (None, 0, 2.1, 0.0866, 0.0005, 1.58e-5)] == [
        "–", "0 /s", "2.10 /s", "5.20 /min", "1.80 /h", "1.37 /d",
    ]  # fmt: skip


def test_a_tpot_that_is_not_known_is_what_it_cannot_exceed():
    known = {"tpot_s": 0.0213, "tpot_at_most_s": None}
    assert tpot(known) == tpot({"tpot_s": 0.0213}) == "21.3 ms"
    assert tpot(known | {"tpot_s": None, "tpot_at_most_s": 0.048}) == "≤ 48.0 ms"
    assert tpot({"tpot_s": None, "tpot_at_most_s": 0.0}) == "≤ 0 s"
    assert tpot({"tpot_s": None}) == "–"


def test_times():
    assert instant("2026-11-21T10:15:03.123456789Z") == datetime(2026, 11, 21, 10, 15, 3, 123456, tzinfo=UTC)
    assert instant("2026-11-21T12:15:03+02:00") == datetime(2026, 11, 21, 10, 15, 3, tzinfo=UTC)
    assert instant(None) is None
    assert clock("2026-11-21T10:15:03.5Z") == "2026-11-21 10:15:03 UTC"
    assert clock(None) == "–"


@pytest.mark.parametrize(
    ("until", "told"),
    [
        ("2026-11-21T10:15:03.5Z", "data until 10:15:03 UTC"),
        ("2026-11-20T23:59:59Z", "data until 2026-11-20 23:59:59 UTC"),
        ("2026-11-21T10:15:10Z", ""),
    ],
)
def test_an_answer_that_is_incomplete_says_up_to_when_it_is_not(until, told):
    window = {"start": "2026-11-20T10:00:00Z", "end": "2026-11-21T10:15:10Z", "complete_until": until}
    assert data_until(window) == told
    assert data_until(window, ZoneInfo("Asia/Tokyo")) == told.replace("10:15:03 UTC", "19:15:03 JST").replace(
        "2026-11-20 23:59:59 UTC", "08:59:59 JST"
    )


def test_plain_leaves_markdown_nothing_to_work_with():
    assert plain("![x](http://e.invalid) <b>") == "\\!\\[x\\]\\(http\u200b\\://e.invalid\\) \\<b\\>"
    assert plain("a\n\n# b") == r"a \# b"
    assert plain("\u202e E2E 1.60 s\x1b") == r"\\u202e E2E 1.60 s\\x1b"  # not `s 06.1 E2E`
    assert len(plain("x" * 10_000)) == 401


@pytest.mark.parametrize(
    "word",
    ["m :material/delete: x", ":streamlit:", "a:smile:b", ":red[x]", "a -> b", "<->", "x -- y", "a <= b", "a <- b"],
)
def test_plain_leaves_streamlit_nothing_to_replace(word):
    shown = re.sub(r"\\(?=[^\w\s])", "", plain(word))
    assert "\u200b" in shown or ":red[" in word
    assert shown.replace("\u200b", "") == word
    assert not re.search(r":(material/\w+|streamlit|smile):|(?<!\S)(<->|->|<-|--|<=)(?!\S)", shown)


def test_names_with_colons_and_dashes_can_be_copied():
    assert plain("llama:7b").replace("\\", "") == "llama:7b"
    assert plain("a--b->c").replace("\\", "") == "a--b->c"


def test_what_draws_nothing_is_an_escape():
    """Each code point of these categories, so that a new version of Unicode is noticed."""
    unseen = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    fillers = "\u115f\u1160\u3164\uffa0\u2800\u034f\ufe0f\U000e0041\U000e0100"
    assert [c for c in [*unseen, *fillers] if not one_line(c).startswith("\\")] == []
    for word in ("gpt-4o", "naïve 漢字 🚀", "a b\u202fc", "שלום", "e\u0301"):
        assert one_line(word) == word


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n="])
def test_a_cell_is_no_formula(start):
    assert cell(f"{start}1+1")[0] in "'\\"
    assert cell("a=1") == "a=1"


def test_an_estimate_has_a_sign_and_its_error():
    assert estimate("95 %", "0.4 %") == "≈ 95 % ± 0.4 %"
    assert estimate("95 %", None) == "95 %"
    assert estimate("–", "0.4 %") == "–"
    assert estimate("95 %", "–") == "95 %"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://collector:4318/v1", "http://collector:4318/v1"),
        ("http://user:secret@collector:4318/v1", "http://…@collector:4318/v1"),
        ("https://user:sec/r@et@collector", "https://…@collector"),
        ("user:secret@collector:4317", "…@collector:4317"),
        ("collector:4317", "collector:4317"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_user_and_password(url, shown):
    assert without_user(url) == shown


def test_a_name_says_to_which_tenant_its_process_belongs():
    assert [of_tenant("chat", row) for row in ({"process_tenant": "acme"}, {"process_tenant": ""}, {})] == [
        "chat of acme", "chat", "chat",
    ]  # fmt: skip


def test_ttfts_that_are_an_e2e_are_said():
    assert whole_answers({"ttft_is_e2e": 0, "ttft_s": {"count": 9}}) == ""
    told = whole_answers({"ttft_is_e2e": 40, "ttft_s": {"count": 1200}})
    assert told.startswith("40 of 1\u202f200 TTFTs are the E2E: these answers were not streamed")


def test_a_time_of_a_sentence_is_put_on_the_clock_of_a_zone():
    now_ns, before_ns, year_ns = (round(datetime.fromisoformat(f"{day}T12:02:00Z").timestamp()) * 10**9
                                  for day in ("2026-11-21", "2026-11-20", "2025-12-31"))  # fmt: skip
    assert [clock_text(ns, now_ns) for ns in (now_ns, before_ns, year_ns)] == [
        "12:02 UTC", "20 Nov 12:02 UTC", "31 Dec 2025 12:02 UTC",
    ]  # fmt: skip
    told = "From 20 Nov 12:02 UTC to 12:02 UTC; 31 Dec 2025 12:02 UTC"
    assert on_clock(told, [now_ns, None, before_ns, year_ns], now_ns, ZoneInfo("Asia/Tokyo")) == (
        "From 20 Nov 21:02 JST to 21:02 JST; 31 Dec 2025 21:02 JST"
    )
    assert on_clock(told, [], now_ns, ZoneInfo("Asia/Tokyo")) == told
    assert clock_text(now_ns, now_ns, ZoneInfo("Pacific/Kiritimati")) == "02:02 +14"


@pytest.mark.parametrize(
    ("until", "end", "told"), [(0, 0, ""), (-59, 0, ""), (-61, 0, "1 min old"), (0, -7260, "2 h 1 min old")]
)
def test_data_that_is_older_than_a_minute_says_so(until, end, told):
    now = datetime(2026, 11, 21, 10, tzinfo=UTC)
    window = {name: (now + timedelta(seconds=s)).isoformat() for name, s in (("complete_until", until), ("end", end))}
    assert age(window, now) == told
