"""The methods, fields and events of vLLM that the hooks rely on, and the check that an installed vLLM has them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from tokentrail import Phase

_REQUIRED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("OutputProcessor", "add_request"): ("request", "parent_req", "request_index"),
    ("OutputProcessor", "process_outputs"): ("engine_core_outputs", "engine_core_timestamp", "iteration_stats"),
    ("OutputProcessor", "abort_requests"): ("request_ids",),
    ("OutputProcessor", "propagate_error"): ("e",),
    ("AsyncLLM", "add_request"): ("request_id", "trace_headers"),
    ("StatLoggerBase", "record"): ("scheduler_stats", "iteration_stats", "engine_idx"),
}
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "EngineCoreRequest": ("request_id", "prompt_token_ids", "sampling_params", "arrival_time"),
    "EngineCoreOutput": ("request_id", "new_token_ids", "finish_reason", "events"),
    "EngineCoreEvent": ("type", "timestamp"),
}
EVENTS: Final = {"QUEUED": Phase.QUEUED, "SCHEDULED": Phase.PREFILL, "PREEMPTED": Phase.PREEMPTED}


def missing_in(classes: Mapping[str, Any], core: Any) -> list[str]:
    """Parameters, fields and events that the hooks rely on and that this vLLM does not have."""
    lacks = [
        f"{owner}.{method}({name})"
        for (owner, method), names in _REQUIRED.items()
        for name in names
        if name not in _parameters(getattr(classes[owner], method, None))
    ]
    lacks += [
        f"{name}.{field}"
        for name, fields in _FIELDS.items()
        for field in fields
        if not hasattr(getattr(core, name, None), field)
    ]
    return lacks + [f"event {name}" for name in EVENTS if not hasattr(core.EngineCoreEventType, name)]


def _parameters(method: Any) -> Mapping[str, Any]:
    return inspect.signature(method).parameters if callable(method) else {}
