"""`opt`: pipelines as text and as files, hooks around passes, and the reproducer of a pass that breaks."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from qdq_passes.core import registry

from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli, images, process, same_outputs, write
from tests.golden_messages.refusal import told

#: Passes of a folder for ``--path``: one that breaks the wiring, one that raises, one that lies about what it keeps.
BROKEN = {
    "cut_wire": """
        class CutWire(Pass):
            '''Give a node the input of another.'''
            def run(self, model):
                nodes = list(model.graph)
                nodes[1].replace_input_with(0, nodes[-1].outputs[0])
                yield Change("edit", nodes[1].name or "")
        """,
    "stumble": """
        class Stumble(Pass):
            '''Raise what is no message to the user.'''
            def run(self, model):
                raise ValueError("shape (3,) is odd")
                yield
        """,
    "double_bias": """
        class DoubleBias(Pass):
            '''Say that numbers stay, and change them.'''
            def run(self, model):
                value = model.graph.initializers["head.fc.bias"]
                value.const_value = ir.tensor(value.const_value.numpy() * 2, name=value.name)
                yield Change("edit", value.name)
        """,
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "passes").mkdir()
    for name, body in BROKEN.items():
        lines = [line.removeprefix(" " * 8) for line in body.strip("\n").splitlines()]
        text = "\n".join(
            ["from dataclasses import dataclass", "import onnx_ir as ir", "from qdq_passes import Change, Pass", "",
             "@dataclass(frozen=True)", *lines, ""]
        )  # fmt: skip
        (folder / "passes" / f"{name}.py").write_text(text)
    return str(folder)


@pytest.fixture(autouse=True)
def no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of ``--path`` stay for the life of a process: forget them after each test."""
    monkeypatch.setattr(registry, "_added", [])


def opt(*arguments: str | Path, broken: str) -> tuple[int, str]:
    """Exit code and message."""
    done = cli("opt", DIGITS, "--path", broken, *arguments, code=None)
    assert done.err == f"error: {done.error}\n"
    return done.code, done.error


def test_a_pipeline(tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "-p", " fold-batch-norm , give-names ", "-o", tmp_path / "o.onnx")
    assert done.out.splitlines() == [
        "fold-batch-norm: 42 changes",
        "give-names: 0 changes",
        f"wrote {tmp_path / 'o.onnx'}",
    ]
    assert "BatchNormalization" not in {n.op_type for n in onnx.load(tmp_path / "o.onnx").graph.node}


def test_the_report(tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "-p", "fold-batch-norm,sort", "-o", tmp_path / "o.onnx", "--json").json
    assert done["modified"] is True
    assert done["files"] == [str(tmp_path / "o.onnx")]
    assert [p["pass"] for p in done["passes"]] == ["fold-batch-norm", "sort"]
    assert done["passes"][0]["changes"][0] == {
        "kind": "edit",
        "where": "/stem/conv",
        "because": "takes over /stem/bn",
    }
    assert done["passes"][1]["skips"] == []


def test_nothing_to_change_adds_nothing(tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "-p", "sort", "-o", tmp_path / "o.onnx")
    assert done.out.splitlines()[1] == "nothing to change: the model is saved as it was"
    assert cli("diff", DIGITS, tmp_path / "o.onnx").out == "no differences\n"
    assert len(onnx.load(tmp_path / "o.onnx").metadata_props) == len(onnx.load(DIGITS).metadata_props)


def test_equal_bytes_in_every_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        cli("opt", DIGITS, "-p", "fold-batch-norm,fuse-conv-activation,sort", "-o", tmp_path / name / "o.onnx")
    assert (tmp_path / "a" / "o.onnx").read_bytes() == (tmp_path / "b" / "o.onnx").read_bytes()


def provenance(path: Path) -> str:
    return {p.key: p.value for p in onnx.load(path).metadata_props}.get("qdqtool.provenance", "")


def test_provenance_tells_what_ran(tmp_path: Path) -> None:
    cli("opt", DIGITS, "-p", "fold-batch-norm,sort,give-names", "--stop-after", "2", "-o", tmp_path / "o.onnx")
    assert '"pipeline":"fold-batch-norm,sort"' in provenance(tmp_path / "o.onnx")
    cli("opt", DIGITS, "-p", "fold-batch-norm", "--no-provenance", "-o", tmp_path / "p.onnx")
    assert provenance(tmp_path / "p.onnx") == ""


