"""docs/sdk.md is executed, and lists the settings that exist."""

import re
from pathlib import Path

from tests.tokentrail.support import run
from tokentrail import config, semconv
from tokentrail._build import announce, assemble
from tokentrail._host import books
from tokentrail.config import Settings
from tokentrail.testing import parse_spans

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sdk.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_runs_and_sends_what_the_page_says(server):
    example = EXAMPLES[0]
    assert len([line for line in example.splitlines() if line and not line.startswith(("from", "#"))]) <= 15
    run(example, server.url)
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    (request,) = [span for span in spans if span.name == "chat my-model"]
    for name in (semconv.TOKEN_SPAN, semconv.PHASE_SPAN):
        parts = [span for span in spans if span.name == name and span.parent_id == request.span_id]
        assert sum(part.duration_ns for part in parts) == request.duration_ns
    assert request.attributes[semconv.OUTPUT_TOKENS] == 3
    assert {"tokentrail.step", "tokentrail.cold_start", "tokentrail.cold_start.load_weights"} <= {s.name for s in spans}


def test_the_example_of_the_readme_runs_and_sends_a_request(server):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run(example, server.url)
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    (request,) = [span for span in spans if span.name == "chat my-model"]
    assert request.attributes[semconv.OUTPUT_TOKENS] == 3
    assert {span.name for span in spans} >= {semconv.TOKEN_SPAN, semconv.PHASE_SPAN, "tokentrail.step"}


def test_the_example_without_a_loop_runs_and_sends_what_the_page_says(server):
    example = EXAMPLES[1]
    assert "http://localhost:4318" in example
    run(example.replace("http://localhost:4318", server.url.removesuffix("/v1/traces")))
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    (request,) = [span for span in spans if span.name == "chat my-model"]
    assert request.attributes[semconv.OUTPUT_TOKENS] == 2
    assert request.attributes[semconv.RESPONSE_MODEL] == "my-model-2026-07"
    assert semconv.TIME_TO_FIRST_CHUNK in request.attributes
    phases = [span.attributes[semconv.PHASE_NAME] for span in spans if span.name == semconv.PHASE_SPAN]
    assert sorted(phases) == ["decode", "prefill"]


def test_the_examples_of_choices_of_labels_and_of_a_test_run():
    for example in (EXAMPLES[2], EXAMPLES[3], EXAMPLES[5]):
        assert "assert" in example
        assert run(example + "\nprint('its assertions hold')") == "its assertions hold\n"


def test_the_example_of_sampling_runs():
    used = "\nprint(trail._pipeline._settings.sampling == sampling, len(sampling.thresholds), trail.stats.errors)"
    assert run(EXAMPLES[4] + used) == "True 3 0\n"


def test_the_example_of_settings_runs():
    (example,) = EXAMPLES[6:]
    used = "\nprint(endpoint.url, endpoint.compression.value, trail._pipeline._settings.max_queue_bytes >> 20)"
    assert run(example.replace("Bearer …", "Bearer x") + used) == "https://collector:4318/v1/traces gzip 64\n"


def test_every_setting_is_listed_and_every_listed_setting_is_read():
    source = (ROOT / "tokentrail" / "config.py").read_text()
    read = set(re.findall(r"(?:otel\.)?\b((?:OTEL|TOKENTRAIL)_[A-Z_]+[A-Z])\b", source))
    read |= {f"OTEL_EXPORTER_OTLP_{name}" for name in re.findall(r'(?:exporter|exporter_name)\("([A-Z_]+)"\)', source)}
    by_opentelemetry = {
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_SAMPLER_ARG",
        "OTEL_PROPAGATORS",
        "OTEL_PYTHON_METER_PROVIDER",
    }
    listed = set(re.findall(r"`((?:OTEL|TOKENTRAIL)_[A-Z_]+)`", PAGE.split("## Settings")[1]))
    assert listed == {name for name in read if not name.endswith("_TRACES")} | by_opentelemetry


def test_the_numbers_of_the_page_are_the_codes():
    defaults = Settings(None)
    table = dict(re.findall(r"\| `([A-Z_]+)` \| `(\d+)` \|", PAGE))
    assert float(table["OTEL_BSP_SCHEDULE_DELAY"]) == defaults.schedule_delay_s * 1_000
    assert int(table["OTEL_BSP_MAX_QUEUE_SIZE"]) == defaults.max_queue_spans
    assert int(table["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"]) == defaults.max_payload_spans
    assert int(table["TOKENTRAIL_MAX_QUEUE_BYTES"]) == defaults.max_queue_bytes
    assert f"{config.MAX_PAYLOAD_SPANS:,} spans and {config.MAX_PAYLOAD_BYTES >> 20} MiB" in PAGE
    assert f"every {announce.ANNOUNCE_EVERY_NS // 10**9} s" in PAGE


def test_every_reason_of_a_drop_is_listed():
    listed = re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)
    assert set(listed) == {
        assemble.FOREIGN,
        assemble.LATE,
        books.MALFORMED,
        books.BUFFER_FULL,
        books.DISPLACED,
        books.EXPIRED,
        books.REFUSED,
        books.REJECTED,
        books.SHUTDOWN,
    }
