import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.slo.model import SloFileError, load_slos
from tokentrail.shared.durations import duration_text, format_duration, parse_duration

SHIPPED = Path(__file__).parents[3] / "alerts" / "slos.yaml"
SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [("500ms", 500_000_000), ("1.5s", 1_500_000_000), ("2m", 120 * SECOND), ("30d", 30 * 86400 * SECOND),
     ("1h30m", 5400 * SECOND), ("0.000000001s", 1), ("0.1ms", 100_000), ("7ns", 7), ("1w", 7 * 86400 * SECOND)],
)  # fmt: skip
def test_durations(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "5 ms", "-5ms", "1,5s", "5M", "1e3s", "٣s", "5ms ", "1.5ns", "999999w", "ms5", "5mss"]
)
def test_what_is_no_duration_is_told_how_to_write_one(text):
    with pytest.raises(ValueError, match=r"is not a duration: write|whole number of nanoseconds|longer than"):
        parse_duration(text)


@given(st.integers(0, 10**17))
def test_a_formatted_duration_is_read_back(ns):
    assert parse_duration(format_duration(ns)) == ns


@pytest.mark.parametrize(
    ("short", "text"),
    [("5m", "5 min"), ("1h", "1 h"), ("30d", "30 d"), ("90m", "90 min"), ("1s", "1 s"), ("1500ms", "1500 ms"),
     ("50us", "50 µs"), ("7ns", "7 ns")],
)  # fmt: skip
def test_a_sentence_has_the_exact_duration_and_a_space(short, text):
    assert duration_text(parse_duration(short)) == text


def test_the_shipped_file():
    chat, completion, everything, client = slos = load_slos(SHIPPED)
    assert len({slo.hash for slo in slos}) == 4
    assert all(re.fullmatch("[0-9a-f]{12}", slo.hash) for slo in slos)
    assert (chat.name, chat.objective, chat.budget, chat.window) == (
        "chat",
        Decimal("0.95"),
        Decimal("0.05"),
        30 * 86400 * SECOND,
    )
    assert chat.select == {"slo_class": ("chat", ""), "vantage": ("server",)}
    assert chat.thresholds.given() == {"ttft": 500_000_000, "tpot": 100_000_000}
    assert completion.thresholds.ttft == 100_000_000
    assert (everything.select, everything.thresholds.given()) == ({"vantage": ("server",)}, {"e2e": 60 * SECOND})
    assert (client.select, client.thresholds.given()) == ({"vantage": ("client",)}, {"e2e": 60 * SECOND})


@pytest.mark.parametrize("objective", ["0.999999999", "0.000000001", "0.95000000000000"])
def test_nine_digits_of_an_objective_are_exact(tmp_path, objective):
    file = tmp_path / "slos.yaml"
    file.write_text(f"slos: [{{name: a, objective: {objective}, window: 30d, thresholds: {{e2e: 1s}}}}]")
    (slo,) = load_slos(file)
    assert slo.budget + Decimal(objective) == 1


