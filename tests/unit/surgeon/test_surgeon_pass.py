"""``@surgeon_pass``, and the two passes of this package that are written with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from qdq_passes import Change, Keeps, parse_pipeline, run_pipeline, skip, surgeon_pass
from qdq_passes.clean.merge_transposes import MergeTransposes
from qdq_passes.clean.remove_identity import RemoveIdentity
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.surgeon.surgeon_pass import SurgeonPass
from qdq_passes.verification.rules import verify

from qdqtool.io.models.save import serialize
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [add] h = Add(x, w) [act] y = Relu(h) }"


def to_bytes(of: ir.Model) -> bytes:
    return bytes(serialize(of).SerializeToString(deterministic=True))


def of_function(edit: Callable[[gs.Graph], object]) -> list[Change]:
    """What a pass that does ``edit`` reports on `TEXT`."""

    @surgeon_pass
    def edit_it(graph: gs.Graph) -> None:
        edit(graph)

    return edit_it()(model(TEXT))


def test_a_function_becomes_a_pass() -> None:
    keeps = Keeps("bounded", 0.5)

    @surgeon_pass(keeps=keeps, ops=("Relu",))
    def clip_relu(graph: gs.Graph, *, high: float, names: tuple[str, ...] = ()) -> None:
        """Bound Relu."""

    assert (clip_relu.__name__, clip_relu.name(), clip_relu.__doc__) == ("ClipRelu", "clip-relu", "Bound Relu.")
    assert issubclass(clip_relu, SurgeonPass)
    assert clip_relu.keeps is keeps
    instance = clip_relu(high=6.0)  # type: ignore[call-arg]
    assert instance == clip_relu(high=6.0, names=())  # type: ignore[call-arg]
    assert (repr(instance), clip_relu.__module__) == ("ClipRelu(high=6.0, names=())", __name__)
    with pytest.raises(TypeError):
        clip_relu()


def test_signatures_that_make_no_options() -> None:
    with refusal(UsageError):

        @surgeon_pass
        def untyped(graph, *, a=3):  # type: ignore[no-untyped-def]
            pass

    with refusal(UsageError):

        @surgeon_pass
        def positional(graph: gs.Graph, a: int) -> None:
            pass


USERS_FILE = '''
import numpy as np
import onnx_graphsurgeon as gs
from qdq_passes import skip, surgeon_pass, Keeps

@surgeon_pass(keeps=Keeps("changes"), ops=["Relu"])
def scale_relu(graph: gs.Graph, *, factor: "float" = 1.0, names: tuple[str, ...] = ()):
    """Multiply what Relu gives."""
    for node in [n for n in graph.nodes if n.op == "Relu"]:
        if names and node.name not in names:
            yield skip(node.name, "not named")
            continue
        result = node.outputs[0]
        node.outputs[0] = gs.Variable(result.name + "_unscaled", dtype=np.float32, shape=result.shape)
        by = gs.Constant(node.name + "_factor", np.array(factor, np.float32))
        graph.nodes.append(gs.Node("Mul", node.name + "_scale", inputs=[node.outputs[0], by], outputs=[result]))
'''


def test_in_a_users_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "scale_relu.py").write_text(USERS_FILE)
    monkeypatch.setenv("QDQTOOL_PATH", str(tmp_path))
    pipeline = parse_pipeline("scale-relu{factor=3 names=[act]},scale-relu,scale-relu{names=[other]}")
    assert str(pipeline) == "scale-relu{factor=3.0 names=[act]},scale-relu,scale-relu{names=[other]}"
    edited = model(TEXT)
    graph_before, report = edited, run_pipeline(edited, parse_pipeline("scale-relu{factor=3 names=[act]}"))
    assert report.model is graph_before
    assert [str(change) for change in report.changes] == [
        "edit act: scale-relu",
        "insert act_scale: scale-relu",
        "insert act_factor: scale-relu",
    ]
    assert open_session(edited).run({"x": np.array([1, -5], np.float32)})["y"].tolist() == [6, 0]
    declined = run_pipeline(edited, parse_pipeline("scale-relu{names=[other]}"))
    assert [str(change) for change in declined.changes] == ["skip act: not named"]
    assert not declined.modified


def test_a_function_that_raises_leaves_the_model_as_it_is() -> None:
    @surgeon_pass
    def fail_late(graph: gs.Graph) -> None:
        graph.tensors()["w"].values[:] = 7
        graph.nodes.clear()
        raise RuntimeError("late")

    edited = model(TEXT)
    before, graph = to_bytes(edited), edited.graph
    with pytest.raises(RuntimeError, match="late"):
        fail_late()(edited)
    assert (to_bytes(edited), edited.graph) == (before, graph)


def test_a_loss_leaves_the_model_as_it_is() -> None:
    edited = model("g (float[2] x) => (float[2] y) <int4[2] w = {1, 2}> { y = Identity(x) z = Shape(w) }")

    @surgeon_pass
    def edit_int4(graph: gs.Graph) -> None:
        graph.tensors()["w"].values = graph.tensors()["w"].values[::-1].copy()

    before = to_bytes(edited)
    with refusal(UnsupportedError):
        edit_int4()(edited)
    assert to_bytes(edited) == before


def test_no_difference_installs_nothing() -> None:
    @surgeon_pass
    def look_only(graph: gs.Graph) -> Iterator[Change]:
        for tensor in graph.tensors().values():
            if isinstance(tensor, gs.Constant):
                yield skip(tensor.name, str(tensor.values.shape))
        graph.cleanup().toposort()

    edited = model(
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { b = Exp(x) a = Abs(x) c = Add(a, b) y = Add(c, w) }"
    )
    before, graph = to_bytes(edited), edited.graph
    assert [str(change) for change in look_only()(edited)] == ["skip w: (2,)"]
    assert edited.graph is graph
    assert to_bytes(edited) == before


def test_changes_by_name_and_signature() -> None:
    def replace(graph: gs.Graph) -> None:
        graph.nodes[1].op = "Abs"

    def rename(graph: gs.Graph) -> None:
        graph.nodes[1].name = "other"

    def weight(graph: gs.Graph) -> None:
        graph.tensors()["w"].values[0] = 9

    def output(graph: gs.Graph) -> None:
        graph.outputs.append(graph.nodes[0].outputs[0].to_variable(np.float32, [2]))

    def text(edit: Callable[[gs.Graph], object]) -> list[str]:
        return [f"{change.kind} {change.where}" for change in of_function(edit)]

    assert text(replace) == ["edit act"]
    assert text(rename) == ["remove act", "insert other"]
    assert text(weight) == ["edit w"]
    assert text(output) == ["edit h", "edit outputs of g"]
    assert text(lambda graph: setattr(graph, "opset", 20)) == ["edit opset imports"]
    assert text(lambda graph: setattr(graph, "doc_string", "new")) == ["edit g"]
    assert text(lambda graph: setattr(graph, "ir_version", 11)) == ["edit IR version"]
    assert text(lambda graph: graph.nodes.reverse()) == []  # sorted again


def test_a_pass_without_its_operators_does_not_import_graphsurgeon() -> None:
    code = f"""
