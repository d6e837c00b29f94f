"""What results depend on besides the work: versions of what computes, and the kind of CPU."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Self

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import ModelError, SetupError

from qdqtool.io.files.progress import Warn
from qdqtool.io.files.read import read_text

#: Packages whose version must be equal: they compute, or make the bytes.
PACKAGES = ("qdqtool", "onnxruntime", "numpy", "onnx", "onnx-ir", "ml-dtypes")


@dataclass(frozen=True)
class Machine:
    """A process, as far as results depend on it.

    Args:
        versions: (package, version), Python's among them; None where a package is missing.
        cpu: kind of CPU: kernels are chosen by it.
    """

    versions: tuple[tuple[str, str | None], ...]
    cpu: str

    @classmethod
    def here(cls) -> Self:
        """This process."""
        python = "{}.{}".format(*sys.version_info)
        return cls((("Python", python), *((name, _version(name)) for name in PACKAGES)), _cpu())


def refuse_others(machines: Mapping[str, Machine], warn: Warn | None, *, here: Machine | None = None) -> None:
    """Refuse workers of other versions; warn of other kinds of CPU.

    Args:
        machines: by address of the worker.
        warn: told where CPUs differ.
        here: whom they work for; default: this process.

    Raises:
        SetupError: versions differ.
    """
    here = here or Machine.here()
    for address, machine in machines.items():
        differing = [
            f"{name} {theirs or 'missing'} (here {ours or 'missing'})"
            for (name, theirs), (_, ours) in zip(machine.versions, here.versions, strict=True)
            if theirs != ours
        ]
        if differing:
            raise SetupError(
                f"the worker has {', '.join(differing)}: its results would be others",
                where=address,
                hint="install the same versions there",
            )
    others = sorted({machine.cpu for machine in machines.values()} - {here.cpu})
    if others and warn is not None:
        warn(
            f"workers run on {', '.join(others)}, this process on {here.cpu}: results are equal to the last bit on the same "
            "kind of CPU only"
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = read_text("/proc/cpuinfo").splitlines()
    except ModelError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} {names[0] if names else platform.processor()}".strip()
