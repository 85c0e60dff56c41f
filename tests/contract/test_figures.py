"""The figures of the README and of pages of docs/ are those of the committed results."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.differences import PLANTED

ROOT = Path(__file__).parents[2]


def numbers(name):
    report = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert not report["quick"], "made with --quick"
    return report["numbers"]


def rows(begins, page):
    """The cells of the page's table rows that begin so."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith(f"| {begins}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def row(begins, page="docs/benchmarks.md"):
    """The cells of the only row that begins so."""
    (found,) = rows(begins, page)
    return found


def test_the_readme_has_three_figures_with_their_commands():
    readme = (ROOT / "README.md").read_text()
    sdk, ingest, answers = (numbers(name) for name in ("sdk_span_cost", "collector_ingest", "query_10m"))
    for figures, name in (
        (
            f"{sdk['realistic_batch_64_ns_per_token'] / 1000:.2f} µs of CPU a token, "
            f"{sdk['realistic_ratio_batch_64']:.0f}× less than opentelemetry-sdk",
            "sdk_span_cost",
        ),
        (
            f"{ingest['collector_us_per_span']:.1f} µs of CPU from a token's OTLP to its durable row of "
            f"{ingest['bytes_per_token_at_rest']:.1f} bytes",
            "collector_ingest",
        ),
        (
            f"{answers['goodput_cpu_ms_10000000']:.0f} ms of CPU for goodput of thirty days with 10 million requests, "
            f"asked again; plain SQL takes {answers['goodput_peer_cpu_ms_10000000'] / 1000:.1f} s",
            "query_10m",
        ),
    ):
        assert f"{figures} (`python -m benchmarks.{name}`)" in readme


@pytest.mark.parametrize(
    ("begins", "batch", "kind"),
    [
        ("SDK: CPU per token", 64, "realistic"),
        ("the same, 8 tokens per step", 8, "realistic"),
        ("the same, 1 token per step", 1, "realistic"),
        ("best case of the same", 64, "best_case"),
    ],
)
def test_cost_of_the_sdk(begins, batch, kind):
    n, (_, ours, peer, ratio) = numbers("sdk_span_cost"), row(begins)
    us = n[f"{kind}_batch_{batch}_ns_per_token"] / 1000
    assert ours.startswith(f"{us:.1f} µs" if us >= 1 else f"{us:.2f} µs")
    assert ratio == f"{n[f'{kind}_ratio_batch_{batch}']:.0f}× less"
    if peer:
        assert peer.endswith(f"{n[f'opentelemetry_{kind}_ns_per_token'] / 1000:.0f} µs")
    if "of which" in ours:
        assert f"{n[f'engine_thread_batch_{batch}_ns_per_token'] / 1000:.2f} µs on the engine" in ours


def test_cost_of_the_collector():
    n = numbers("collector_ingest")
    _, ours, peer, ratio = row("collector: CPU per token span")
    assert ours == f"{n['collector_us_per_span']:.1f} µs"
    assert peer.startswith(f"rotel {n['rotel_us_per_span']:.1f} µs")
    assert ratio == f"{n['ratio_collector_to_rotel']:.2f}"
    kinds = ("vllm", "genai_client")
    us = ["; ".join(f"{n[f'{who}_us_per_span_{kind}']:.0f} µs" for kind in kinds) for who in ("collector", "rotel")]
    ratios = "; ".join(f"{n[f'ratio_collector_to_rotel_{kind}']:.1f}" for kind in kinds)
    assert row("the same for spans of vLLM")[1:] == [*us, ratios]
    _, ours, peer, ratio = row("collector: bytes of a token at rest")
    rest, otel = n["bytes_per_token_at_rest"], n["otel_schema_bytes_per_token_at_rest"]
    assert (ours, peer.split()[-1], ratio) == (f"{rest:.1f}", f"{otel:.1f}", f"{rest / otel:.2f}")


