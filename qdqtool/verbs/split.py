"""The verb `split`: a folder of static graphs, their weights, a manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Literal, get_args

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option, python_only
from qdqtool.verbs.groups import MODEL, Path, Reports
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Hook

    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.llm.folder.folders import SplitFolder
    from qdqtool.llm.plan.specializations import Specialization
    from qdqtool.llm.plan.splitting import SplitPlan

Layout = Literal["in-place", "slide"]
Scatter = Literal["scatter-elements", "scatter-nd", "tensor-scatter"]
MaskForm = Literal["input", "graph"]


def lengths(text: str) -> tuple[int, ...]:
    """``"128,512"`` → (128, 512).

    Raises:
        ValueError: it is no list of lengths.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is no list of lengths; write 128,512")
    return tuple(int(part) for part in parts)


def numbers(text: str) -> tuple[int, ...]:
    """`lengths`; empty for ``none``."""
    return () if text == "none" else lengths(text)


def size(text: str) -> int:
    """``"4GB"`` → 4,000,000,000; plain numbers are bytes; KiB, MiB, GiB are powers of two.

    Raises:
        ValueError: it is no size, or none of a part.
    """
    units = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    digits = text.rstrip("bBkKmMgGiI ")
    unit = text[len(digits) :].strip().lower()
    try:
        found = int(float(digits) * units[unit])
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is no size; write 4GB, 3500MiB or a number of bytes") from None
    if found < 1:
        raise ValueError(f"{text!r} is no size of a part")
    return found


