"""What names mean in the product, as far as imports and annotations tell: modules, classes, fields, methods; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.architecture.places import python_files, short, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: The model itself, where a type is said: the graph in memory, its protobuf, or the path that is loaded.
MODEL = ("", "model")
#: Its main graph; what is in it, one by one, is not the model.
GRAPH = ("", "graph")
MODELS = frozenset({"Model", "ModelProto", "ModelOrPath"})
#: A type that code of ours can follow: `MODEL`, or (module, class).
Type = tuple[str, str]
Types = frozenset[Type]
NONE: Types = frozenset()
#: Annotations whose brackets name types of no object that is there.
NO_OBJECTS = frozenset({"Callable", "Literal", "type"})


@dataclass(frozen=True, eq=False)
class Place:
    """A function and where it stands."""

    module: str
    function: Function
    owner: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return self.module, self.owner, self.function.name

    @property
    def parameters(self) -> list[ast.arg]:
        """Its parameters in order, without ``self``."""
        given = self.function.args
        found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        return found[1:] if self.owner and found and found[0].arg in ("self", "cls") else found

    @property
    def is_abstract(self) -> bool:
        """Whether it does nothing but say what others do: a docstring, ``...``, or a refusal."""
        return all(isinstance(node, ast.Raise | ast.Pass) or _is_constant(node) for node in self.function.body)


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass(eq=False)
class Module:
    """Names of a module: its functions, its classes with their methods, and what it imports."""

    functions: dict[str, Place] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
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
            found[module_name(file)] = indexed(module_name(file), tree_of(file))
    return found


def indexed(name: str, tree: ast.Module) -> Module:
    """The names of one module."""
    module = Module()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module.imported |= {a.asname or a.name: (node.module, a.name) for a in node.names}
    for node in tree.body:
        if isinstance(node, Function):
            module.functions[node.name] = Place(name, node)
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
    return module


def meant(module: str, name: str) -> tuple[str, str] | None:
    """Where the function or class that ``name`` means in ``module`` is defined, and how it is called there."""
    for _ in range(6):  # packages pass names on
        if module not in modules():
            return None
        here = modules()[module]
        if name in here.functions or name in here.classes:
            return module, name
        if name not in here.imported:
            return None
        module, name = here.imported[name]
    return None


def function_meant(module: str, name: str) -> Place | None:
    """The function, or what makes an object of the class, that ``name`` means in ``module``."""
    found = meant(module, name)
    if found is None:
        return None
    here = modules()[found[0]]
    return here.functions.get(found[1]) or method(found, "__post_init__") or method(found, "__init__")


def class_meant(module: str, name: str) -> Type | None:
    """The class that ``name`` means in ``module``."""
    found = meant(module, name)
    return found if found is not None and found[1] in modules()[found[0]].classes else None


def types_of(annotation: ast.expr | None, module: str) -> Types:
    """The types that ``annotation`` in ``module`` names, those of elements of a collection too."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    found = set()
    if isinstance(annotation, ast.Subscript | ast.BinOp | ast.Tuple | ast.List):
        if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in NO_OBJECTS:
            return NONE
        return NONE.union(*(types_of(node, module) for node in ast.iter_child_nodes(annotation)))
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Name):
            of_ours = class_meant(module, node.id)
            found |= {of_ours} if of_ours else {MODEL} if node.id in MODELS else NONE
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("ir.Model", "onnx.ModelProto"):
            found.add(MODEL)
    return frozenset(found)


def bases(owner: Type) -> Iterator[Type]:
    """The class and those of ours that it is made of."""
    yield owner
    for base in modules()[owner[0]].classes[owner[1]].bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        for one in types_of(plain, owner[0]) - {MODEL}:
            yield from bases(one)


def method(owner: Type, name: str) -> Place | None:
    """The method ``name`` of a class, its own or inherited."""
    for module, of in bases(owner):
        for node in modules()[module].classes[of].body:
            if isinstance(node, Function) and node.name == name:
                return Place(module, node, of)
    return None


@cache
def fields_of(owner: Type) -> dict[str, Types]:
    """Types of the fields of a class: annotated ones, and parameters that ``__init__`` keeps."""
    found: dict[str, Types] = {}
    for module, of in bases(owner):
        for node in modules()[module].classes[of].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.setdefault(node.target.id, types_of(node.annotation, module))
        init = method((module, of), "__init__")
        taken = {a.arg: types_of(a.annotation, init.module) for a in init.parameters} if init is not None else {}
        for node in ast.walk(init.function) if init is not None else ():
            for target, value in _assigned(node):
                if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in taken:
                    found[target.attr] = taken[value.id]
    return found


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of an assignment, one by one."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(node, ast.Assign) and isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        elif isinstance(node, ast.Assign):
            yield target, node.value


@cache
def holders() -> Types:
    """`MODEL`, `GRAPH`, and the classes with a field that is the model or holds it."""
    every = {(name, of) for name, module in modules().items() for of in module.classes}
    found: Types = frozenset({MODEL, GRAPH})
    while more := {one for one in every - found if any(types & found for types in fields_of(one).values())}:
        found |= more
    return found
