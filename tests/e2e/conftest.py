"""The real processes, started as `tokentrail demo` starts them."""

import pytest

from tokentrail.cli.api import Api
from tokentrail.cli.stack import Stack, checkout

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def stack(tmp_path):
    stack = Stack(home=tmp_path, slos=checkout() / "alerts" / "slos.yaml")
    stack.collector(tmp_path / "data")
    yield stack
    assert stack.stop() == [], f"did not stop cleanly, see {tmp_path / 'logs'}"


@pytest.fixture
def api(stack):
    api = Api(stack.urls["API"])
    yield api
    api.close()
