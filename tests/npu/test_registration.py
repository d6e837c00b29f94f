"""The library in onnxruntime: its device, its doors, what it needs."""

from __future__ import annotations

import shutil
import subprocess

import onnxruntime as ort
import pytest
from qdq_passes.errors import SetupError

import qdqtool.npu
from qdqtool.npu.library import NAME, VARIABLE, library_path
from qdqtool.runtime.provider import PROVIDER
from tests.golden_messages.refusal import refusal
from tests.npu.small_programs import RUNTIME, devices, library


def symbols(option: str) -> set[str]:
    if shutil.which("nm") is None:
        pytest.skip("missing: nm")
    lines = subprocess.run(["nm", "-D", option, str(library())], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in lines.splitlines()}


def test_registering_twice_is_no_harm() -> None:
    before = devices()
    qdqtool.npu.register()
    assert [d.ep_name for d in ort.get_ep_devices()].count(PROVIDER) == len(before) == 1


def test_the_device_is_an_npu() -> None:
    (device,) = devices()
    kind = device.device.type
    assert kind == (ort.OrtHardwareDeviceType.NPU if RUNTIME >= 24 else ort.OrtHardwareDeviceType.CPU)
    assert device.ep_vendor == "qdqtool"
    assert device.ep_metadata["simulates"] == "npu"


@pytest.mark.newest
def test_onnxruntime_prefers_it_where_an_npu_is_wanted() -> None:
    from tests.npu.small_programs import context_model, feed, mixed

    devices()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_NPU)
    session = ort.InferenceSession(context_model().SerializeToString(), options)
    assert PROVIDER in session.get_providers()
    assert (session.run(None, {"x": feed()})[1] == mixed(feed())[1]).all()


def test_only_the_doors_are_open() -> None:
    doors = {"CreateEpFactories", "ReleaseEpFactory", "RegisterCustomOps", "qdqtool_set_compiler"}
    assert symbols("--defined-only") - {"_init", "_fini"} == doors


def test_it_needs_neither_python_nor_onnxruntime() -> None:
    needed = symbols("--undefined-only")
    assert needed
    assert not [name for name in needed if name.startswith(("Py", "_Py", "Ort", "_ZSt", "_ZNSt"))]


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/" + NAME)
    with refusal(SetupError):
        library_path()
