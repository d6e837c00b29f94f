"""How many files a model passes through on its way from a verb to the end, by static calls.

    python -m tests.architecture.walks [VERB …]

Followed are calls by name: functions of the module, imported ones, methods of ``self`` and of classes that are named, and what a
method of another object is called when one class alone has it. A call counts when an argument is the model, or was made of it: the
parameter that takes it is followed on. Passes are run by pipelines, which no static call names: a pass is read alone."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.architecture.places import ROOT, python_files, short, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: How functions call the verb whose field is the model.
OF_VERBS = frozenset({"self", "asked"})


@dataclass(frozen=True, eq=False)
class Place:
    """A function and where it stands."""

    module: str
    function: Function
    owner: str = ""


@dataclass(eq=False)
class Module:
    """Names of a module: its functions, its classes with their methods, and what it imports."""

    functions: dict[str, Place] = field(default_factory=dict)
    classes: dict[str, dict[str, Place]] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)


def module_name(file: Path) -> str:
    """``passes/qdq_passes/core/base.py`` → ``qdq_passes.core.base``."""
    parts = [part for part in Path(short(file)).with_suffix("").parts if part != "passes"]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Module]:
    """Every module of the product."""
    found = {}
    for file in python_files():
        if short(file).startswith(("passes/", "qdqtool/")):
            name, module = module_name(file), Module()
            for node in ast.walk(tree_of(file)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    module.imported |= {a.asname or a.name: (node.module, a.name) for a in node.names}
            for node in tree_of(file).body:
                if isinstance(node, Function):
                    module.functions[node.name] = Place(name, node)
                elif isinstance(node, ast.ClassDef):
                    own = {f.name: Place(name, f, node.name) for f in node.body if isinstance(f, Function)}
                    module.classes[node.name] = own
            found[name] = module
    return found


@cache
def methods() -> dict[str, list[Place]]:
    """Every method of the product by its name."""
    found = defaultdict(list)
    for module in modules().values():
        for owned in module.classes.values():
            for name, place in owned.items():
                found[name].append(place)
    return found


def resolved(call: ast.Call, at: Place) -> Place | None:
    """What ``call`` calls, as far as names tell."""
    module = modules()[at.module]
    target = call.func
    if isinstance(target, ast.Name):
        return _named(at.module, target.id)
    if not isinstance(target, ast.Attribute):
        return None
    if isinstance(target.value, ast.Name):
        base = target.value.id
        if base in ("self", "cls") and at.owner:
            return module.classes[at.owner].get(target.attr)
        where, name = module.imported.get(base, (at.module, base))
        if f"{where}.{name}" in modules():
            return _named(f"{where}.{name}", target.attr)
        if where in modules() and name in modules()[where].classes:
            return modules()[where].classes[name].get(target.attr)
    alike = methods().get(target.attr, [])
    return alike[0] if len(alike) == 1 else None


def _named(module: str, name: str) -> Place | None:
    """The function, or what makes an object of the class, that ``name`` means in ``module``."""
    for _ in range(5):  # a package passes names on
        if module not in modules():
            return None
        found = modules()[module]
        if name in found.functions:
            return found.functions[name]
        if name in found.classes:
            return found.classes[name].get("__post_init__") or found.classes[name].get("__init__")
        if name not in found.imported:
            return None
        module, name = found.imported[name]
    return None


def _parameters(place: Place) -> list[str]:
    arguments = place.function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _holds(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether ``node`` is one of ``names``, or an attribute of it; of a verb the attribute ``model``."""
    attribute = ""
    while isinstance(node, ast.Attribute | ast.Starred):
        attribute = node.attr if isinstance(node, ast.Attribute) else attribute
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return False
    return node.id not in OF_VERBS or attribute in ("", "model")


def calls_with(place: Place, names: frozenset[str]) -> Iterator[tuple[Place, frozenset[str]]]:
    """What the function at ``place`` calls with one of ``names``, and the parameters that take it."""
    known = names
    for node in ast.walk(place.function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            takes = any(_holds(a, known) for a in (*node.value.args, *(k.value for k in node.value.keywords)))
            callee = resolved(node.value, place)
            returns = "" if callee is None or callee.function.returns is None else ast.unparse(callee.function.returns)
            if takes and "Model" in returns:
                known |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    for node in ast.walk(place.function):
        if isinstance(node, ast.Call) and (callee := resolved(node, place)) is not None:
            parameters = _parameters(callee)
            if callee.owner and parameters[:1] in (["self"], ["cls"]):
                parameters = parameters[1:]
            taken = {p for p, a in zip(parameters, node.args, strict=False) if _holds(a, known)}
            taken |= {k.arg for k in node.keywords if k.arg and _holds(k.value, known)}
            if isinstance(node.func, ast.Attribute) and _holds(node.func.value, known & OF_VERBS) and callee.owner:
                taken.add("self")
            if taken:
                yield callee, frozenset(taken)


def walk(module: str, function: str, names: frozenset[str] = OF_VERBS) -> set[str]:
    """Modules whose functions the model is handed to, from ``function`` (``name`` or ``Class.name``) of ``module`` on."""
    owner, _, name = function.rpartition(".")
    start = modules()[module].classes[owner][name] if owner else modules()[module].functions[name]
    seen: set[tuple[str, int, frozenset[str]]] = set()
    todo = [(start, names)]
    while todo:
        place, taken = todo.pop()
        key = (place.module, place.function.lineno, taken)
        if key not in seen:
            seen.add(key)
            todo += calls_with(place, taken)
    return {key[0] for key in seen}


VERBS = {
    "quantize": ("qdqtool.verbs.quantize", "Quantize.run"),
    "analyze": ("qdqtool.verbs.npu.analyze", "Analyze.run"),
    "split": ("qdqtool.verbs.split", "Split.run"),
}

if __name__ == "__main__":
    for verb in sys.argv[1:] or VERBS:
        visited = walk(*VERBS[verb])
        print(f"{verb}: {len(visited)} files (of {len(modules())}, {ROOT.name})")
        print("".join(f"  {name}\n" for name in sorted(visited)))
