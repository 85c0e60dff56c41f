"""The real processes, started as `tokentrail demo` starts them."""

import pytest

from tokentrail.cli import parts
from tokentrail.cli.api import Api
from tokentrail.cli.processes import HOST, PORTS, free_port
from tokentrail.cli.stack import Stack

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def stack(tmp_path):
    addresses = {name: f"{HOST}:{free_port(0)}" for name in PORTS}  # the preferred ports belong to test_demo.py
    stack = Stack(home=tmp_path, slos=parts.folder() / "alerts" / "slos.yaml", addresses=addresses)
    stack.collector(tmp_path / "data")
    yield stack
    assert stack.stop() == [], f"did not stop cleanly, see {tmp_path / 'logs'}"


@pytest.fixture
def api(stack):
    api = Api(stack.urls["API"])
    yield api
    api.close()
