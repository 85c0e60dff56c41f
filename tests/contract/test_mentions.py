"""The checker of the documentation finds each kind of name, and tells names that exist from names that do not."""

import pytest

from tests.contract.mentions import misplaced, missing, python_prose, yaml_comments


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`tokentrail demo --seed 7`, `tokentrail`, `.venv/bin/tokentrail up`", []),
        ("after a change (`tokentrail polish`)", ["command: tokentrail polish"]),
        ("```sh\nmake setup && .venv/bin/tokentrail polish  # as above\n```", ["command: tokentrail polish"]),
        (
            "`tokentrail up --out X`, `tokentrail --speed`",
            ["command: tokentrail up --out", "command: tokentrail --speed"],
        ),
        ("```console\n$ tokentrail demo \\\n    --fast 3\n```", ["command: tokentrail demo --fast"]),
        ("```\ntokentrail polish\ntokentrail polish\n```", ["command: tokentrail polish"]),
        ("```python\ntokentrail polish\n```", []),
        ("so tokentrail polish the world", []),
        ("    python -m collectors --data-dir D", ["module: python -m collectors"]),
        ("`python -m collector --store chdb://`, `python -m pytest -q`, `python -m alerts --slos=F`", []),
        ("`python -m collector --stores x`", ["module: python -m collector --stores"]),
        ("`python -m collector --segment 1`", ["module: python -m collector --segment"]),
        (
            "`python -m benchmarks.gone`, `python -m docs`",
            ["module: python -m benchmarks.gone", "module: python -m docs"],
        ),
        ("`make demo DEMO_SECONDS=9`, `make PYTHON=python3.12 test`", []),
        ("```sh\nmake lint  # ruff; make nothing of it\nmake bench; make wishes\n```", ["make: make wishes"]),
        ("`make emo`", ["make: make emo"]),
        ("`make demos`, `make test SPEED=x`", ["make: make demos", "make: make SPEED="]),
        ("`--wal-max-bytes`, `--slos FILE`, `--json PATH`", []),
        ("`--otlp-traces-endpoint` of vLLM", []),
        ("`--wal-bytes`", ["flag: --wal-bytes"]),
        ("TOKENTRAIL_LOST_AFTER_S, `TOKENTRAIL_ENGINE_*`, OTEL_SERVICE_NAME, `OTEL_BSP_…`", []),
        ("TOKENTRAIL_ENGINE_KV_BLOCKS, TOKENTRAIL_KV_BLOCKS", ["variable: TOKENTRAIL_KV_BLOCKS"]),
        ("(TOKENTRAIL_LOST_AFTER says when)", ["variable: TOKENTRAIL_LOST_AFTER"]),
        (
            "`OTEL_EXPORTER_ENDPOINT`, `TOKENTRAIL_SDK_*`",
            ["variable: OTEL_EXPORTER_ENDPOINT", "variable: TOKENTRAIL_SDK_"],
        ),
        (
            "collector/slo/windows.yaml, `windows.yaml`, alerts/tests/*.yml, `test_api_NAME.py`, `NAME.json`",
            [],
        ),
        ("see alerts/windows.yaml.", ["file: alerts/windows.yaml"]),
        (
            "`burns.yaml`, docs/rules/*.md, collector/nothing/",
            ["file: docs/rules/*.md", "file: collector/nothing/", "file: burns.yaml"],
        ),
        ("image tokentrail/collector:0.1.0, /var/lib/tokentrail/x, https://example.com/docs/x", []),
        (
            "`/api/v1/slos/{name}`, $API/slos/NAME, /api/v1/goodput?ttft=1s&tpot=1s, `/incidents` `/readyz` $API/slos.",
            [],
        ),
        ("`/api/v1/tails`, $API/slo", ["endpoint: /api/v1/tails", "endpoint: /api/v1/slo"]),
        ("/api/v1/goodput?tbt=1s `/incident`", ["endpoint: /api/v1/goodput?tbt=1s", "endpoint: /incident"]),
        ("the tables `tokentrail_requests` and `tokentrail_request`", ["metric: tokentrail_request"]),
        ("tokentrail_requests_total, `tokentrail_collector_*`, gen_ai_server_request_duration_seconds_bucket", []),
        (
            "`tokentrail_request_total`, gen_ai_ttft_seconds",
            ["metric: tokentrail_request_total", "metric: gen_ai_ttft_seconds"],
        ),
    ],
)
def test_each_kind_of_name_is_found_and_checked(text, names):
    assert missing(text) == names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`Trail.step` (`tokentrail/_record/recorder.py`), `Trail.step`, the hot path, is in `recorder.py`", []),
        (
            "`Trail.step`, the hot path, is in\n`tokentrail/_record/records.py`",
            ["Trail.step in tokentrail/_record/records.py"],
        ),
        ("`Assembler.build_steps(run)` (`records.py`)", ["Assembler.build_steps in records.py"]),
        ("`Recorder` (`gone.py`)", ["Recorder in gone.py"]),
        ("`PAUSE` (`collector/wal/log.py`) and `missing` is in `tests/contract/mentions.py`", []),
        ("`Trail.end_ns` (`tokentrail/_record/recorder.py`)", ["Trail.end_ns in tokentrail/_record/recorder.py"]),
        ("`PAUS` (`collector/wal/log.py`)", ["PAUS in collector/wal/log.py"]),
        ("`Trail.step` says it, and it is in `records.py`; `tokentrail` (`tokentrail/cli/parts.py`)", []),
    ],
)
def test_a_symbol_in_the_wrong_file_is_found(text, found):
    assert misplaced(text) == found


def test_prose_is_taken_from_docstrings_and_comments_alone():
    source = '"""Of `a.py`."""\nX = "TOKENTRAIL_X"\n"""Says x."""\ndef f():\n    """Reads it."""  # and logs\n    ...\n'
    assert python_prose(source) == "Of `a.py`.\n\nSays x.\n\nReads it.\n\nand logs"
    assert yaml_comments("a: b#c  # one\n# two\n") == "one\ntwo"
