"""One empty store for each file of tests."""

import pytest

from tests.support.stores import open_new_store


@pytest.fixture(scope="module")
def engine_store(tmp_path_factory):
    store = open_new_store(tmp_path_factory.mktemp("store") / "db")
    yield store
    store.close()
