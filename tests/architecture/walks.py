"""How many files a model passes through on its way from a verb to the end, by static calls.

    python -m tests.architecture.walks [VERB …] [MODULE:FUNCTION …]

A file counts when a function of it is handed the model: as an argument, or as the object whose method it is. The model is an
``ir.Model``, its ``graph``, its protobuf, the path that it is loaded from, or an object with one of them in a field (a verb, a graph
of a split); its nodes, also all of them in a list, its values and its names are not. Who is called, and what an expression is, is
told by imports, by annotations, and by what functions are annotated to return.

Not followed is what no static call names: passes, which pipelines run and which are read alone; rules and hooks, which stand in
tables or are handed in (a method that only says what others do counts for nothing); properties. Making an object of a class
without code of its own, say a dataclass, is no call."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tests.architecture.places import ROOT
from tests.architecture.typed_names import (
    GRAPH,
    MODEL,
    MODELS,
    NONE,
    Place,
    Type,
    Types,
    class_meant,
    fields_of,
    function_meant,
    holders,
    method,
    modules,
    types_of,
)

#: Functions and methods that give out what they are given, or elements of it.
THROUGH = frozenset({
    "clone", "copy", "enumerate", "get", "items", "iter", "list", "max", "min", "next", "pop", "reversed", "sorted", "tuple", "values", "zip",
})  # fmt: skip
#: Parts of an expression that may be its value.
PARTS = {
    ast.IfExp: ("body", "orelse"), ast.BoolOp: ("values",), ast.List: ("elts",), ast.Tuple: ("elts",), ast.Set: ("elts",),
    ast.ListComp: ("elt",), ast.GeneratorExp: ("elt",), ast.SetComp: ("elt",), ast.Dict: ("values",), ast.DictComp: ("value",),
    ast.Subscript: ("value",), ast.Starred: ("value",), ast.Await: ("value",), ast.NamedExpr: ("value",),
}  # fmt: skip


#: Parameters that are the model or its graph, with which of them.
Taken = frozenset[tuple[str, Type]]
ITSELF = frozenset({MODEL, GRAPH})


class Flow:
    """Where the model goes in one function.

    Args:
        place: the function.
        taken: the parameters that are the model or its graph, with which of them.
    """

    def __init__(self, place: Place, taken: Taken) -> None:
        self.place, self.types = place, dict[str, Types]()
        if place.owner:
            self.types |= dict.fromkeys(("self", "cls"), frozenset({(place.module, place.owner)}))
        for parameter in place.parameters:
            known = types_of(parameter.annotation, place.module) - {MODEL}
            self.types[parameter.arg] = known | {kind for name, kind in taken if name == parameter.arg}
        for _ in range(2):  # names may be used above the line that binds them
            for node in ast.walk(place.function):
                self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._name(target, node.value)
        elif isinstance(node, ast.NamedExpr):
            self._name(node.target, node.value)
        elif isinstance(node, ast.For | ast.comprehension) and not self._is_mapping(node.iter):
            self._name(node.target, node.iter, but=frozenset({GRAPH}))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._name(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self._add(node.target, types_of(node.annotation, self.place.module))

    def _is_mapping(self, value: ast.expr) -> bool:
        """Whether ``value`` is a parameter that maps names: its elements are those."""
        named = {one.arg: ast.unparse(one.annotation) for one in self.place.parameters if one.annotation is not None}
        return isinstance(value, ast.Name) and named.get(value.id, "").startswith(("Mapping[", "dict["))

    def _add(self, target: ast.expr, types: Types) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.types[node.id] = self.types.get(node.id, NONE) | types

    def _name(self, target: ast.expr, value: ast.expr, but: Types = NONE) -> None:
        """``target``, a name or several, is ``value``, or an element of it (``but`` what has the elements)."""
        parts = self._parts(value) if isinstance(target, ast.Tuple) else []
        if isinstance(target, ast.Tuple) and len(parts) == len(target.elts):
            for one, types in zip(target.elts, parts, strict=True):
                self._add(one, types - but)
        else:
            self._add(target, self.types_of(value) - but)

    def _parts(self, value: ast.expr) -> list[Types]:
        """Types of the elements of a tuple that is written out, or annotated so."""
        if isinstance(value, ast.Tuple):
            return [self.types_of(part) for part in value.elts]
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "items":
            return [NONE, self.types_of(value)]
        callee = self.callee(value) if isinstance(value, ast.Call) else None
        returns = None if callee is None else callee.function.returns
        for node in ast.walk(returns) if returns is not None and callee is not None else ():
            if (
                isinstance(node, ast.Subscript)
                and ast.unparse(node.value) == "tuple"
                and isinstance(node.slice, ast.Tuple)
            ):
                return [types_of(part, callee.module) for part in node.slice.elts]
        return []

    def types_of(self, value: ast.expr) -> Types:
        """What ``value`` may be."""
        if isinstance(value, ast.Name):
            return self.types.get(value.id, NONE)
        if isinstance(value, ast.Attribute):
            of = self.types_of(value.value)
            found = [fields_of(one).get(value.attr) or self._property(one, value.attr) for one in of - ITSELF]
            return NONE.union(*found, {GRAPH} if value.attr == "graph" and of & ITSELF else NONE)
        if isinstance(value, ast.Call):
            return self._given_by(value)
        nodes = [getattr(value, name) for name in PARTS.get(type(value), ())]
        flat = [one for node in nodes for one in (node if isinstance(node, list) else [node])]
        return NONE.union(*(self.types_of(one) for one in flat))

    def _property(self, owner: Type, name: str) -> Types:
        found = method(owner, name)
        is_property = found is not None and any("property" in ast.unparse(d) for d in found.function.decorator_list)
        return types_of(found.function.returns, found.module) if found is not None and is_property else NONE

    def _given_by(self, call: ast.Call) -> Types:
        made = class_meant(self.place.module, call.func.id) if isinstance(call.func, ast.Name) else None
        if made is not None:
            return frozenset({made})
        callee = self.callee(call)
        if callee is not None:
            return types_of(callee.function.returns, callee.module)
        if isinstance(call.func, ast.Name) and call.func.id in THROUGH:
            return NONE.union(*(self.types_of(argument) for argument in call.args)) - {GRAPH}
        if isinstance(call.func, ast.Attribute):
            return (
                frozenset({MODEL})
                if call.func.attr in MODELS
                else self.types_of(call.func.value)
                if call.func.attr in THROUGH
                else NONE
            )
        return NONE

    def callee(self, call: ast.Call) -> Place | None:
        """What ``call`` calls."""
        called, module = call.func, self.place.module
        if isinstance(called, ast.Name):
            return function_meant(module, called.id)
        if not isinstance(called, ast.Attribute):
            return None
        if isinstance(called.value, ast.Name) and called.value.id not in self.types:
            base = ".".join(modules()[module].imported.get(called.value.id, ("", "")))
            of = class_meant(module, called.value.id)
            return method(of, called.attr) if of is not None else function_meant(base, called.attr)
        found = (method(one, called.attr) for one in sorted(self.types_of(called.value) - ITSELF))
        return next((one for one in found if one is not None), None)

    def calls(self) -> Iterator[tuple[Place, Taken]]:
        """What is called with the model, and the parameters that are it."""
        for call in ast.walk(self.place.function):
            callee = self.callee(call) if isinstance(call, ast.Call) else None
            if callee is None or not isinstance(call, ast.Call) or callee.is_abstract:
                continue
            names = [parameter.arg for parameter in callee.parameters]
            given = [*zip(names, call.args, strict=False), *((k.arg or "", k.value) for k in call.keywords)]
            types = [(name, self.types_of(argument)) for name, argument in given]
            on_holder = isinstance(call.func, ast.Attribute) and self.types_of(call.func.value) & holders()
            if on_holder or any(found & holders() for _, found in types):
                yield callee, frozenset((name, kind) for name, found in types for kind in found & ITSELF)


def walk(module: str, function: str) -> dict[str, set[str]]:
    """The modules that the model passes through from ``function`` (``name`` or ``Class.name``) of ``module`` on, with the functions
    that are handed it."""
    owner, _, name = function.rpartition(".")
    start = method((module, owner), name) if owner else modules()[module].functions[name]
    assert start is not None, f"{module} has no {function}"
    found, seen = dict[str, set[str]](), set[tuple[tuple[str, str, str], Taken]]()
    todo = [(start, frozenset({("model", MODEL)}))]
    while todo:
        place, taken = todo.pop()
        if (place.key, taken) not in seen:
            seen.add((place.key, taken))
            found.setdefault(place.module, set()).add(f"{place.owner}.{place.function.name}".lstrip("."))
            todo += Flow(place, taken).calls()
    return found


#: Where each verb starts.
VERBS = {
    "quantize": "qdqtool.verbs.quantize:Quantize.run",
    "analyze": "qdqtool.verbs.npu.analyze:Analyze.run",
    "split": "qdqtool.verbs.split:Split.run",
}

if __name__ == "__main__":
    for verb in sys.argv[1:] or VERBS:
        visited = walk(*VERBS.get(verb, verb).split(":"))
        print(f"{verb}: {len(visited)} files (of {len(modules())}, {ROOT.name})")
        print("".join(f"  {name}: {', '.join(sorted(functions))}\n" for name, functions in sorted(visited.items())))