def test_cost_of_queries():
    n, (what, ours, peer, ratio) = numbers("query_10m"), row("collector: CPU of goodput")
    mine, theirs = ([n[f"{name}{who}_cpu_ms_10000000"] for name in ("goodput", "slos")] for who in ("", "_peer"))
    assert ours == "; ".join(f"{ms:.0f} ms" for ms in mine)
    assert peer.partition("schema ")[2] == "; ".join(f"{ms / 1000:.1f} s" for ms in theirs)
    assert ratio == "; ".join(f"{a / b:.3f}" for a, b in zip(mine, theirs, strict=True))
    for name in ("goodput", "slos"):
        assert f"(the first time {n[f'{name}_first_cpu_ms_10000000']:.0f} ms)" in what


@pytest.mark.parametrize(
    ("begins", "key"),
    [
        ("goodput of 30 days", "goodput"),
        ("summary of 30 days", "summary"),
        ("SLOs", "slos"),
        ("goodput of 15 minutes", "goodput_15m"),
        ("summary of 15 minutes", "summary_15m"),
        ("incidents of 15 minutes", "incidents_15m"),
        ("`/explain` of 15 minutes", "explain_15m"),
        ("`/explain` of three days", "explain_1m"),
        ("`/heatmap`", "heatmap"),
        ("`/differences`", "differences_1m"),
        ("`/compare`", "compare_two_days"),
        ("`/changes`", "changes"),
        ("one request", "one_request"),
        ("`/metrics`", "scrape"),
    ],
)
def test_cost_of_answers(begins, key):
    n = numbers("query_10m")
    ((_, small, large, peer),) = (cells for cells in rows(begins, "docs/collector.md") if len(cells) == 4)
    large, _, first = large.removesuffix(")").partition(" (first answer ")

    def ms(name):
        return f"{n[name]:.1f}" if key == "scrape" else f"{n[name]:,.0f}"

    assert (small, large) == (ms(f"{key}_cpu_ms_10000"), ms(f"{key}_cpu_ms_10000000"))
    assert not first or first == ms(f"{key}_first_cpu_ms_10000000")
    assert not peer or peer == ms(f"{key}_peer_cpu_ms_10000000")


@pytest.mark.parametrize(
    ("begins", "kind", "places"),
    [("engine: decode tokens/s", "float32", 2), ("the same with `--quantization int4`", "int4", 1)],
)
def test_speed_of_the_engine(begins, kind, places):
    n, (_, ours, peer, ratio) = numbers("engine_decode"), row(begins)

    def tokens_per_s(suffix):
        values = [batch * 1000 / n[f"{kind}_batch_{batch}_context_32_{suffix}"] for batch in (1, 8)]
        return " / ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values)

    assert ours == tokens_per_s("ms")
    assert peer.endswith(tokens_per_s("transformers_ms"))
    assert ratio == " / ".join(f"{n[f'{kind}_batch_{batch}_context_32_ratio']:.{places}f}×" for batch in (1, 8))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_speed_of_the_engine_by_context(kind):
    n = numbers("engine_decode")
    (found,) = [cells for cells in rows(f"{kind} | ", "docs/engine.md") if len(cells) == 9]
    steps = [f"{kind}_batch_{batch}_context_{context}" for batch, context in ((1, 32), (1, 1024), (1, 3072), (8, 32))]
    cells = [f"{n[f'{step}_ms']:.0f} ms, {n[f'{step}_ratio']:.2f}×" for step in steps]
    cells += [f"{n[f'{step}_prefill_ratio']:.2f}×" for step in steps[:3]]
    assert found == [kind, f"{n[f'{kind}_weight_bytes'] / 1e6:.0f}", *cells]


@pytest.mark.parametrize("kind", ["float32", "int4"])
def test_speed_beside_vllm_with_its_interval(kind):
    n, cells = numbers("engine_decode"), [kind]
    for batch in (1, 8):
        key = f"vllm_{kind}_batch_{batch}_context_32"
        ratio, low, high = (n[f"{key}_{name}"] for name in ("ratio", "ratio_low", "ratio_high"))
        cells += [f"{n[f'{key}_ms']:.0f} ms", f"{n[f'{key}_vllm_ms']:.0f} ms", f"{ratio:.2f} ({low:.2f}–{high:.2f})"]
    assert [found for found in rows(f"{kind} | ", "docs/engine.md") if "–" in found[3]] == [cells]


