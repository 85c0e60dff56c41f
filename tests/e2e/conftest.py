"""The real processes, started as `tokentrail demo` starts them."""

import pytest

from tests.support.stores import new_store
from tokentrail.cli import parts
from tokentrail.cli.api import Api
from tokentrail.cli.processes import HOST, PORTS, free_port
from tokentrail.cli.stack import Stack

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    home = tmp_path_factory.mktemp("e2e")
    ports = {}
    for name in PORTS:  # the preferred ones belong to test_demo.py
        ports[name] = free_port(0, ports.values())
    addresses = {name: f"{HOST}:{port}" for name, port in ports.items()}
    stack = Stack(home=home, slos=parts.folder() / "alerts" / "slos.yaml", addresses=addresses)
    new_store(home / "data" / "store")
    stack.collector(home / "data")
    yield stack
    assert stack.stop() == [], f"did not stop cleanly, see {home / 'logs'}"


@pytest.fixture(scope="module")
def engine(stack):
    """URL of an engine with a KV cache of 768 tokens, all given out. It refuses requests of more than 640 tokens."""
    cache = ("--kv-blocks", "48", "--block-size", "16", "--watermark-blocks", "0")
    return stack.engine("--model", MODEL, *cache, "--max-seqs", "8", "--max-model-len", "640")


@pytest.fixture(scope="module")
def api(stack):
    api = Api(stack.urls["API"])
    yield api
    api.close()