import sys
from tests.cases.small_models import model
from qdq_passes.clean.remove_identity import RemoveIdentity
assert RemoveIdentity()(model({TEXT!r})) == []
assert "onnx_graphsurgeon" not in sys.modules
assert "identity" in str(RemoveIdentity()(model({TEXT.replace("Relu", "Identity")!r}))[0])
assert "onnx_graphsurgeon" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def outcome(pass_: SurgeonPass, text: str) -> list[str]:
    """Operators that are left, after checking names and, where onnxruntime runs it, numbers; skips as ``where: because``."""
    before, after = model(text), model(text)
    changes = pass_(after)
    assert [v.name for v in after.graph.outputs] == [v.name for v in before.graph.outputs]
    assert [v.name for v in after.graph.inputs] == [v.name for v in before.graph.inputs]
    assert not [finding for finding in verify(after) if finding.level in ("fatal", "error")]
    one, two = open_session(before), open_session(after)
    feed = {
        name: np.arange(np.prod(shape)).reshape(shape).astype(one.input_dtypes[name])  # type: ignore[arg-type]
        for name, shape in one.input_shapes.items()
    }
    results = [{name: value.tobytes() for name, value in session.run(feed).items()} for session in (one, two)]
    assert results[0] == results[1]
    assert [change for change in pass_(after) if not change.is_skip] == []
    skips = [f"{change.where}: {change.because}" for change in changes if change.is_skip]
    return [*(node.op_type for node in after.graph.all_nodes()), *skips]