GOOD = {"name": "a", "objective": "'0.9'", "window": "30d", "thresholds": "{e2e: 1s}"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "1.5"}, r"slos\[0\].objective: '1.5' must be between 0 and 1, both excluded, such as 0.95"),
        ({"objective": "1"}, r"objective: 1 must be between 0 and 1"),
        ({"objective": "'1'"}, r"objective: '1' must be between 0 and 1, both excluded"),
        ({"objective": "'0'"}, "must be between 0 and 1"),
        ({"objective": "'95%'"}, "must be between 0 and 1"),
        ({"objective": "'NaN'"}, "must be between 0 and 1"),
        ({"objective": "1e-999999999"}, "objective: '1e-999999999' has more than 9 digits behind the point"),
        ({"objective": "0.9999999999"}, "has more than 9 digits behind the point"),
        ({"objective": "0." + 40 * "9"}, "has more than 9 digits behind the point"),
        ({"window": "30"}, "window: 30 has no unit: write for example"),
        ({"window": "'-3d'"}, "window: '-3d' is not a duration"),
        ({"window": None}, r"slos\[0\].window: is missing"),
        ({"thresholds": "{}"}, "thresholds: name at least one threshold: ttft, tpot, e2e, gap, first_visible"),
        ({"thresholds": "{ttft: 0ms}"}, "thresholds.ttft: '0ms' must be more than 0"),
        ({"thresholds": "{itl: 1ms}"}, r"thresholds.itl: unknown field: remove it or correct its spelling"),
        ({"select": "{region: [eu]}"}, "'region' cannot be selected by; use 'model', 'tenant'"),
        ({"select": "{model: []}"}, "select.model: .*at least 1"),
        ({"select": "{vantage: [server, client]}"}, "select: vantage: name one; a request that was measured at two"),
        ({"select": "{vantage: [servr]}"}, "select: vantage: 'servr' is neither server nor client"),
        ({"select": "{slo_class: chat}"}, r"select.slo_class: 'chat' must be a list, as in `model: \[a, b\]`"),
        ({"name": "My SLO"}, "'My SLO' must be a lower-case letter, then"),
        ({"windw": "1d"}, "windw: unknown field"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(tmp_path, change, message):
    path = tmp_path / "slos.yaml"
    fields = {k: v for k, v in (GOOD | change).items() if v is not None}
    path.write_text("slos:\n- {" + ", ".join(f"{k}: {v}" for k, v in fields.items()) + "}\n")
    with pytest.raises(SloFileError, match=message) as error:
        load_slos(path)
    assert str(error.value).startswith(f"{path}: slos[0].")


@pytest.mark.parametrize("written", ["0.999", "'0.999'", "9.99e-1", ".999"])
def test_an_objective_is_exact_with_and_without_quotes(tmp_path, written):
    path = tmp_path / "slos.yaml"
    path.write_text("slos:\n- {" + ", ".join(f"{k}: {v}" for k, v in (GOOD | {"objective": written}).items()) + "}\n")
    (slo,) = load_slos(path)
    assert slo.budget == Decimal("0.001")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slos: [", "is not YAML"),
        ("", "must be a mapping of fields"),
        ("- a", "must be a mapping of fields"),
        ("slos:" + "\n- {name: a, objective: '0.9', window: 30d, thresholds: {e2e: 1s}}" * 2,
         "each SLO needs a name of its own; used more than once: a"),
        ("slos:\n- {name: b, objective: '0.9', window: 30d, thresholds: {e2e: 1s}}\n- {name: a, objective: '0.9', "
         "window: 30d, thresholds: {e2e: 1s}, labels: [{when: {model: [m]}, tenant: x}]}",
         "labels stand beside slos, at the top of the file"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_slo_file(tmp_path, text, message):
    path = tmp_path / "slos.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SloFileError, match=message):
        load_slos(path)
    with pytest.raises(SloFileError, match=r"cannot be read: No such file"):
        load_slos(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{" * 100_000,
        "[\n" * 101,
        "slos: " + "[" * 5000 + "]" * 5000,
        "\n".join(" " * n + "a:" for n in range(500)),
    ],
)
def test_a_file_that_is_nested_too_deeply_is_named(tmp_path, text):
    path = tmp_path / "slos.yaml"
    path.write_text(text)
    with pytest.raises(SloFileError, match=r"slos\.yaml: is nested too deeply"):
        load_slos(path)


def test_a_file_that_is_too_large_is_named(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text("slos:\n" + "  - {name: a}\n" * 69_000)
    with pytest.raises(SloFileError, match=r"slos\.yaml: is too large for an SLO file: more than 131,072 letters"):
        load_slos(path)


def test_a_long_value_is_not_repeated_whole(tmp_path):
    """Nine lists of nine lists of nine lists …, of references, would be told as gigabytes."""
    lists = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9)]
    path = tmp_path / "slos.yaml"
    path.write_text("\n".join(["l0: &l0 [x]", *lists, "slos: {a: *l8}"]))
    with pytest.raises(SloFileError, match=r"slos: .* must be a list") as error:
        load_slos(path)
    assert len(str(error.value)) < 10_000
