"""One empty store for each file of tests."""

import pytest

from collector.store.schema import apply_schema
from collector.store.store import Store


@pytest.fixture(scope="module")
def engine_store(tmp_path_factory):
    store = Store.open(f"chdb://{tmp_path_factory.mktemp('store')}/db")
    apply_schema(store)
    yield store
    store.close()
