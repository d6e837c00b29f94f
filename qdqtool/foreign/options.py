"""Options of onnxruntime's quantizer and of the Vitis AI quantizer (Quark), by their own names, as keys of ours with values.

``ort_options.toml`` and ``quark_options.toml`` say what there is, ``keys.toml`` what becomes of a key. What is not said keeps the
preset's choice. Float scales over a preset with powers of two leave out what is for the DPU alone: its operators, and
refine-positions. A pass that is put in has its default options, and the place that it has in ``xint8``. A moving average goes
over the samples in their order, as in onnxruntime with CalibStridedMinMax=1 (without, there it is the mean).
Differences from onnxruntime, on purpose: per_channel means the last axis of a MatMul's weight (there axis 1, along which rank 3
sums); an axis is taken from QDQOpTypePerChannelSupportToAxis without per_channel as well; WeightSymmetric=false holds for
per-axis weights, too; symmetric unsigned tensors have the scale a/127, which never clips (there 2a/255); a bias that layers with
other products share stays float (there it is copied); a ``convert`` widens the encoding there is, which is exact (there the range
is quantized anew), for all activations of its receivers."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UnsupportedError, UsageError

from qdqtool.foreign import values
from qdqtool.io.files.read import read_text

#: What options ask for: key of ours → value. What is not there is not said, or empty.
Said = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ForeignOption:
    """An option that asks for something.

    Args:
        name: its name there.
        fills: the key that it fills.
        reads: how its value is read, a name in `values.READERS`.
        says: what is filled in for false and for true, instead of those.
        default: its value there where it is not said.
    """

    name: str
    fills: str
    reads: str = "bool"
    says: tuple[object, ...] = ()
    default: object = None

    def read(self, value: object) -> object:
        """What ``value`` is here.

        Raises:
            UsageError: it cannot be read.
            UnsupportedError: it has no equivalent.
        """
        found = values.READERS[self.reads](self.name, value)
        return self.says[bool(found)] if self.says else found


@dataclass(frozen=True, kw_only=True)
class Known:
    """An option that asks for what is done here anyway, or for what has no equivalent.

    Args:
        why: why other values are refused, or what of ours does it.
        accepts: values that say what is done here anyway, beside None.
    """

    why: str
    accepts: tuple[object, ...] = (False,)


def table(name: str) -> dict[str, Any]:
    """What the data file ``name`` says."""
    return tomllib.loads((resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))


def _rows(kind: str) -> dict[str, dict[str, Any]]:
    """The options of all tools, by name; a tool is a file ``*_options.toml``."""
    rows: dict[str, dict[str, Any]] = {}
    names = (file.name for file in resources.files(__package__).iterdir())
    for tool in sorted(name.removesuffix(".toml") for name in names if name.endswith("_options.toml")):
        for name, row in table(tool)[kind].items():
            if rows.setdefault(name, row) != row:
                raise ValueError(f"{tool}.toml says something else of {name} than another tool does")
    return {
        name: {k: tuple(v) if isinstance(v, list) and k != "default" else v for k, v in row.items()}
        for name, row in rows.items()
    }


OPTIONS = {name: ForeignOption(name=name, **row) for name, row in _rows("options").items()}
KNOWN = {name: Known(**row) for name, row in _rows("known").items()}


def option_named(key: str) -> str:
    """The other tool's name of the option that fills ``key``."""
    return next(option.name for option in OPTIONS.values() if option.fills == key)


def under(said: Said, group: str) -> dict[str, bool]:
    """The entries of ``said`` whose key is ``GROUP.NAME``, by that name."""
    return {key.removeprefix(f"{group}."): value for key, value in said.items() if key.startswith(f"{group}.")}


def parse_extra_options(given: Mapping[str, object]) -> Said:
    """What the options ``given`` (their name → value) ask for; None as a value says nothing.

    Raises:
        UsageError: an unknown name (with the nearest ones), or a value that cannot be read.
        UnsupportedError: an option that has no equivalent; the message says why, or which option of ours does it.
    """
    said: dict[str, object] = {}
    for name, value in given.items():
        content = values.structured(value)
        if name in KNOWN:
            if content is not None and content not in KNOWN[name].accepts:
                raise UnsupportedError(f"{name}={value} has no equivalent", hint=KNOWN[name].why)
            continue
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, [*OPTIONS, *KNOWN], n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"for example {', '.join(list(OPTIONS)[:4])}"
            raise UsageError(f"there is no extra option {name!r}", hint=hint)
        if content is None:
            continue
        option = OPTIONS[name]
        found = option.read(value)
        if said.setdefault(option.fills, found) != found:
            raise UsageError(f"{name} is given twice, and differently", hint="its other spelling says something else")
        if option.fills == "overrides":
            said["conversions"] = values.to_conversions(name, value)
    return {key: found for key, found in said.items() if found not in ((), {})}


def read_extra_options(texts: Iterable[str]) -> dict[str, object]:
    """Name → value of texts ``NAME=VALUE``; a value ``@FILE`` is the content of that file. Lists that are given twice unite.

    Raises:
        UsageError: a text without ``=``, or an option given twice that is no list.
        ModelError: a file that cannot be read.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"extra option {text!r} cannot be read", hint="write NAME=VALUE, as in per_channel=true")
        name, content = name.strip(), read_text(value[1:]) if value.startswith("@") else value
        if name in found and name in OPTIONS and OPTIONS[name].reads in ("names", "selectors"):
            found[name] = [*values.to_names(name, found[name]), *values.to_names(name, content)]
        elif found.get(name, content) != content:
            raise UsageError(f"extra option {name} is given twice, and differently", hint="give it once")
        else:
            found[name] = content
    return found