@dataclass(frozen=True, kw_only=True)
class Split(Reports, Verb["SplitFolder"]):
    """Split the decoder MODEL into static prefill and decode graphs that share one weight file."""

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path = field(
        kw_only=False,
        metadata=metadata_of(
            "Folder for the graphs, the weights, the manifest.",
            value="DIR",
            use="folder",
            flags=("-o", "--output"),
            required=True,
        ),
    )
    overwrite: bool = option(False, "Replace what an earlier split wrote to DIR.")
    prefill: Sequence[int] = option(
        (128,),
        "Tokens of one prefill run, one graph each; `none` for no prefill.",
        value="S,…",
        shown="128",
        read=numbers,
    )
    decode: Sequence[int] = option((1,), "Tokens of one decode run.", value="S,…", shown="1", read=numbers)
    context: Sequence[int] = option(
        (1024,), "Slots of the KV cache (buckets).", value="C,…", shown="1024", read=numbers
    )
    batch: Sequence[int] = option((1,), "Rows of one run.", value="B,…", shown="1", read=numbers)
    specializations: Path | Sequence[Specialization] | None = option(
        None,
        "Any list of (batch_size, seq_len, ctx_len) instead, as DIR/specializations.json or the two forms of Cloud AI hold it.",
        value="FILE",
        use="read",
    )
    layout: Layout = option(
        "in-place",
        "The graph writes new keys and values into the cache, or gives them out and the host slides the cache.",
        shown=True,
    )
    scatter: Scatter = option(
        "scatter-elements",
        "The operator that writes in place; tensor-scatter raises the model to opset 24.",
        shown=True,
    )
    mask: MaskForm = option(
        "input", "The attention mask is a float input, or is made on the graph from the positions.", shown=True
    )
    all_logits: bool = option(False, "Logits of every position come out, not of the last one alone.")
    decompose: bool = option(False, "Fused attention, norms and rotary embeddings become standard operators.")
    tabulate_angles: bool = option(False, "Cosines and sines of positions from a table: angles fit no 16-bit float.")
    naming: Path = option(
        "exported",
        "Names of inputs and outputs: exported, genai, cloud-ai, ane (`list namings`), or a TOML file.",
        value="NAME", use="read", shown=True,
    )  # fmt: skip
    parts: int | None = option(None, "Cut the layers into N consecutive graphs.", value="N", least=1)
    max_part_bytes: int | None = option(
        None, "Cut so that weights and cache of a graph take at most SIZE, as in 4GB.", value="SIZE", read=size
    )
    tokenizer: Path | None = option(
        None, "Tokenizer to copy along; by default what lies beside MODEL.", value="FILE|DIR", use="read"
    )
    prompt_lengths: Sequence[int] = option(
        (), "State the padding that these buckets cost for prompts so long.", value="N,…", read=numbers
    )
    hooks: Iterable[Hook] = python_only((), "Pipeline hooks.")

    def run(self) -> SplitFolder:
        """What was written: a graph a specialization, ``weights.<sha256>.data``, ``specializations.json``, ``manifest.json``,
        the tokenizer's files.

        Raises:
            UnsupportedError: the model is no decoder with a cache, or cannot be made static without changing its function.
            UsageError: bad options, or the folder exists.
        """
        import onnx_ir as ir

        from qdqtool.io.files.progress import pass_on
        from qdqtool.io.models.working import opened, repair
        from qdqtool.llm.folder.decoder_config import decoder_config_of
        from qdqtool.llm.folder.folders import folder_of, refuse_folder
        from qdqtool.llm.plan.buckets import padding_of
        from qdqtool.llm.plan.cut_graphs import cut_graphs
        from qdqtool.llm.plan.naming import load_naming
        from qdqtool.llm.plan.splitting import split_model

        folder, profile, plan = os.path.abspath(os.fspath(self.output)), load_naming(self.naming), self.plan()
        is_cut = self.parts not in (None, 1) or self.max_part_bytes is not None
        profile.refuse(plan.specializations, in_parts=is_cut)
        if self.parts is not None and self.parts < 1:
            raise UsageError(f"{self.parts} parts", hint="give at least 1")
        old = refuse_folder(folder, overwrite=self.overwrite)
        beside = decoder_config_of(None if isinstance(self.model, ir.Model) else self.model, self.tokenizer)
        waste = padding_of(self.prompt_lengths, plan.specializations) if self.prompt_lengths else ()
        work, source = opened(self.model)
        repair(work, self.warn)
        done = split_model(work, plan, hooks=self.hooks, progress=self.progress, warn=self.warn)
        pass_on(profile.warnings(done.graphs), self.warn)
        cut = cut_graphs(done.graphs, parts=self.parts, max_bytes=self.max_part_bytes)
        if self.progress is not None:
            self.progress("writing", 0, None)
        return folder_of(done, cut, folder, profile, source, beside, old=old, padding=waste)

    def plan(self) -> SplitPlan:
        """How these options would go about it.

        Raises:
            UsageError: the options contradict each other, or one has a value that it does not take.
        """
        from qdqtool.llm.plan.naming import load_naming
        from qdqtool.llm.plan.specializations import crossed, read_specializations
        from qdqtool.llm.plan.splitting import SplitPlan, checked

        said_words = (
            ("layout", self.layout, Layout),
            ("scatter", self.scatter, Scatter),
            ("mask", self.mask, MaskForm),
        )
        for name, value, words in said_words:
            if value not in get_args(words):
                raise UsageError(f"{name} {value!r} is unknown", hint=f"give {' or '.join(get_args(words))}")
        if self.layout == "slide" and self.scatter != "scatter-elements":
            raise UsageError(
                f"{self.scatter} writes in place, and the layout is slide", hint="leave out --scatter or --layout"
            )
        shapes: Sequence[Specialization]
        if isinstance(self.specializations, str | os.PathLike):
            shapes = read_specializations(self.specializations)
        elif self.specializations is not None:
            shapes = self.specializations
        else:
            shapes = crossed(self.prefill, self.decode, self.context, self.batch)
        names = [one.name for one in shapes]
        if len(set(names)) < len(names):
            raise UsageError(f"two specializations are called {next(n for n in names if names.count(n) > 1)!r}")
        plan = SplitPlan(
            specializations=tuple(shapes),
            layout=self.layout,
            scatter=self.scatter,
            mask=self.mask,
            all_logits=self.all_logits,
            decompose=self.decompose,
            tabulate_angles=self.tabulate_angles,
        )
        return checked(load_naming(self.naming).applied(plan))


split = function_of(Split)
