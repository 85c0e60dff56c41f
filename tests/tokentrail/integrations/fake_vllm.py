"""The part of vLLM that the hooks touch, as small classes that behave like it.

`install` puts them in place of vLLM's modules. `signatures` (of a release, tests/data/vllm-hooks/signatures.json) gives
the methods that release's parameters.
"""

import enum
from types import SimpleNamespace

from tests.tokentrail.integrations.fake_modules import install_modules


class EventType(enum.IntEnum):
    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self):
        return self.name.lower()


def struct(name, *fields):
    """A class with slots, as msgspec makes them: its fields can be found on the class."""

    def init(self, **values):
        for field in fields:
            setattr(self, field, values.get(field))

    return type(name, (), {"__slots__": fields, "__init__": init})


REQUEST = (
    "request_id", "prompt_token_ids", "sampling_params", "pooling_params", "arrival_time", "lora_request",
    "trace_headers", "external_req_id", "resumable", "priority",
)  # fmt: skip
OUTPUT = ("request_id", "new_token_ids", "finish_reason", "stop_reason", "events", "prefill_stats", "cut_to")


class OutputProcessor:
    def __init__(self, tracing_enabled=False):
        self.request_states = {}
        self.tracing_enabled = tracing_enabled

    def add_request(self, request, prompt, parent_req=None, request_index=0, queue=None):
        if request.request_id in self.request_states:
            if not request.resumable:
                del self.request_states[request.request_id]
            return
        self.request_states[request.request_id] = request

    def process_outputs(self, engine_core_outputs, engine_core_timestamp=None, iteration_stats=None):
        aborts = []
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if output.cut_to is not None:  # a stop string: the tokens behind it go
                del output.new_token_ids[output.cut_to :]
                aborts.append(output.request_id)
            if (output.finish_reason is not None or output.cut_to is not None) and not state.resumable:
                del self.request_states[output.request_id]
        return SimpleNamespace(request_outputs=[], reqs_to_abort=aborts)

    def abort_requests(self, request_ids, internal=True):
        return [key for key in request_ids if self.request_states.pop(key, None) is not None]

    def propagate_error(self, e):
        """Tells all clients."""


class AsyncLLM:
    def __init__(self, processor):
        self.output_processor = processor
        self.seen_headers = []

    async def add_request(self, request_id, prompt, params, arrival_time=None, trace_headers=None):
        self.seen_headers.append(trace_headers)
        self.output_processor.add_request(prompt, None)

    async def is_tracing_enabled(self):
        return False


class StatLoggerBase:
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        raise NotImplementedError


def with_parameters(method, parameters):
    """A method with the parameters of a release; the fakes themselves are not called through it."""
    names = [name for name in parameters if name != "self"]
    lines = f"def {method}(self, {', '.join(f'{name}=None' for name in names)}): pass"
    scope = {}
    exec(lines, scope)
    return scope[method]


def install(monkeypatch, signatures=None):
    """Puts the fakes into `sys.modules` and returns them."""
    fake = SimpleNamespace(
        OutputProcessor=type("OutputProcessor", (OutputProcessor,), dict(vars(OutputProcessor))),
        AsyncLLM=type("AsyncLLM", (AsyncLLM,), dict(vars(AsyncLLM))),
        StatLoggerBase=type("StatLoggerBase", (StatLoggerBase,), dict(vars(StatLoggerBase))),
        EngineCoreRequest=struct("EngineCoreRequest", *REQUEST),
        EngineCoreOutput=struct("EngineCoreOutput", *OUTPUT),
        EngineCoreEvent=struct("EngineCoreEvent", "type", "timestamp"),
        EngineCoreEventType=EventType,
        FinishReason=FinishReason,
    )
    for owner, methods in (signatures or {}).items():
        if isinstance(methods, dict):
            for name, parameters in methods.items():
                setattr(getattr(fake, owner), name, with_parameters(name, parameters))
        else:
            setattr(fake, owner, struct(owner, *methods))
    modules = {
        "vllm": {}, "vllm.v1": {}, "vllm.v1.metrics": {},
        "vllm.v1.metrics.loggers": {"StatLoggerBase": fake.StatLoggerBase},
        "vllm.v1.engine": {name: getattr(fake, name) for name in (
            "EngineCoreRequest", "EngineCoreOutput", "EngineCoreEvent", "EngineCoreEventType", "FinishReason")},
        "vllm.v1.engine.async_llm": {"AsyncLLM": fake.AsyncLLM},
        "vllm.v1.engine.output_processor": {"OutputProcessor": fake.OutputProcessor},
    }  # fmt: skip
    install_modules(monkeypatch, modules)
    return fake


def config(**given):
    known = {
        "model_config": SimpleNamespace(served_model_name=["m", "alias"], model="/models/m"),
        "cache_config": SimpleNamespace(num_gpu_blocks=101),
        "parallel_config": SimpleNamespace(),
        "observability_config": SimpleNamespace(otlp_traces_endpoint=None),
    }
    return SimpleNamespace(**known | given)
