"""The names that the decoding SQL reads are those that the SDK sends."""

import re
from pathlib import Path

import pytest

from collector.store.definitions import SQL_DIR, read_schema
from collector.store.schema import TIME_COLUMNS
from tokentrail import semconv

FILES = [*sorted((SQL_DIR / "schema").rglob("*.sql")), *sorted((SQL_DIR / "engines").rglob("*.sql"))]
DOCS = Path(__file__).resolve().parents[3] / "docs"

SPANS = {
    semconv.TOKEN_SPAN,
    semconv.PHASE_SPAN,
    semconv.OPEN_SPAN,
    semconv.STEP_SPAN,
    semconv.COLD_START_SPAN,
    semconv.KV_SPAN_PREFIX,
    *(semconv.KV_SPAN_PREFIX + kind for kind in semconv.KvEvent),
}


def constants():
    return {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


def names(sql):
    found = set(re.findall(r"'((?:gen_ai|tokentrail|service|error)\.[a-z0-9_.]+)'", sql))
    claims = {"tokentrail.request", "tokentrail.kv"}
    return {name for name in found if not name.endswith(".request") and name not in claims}


def named_on_the_page_of(file):
    """The attributes that only this engine sends: its page docs/engines/NAME.md or docs/NAME.md names each."""
    page = f"{file.parent.name.split('_', 1)[-1].replace('_', '-')}.md"
    texts = [path.read_text() for path in (DOCS / "engines" / page, DOCS / page) if path.exists()]
    return {name for text in texts for name in re.findall(r"`([a-z0-9_.]+)`", text)}


def known():
    phases = {semconv.PHASE_TIME_PREFIX + phase for phase in semconv.Phase}
    phases |= {semconv.WAIT_TIME_PREFIX + reason for reason in semconv.Wait}
    phases |= {semconv.LIMIT_PREFIX + limit for limit in semconv.Limit}
    prefixes = {semconv.COLD_START_SPAN + "."}
    return constants() | SPANS | phases | prefixes


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SQL_DIR)))
def test_every_name_in_sql_is_a_wire_name(file):
    assert names(file.read_text()) - known() - named_on_the_page_of(file) == set()


def test_every_wire_name_of_a_table_is_read():
    read = set().union(*(names(file.read_text()) for file in FILES))
    must = SPANS | {
        *semconv.STEP_ATTRIBUTES,
        *semconv.STEP_DETAILS,
        *(semconv.WAIT_TIME_PREFIX + reason for reason in semconv.Wait),
        semconv.KV_BYTES,
        semconv.KV_BENEFICIARY,
        semconv.TIME_TO_FIRST_VISIBLE_TOKEN,
        semconv.DRAFTED_TOKENS,
        semconv.ACCEPTED_TOKENS,
        *(semconv.PHASE_TIME_PREFIX + phase for phase in semconv.Phase),
        semconv.TOKEN_INDEX,
        semconv.PHASE_NAME,
        semconv.PHASE_TOKENS,
        *(semconv.LIMIT_PREFIX + limit for limit in semconv.Limit),
        semconv.KV_BLOCKS,
        semconv.KV_REASON,
        semconv.TENANT,
        semconv.SLO_CLASS,
        semconv.SAMPLING_WEIGHT,
        semconv.STATUS,
        semconv.FINISH_REASON,
        semconv.PREEMPTIONS,
        semconv.TIME_TO_LAST_TOKEN,
        semconv.CHOICES,
        semconv.TIME_BETWEEN_TOKENS,
        semconv.TIME_TO_FIRST_CHUNK,
        semconv.TIME_TO_FIRST_TOKEN,
        semconv.INPUT_TOKENS,
        semconv.OUTPUT_TOKENS,
        semconv.CACHED_TOKENS,
        semconv.REASONING_TOKENS,
        semconv.ERROR_TYPE,
        semconv.VARIANT,
        semconv.SERVICE_NAME,
        semconv.SERVICE_INSTANCE_ID,
        semconv.OPERATION_NAME,
        semconv.REQUEST_MODEL,
        semconv.RESPONSE_ID,
    }
    assert must - read == set()


def test_the_scope_that_claims_our_requests_is_the_sdks():
    assert f"scope = '{semconv.SCOPE_NAME}'" in (SQL_DIR / "engines" / "10_tokentrail" / "claim.sql").read_text()


def test_every_status_is_accepted():
    listed = ", ".join(f"'{status}'" for status in semconv.Status)
    assert f"IN ({listed})" in (SQL_DIR / "engines" / "10_tokentrail" / "views.sql").read_text()


def test_every_table_ages_by_a_column_it_has():
    tables = read_schema().tables
    stored = {name for name, sql in tables.items() if "MergeTree" in sql}
    held = {"held_requests", "held_spans", "joined_segments", "explained_segments"}
    assert all(re.search(r"^TTL \w+ \+ INTERVAL [12] DAY$", tables[name], re.MULTILINE) for name in held)
    claims = {"payload_claims", "early_claims"}
    assert stored - {"schema_version"} - held == set(TIME_COLUMNS) | claims, "claims go by their number"
    for table, column in TIME_COLUMNS.items():
        assert re.search(rf"^    {column} ", tables[table], re.MULTILINE)
