"""CUDA graphs on the CPU: what was computed at the capture is computed again, on the same tensors and no others.

As on CUDA, a replay runs no Python of the model, sees only what lies in the captured tensors, and leaves its results
there. Reading a value back to the host is an error while a graph is captured.
"""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from instrumented_engine.model import paged
from instrumented_engine.model.batch import decode_mask
from instrumented_engine.model.kv_format import FloatFormat
from instrumented_engine.model.operations import gathered_attention

READS_BACK = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")


class Recorder(TorchDispatchMode):
    """Keeps each operation with its tensors."""

    def __init__(self):
        super().__init__()
        self._operations = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.name().split(".")[0] in READS_BACK:
            raise RuntimeError(f"operation not permitted when stream is capturing: {operation.name()}")
        result = operation(*args, **(kwargs or {}))
        self._operations.append((operation, args, kwargs or {}, result))
        return result

    def replay(self):
        """Compute all operations again, and put their results where they were."""
        for operation, args, kwargs, result in self._operations:
            for old, new in zip(tree_leaves(result), tree_leaves(operation(*args, **kwargs)), strict=True):
                if old is not None and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def install(monkeypatch):
    """Let graphs be captured on the CPU; returns a list that grows with each replay.

    Triton's interpreter takes a millisecond for what a GPU does in none, so torch computes the attention instead.
    """
    replays = []

    def capture(forward, pool):
        with (recorder := Recorder()):
            states = forward()
        return lambda: (replays.append(len(states)), recorder.replay()), states, pool or object()

    def attention(q, cache, block_table, lengths):
        mask = decode_mask(lengths, block_table.shape[1] * cache.shape[1])
        return gathered_attention(q, block_table, mask, cache, FloatFormat(q.shape[-1], cache.dtype, q.dtype))

    monkeypatch.setattr(paged, "paged_attention", attention)
    monkeypatch.setattr("instrumented_engine.model.graphs.capture", capture)
    return replays
