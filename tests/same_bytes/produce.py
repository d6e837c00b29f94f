"""Runs cases under the checkout whose interpreter runs this file, and writes what came out of each as JSON.

Uses nothing of that checkout but what every commit has: the command line by its entry point, `qdqtool.save`, and the reader of
goldens, `tests.golden.golden`. The inputs are those of the checkout that this file lies in, so both sides get the same ones."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import entry_points, version
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
#: Kind of unit (what one process runs) → the groups that its cases belong to, the first part of their names.
GROUPS = {
    "texts": {"texts"}, "goldens": {"goldens"}, "integers": {"lowered"}, "decoders": {"decoders"}, "exports": {"exports"},
    "model": {"presets", "options", "lowered", "json"}, "split": {"presets", "options", "lowered", "json", "decoders"},
}  # fmt: skip
#: How many units the goldens are dealt to.
SHARES = 4
TEXT = "--data in/text/train.txt --samples 2"
IMAGES = {"digits": "in/calib.npz", "detector": "in/detector_calib.npz"}
#: Presets that differ in what can be lowered; the others repeat one of them.
LOWERED = ("xint8", "xint8-compat", "vint8", "8a8w", "a16w8", "qnn-a16w8", "16a4w", "mobilequant", "w4-g32", "dynamic")
#: Targets for the models of goldens and traps; on models so small the others would repeat these.
SMALL_TARGETS = ("generic_int8", "vitis_xint8", "qnn_htp")
#: Name → options of `quantize` beside the data.
OPTIONS = {
    "equalize": "--equalize keep",
    "smooth": "--smooth",
    "round-weights": "--round-weights --samples 4",
    "learn-rounding": "--learn-rounding --samples 4",
    "correct-bias": "--correct-bias",
    "integer-io": "--integer-io",
    "stored-weights": "--weights dq",
    "written": "--report out/report.json --save-ranges out/ranges.json",
    "recovered": "--preset a8w8 --equalize relu --smooth --correct-bias --save-statistics out/seen.npz",
    "per-channel": "--preset 8a8w --extra-options per_channel=true",
    "float16": "--preset 8a8w --fp16 op:Relu --allow-empty",
    "printed": "--preset qnn-a8w8 --print-pipeline",
}
#: Name → options of `split`.
SIZES = "--prefill 8 --context 32"
SPLITS = {
    "default": SIZES,
    "slide": f"{SIZES} --layout slide --mask graph --all-logits",
    "scatter-nd": f"{SIZES} --scatter scatter-nd --decompose --tabulate-angles",
    "tensor-scatter": f"{SIZES} --scatter tensor-scatter",
    "parts": f"{SIZES} --parts 2",
    "buckets": "--prefill 4,8 --context 32,64 --batch 1,2",
    "decode-alone": "--prefill none --context 32 --max-part-bytes 1MB",
    **{naming: f"{SIZES} --naming {naming}" for naming in ("genai", "cloud-ai", "ane")},
}
#: Times are no result.
_CLOCK = re.compile(rb'("(?:seconds|wall_s)": )[-+0-9.e]+')

Record = dict[str, dict[str, str]]
Cases = Iterator[tuple[str, Callable[[], Record]]]


def units(exports: Path | None = None) -> list[str]:
    """What can be run side by side, the longest first; `exports`: folder of more decoders."""
    models = sorted((HERE / "sample_models").glob("*.onnx"), key=lambda path: (-path.stat().st_size, path))
    shares = [f"{kind}:{share}" for kind in ("integers", "goldens") for share in range(SHARES)]
    folders = {"decoders": HERE / "tests/data/decoders", "exports": exports}
    found = [
        f"{kind}:{file.parent}" for kind, top in folders.items() if top for file in sorted(top.rglob("model.onnx"))
    ]
    return ["split:tiny_llama", *(f"model:{path.stem}" for path in models), "model:digits", *shares, *found, "texts:"]


def chosen(name: str, only: Sequence[str], sample: int, seed: int) -> bool:
    """Whether the case called ``name`` is among those asked for: of the groups (or beginnings) ``only``, one in ``sample``."""
    if only and not any(name == one or name.startswith(f"{one}/") for one in only):
        return False
    return int(hashlib.sha256(f"{seed}/{name}".encode()).hexdigest(), 16) % sample == 0


def digest(path: Path) -> str:
    """SHA-256 of a file; of JSON without times and without the current folder."""
    data = path.read_bytes()
    if path.suffix == ".json":
        data = _CLOCK.sub(rb"\1", data).replace(os.fsencode(Path.cwd()), b"")
    return hashlib.sha256(data).hexdigest()


def written() -> dict[str, str]:
    """What lies under ``out``, hashed."""
    files = sorted(path for path in Path("out").rglob("*") if path.is_file())
    return {path.relative_to("out").as_posix(): digest(path) for path in files}


def _forget_the_end() -> None:
    """Let the next command of this process end as the first did: in some commits it ended the process, with nothing written."""
    if interrupts := sys.modules.get("qdqtool.interrupts"):
        interrupts.State.heard = 0


@dataclass(frozen=True)
class Bench:
    """Where cases run: a folder of its own, which is the current one, with the inputs under ``in``."""

    root: Path
    keep: Path | None
    main: Callable[[list[str]], None]

    def run(self, *command: str) -> tuple[str, str, str]:
        """Run one command: exit code, what it printed, what it complained; without the folders of this machine."""
        out, err, code = io.StringIO(), io.StringIO(), "0"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                _forget_the_end()
                self.main(list(command))
            except SystemExit as error:
                code = str(error.code or 0)
            if ends := sys.modules.get("qdqtool.interrupts"):
                ends.State.heard = 0  # it takes a second command of one process for the end of the first
        folders = re.compile("|".join(re.escape(str(folder)) for folder in (Path.cwd(), HERE, self.root)))
        return code, folders.sub("<folder>", out.getvalue()), folders.sub("<folder>", err.getvalue())

    def writes(self, command: str, model: Callable[[], str], options: str = "", output: str = "") -> Record:
        """What a command writes of a model: ``output``, a JSON document, its exit code and its complaints."""
        path, more = model(), f"{options} -o out/{output}" if output else options
        if not Path(path).exists():
            return {"bytes": {"exit": "no input"}, "words": {}}
        code, _, err = self.run(command, path, *more.split(), "--json-out", "out/said.json", "-q")
        return {"bytes": {"exit": code, **written()}, "words": {"stderr": err}}

    def prints(self, *command: str) -> Record:
        """What a command prints; the wording does not count as a result."""
        code, out, err = self.run(*command)
        return {"bytes": {"exit": code}, "words": {"stderr": err, "stdout": out}}

    def one(self, name: str, case: Callable[[], Record]) -> Record:
        """Run one case in an empty ``out``."""
        shutil.rmtree("out", ignore_errors=True)
        Path("out").mkdir()
        record = case()
        if self.keep:
            shutil.copytree("out", self.keep / name)
        return record

    def ready(self, path: str, command: str, model: str, options: str) -> str:
        """``path``, made by a command unless it exists or cannot be made."""
        if not Path(path).exists():
            self.run(command, model, *options.split(), "-o", path, "-q")
        return path

    def names(self, what: str) -> list[str]:
        """The names that ``list WHAT`` tells."""
        return [entry["name"] for entry in json.loads(self.run("list", what, "--json")[1])[what]]

    @cached_property
    def targets(self) -> list[str]:
        """All targets."""
        return self.names("targets")


def texts(bench: Bench, _: str) -> Cases:
    """``--help`` of every command and subcommand, and every list."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop()
        yield " ".join(("texts/help", *command)), partial(bench.prints, *command, "--help")
        _, _, listed = bench.run(*command, "--help")[1].partition("\nCommands:\n")
        waiting += [(*command, name) for name in re.findall(r"^  (\S+)", listed, re.MULTILINE)]
    for what in ("passes", "presets", "targets", "methods", "namings", "devices", "commands"):
        yield f"texts/list {what}", partial(bench.prints, "list", what)
        yield f"texts/list {what} in full", partial(bench.prints, "list", what, "--json")


