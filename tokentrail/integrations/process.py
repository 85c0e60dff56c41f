"""The process of an engine's recorder: whether it records, its trail, its name, and when it started."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from socket import gethostname
from uuid import NAMESPACE_URL, uuid5

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from tokentrail import Trail, now_ns, semconv
from tokentrail.config import with_instance


def engine_trail(engine: str, index: int = 0, instance: str = "") -> Trail:
    """A trail of OTEL_* variables. Its rows say `engine`. `instance` is the engine's name, by default this process's;
    further engines have it with their `index`.
    """
    resource = {semconv.ENGINE: engine}
    if index or instance:
        name = instance or with_instance(Resource.create()).attributes[semconv.SERVICE_INSTANCE_ID]
        resource[semconv.SERVICE_INSTANCE_ID] = f"{name}-{index}" if index else str(name)
    return Trail.from_env(service_name=engine, resource=resource)


def siblings_name() -> str:
    """A name that this process has in common with the other children of its parent, and with no other process. It is
    empty where OTEL_RESOURCE_ATTRIBUTES gives them a `service.instance.id`, which is common to them too.
    """
    if OTELResourceDetector().detect().attributes.get(semconv.SERVICE_INSTANCE_ID):
        return ""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    return str(uuid5(NAMESPACE_URL, f"{gethostname()}/{parent}/{started}"))


def wanted(switch: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to record: `switch` (a variable such as TOKENTRAIL_VLLM) says so, or else an endpoint is configured."""
    said = environment.get(switch, "").strip().lower()
    if said:
        return said not in ("false", "0", "no", "off")
    return any(environment.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))


def process_start_ns() -> int | None:
    """Unix ns at which this process started, to 10 ms; None where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return now_ns() - int(age_s * 1e9)
