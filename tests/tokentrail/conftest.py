import threading

import pytest

from tests.tokentrail.server import Server
from tokentrail.testing import ManualClock, MemoryTrail


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def trail(clock):
    return MemoryTrail(clock=clock)


@pytest.fixture
def tolerant(clock):
    """A trail that logs its errors and does not raise them."""
    return MemoryTrail(strict=False, clock=clock)


@pytest.fixture
def serve():
    """Starts a server that answers with the given script."""
    servers = []

    def start_server(*script):
        server = Server(*script)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start_server
    for server in servers:
        server.hold.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(serve):
    return serve()