def _files(root: Path, folder: str, share: str) -> list[tuple[str, Path]]:
    """(name, file) of one share of the ONNX texts in a folder of tests: ours, and those that only ``root`` has."""
    tops = (root / "tests" / folder, HERE / "tests" / folder)
    found = {path.relative_to(top): path for top in tops for path in top.glob("*/*.onnxtxt")}
    return [(str(name.with_suffix("")), path) for name, path in sorted(found.items())][int(share) :: SHARES]


def goldens(bench: Bench, share: str) -> Cases:
    """Each golden's pipeline on its model."""
    for name, path in _files(bench.root, "golden", share):
        yield f"goldens/{name}", partial(golden, path)


def golden(path: Path) -> Record:
    """The model after the pipeline of a golden, saved with its annotations, and what was changed."""
    import qdqtool
    from tests.golden.golden import Golden

    case, kind, words = Golden(path), "", ""
    try:
        model = case.model()
        report = case.run(model)
        qdqtool.save(model, "out/model.onnx", annotations=True)
        Path("out/report.json").write_text(json.dumps(report.to_json(), default=str), encoding="utf-8")
    except Exception as error:  # noqa: BLE001  (an error of the pipeline is its result)
        kind, words = type(error).__name__, str(error)
    return {"bytes": {"error": kind, **written()}, "words": {"error": words}}


