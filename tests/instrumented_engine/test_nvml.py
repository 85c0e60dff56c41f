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
        "nvmlDeviceGetPowerUsage": lambda _: 412_500,
        "nvmlDeviceGetClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x20 | 0x1,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlDeviceRegisterEvents": lambda *_: None,
        "nvmlEventSetWait_v2": refused,
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
    expected = {
        "memory_used_bytes": 7, "utilization_ratio": 0.5, "power_watts": 412.5, "sm_clock_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
    }  # fmt: skip
    for names, function in (
        ([], None),
        (["utilization_ratio"], "nvmlDeviceGetUtilizationRates"),
        (["power_watts"], "nvmlDeviceGetPowerUsage"),
        (["sm_clock_hertz", "memory_clock_hertz"], "nvmlDeviceGetClockInfo"),
        (["memory_used_bytes"], "nvmlDeviceGetMemoryInfo"),
    ):
        if function:
            monkeypatch.setattr(pynvml, function, refused)
        expected = {name: value for name, value in expected.items() if name not in names}
        found = {key: value for key, value in device_samples(trail).items() if key[0] != "throttled"}
        assert found == {(name, "0"): value for name, value in expected.items()}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", refused)
    assert device_samples(trail) == {}


def test_reasons_for_lowered_clocks(driver, monkeypatch):
    [first, *_] = nvml.devices()
    reasons = {"sw_power_cap": False, "sw_thermal": True, "hw_thermal": False, "hw_power_brake": False}
    assert first.throttled() == reasons, "an idle GPU is not throttled"
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda _: 0x4 | 0x40 | 0x80)
    assert first.throttled() == {reason: not lowered for reason, lowered in reasons.items()}


def test_xid_errors_are_counted_once(driver, trail, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    waiting = [79, 31, 79]
    monkeypatch.setattr(
        pynvml, "nvmlEventSetWait_v2", lambda *_: SimpleNamespace(eventData=waiting.pop()) if waiting else refused()
    )
    for _ in range(2):
        content, _ = exposition(Service(Settings(), Observer(trail), None))
        lines = [line for line in content.decode().splitlines() if line.startswith("tokentrail_engine_device_xid")]
        assert lines == [
            'tokentrail_engine_device_xid_errors_total{device="0",xid="31"} 1.0',
            'tokentrail_engine_device_xid_errors_total{device="0",xid="79"} 2.0',
        ]
    waiting = [13] * 1000
    assert nvml.devices()[0].xid_errors() == {31: 1, 79: 2, 13: nvml.MOST_EVENTS}, "a flood does not hold up a scrape"


def test_a_device_that_tells_no_events(driver, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", refused)
    assert nvml.devices()[0].xid_errors() is None
