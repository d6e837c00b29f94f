"""Lists of (batch size, sequence length, context length): ours, that of Cloud AI, and its older flat form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import Phase
from qdq_passes.errors import UnsupportedError, UsageError

from qdqtool.io.files.artifacts import read_document

DIMENSIONS = ("batch_size", "seq_len", "ctx_len")


@dataclass(frozen=True, kw_only=True)
class Specialization:
    """One static graph that is wanted.

    Args:
        name: such as ``prefill_b1_s128_c1024``.
        batch_size: rows.
        seq_len: tokens of a run.
        ctx_len: slots of the cache.
    """

    name: str
    batch_size: int
    seq_len: int
    ctx_len: int

    @property
    def phase(self) -> Phase:
        """``decode`` for one token, else ``prefill``."""
        return phase_of(self.seq_len)

    @classmethod
    def of(cls, batch_size: int, seq_len: int, ctx_len: int) -> Specialization:
        """With the name of our form.

        Raises:
            UsageError: a length is below 1, or more tokens run than the cache has slots.
        """
        for value, what in ((batch_size, "batch size"), (seq_len, "sequence length"), (ctx_len, "context length")):
            if value < 1:
                raise UsageError(f"the {what} is {value}", hint="give at least 1")
        if seq_len > ctx_len:
            raise UsageError(
                f"{seq_len} tokens do not fit into a context of {ctx_len}", hint="give a context at least as long"
            )
        name = f"{phase_of(seq_len)}_b{batch_size}_s{seq_len}_c{ctx_len}"
        return cls(name=name, batch_size=batch_size, seq_len=seq_len, ctx_len=ctx_len)


def phase_of(seq_len: int) -> Phase:
    """``decode`` for one token, else ``prefill``."""
    return "decode" if seq_len == 1 else "prefill"


def read_specializations(path: str | os.PathLike[str]) -> list[Specialization]:
    """The list in the file at ``path``, each once, in its order. Names are ours, whatever the file calls them.

    Three forms: a list of ``{batch_size, seq_len, ctx_len, …}`` (ours); ``{"specializations": [{"name", "symbols": {…}}]}``
    (Cloud AI); ``{"specializations": [{batch_size, seq_len, ctx_len}]}`` (its older form). Numbers may be text;
    ``batch_size`` is 1 where absent.

    Raises:
        ModelError: the file cannot be read, or is no JSON.
        UsageError: it has none of the forms, or a length is wrong.
        UnsupportedError: it has a dimension that none of ours is.
    """
    where = os.fspath(path)
    document = read_document(path)
    items = document.get("specializations") if isinstance(document, dict) else document
    if not isinstance(items, list) or not items:
        raise UsageError("is no list of specializations", where=where, hint="see `qdqtool split --help` for the forms")
    try:
        return list(dict.fromkeys(_read(item) for item in items))
    except (UsageError, UnsupportedError) as error:
        error.where = where
        raise


def _read(item: Any) -> Specialization:
    if not isinstance(item, dict):
        raise UsageError(f"holds {item!r} where a specialization is wanted", hint="write {seq_len, ctx_len}")
    symbols = item.get("symbols", item)
    if not isinstance(symbols, dict):
        raise UsageError(f"has symbols {symbols!r}", hint="write {batch_size, seq_len, ctx_len}")
    known = {*DIMENSIONS, "name", "phase", "model", "parts"}
    unknown = sorted(key for key in symbols if key not in known)
    if unknown:
        raise UnsupportedError(
            f"the dimension {unknown[0]!r} is none of ours", hint=f"there is {', '.join(DIMENSIONS)}"
        )
    return Specialization.of(
        _number(symbols, "batch_size", 1), _number(symbols, "seq_len"), _number(symbols, "ctx_len")
    )


def _number(symbols: dict[str, Any], key: str, default: int | None = None) -> int:
    value = symbols.get(key, default)
    if value is None:
        raise UsageError(f"a specialization lacks {key}", hint=f"each has {', '.join(DIMENSIONS)}")
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isdigit():
        raise UsageError(f"{key} is {value!r}", hint="give a whole number")
    return int(value)


def cloud_ai_form(specializations: Iterable[Specialization]) -> dict[str, Any]:
    """``{"specializations": [{"name", "symbols": {"batch_size": "1", …}}]}``; numbers are text there."""
    return {
        "specializations": [
            {"name": s.phase.capitalize(), "symbols": {key: str(getattr(s, key)) for key in DIMENSIONS}}
            for s in specializations
        ]
    }


def flat_form(specializations: Iterable[Specialization]) -> dict[str, Any]:
    """``{"specializations": [{"batch_size": "1", "seq_len": "128", "ctx_len": "1024"}]}``; numbers are text there."""
    return {"specializations": [{key: str(getattr(s, key)) for key in DIMENSIONS} for s in specializations]}


def crossed(
    prefill: Sequence[int], decode: Sequence[int], context: Sequence[int], batch: Sequence[int] = (1,)
) -> list[Specialization]:
    """Every length at every context and batch size; a prefill longer than a context goes with the larger ones.

    Raises:
        UsageError: no context holds a length, a decode run has several tokens, or there is nothing to make.
    """
    if any(length != 1 for length in decode):
        raise UsageError(
            f"a run of {next(n for n in decode if n != 1)} tokens is no decode step",
            hint=f"give --decode 1, and --prefill {','.join(map(str, sorted({*prefill, *decode} - {1})))}",
        )
    lengths = sorted({*prefill, *decode}, reverse=True)
    if not lengths or not context:
        raise UsageError("no specialization", hint="give --prefill, --decode and --context")
    if lengths[0] > max(context):
        raise UsageError(f"no context holds {lengths[0]} tokens of one run", hint=f"the largest is {max(context)}")
    return [
        Specialization.of(rows, length, size)
        for rows in sorted(set(batch))
        for size in sorted(set(context))
        for length in lengths
        if length <= size
    ]