def integers(bench: Bench, share: str) -> Cases:
    """Models of goldens that have pairs, and of traps, lowered."""
    for folder in ("golden", "traps"):
        for name, path in _files(bench.root, folder, share):
            for target in SMALL_TARGETS if "QuantizeLinear" in path.read_text(encoding="utf-8") else ():
                read = partial(binary, path)
                yield (
                    f"lowered/{folder}/{name}/{target}",
                    partial(bench.writes, "lower", read, f"--target {target}", "model.onnx"),
                )


def binary(path: Path) -> str:
    """A binary file of the model in an ONNX text."""
    import onnx
    import onnx.parser

    onnx.save(onnx.parser.parse_model(path.read_text(encoding="utf-8")), "text.onnx")
    return "text.onnx"


def model(bench: Bench, stem: str) -> Cases:
    """One sample model: what is said of it; quantized in every way; that said of and lowered."""
    source = partial(str, f"in/{stem}.onnx")
    data = TEXT if stem == "tiny_llama" else f"--data {IMAGES.get(stem, 'random:8')}"
    yield from said(bench, f"{stem}/float", source)
    ways = {f"presets/{stem}/{name}": f"--preset {name}" for name in bench.names("presets")}
    ways |= {f"options/{stem}/{name}": options for name, options in OPTIONS.items()}
    ways |= {f"options/{stem}/method-{name}": f"--method {name}" for name in bench.names("methods")}
    ways |= {f"options/{stem}/target-{name}": f"--target {name}" for name in bench.targets}
    for name, options in ways.items():
        yield name, partial(bench.writes, "quantize", source, f"{data} {options}", "model.onnx")

    def static(preset: str) -> str:
        how = ("opt", "--pipeline sort") if preset == "float" else ("quantize", f"{data} --preset {preset}")
        dynamic = bench.ready(f"made/{preset}.onnx", how[0], source(), how[1])
        return bench.ready(f"made/{preset}_static.onnx", "fix-shapes", dynamic, "--dim N=1")

    if stem == "tiny_llama":  # lowered as split; dynamic shapes run nowhere
        return
    yield from lowered(bench, f"{stem}/float", partial(static, "float"))
    for preset in LOWERED:
        yield from said(bench, f"{stem}/{preset}", partial(static, preset))
        yield from lowered(bench, f"{stem}/{preset}", partial(static, preset))


