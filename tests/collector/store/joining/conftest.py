"""A joiner on an empty store."""

import pytest

from collector.base.status import IngestStatus
from collector.store.joiner import Joiner


@pytest.fixture(scope="module")
def store(module_store):
    return module_store


@pytest.fixture
def joiner(store):
    for table in ("requests", "tokens", "phases", "held_requests", "held_spans", "joined_segments"):
        store.client().command(f"TRUNCATE TABLE {table}")
    return Joiner(store, IngestStatus(), after_s=0)


@pytest.fixture
def small_blocks(store):
    client = store.client()
    (default,) = store.query("SELECT getSetting('max_block_size')").result_rows[0]
    client.command("SET max_block_size = 1")
    client.command("SYSTEM STOP MERGES")
    yield
    client.command("SYSTEM START MERGES")
    client.command(f"SET max_block_size = {default}")
