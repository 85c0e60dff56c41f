"""What is registered to be shut down when a process ends."""

import gc
import weakref

import pytest

from tokentrail._host import exits


class Stopped:
    def shutdown(self):
        return True


@pytest.mark.parametrize("parent", [None, object()], ids=["a process", "a child of multiprocessing"])
def test_a_trail_that_is_taken_out_is_freed(parent, monkeypatch):
    monkeypatch.setattr(exits, "parent_process", lambda: parent)
    trail = Stopped()
    exits.register(trail)
    exits.unregister(trail)
    freed = weakref.ref(trail)
    del trail
    gc.collect()
    assert freed() is None
