"""A writer on an empty store."""

import pytest

from tests.collector.store.writing.written import Setup


@pytest.fixture
def setup(tmp_path, module_store):
    module_store.client().command("TRUNCATE TABLE tokens")
    return lambda **kwargs: Setup(tmp_path, module_store, **kwargs)