def test_stop_after(tmp_path: Path) -> None:
    done = cli(
        "opt", DIGITS, "-p", "sort,give-names,sort", "--stop-after", "1", "-o", tmp_path / "o.onnx", "--json"
    ).json
    assert [p["pass"] for p in done["passes"]] == ["sort"]
    cli("opt", DIGITS, "-p", "fold-batch-norm", "--stop-after", "0", "-o", tmp_path / "p.onnx")
    assert cli("diff", DIGITS, tmp_path / "p.onnx").out == "no differences\n"


def test_print_each_and_time_passes(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    done = cli(
        "opt", DIGITS, "-p", "fold-batch-norm,sort", "--print-each", steps, "--time-passes", "-o", tmp_path / "o.onnx"
    )
    assert [line.endswith(" ms") for line in done.out.splitlines()[:2]] == [True, True]
    assert sorted(p.name for p in steps.iterdir()) == ["00-input.txt", "01-fold-batch-norm.txt", "02-sort.txt"]
    assert "BatchNormalization" in (steps / "00-input.txt").read_text()
    assert "BatchNormalization" not in (steps / "01-fold-batch-norm.txt").read_text()


def test_annotations_on_request(tmp_path: Path) -> None:
    for extra, wanted in (([], False), (["--annotations"], True)):
        output = tmp_path / f"{wanted}.onnx"
        cli("opt", DIGITS, "-p", "fold-batch-norm,fuse-conv-activation", "-o", output, *extra)
        assert (b"qdqtool.fused" in output.read_bytes()) is wanted


def test_check_data_says_what_it_could_not_check(tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "-p", "fold-batch-norm", "--check-data", CALIB, "-o", tmp_path / "o.onnx")
    assert done.err == ""
    model = write(
        tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { [r] r = RandomNormalLike(x) [a] y = Add(x, r) }"
    )
    done = cli("opt", model, "-p", "sort", "--check-data", "random:1", "-o", tmp_path / "p.onnx")
    assert done.err == "warning: sort is not checked on the data: the model draws random numbers\n"


def test_inputs_that_no_pass_reads_are_warned_about(tmp_path: Path) -> None:
    cli("calibrate", DIGITS, "--data", "random:1", "-o", tmp_path / "r.json")
    done = cli("opt", DIGITS, "-p", "fold-batch-norm", "--ranges", tmp_path / "r.json", "-o", tmp_path / "o.onnx")
    assert done.err == "warning: no pass of the pipeline reads @ranges: --ranges is not used\n"
    assert "ranges" not in provenance(tmp_path / "o.onnx")


TOML = """
# comments are welcome
[[pass]]
name = "fold-batch-norm"

[[ pass ]]
name = "insert-qdq"
select = ["tensor:logits"]
scale = 0.25
zero-point = [3]
"""


def test_files_hold_text_or_toml(tmp_path: Path) -> None:
    text = 'fold-batch-norm,insert-qdq{select="tensor:logits" scale=0.25 zero-point=3}'
    (tmp_path / "p.toml").write_text(TOML)
    (tmp_path / "q.txt").write_text(TOML)
    (tmp_path / "r.txt").write_text(
        "# first fold\nfold-batch-norm,\n  # then quantize\n" + text.split(",", 1)[1] + "\n"
    )
    cli("opt", DIGITS, "-p", text, "-o", tmp_path / "o.onnx")
    for name in ("p.toml", "q.txt", "r.txt"):
        cli("opt", DIGITS, "-p", f"@{tmp_path / name}", "-o", tmp_path / "again.onnx", "--overwrite")
        assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("p.toml", "pass = 1", id="no list"),
        pytest.param("p.toml", "[[passes]]\nname = 'sort'", id="no pass"),
        pytest.param("p.toml", "[[pass]]\nselect = 'x'", id="no name"),
        pytest.param("p.toml", "[[pass]]\nname = 'srot'", id="unknown pass"),
        pytest.param("p.toml", "[[pass]]\nname = 'sort'\nfast = true", id="unknown option"),
        pytest.param("p.txt", "sort,srot", id="unknown pass in a text"),
        pytest.param("p.txt", "# nothing\n", id="remark alone"),
        pytest.param("p.txt", "", id="empty"),
    ],
)
def test_faults_of_files_name_the_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    told(cli("opt", DIGITS, "-p", f"@{tmp_path / name}", "-o", tmp_path / "o.onnx", code=2).error)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[[pass]")
    error = cli("opt", DIGITS, "-p", f"@{tmp_path / 'p.toml'}", "-o", tmp_path / "o.onnx", code=2).error
    assert "p.toml: is no TOML" in error


def test_a_fault_in_the_text_is_pointed_at(tmp_path: Path) -> None:
    done = cli("opt", DIGITS, "-p", "sort,fold-batch-nrm", "-o", tmp_path / "o.onnx", code=2)
    assert done.err.splitlines()[1:] == ["  sort,fold-batch-nrm", "       ^"]


@pytest.mark.parametrize("name", ["cut-wire", "stumble"])
def test_a_broken_pass_leaves_a_reproducer(name: str, broken: str, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    code, error = opt("-p", f"fuse-conv-activation,{name},sort", "-o", output, broken=broken)
    assert code == 70
    told(error)
    assert not output.exists()
    left = Path(f"{output}.reproducer")
    assert sorted(p.name for p in left.iterdir()) == ["input.onnx", "pipeline.txt"]
    same_outputs(DIGITS, left / "input.onnx", images(1))
    replayed = cli("opt", left / "input.onnx", "-p", f"@{left / 'pipeline.txt'}", "-o", output, code=70)
    told(replayed.error)


def test_a_reproducer_where_it_is_wanted_and_with_the_ranges(broken: str, tmp_path: Path) -> None:
    cli("calibrate", DIGITS, "--data", "random:1", "-o", tmp_path / "r.json")
    here = tmp_path / "here"
    pipeline = "annotate-encodings{encodings=@ranges},stumble"
    code, _ = opt(
        "-p", pipeline, "--ranges", tmp_path / "r.json", "--reproducer", here, "-o", tmp_path / "o", broken=broken
    )
    assert code == 70
    assert (here / "ranges.json").read_bytes() == (tmp_path / "r.json").read_bytes()
    assert (here / "pipeline.txt").read_text().splitlines() == [
        "# qdqtool opt input.onnx -p @pipeline.txt -o out.onnx --ranges ranges.json",
        pipeline,
    ]


def test_quantize_leaves_one_too(broken: str, tmp_path: Path) -> None:
    preset = tmp_path / "odd.toml"
    preset.write_text('description = "odd"\n[calibration]\nmethod = "minmax"\n[pipeline]\nbefore = "sort,stumble"\n')
    command = (
        "quantize",
        DIGITS,
        "--path",
        broken,
        "--preset",
        preset,
        "--data",
        "random:1",
        "-o",
        tmp_path / "q.onnx",
    )
    told(cli(*command, code=70).error)
    assert (tmp_path / "q.onnx.reproducer" / "pipeline.txt").read_text().endswith("\nsort,stumble\n")


def test_a_fault_of_the_user_leaves_no_reproducer(tmp_path: Path) -> None:
    cli("opt", DIGITS, "-p", "sort,remove-qdq{select=op:Nope}", "-o", tmp_path / "o.onnx", code=2)
    assert not list(tmp_path.iterdir())


def test_a_pass_that_changes_numbers_is_caught_on_data(broken: str, tmp_path: Path) -> None:
    code, error = opt("-p", "double-bias", "--check-data", CALIB, "-o", tmp_path / "o.onnx", broken=broken)
    assert code == 70
    assert "output 'logits': pass double-bias changed values it promises to keep" in error
    assert not (tmp_path / "o.onnx").exists()


def test_a_broken_model_is_never_saved_even_without_verification_of_each(broken: str, tmp_path: Path) -> None:
    code, error = opt("-p", "cut-wire", "--no-verify-each", "-o", tmp_path / "o.onnx", broken=broken)
    assert code == 70
    told(error)
    assert not (tmp_path / "o.onnx").exists()


def test_the_environment_names_folders_too(broken: str) -> None:
    done = process("list", "passes", "stumble", QDQTOOL_PATH=broken)
    assert done.stdout.splitlines()[1] == "Raise what is no message to the user."


def test_an_unsorted_model_is_the_users_fault_and_sorting_repairs_it(tmp_path: Path) -> None:
    """The pass moves the first node that reads too early; that is no error of its making."""
    unsorted = SAMPLES / "quark_layout.onnx"
    refused = cli("opt", unsorted, "-p", "remove-qdq", "-o", tmp_path / "o.onnx", code=2)
    told(refused.error)
    cli("opt", unsorted, "-p", "sort,remove-qdq", "-o", tmp_path / "o.onnx")
    cli("check", tmp_path / "o.onnx")