INTERFACE = "g (float[2] x) => (float[2] y)"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (INTERFACE + "{ a = Identity(x) b = Identity(a) y = Relu(b) }", ["Relu"]),
        (INTERFACE + "{ a = Relu(x) b = Identity(a) y = Identity(b) }", ["Relu"]),
        (INTERFACE + "{ a = Relu(x) y = Identity(a) }", ["Relu"]),
        (INTERFACE + "<float[2] w = {1, 2}> { v = Identity(w) y = Add(x, v) }", ["Add"]),
        (INTERFACE + "{ a = Relu(x) b = Abs(a) y = Identity(a) z = Exp(b) }", ["Relu", "Abs", "Exp"]),
        (
            INTERFACE + "{ [i] y = Identity(x) }",
            ["Identity", "i: it joins a graph input, an initializer or an outer value to a graph output"],
        ),
        (
            "g (float[2] x) => (float[2] a, float[2] y) { a = Relu(x) [i] y = Identity(a) }",
            ["Relu", "Identity", "i: it joins two graph outputs"],
        ),
        (
            "g (float[2] x, bool c) => (float[2] y) { a = Abs(x) y = If (c) <"
            "then_branch = t () => (float[2] u) { k = Identity(a) u = Relu(k) },"
            "else_branch = e () => (float[2] v) { [i] v = Identity(a) }> }",
            ["Abs", "If", "Relu", "Identity", "i: it joins a graph input, an initializer or an outer value to a graph output"],
        ),
        (INTERFACE + "{ a, m = Dropout(x) y = Relu(a) }", ["Relu"]),
        (INTERFACE + "{ a = Abs(x) y = Dropout(a) }", ["Abs"]),
        (INTERFACE + "<bool t = {0}, float r = {0.5}> { a = Dropout(x, r, t) y = Relu(a) }", ["Relu"]),
        (INTERFACE + "{ t = Constant<value = bool {0}>() a = Dropout(x, , t) y = Relu(a) }", ["Constant", "Relu"]),
        (
            INTERFACE + "<float r = {0.0}> { t = Constant<value = bool {1}>() [d] a = Dropout(x, r, t) y = Relu(a) }",
            ["Constant", "Dropout", "Relu", "d: its training_mode is true"],
        ),
        (
            INTERFACE + "{ [d] a, m = Dropout(x) f = Cast<to = 1>(m) y = Add(f, a) }",
            ["Dropout", "Cast", "Add", "d: its mask is read"],
        ),
        (
            "g (float[2] x, bool t) => (float[2] y) <float r = {0.0}> { [d] a = Dropout(x, r, t) y = Relu(a) }",
            ["Dropout", "Relu", "d: its training_mode is not constant"],
        ),
    ],
)  # fmt: skip
def test_remove_identity(text: str, left: list[str]) -> None:
    assert outcome(RemoveIdentity(), text) == left


def test_dropout_before_opset_7_trains_unless_it_says_otherwise() -> None:
    text = '<ir_version: 7, opset_import: ["" : 6]> ' + INTERFACE + "{ [d] a = Dropout<is_test = %d>(x) y = Relu(a) }"
    assert [str(change) for change in RemoveIdentity()(model(text % 0))] == ["skip d: it trains: is_test is 0"]
    assert [change.kind for change in RemoveIdentity()(model(text % 1))] == ["remove", "edit"]


TALL = "g (float[2,3,4] x) => (float[N,M,K] y)"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (TALL + "{ a = Transpose<perm = [1,2,0]>(x) b = Transpose<perm = [1,0,2]>(a) y = Relu(b) }", ["Transpose", "Relu"]),
        (TALL + "{ a = Transpose<perm = [1,2,0]>(x) b = Transpose<perm = [2,0,1]>(a) y = Relu(b) }", ["Relu"]),
        (TALL + "{ a = Transpose(x) b = Transpose(a) y = Relu(b) }", ["Relu"]),
        (TALL + "{ a = Transpose(x) b = Transpose<perm = [2,1,0]>(a) y = Relu(b) }", ["Relu"]),
        (TALL + "{ a = Transpose<perm = [0,2,1]>(x) y = Transpose(a) }", ["Transpose"]),
        (TALL + "{ r = Relu(x) a = Transpose(r) y = Transpose(a) }", ["Relu"]),
        (
            TALL + "{ a = Transpose<perm = [1,2,0]>(x) b = Transpose<perm = [1,2,0]>(a) c = Transpose<perm = [1,2,0]>(b)"
            " y = Relu(c) }",
            ["Relu"],
        ),
        (TALL + "{ a = Transpose(x) r = Relu(a) y = Transpose(r) }", ["Transpose", "Relu", "Transpose"]),
        (
            "g (float[2,3] x) => (float[2,3] y, float[3,2] z) { a = Transpose(x) [t] b = Transpose(a) y = Relu(b) z = Relu(a) }",
            ["Transpose", "Transpose", "Relu", "Relu", "t: a between them has other readers"],
        ),
        (
            "g (float[2,3] x) => (float[3,2] a, float[2,3] y) { a = Transpose(x) [t] y = Transpose(a) }",
            ["Transpose", "Transpose", "t: a between them is a graph output"],
        ),
        (
            TALL + "{ a = Transpose(x) [t] y = Transpose(a) }",
            ["Transpose", "Transpose",
             "t: they undo each other, but it joins a graph input, an initializer or an outer value to a graph output"],
        ),
    ],
)  # fmt: skip
def test_merge_transposes(text: str, left: list[str]) -> None:
    assert outcome(MergeTransposes(), text) == left


def test_both_act_in_functions_and_bodies() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[2,3] x) => (float[2,3] y) { y = local.Block(x) }
    <domain: "local", opset_import: ["" : 21]>
    Block (a) => (b) { t = Transpose(a) u = Transpose(t) [n] v = Identity(u) b = Relu(v) }
    """
    edited = model(text)
    changes = [*RemoveIdentity()(edited), *MergeTransposes()(edited)]
    assert [change.where for change in changes if change.kind == "remove"] == ["n", "Transpose_1", "Transpose_2"]
    (function,) = edited.functions.values()
    assert [node.op_type for node in function] == ["Relu"]
