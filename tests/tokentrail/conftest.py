import pytest

from tests.tokentrail.support import Collector, ManualClock, make_trail


@pytest.fixture
def collector():
    return Collector()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def trail(collector, clock):
    return make_trail(collector, clock=clock)