@pytest.mark.parametrize("kind", ["float32", "int4"])
def test_speed_of_kernels_beside_torch(kind):
    n, (cells,) = numbers("engine_decode"), rows(f"kernels, {kind}", "docs/engine.md")
    shapes = ((1, 32), (1, 1024), (1, 3072), (8, 32), (8, 256), (16, 64))
    assert cells[1:] == [f"{n[f'kernels_{kind}_batch_{b}_context_{c}_ratio']:.2f}" for b, c in shapes]


@pytest.mark.parametrize("process", ["collector", "engine"])
def test_memory_over_time(process):
    n, (cells,) = numbers("soak"), rows(f"soak, {process}", "docs/deploy.md")
    memory = [f"{n[f'{process}_memory_mib_{when}']:.0f} MiB" for when in ("start", "end")]
    pairs = [f"{n[f'{process}_{what}_start']}, {n[f'{process}_{what}_end']}" for what in ("threads", "files")]
    assert cells[1:] == [*memory, *pairs]


def test_speed_of_the_engine_beside_vllm():
    n, (_, ours, peer, ratio) = numbers("engine_decode"), row("engine beside vLLM")

    def told(which, form):
        values = (
            [form(n[f"vllm_{kind}_batch_{b}_context_32_{which}"], b) for b in (1, 8)] for kind in ("float32", "int4")
        )
        return "; ".join(" / ".join(pair) for pair in values)

    def tokens_per_s(ms, batch):
        return f"{batch * 1000 / ms:.0f}"

    assert ours == told("ms", tokens_per_s)
    assert peer == f"vLLM {n['vllm_float32_vllm']}, float32, {told('vllm_ms', tokens_per_s)}"
    assert ratio == told("ratio", lambda value, _: f"{value:.2f}×")


def test_cost_of_the_rules():
    n = numbers("alerts_cost")

    def ms(*names, unit="CPU ms per evaluation"):
        *most, last = [f"{n[f'{name}, {unit}']:.0f}" for name in names]
        return f"{', '.join(most)} and {last} ms" if most else f"{last} ms"

    groups = [f"tokentrail-slos-{name}" for name in ("outage", "burn", "watched", "tickets", "budget")]
    shown = {
        "an evaluation of the outage, burn": ms(*groups),
        "an evaluation of the period group": ms(
            "tokentrail-slos-period", "floor of the period: its samples are counted"
        ),
        "one group that reads all windows": ms("peer: all windows from the counters"),
        "50 SLOs in `/slos`": ms(
            "/slos", "/slos with one SLO (peer)", "a query that counts the rows (floor)", unit="CPU ms"
        ),
    }
    for begins, cell in shown.items():
        assert row(begins, "docs/alerts.md")[-1] == cell


def test_cost_of_the_dashboard():
    n, page = numbers("dashboard"), (ROOT / "docs" / "dashboard.md").read_text()
    for figure in (
        f"{n['now_24h_browser_cpu_s']:.2f} CPU s of the browser, {n['now_24h_collector_cpu_s']:.2f} of the",
        f"{n['now_24h_streamlit_cpu_s']:.2f} of Streamlit, Explore {n['explore_24h_browser_cpu_s']:.2f}",
        f"{n['now_open_share_of_a_core'] * 100:.2g} % of a core",
        f"with nothing on it {n['empty_open_share_of_a_core'] * 100:.1g} %",
    ):
        assert figure in page


@pytest.mark.parametrize(
    ("begins", "variant"),
    [
        ("bfloat16 | 77", "bfloat16"),
        ("int8 | 7", "int8"),
        ("int4 | 77", "int4"),
        ("bfloat16 | 23", "kv_bfloat16"),
        ("int8 | 11", "kv_int8"),
        ("int4 | 72", "kv_int4"),
        ("int4 without the rotation |", "kv_int4_unrotated"),
        *((f"{layers} | ", f"layers_{layers}") for layers in (28, 25, 20)),
    ],
)
def test_loss_of_quality(begins, variant):
    n = numbers("engine_quality")
    _, *cells = row(begins, "docs/engine.md")
    size = [str(n[f"{variant}_kv_token_bytes"])] if variant.startswith("kv_") else []
    perplexity, kl, same = (n[f"{variant}_{name}"] for name in ("perplexity", "kl_nats", "same_first"))
    assert cells == [*size, f"{perplexity:.2f}", f"{kl:.4f}", f"{same:.1%}".replace("%", " %")]


