"""``@surgeon_pass``: a function over a graphsurgeon graph becomes a pass. Imports graphsurgeon only when such a pass converts."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeAlias, overload

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.core.names import camel_case
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import all_nodes
from qdq_passes.surgeon.changes import differences, install

#: ``function(graph, *, option=…)`` edits the graph in place; it may return (or yield) `skip` records.
Surgery: TypeAlias = Callable[..., Iterable[Change] | None]


@dataclass(frozen=True)
class SurgeonPass(Pass):
    """Base of passes written over graphsurgeon's graph; made by `surgeon_pass`.

    ``run`` converts, calls the function, converts back, and puts the result into the caller's model object. It yields a
    `Change` for every node, initializer or value that differs by name and signature. When nothing differs the model is left
    as it is, to the byte; when the function or a conversion raises, too.

    Raises:
        UnsupportedError: graphsurgeon would lose something of this model (see `qdq_passes.surgeon.bridge.to_gs`).
    """

    #: The decorated function.
    surgery: ClassVar[Surgery]
    #: Operators without which there is nothing to do; empty: always run.
    ops: ClassVar[tuple[str, ...]] = ()

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Convert, call the function, convert back."""
        if self.ops and not any(node.op_type in self.ops for node in all_nodes(model)):
            return
        from qdq_passes.surgeon.bridge import from_gs, to_gs

        graph = to_gs(model)
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        reported = list(type(self).surgery(graph, **options) or ())
        edited = from_gs(graph)
        changes = differences(model, edited, because=self.name())
        if changes:
            install(model, edited)
        yield from changes
        yield from (change for change in reported if change.is_skip)


@overload
def surgeon_pass(function: Surgery, /) -> type[SurgeonPass]: ...
@overload
def surgeon_pass(*, keeps: Keeps = ..., ops: Iterable[str] = ...) -> Callable[[Surgery], type[SurgeonPass]]: ...
def surgeon_pass(
    function: Surgery | None = None, /, *, keeps: Keeps = EXACT, ops: Iterable[str] = ()
) -> type[SurgeonPass] | Callable[[Surgery], type[SurgeonPass]]:
    """Make a pass of ``def remove_identity(graph: gs.Graph, *, option: int = 3)``.

    The class is called like the function (``remove_identity`` → ``RemoveIdentity`` → ``remove-identity``) and is put under that
    name into the function's module, where the folder registry looks for it. Keyword-only parameters are its options, the
    docstring is kept. The function edits ``graph`` in place; it may return (or yield) `skip` records.

    Args:
        function: the function, when used without parentheses.
        keeps: what the pass promises about the numbers.
        ops: operator types; a model with none of them is passed over without a conversion.

    Raises:
        UsageError: a keyword-only parameter has no type annotation, or a further positional parameter stands in the signature.
    """
    if function is None:
        return lambda decorated: _make(decorated, keeps, tuple(ops))
    return _make(function, keeps, tuple(ops))


def _make(function: Surgery, keeps: Keeps, ops: tuple[str, ...]) -> type[SurgeonPass]:
    class_name = camel_case(function.__name__)
    made = dataclasses.make_dataclass(
        class_name,
        _fields(function),
        bases=(SurgeonPass,),
        namespace={
            "__doc__": function.__doc__ or "",
            "__qualname__": class_name,
            "keeps": keeps,
            "ops": ops,
            "surgery": staticmethod(function),
        },
        frozen=True,
        kw_only=True,
    )
    made.__module__ = function.__module__
    inspect.unwrap(function).__globals__.setdefault(class_name, made)
    return typing.cast("type[SurgeonPass]", made)


def _fields(function: Surgery) -> list[tuple[str, Any, Any]]:
    """The keyword-only parameters as dataclass fields, their annotations resolved (the graph's own is not looked at)."""
    parameters = list(inspect.signature(function).parameters.values())
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if len(parameters) - len(options) != 1:
        raise UsageError(
            "takes something else than the graph and keyword-only options",
            where=function.__name__,
            hint="write def f(graph, *, option: int = 3)",
        )
    untyped = [p.name for p in options if p.annotation is p.empty]
    if untyped:
        raise UsageError(f"option {untyped[0]!r} has no type annotation", where=function.__name__)
    holder = type("_", (), {"__annotations__": {p.name: p.annotation for p in options}})
    hints = typing.get_type_hints(holder, globalns=inspect.unwrap(function).__globals__, include_extras=True)
    return [
        (p.name, hints[p.name], dataclasses.field() if p.default is p.empty else dataclasses.field(default=p.default))
        for p in options
    ]
