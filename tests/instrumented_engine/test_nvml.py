"""NVIDIA devices as the driver reports them, with a stand-in for the driver's library."""

from types import SimpleNamespace

import pynvml
import pytest
from prometheus_client.parser import text_string_to_metric_families

from instrumented_engine import nvml
from instrumented_engine.core.observer import Observer
from instrumented_engine.metrics import exposition
from instrumented_engine.server.service import Service
from instrumented_engine.settings import Settings

UUIDS = ["GPU-a", "GPU-b", "GPU-c"]


def refused(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def handle_by_index(index):
    return UUIDS[index] if index < len(UUIDS) else refused()


def handle_by_uuid(uuid):
    return uuid if uuid in UUIDS else refused()


@pytest.fixture
def driver(monkeypatch):
    """A driver with three devices that are called as their UUIDs, and a torch that can use them."""
    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: len(UUIDS),
        "nvmlDeviceGetHandleByIndex": handle_by_index,
        "nvmlDeviceGetHandleByUUID": handle_by_uuid,
        "nvmlDeviceGetName": str,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=7),
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=50),
    }
    for name, function in functions.items():
        monkeypatch.setattr(pynvml, name, function)
    monkeypatch.setattr(nvml, "_torch_has_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml.devices.cache_clear()
    yield
    nvml.devices.cache_clear()


def device_samples(trail):
    content, _ = exposition(Service(Settings(), Observer(trail), None))
    families = text_string_to_metric_families(content.decode())
    return {
        (sample.name.removeprefix("tokentrail_engine_device_"), sample.labels["device"]): sample.value
        for family in families
        for sample in family.samples
        if "_device_" in sample.name
    }


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, UUIDS),
        ("2", ["GPU-c"]),
        ("1, 0", ["GPU-b", "GPU-a"]),
        ("GPU-b", ["GPU-b"]),
        ("", []),
        ("-1", []),
        ("0,9,1", ["GPU-a"]),
    ],
)
def test_devices_are_those_that_cuda_sees(driver, monkeypatch, setting, names):
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [device.name for device in nvml.devices()] == names


def test_a_torch_without_cuda_has_no_devices(driver, monkeypatch):
    monkeypatch.setattr(nvml, "_torch_has_cuda", lambda: False)
    assert nvml.devices() == []


def test_torch_itself_agrees_about_cuda():
    import torch

    assert nvml._torch_has_cuda() == torch.backends.cuda.is_built()


def test_metrics_leave_out_an_unreadable_value(driver, trail, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert device_samples(trail) == {("memory_used_bytes", "0"): 7, ("utilization_ratio", "0"): 0.5}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", refused)
    assert device_samples(trail) == {("memory_used_bytes", "0"): 7}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refused)
    assert device_samples(trail) == {}
