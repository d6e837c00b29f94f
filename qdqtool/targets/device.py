"""How a model runs on the device of a target: the execution provider of onnxruntime, its options, and what its log must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.toml_table import TomlTable

from qdqtool.targets.toml_values import optional_text


@dataclass(frozen=True, kw_only=True)
class Device:
    """A machine with the NPU.

    Args:
        machines: what has it, in words.
        provider: name of the execution provider.
        plugin: module with the library of the provider, where onnxruntime itself has none.
        options: of the provider.
        session: entries of the session's configuration, where all operators are on the NPU.
        log: what the log says with the severity 0, by which operators are counted.
        source: of all this.
    """

    machines: str
    provider: str
    plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    source: str = ""

    def script(self, model: str, *, is_whole: bool) -> str:
        """Return a program in Python that runs ``model`` on the device; ``is_whole``: no operator of it is left to the CPU."""
        entries = [f"options.add_session_config_entry({key!r}, {value!r})" for key, value in self.session.items()]
        names = {"provider": self.provider, "options": dict(self.options), "plugin": self.plugin}
        return _SCRIPT.format(
            model=model, machines=self.machines, log=self.log, source=self.source, **names,
            entries="\n".join(entries if is_whole else []), register=_PLUGIN.format(**names) if self.plugin else "",
        )  # fmt: skip


_PLUGIN = """if "{provider}" not in ort.get_available_providers():  # a plugin
    import {plugin}

    ort.register_execution_provider_library("{provider}", {plugin}.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "{provider}"]
    options.add_provider_for_devices(devices, {options!r})
    how = {{}}
"""
_SCRIPT = '''"""Run {model} on {machines}: python device.py SAMPLES.npz

The log must say: {log}
The outputs of sample N are written to board/N, as .npy: `qdqtool compare float.onnx {model} --dumps board --data SAMPLES.npz`.
Options: {source}"""

import os
import sys

import numpy as np
import onnxruntime as ort

here = os.path.dirname(os.path.abspath(__file__))
options = ort.SessionOptions()
options.log_severity_level = 0
{entries}
how = {{"providers": ["{provider}"], "provider_options": [{options!r}]}}
{register}
session = ort.InferenceSession(os.path.join(here, {model!r}), options, **how)
assert "{provider}" in session.get_providers(), f"onnxruntime has no {provider}: {{ort.get_available_providers()}}"

with np.load(sys.argv[1]) as file:
    samples = {{name: file[name] for name in file.files}}
inputs = {{value.name: value.shape for value in session.get_inputs()}}
batch = next((shape[0] for shape in inputs.values() if shape and isinstance(shape[0], int)), 1)
for number in range(min(len(samples[name]) for name in inputs) // batch):
    feed = {{name: samples[name][number * batch : (number + 1) * batch] for name in inputs}}
    os.makedirs(os.path.join("board", str(number)), exist_ok=True)
    for value, array in zip(session.get_outputs(), session.run(None, feed)):
        np.save(os.path.join("board", str(number), value.name.replace("/", "_") + ".npy"), array)
'''


def device_of(root: TomlTable, base: Device | None) -> Device | None:
    """Return the table ``device``, or that of what the target extends."""
    if "device" not in root.data:
        return base
    table = root.table("device", "machines", "provider", "plugin", "options", "session", "log", "source")
    return Device(
        machines=table.text("machines"), provider=table.text("provider"), plugin=optional_text(table, "plugin"),
        options=_texts(table, "options"), session=_texts(table, "session"), log=optional_text(table, "log"),
        source=optional_text(table, "source"),
    )  # fmt: skip


def _texts(table: TomlTable, key: str) -> dict[str, str]:
    given = table.data.get(key, {})
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise table.error(f"{key!r} must be a table of texts", hint=f'{key} = {{name = "value"}}')
    return dict(given)