def said(bench: Bench, name: str, source: Callable[[], str]) -> Cases:
    """JSON of what looks at a model."""
    for verb in ("inspect", "check"):
        yield f"json/{name}/{verb}", partial(bench.writes, verb, source)
    for target in bench.targets:
        for verb in ("check", "analyze"):
            yield f"json/{name}/{verb}/{target}", partial(bench.writes, verb, source, f"--target {target}")


def lowered(bench: Bench, name: str, source: Callable[[], str]) -> Cases:
    """Programs for every target."""
    for target in bench.targets:
        for verb in ("lower", "compile"):
            yield (
                f"lowered/{name}/{target}/{verb}",
                partial(bench.writes, verb, source, f"--target {target}", "model.onnx"),
            )


def split(bench: Bench, stem: str) -> Cases:
    """A decoder of ours: split in every way, the split quantized in every way, its graphs said of and lowered."""
    yield from splits(bench, f"decoders/{stem}", f"in/{stem}.onnx")
    source = partial(bench.ready, "made/float", "split", f"in/{stem}.onnx", SIZES)
    ways = {f"presets/{stem}_split/{name}": f"--preset {name}" for name in bench.names("presets")}
    ways[f"options/{stem}_split/kv-cache"] = "--preset 8a8w --kv-cache uint8 --lm-head int8"
    ways |= {f"options/{stem}_split/target-{name}": f"--preset 8a8w --target {name}" for name in bench.targets}
    for name, options in ways.items():
        yield name, partial(bench.writes, "quantize", source, f"{TEXT} {options}", "folder")

    def static(preset: str, graph: str) -> str:
        options = f"{TEXT} --preset {preset} --kv-cache uint8"
        folder = Path(bench.ready(f"made/{preset}", "quantize", source(), options))
        return str(next(folder.glob(f"{graph}_*.onnx"), folder))

    for preset in ("8a8w", "mobilequant"):
        for graph in ("decode", "prefill"):
            yield from said(bench, f"{stem}_split/{preset}/{graph}", partial(static, preset, graph))
            yield from lowered(bench, f"{stem}_split/{preset}/{graph}", partial(static, preset, graph))


def splits(bench: Bench, name: str, file: str) -> Cases:
    """A decoder, split in every way."""
    for way, options in SPLITS.items():
        yield f"{name}/{way}", partial(bench.writes, "split", partial(str, file), options, "folder")


def decoder(bench: Bench, folder: str, *, parts: int) -> Cases:
    """A decoder in a folder, whose last ``parts`` folders name it."""
    shutil.copytree(folder, "in/decoder")
    group = "decoders" if parts == 1 else "exports"
    yield from splits(bench, "/".join((group, *Path(folder).parts[-parts:])), "in/decoder/model.onnx")


KINDS: dict[str, Callable[[Bench, str], Cases]] = {
    "texts": texts, "goldens": goldens, "integers": integers, "model": model, "split": split,
    "decoders": partial(decoder, parts=1), "exports": partial(decoder, parts=2),
}  # fmt: skip


def main() -> None:
    """Run the cases of one unit in the current folder."""
    parser = argparse.ArgumentParser()
    for name in ("unit", "--root", "--output", "--keep"):
        parser.add_argument(name, type=Path if name.startswith("-") else str)
    for name in ("--sample", "--seed"):
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    told = parser.parse_args()
    sys.path.insert(0, str(told.root))
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    for folder in ("sample_models", "qdqtool/_demo"):
        shutil.copytree(HERE / folder, "in", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    Path("made").mkdir()
    (entry,) = entry_points(group="console_scripts", name="qdqtool")
    bench = Bench(told.root, told.keep, entry.load())
    kind, _, rest = told.unit.partition(":")
    every = KINDS[kind](bench, rest)
    done = {name: bench.one(name, case) for name, case in every if chosen(name, told.only, told.sample, told.seed)}
    versions = {name: version(name) for name in ("onnx", "onnx-ir", "onnxruntime", "numpy")}
    told.output.write_text(json.dumps({"versions": versions, "cases": done}), encoding="utf-8")


if __name__ == "__main__":
    main()