@pytest.mark.parametrize(
    ("begins", "values", "size"),
    [
        ("a value: 25 %", 1, "25%"),
        ("a value: 15 %", 1, "15%"),
        ("a value: 10 %", 1, "10%"),
        ("a pair: 50 %", 2, "50%"),
        ("a pair: 25 %", 2, "25%"),
        ("nothing", 0, "5%"),
    ],
)
def test_how_often_what_is_planted_is_first(begins, values, size):
    n, (_, *cells) = numbers("differences"), row(begins, "docs/compare.md")
    counts = {name: n[f"{name}, {size}"] for name, planted in PLANTED.items() if len(planted) == values}

    def share(kind):
        return f"{100 * sum(of[kind] for of in counts.values()) / len(counts) / n['seeds']:.1f}"

    name = min(counts, key=lambda name: counts[name]["first"])
    first = f"{share('first')} (`{name}` {counts[name]['first']})" if values else f"{share('first')} say none"
    found = [share(kind) for kind in ("named", "missed", "another", "largest_difference", "largest_lift")]
    assert cells == [first, *(found if values else ["", "", *found[2:]])]
    assert n["seeds"] == 200
    if size in ("25%", "50%", "5%") and begins != "a pair: 25 %":
        assert all(of["first"] >= 185 for of in counts.values())


def test_a_consequence_does_not_hide_what_is_planted():
    of = numbers("differences")["tenant, waiting, 25%"]
    peers = f"in {of['largest_difference']} and {of['largest_lift']} for the peers"
    assert f"first in {of['first']} of 200 draws (25 %), and {peers}" in (ROOT / "docs" / "compare.md").read_text()


TRAFFIC = {
    "one kind": "lognormal",
    "a heavy tail": "heavy_tail",
    "one of seven": "reasoning",
    "stretches of": "bursts",
    "a fifth of": "long_bursts",
}


def _percent(share, places):
    return f"{share * 100:.{places}f} %".replace("-", "−")


@pytest.mark.parametrize(("begins", "traffic"), TRAFFIC.items())
def test_how_often_the_interval_of_a_time_out_has_the_truth(begins, traffic):
    of, cells = numbers("timeouts")[traffic], row(begins, "docs/timeouts.md")
    covered = [one["covered"] for one in of.values()]
    cuts = [_percent(of["1.0%"][who], 2) for who in ("naive_cuts", "ours_cuts")]
    assert cells[1:] == [", ".join(_percent(one, 1) for one in covered), *cuts]
    assert [one for one in covered if not (0.9 if traffic == "long_bursts" else 0.93) <= one <= 0.97] == []


@pytest.mark.parametrize(
    ("begins", "kind"),
    [("all requests of", "slow_together"), ("these, and 2 %", "both"), ("these, and 4 %", "slow_alone")],
)
def test_what_hedging_is_told_and_what_it_does(begins, kind):
    of, cells = numbers("timeouts")[kind], row(begins, "docs/timeouts.md")
    both = [of[to] for to in ("same", "another")]
    assert cells[1:] == [f"{of['p99_s']:.2f} s"] + [
        f"{to['told_s']:.2f} s, {to['real_s']:.2f} s, {_percent(to['naive_median_off'], 0)} off" for to in both
    ]
    assert [to["within_10_percent"] for to in both] == [1, 1]


def test_cost_of_time_outs():
    cost = f"{numbers('timeouts')['cpu_ms_1m']:.0f} ms of CPU after its rows have been read"
    assert cost in (ROOT / "docs" / "timeouts.md").read_text()


def test_a_benchmark_is_run_by_make_bench_or_named_by_a_page():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "tests/data/README.md", ROOT / "Makefile"]
    text = "\n".join(file.read_text() for file in pages)
    commands = {file.stem for file in (ROOT / "benchmarks").glob("[a-z]*.py") if "typer.run(" in file.read_text()}
    named = {name for name in commands if re.search(rf"benchmarks[./]{name}\b", text)}
    assert commands - {*BENCHMARKS} - named == set()
