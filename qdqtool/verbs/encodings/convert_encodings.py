"""The verb `convert_encodings`, which is called ``encodings convert``."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import LAST, metadata_of, option
from qdqtool.verbs.encodings.export_encodings import FORMAT, Format, Hints
from qdqtool.verbs.groups import Path
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.encodings.entries import Encodings
    from qdqtool.io.models.working import ModelOrPath


@dataclass(frozen=True, kw_only=True)
class ConvertEncodings(Hints, Verb["Encodings"]):
    """Rewrite the encodings in FILE in another format."""

    encodings: Encodings | Path = field(
        kw_only=False,
        metadata=metadata_of("File of any known format, or what was read.", kind="argument", value="FILE", use="read"),
    )
    output: Path | None = field(
        default=None,
        kw_only=False,
        metadata=metadata_of(
            "Where to write the encodings.", value="FILE", use="file", flags=("-o", "--output"), required=True
        ),
    )
    format: Format = field(metadata=FORMAT)
    model: ModelOrPath | None = option(
        None,
        "The model they are for; it tells the axis that 0.6.1 and 1.0.0 leave out.",
        value="M",
        use="read",
        before="hints",
    )
    overwrite: bool = option(False, "Replace FILE if it exists.", before=LAST)

    def run(self) -> Encodings:
        """The encodings in the new format; fields that are not known stay, where the format has a place for them.

        Raises:
            UnsupportedError: something the format cannot say; the message names the tensor and the format that can.
            UsageError: the model is needed and not given.
        """
        from qdqtool.encodings.entries import Encodings
        from qdqtool.encodings.files import read_encodings, write_encodings
        from qdqtool.encodings.formats import write_document
        from qdqtool.encodings.pair_extraction import as_float
        from qdqtool.encodings.tensors import place, values_by_name
        from qdqtool.io.models.working import opened

        file = self.encodings if isinstance(self.encodings, Encodings) else read_encodings(self.encodings)
        values = None if self.model is None else values_by_name(as_float(opened(self.model)[0]))
        if values is not None:
            entries = [
                dataclasses.replace(entry, holds=place(entry.holds, values[entry.name]))
                if entry.name in values
                else entry
                for entry in file.entries
            ]
            file = dataclasses.replace(file, entries=tuple(entries))
        if not self.hints:
            file = dataclasses.replace(file, hints={})
        if self.output is None:
            write_document(file, self.format, values)
        else:
            write_encodings(self.output, file, self.format, values, overwrite=self.overwrite)
        return file if file.format == self.format else _as_format(file, self.format)


def _as_format(file: Encodings, format: str) -> Encodings:
    """``file`` as if it had been read in ``format``: its entries no longer stand as they stood."""
    entries = tuple(dataclasses.replace(entry, raw=None) for entry in file.entries)
    return dataclasses.replace(file, format=format, entries=entries)


convert_encodings = function_of(ConvertEncodings)
