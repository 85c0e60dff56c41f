"""Everything that docs/stability.md calls public, one line each. `python -m tests.contract.surface` writes the list.

sdk tokentrail.Trail.step(prefill_tokens)
wire tokentrail.step
api GET /api/v1/goodput?ttft
api GET /api/v1/goodput requests.total integer
metric tokentrail_collector_ready gauge
"""

import enum
import inspect
from pathlib import Path

import tokentrail
from collector.metrics import metrics
from tests.support.api import openapi
from tokentrail import RequestTrail, semconv, testing

LIST = Path(__file__).with_name("public_surface.txt")


def surface():
    """All public names, sorted."""
    return sorted({*_sdk(), *_wire(), *_api(openapi()), *_metrics()})


def _sdk():
    for module in (tokentrail, testing):
        for name in module.__all__:
            exported = getattr(module, name)
            line = f"sdk {module.__name__}.{name}"
            yield line
            if inspect.isclass(exported) and not issubclass(exported, enum.Enum):
                yield from (f"{line}.{field}" for field in getattr(exported, "__dataclass_fields__", ()))
                yield from _methods(exported, line)
            elif inspect.isfunction(exported):
                yield from (f"{line}({parameter})" for parameter in inspect.signature(exported).parameters)
    attributes = [name for name in ("trace_id", "span_id", "sampled") if hasattr(RequestTrail, name)]
    yield from (f"sdk tokentrail.RequestTrail.{name}" for name in attributes)


def _methods(exported, line):
    for name, member in inspect.getmembers(exported):
        public = isinstance(member, property) or inspect.isroutine(member)
        if public and not name.startswith("_"):
            yield f"{line}.{name}"
            parameters = inspect.signature(member).parameters if callable(member) else ()
            yield from (f"{line}.{name}({parameter})" for parameter in parameters if parameter != "self")


def _wire():
    for name, value in vars(semconv).items():
        if name.isupper() and isinstance(value, str):
            yield f"wire {value}"
        elif inspect.isclass(value) and issubclass(value, enum.Enum) and value.__module__ == semconv.__name__:
            yield from (f"wire {value.__name__} = {member.value}" for member in value)


def _metrics():
    return (f"metric {metric.name} {metric.kind}" for metric in metrics.ALL)


def _api(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            route = f"api {method.upper()} {path}"
            yield route
            for parameter in operation.get("parameters", []):
                yield f"{route}?{parameter['name']}"
                yield from (f"{route}?{parameter['name']} = {value}" for value in _values(parameter["schema"]))
            for content in operation["responses"]["200"].get("content", {}).values():
                yield from _fields(document, content["schema"], route, "")


def _fields(document, schema, route, field):
    """One line for each field below: its type, and its values where it is an enumeration."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    alternatives = schema.get("anyOf", [schema])
    if all(alternative.get("type", "object") not in ("object", "array") for alternative in alternatives):
        yield f"{route} {field} {' or '.join(alternative['type'] for alternative in alternatives)}"
    yield from (f"{route} {field} = {value}" for value in _values(schema))
    for name, below in schema.get("properties", {}).items():
        yield from _fields(document, below, route, f"{field}.{name}" if field else name)
    if "items" in schema:
        yield from _fields(document, schema["items"], route, f"{field}[]")
    for alternative in schema.get("anyOf", []):
        if "$ref" in alternative or "items" in alternative:
            yield from _fields(document, alternative, route, field)


def _values(schema):
    """The values that an enumeration allows."""
    every = [schema, *schema.get("anyOf", [])]
    return [value for s in every for value in s.get("enum", [s["const"]] if "const" in s else [])]


if __name__ == "__main__":
    LIST.write_text("\n".join(surface()) + "\n")
