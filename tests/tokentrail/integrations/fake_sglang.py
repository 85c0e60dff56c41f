"""The part of SGLang that the hooks touch, made from the source of 0.5.23 as small classes that behave like it."""

import enum
from array import array
from functools import wraps
from pkgutil import resolve_name
from types import SimpleNamespace

from tests.tokentrail.integrations.fake_modules import install_modules


class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    """SGLang's: hooks run in the caller, and their exceptions are not caught."""

    def __init__(self):
        self.hooks = []

    def register(self, target, hook, hook_type=HookType.AFTER):
        self.hooks.append((target, hook, hook_type))

    def apply_hooks(self):
        for target, hook, kind in self.hooks:
            owner, _, name = target.rpartition(".")
            setattr(resolve_name(owner), name, _wrapped(getattr(resolve_name(owner), name), hook, kind))


def _wrapped(method, hook, kind):
    @wraps(method)
    def wrapper(*args, **kwargs):
        if kind is HookType.AROUND:
            return hook(method, *args, **kwargs)
        if kind is HookType.BEFORE:
            replaced = hook(*args, **kwargs)
            args, kwargs = (args, kwargs) if replaced is None else replaced
            return method(*args, **kwargs)
        result = method(*args, **kwargs)
        replaced = hook(result, *args, **kwargs)
        return result if replaced is None else replaced

    return wrapper


class Mode(enum.Enum):
    IDLE = 0
    EXTEND = 1
    DECODE = 2

    def is_idle(self):
        return self is Mode.IDLE

    def is_extend(self):
        return self is Mode.EXTEND


class Reason:
    def __init__(self, **fields):
        self.fields = fields

    def to_json(self):
        return self.fields


class Req:
    def __init__(self, rid, *, prompt=7, created=0.0, max_new_tokens=9, params=None, given=None):
        self.rid = rid
        self.origin_input_ids = array("q", [1] * prompt)
        self.output_ids = array("q")
        self.sampling_params = SimpleNamespace(
            max_new_tokens=max_new_tokens, temperature=0.5, top_p=1.0, **params or {}
        )
        self.stream = True
        self.time_stats = SimpleNamespace(created_time=created, last_forward_entry_time=0.0)
        self.finished_reason = self.finished_len = None
        self.cached_tokens = 2
        vars(self).update(given or {})

    def finished(self):
        return self.finished_reason is not None


class Scheduler:
    """`process_batch_result` gives each request the tokens of `result`: {rid: (number, reason or None)}."""

    def __init__(self):
        self.waiting_queue, self.running_batch = [], SimpleNamespace(reqs=[])
        self.disaggregation_mode = SimpleNamespace(value="null")
        self.page_size = 16
        self.used, self.sent = 33, []
        self.pool_stats_observer = SimpleNamespace(
            get_pool_stats=lambda: SimpleNamespace(full_num_used=self.used, full_capacity=160)
        )

    def _add_request_to_queue(self, req, is_retracted=False):
        self.waiting_queue.append(req)

    def process_batch_result(self, batch, result):
        for req in batch.reqs:
            number, reason = result.get(req.rid, (0, None))
            req.output_ids.extend([5] * number)
            req.finished_reason = reason
        return "done"

    def send_abort_output(self, abort_req, req):
        self.sent.append(req.rid)


class APIServerReqTimeStats:
    created_time = 0.0

    def __getstate__(self):
        return {"diff_realtime_monotonic": 1.0}


def install(monkeypatch, *, scheduler=Scheduler):
    """Puts the fakes into `sys.modules` and returns them."""
    fake = SimpleNamespace(
        HookRegistry=HookRegistry(),
        Scheduler=type("Scheduler", (scheduler,), dict(vars(scheduler))),
        Stats=type("APIServerReqTimeStats", (APIServerReqTimeStats,), dict(vars(APIServerReqTimeStats))),
        parallel=SimpleNamespace(attn_tp_rank=0, attn_cp_rank=0, pp_rank=0),
        observability=SimpleNamespace(enable_trace=False),
    )
    modules = {
        "sglang": {}, "sglang.srt": {}, "sglang.srt.plugins": {},
        "sglang.srt.managers": {}, "sglang.srt.observability": {},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": fake.HookRegistry, "HookType": HookType},
        "sglang.srt.managers.scheduler": {"Scheduler": fake.Scheduler},
        "sglang.srt.observability.req_time_stats": {"APIServerReqTimeStats": fake.Stats},
        "sglang.srt.runtime_context": {
            "get_parallel": lambda: fake.parallel,
            "get_observability": lambda: fake.observability,
            "get_serving": lambda: SimpleNamespace(served_model_name="m"),
        },
    }  # fmt: skip
    install_modules(monkeypatch, modules)
    return fake
