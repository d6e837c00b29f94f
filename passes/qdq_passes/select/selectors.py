"""The selector language: one way to name nodes and values, used by every command and every pass.

    selector  := term ("&" term)*                 intersection
    term      := "!"* atom                        "!" negates and binds before "&"
    atom      := ("in:" | "io:") atom | ("after:" | "before:") atom | ("path:" | "between:") NAME ".." NAME
               | "op:" GLOB | "tensor:" GLOB | "scope:" GLOB | "layer:" N[".."M] | "role:" ROLE | "re:" REGEX | GLOB

``path:A..B`` has both ends, ``between:A..B`` neither: what stands between one A and the next B, through no other of them.
A selector denotes nodes, or (``tensor:``, ``in:``, ``io:``) values. A literal ``&`` is written ``\\&``. Several selectors unite.
Globs are case-sensitive and ``*`` crosses ``/``; names also match by the original nodes that a node stands for. Roles are found
by structure, never by names (`qdq_passes.roles.roles`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import float_name
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import ORIGIN
from qdq_passes.graph.nesting import ancestors, layer_of, scope_of
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_dynamic_quantize, is_qdq, is_quantize
from qdq_passes.graph.uses import FLOAT_TYPES, Reach, all_nodes, all_values, is_constant, is_standard, reach
from qdq_passes.select.globs import matcher
from qdq_passes.select.regex import searcher

if TYPE_CHECKING:
    from qdq_passes.roles.roles import Roles


@dataclass(frozen=True)
class Selector:
    """A union of selector texts; the empty selector, `ALL`, denotes everything.

    Args:
        texts: selectors as written, in order.
    """

    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, *texts: str) -> Selector:
        """A selector from texts, checked for syntax.

        Raises:
            UsageError: a text is not a selector.
        """
        for text in texts:
            _parse(text)
        return cls(tuple(texts))

    @property
    def is_all(self) -> bool:
        """Whether this is the default that denotes everything."""
        return not self.texts


#: What takes a selector in its turn; how many of these one text may hold, and how many letters: `fnmatch` is quadratic in some.
_INSIDE, DEEPEST, LONGEST = re.compile("(?:in|io|after|before|path|between):"), 64, 10_000

ALL = Selector()
#: Denotes nothing, without being an error: the default of ``exclude`` options.
NONE = Selector(("!*",))


@dataclass(frozen=True)
class Selection:
    """What a selector hits, in the order of the graph.

    Args:
        nodes: nodes hit; for a value selector the producers of its values.
        values: values hit; for a node selector what its nodes write, plus their weights and biases.
        named: the nodes that node selectors hit, without the producers of values.
    """

    nodes: list[ir.Node]
    values: list[ir.Value]
    named: frozenset[ir.Node] = frozenset()


def select(model: ir.Model, selector: Selector, *, allow_empty: bool = False) -> Selection:
    """Nodes and values that ``selector`` denotes in ``model``.

    Raises:
        UsageError: one of its texts matches nothing (unless ``allow_empty``); the message gives the nearest names.
    """
    if selector == NONE:
        return Selection([], [])
    query = _Query(model, allow_empty)
    if selector.is_all:
        return Selection(query.nodes, query.values, frozenset(query.nodes))
    nodes: set[ir.Node] = set()
    values: set[ir.Value] = set()
    named: set[ir.Node] = set()
    for text in selector.texts:
        hit = query.evaluate(_parse(text))
        if not hit and not allow_empty:
            raise UsageError(f"selector {text!r} matches nothing", hint=query.nearest(text))
        hit_nodes, hit_values = query.both(hit)
        nodes |= hit_nodes
        values |= hit_values
        named |= hit.nodes
    return Selection([n for n in query.nodes if n in nodes], [v for v in query.values if v in values], frozenset(named))


def select_nodes(model: ir.Model, selector: Selector, *, allow_empty: bool = False) -> set[ir.Node]:
    """The nodes of `select`, as a set."""
    return set(select(model, selector, allow_empty=allow_empty).nodes)


def nodes_of_types(model: ir.Model, selector: Selector, *op_types: str) -> list[ir.Node]:
    """The standard nodes of ``op_types`` among those of `select`, in the order of the file."""
    wanted = select_nodes(model, selector)
    return [node for node in all_nodes(model) if node in wanted and is_standard(node, *op_types)]


def select_values(model: ir.Model, selector: Selector, *, allow_empty: bool = False) -> set[ir.Value]:
    """The values of `select`, as a set."""
    return set(select(model, selector, allow_empty=allow_empty).values)


def select_operators(model: ir.Model, selector: Selector) -> set[ir.Node]:
    """The nodes of `select`, and those that read a selected value which no operator among them makes or reads: for stored or
    quantized integers whoever computes on them."""
    hit = select(model, selector)
    nodes = set(hit.nodes)
    operators = {n for n in nodes if not (is_qdq(n) or is_dynamic_quantize(n))}
    for value in hit.values:
        readers = set(value.consumers())
        if value.producer() not in operators and operators.isdisjoint(readers):
            nodes |= readers
    return nodes


@dataclass(frozen=True)
class _Hit:
    """A set of nodes or a set of values, never both."""

    nodes: frozenset[ir.Node] = frozenset()
    values: frozenset[ir.Value] = frozenset()
    of_values: bool = False

    def __bool__(self) -> bool:
        return bool(self.nodes or self.values)


@dataclass(frozen=True)
class _Atom:
    kind: str
    argument: str
    inner: _Atom | None = None


@dataclass(frozen=True)
class _Term:
    negated: bool
    atom: _Atom


def _parse(text: str) -> list[_Term]:
    if len(text) > LONGEST or len(_INSIDE.findall(text)) > DEEPEST:
        hint = f"{LONGEST:,} letters and {DEEPEST} prefixes are the most"
        raise UsageError(f"selector {text[:40]!r}… is too long, or nests too deeply", hint=hint)
    terms = []
    for part in re.split(r"(?<!\\)&", text):
        body = part.strip().replace("\\&", "&")
        negations = len(body) - len(body.lstrip("!"))
        body = body[negations:].strip()
        if not body:
            raise UsageError(f"empty term in selector {text!r}", hint="write for example op:Conv & scope:backbone.*")
        terms.append(_Term(negations % 2 == 1, _parse_atom(body, text)))
    return terms


def _parse_atom(body: str, text: str) -> _Atom:
    kind, colon, argument = body.partition(":")
    if not colon or kind not in _KINDS:
        return _Atom("glob", body)
    if not argument:
        raise UsageError(f"nothing after {kind}: in selector {text!r}")
    if kind in ("in", "io", "after", "before"):
        return _Atom(kind, argument, _parse_atom(argument, text))
    if kind in ("path", "between") and ".." not in argument:
        raise UsageError(f"{kind} needs two nodes in selector {text!r}", hint=f"write {kind}:A..B")
    if kind == "layer" and not re.fullmatch(r"\d{1,9}(\.\.\d{1,9})?", argument):
        raise UsageError(f"{argument!r} is no layer range in selector {text!r}", hint="write layer:3 or layer:0..3")
    if kind == "re":
        try:
            searcher(argument)
        except UsageError as error:
            raise UsageError(f"{error.message} in selector {text!r}", hint=error.hint) from None
    if kind == "role" and argument not in (roles := _roles()):
        raise UsageError(f"unknown role {argument!r} in selector {text!r}", hint="roles: " + ", ".join(roles))
    return _Atom(kind, argument)


def _roles() -> dict[str, str]:
    """Role → its description."""
    from qdq_passes.roles.roles import ROLES

    return ROLES


@dataclass
class _Query:
    """Evaluates atoms on one model; what is costly is computed once."""

    model: ir.Model
    allow_empty: bool = False
    nodes: list[ir.Node] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = all_nodes(self.model)

    @cached_property
    def values(self) -> list[ir.Value]:
        return all_values(self.model)

    @cached_property
    def reach(self) -> Reach:
        return reach(self.model.graph)

    @cached_property
    def roles(self) -> Roles:
        from qdq_passes.roles.roles import Roles

        return Roles(self.model)

    def evaluate(self, terms: list[_Term]) -> _Hit:
        """Intersection of the terms; as values if any term is of values."""
        hits = [(term.negated, self._atom(term.atom)) for term in terms]
        if any(hit.of_values for _, hit in hits):
            value_sets = [
                frozenset(self.values) - self.both(hit)[1] if negated else self.both(hit)[1] for negated, hit in hits
            ]
            return _Hit(values=frozenset.intersection(*value_sets), of_values=True)
        node_sets = [frozenset(self.nodes) - hit.nodes if negated else hit.nodes for negated, hit in hits]
        return _Hit(nodes=frozenset.intersection(*node_sets))

    def both(self, hit: _Hit) -> tuple[frozenset[ir.Node], frozenset[ir.Value]]:
        """The hit as nodes and as values, by the rules of what a selector denotes."""
        if hit.of_values:
            return frozenset(p for v in hit.values if (p := v.producer()) is not None), hit.values
        written = [v for n in hit.nodes for v in n.outputs]
        weights = [v for n in hit.nodes for v in n.inputs if v is not None and is_weight_of(v)]
        return hit.nodes, frozenset([*written, *weights])

    def _atom(self, atom: _Atom) -> _Hit:
        return _KINDS[atom.kind](self, atom)

    def _by_node(self, accepts: Callable[[ir.Node], bool]) -> _Hit:
        return _Hit(nodes=frozenset(n for n in self.nodes if accepts(n)))

    def glob(self, atom: _Atom) -> _Hit:
        matches = matcher(atom.argument)
        return self._by_node(lambda n: any(map(matches, _names(n))))

    def regex(self, atom: _Atom) -> _Hit:
        found = searcher(atom.argument)
        return self._by_node(lambda n: any(map(found, _names(n))))

    def op(self, atom: _Atom) -> _Hit:
        matches = matcher(atom.argument)
        return self._by_node(lambda n: matches(n.op_type) or matches(f"{n.domain}::{n.op_type}"))

    def tensor(self, atom: _Atom) -> _Hit:
        matches = matcher(atom.argument)
        hit = frozenset(v for v in self.values if any(map(matches, (v.name or "", _stored_name(v), _integers_name(v)))))
        return _Hit(values=hit, of_values=True)

    def scope(self, atom: _Atom) -> _Hit:
        matches = matcher(atom.argument)
        return self._by_node(lambda n: any(matches(scope) for scope in ancestors(scope_of(n))))

    def layer(self, atom: _Atom) -> _Hit:
        first, _, last = atom.argument.partition("..")
        low, high = int(first), int(last or first)
        return self._by_node(lambda n: (layer := layer_of(n)) is not None and low <= layer <= high)

    def role(self, atom: _Atom) -> _Hit:
        return _Hit(nodes=self.roles.nodes(atom.argument))

    def path(self, atom: _Atom) -> _Hit:
        start, _, end = atom.argument.partition("..")
        ends = [self._parse_and_run(text) for text in (start, end)]
        joined = self.reach.between if atom.kind == "path" else self.reach.inside
        return _Hit(nodes=frozenset(joined(*ends)))

    def _parse_and_run(self, text: str) -> frozenset[ir.Node]:
        hit = self.evaluate(_parse(text))
        if not hit and not self.allow_empty:
            raise UsageError(f"selector {text!r} matches nothing", hint=self.nearest(text))
        return self.both(hit)[0]

    def after(self, atom: _Atom) -> _Hit:
        return _Hit(nodes=frozenset(self.reach.after(self._inner(atom).nodes)))

    def before(self, atom: _Atom) -> _Hit:
        return _Hit(nodes=frozenset(self.reach.before(self._inner(atom).nodes)))

    def read_by(self, atom: _Atom) -> _Hit:
        nodes = self._inner(atom).nodes
        return _Hit(values=frozenset(v for n in nodes for v in n.inputs if v is not None), of_values=True)

    def touched_by(self, atom: _Atom) -> _Hit:
        hit = self._inner(atom)
        return _Hit(values=self.read_by(atom).values | self.both(hit)[1], of_values=True)

    def _inner(self, atom: _Atom) -> _Hit:
        assert atom.inner is not None
        hit = self._atom(atom.inner)
        return _Hit(nodes=self.both(hit)[0]) if hit.of_values else hit

    def nearest(self, text: str) -> str:
        """A hint with the names nearest to what was asked for; for a role what was looked for."""
        for role in re.findall(r"\brole:(\w+)", text):
            if role in (roles := _roles()) and not self.roles.nodes(role):
                return f"no node has the role {role}: {roles[role]}"
        kind, colon, argument = re.sub(r"^(?:!|in:|io:|after:|before:|path:|between:)+", "", text).partition(":")
        names: Iterable[str]
        if not colon or kind not in _KINDS:
            kind, argument, names = "", text, (n.name or "" for n in self.nodes)
        elif kind == "op":
            names = (n.op_type for n in self.nodes)
        elif kind == "tensor":
            names = (v.name or "" for v in self.values)
        elif kind == "scope":
            names = (s for n in self.nodes for s in ancestors(scope_of(n)))
        elif kind == "role":
            role = re.split(r"\W", argument)[0]
            return f"role:{role} alone hits {len(self.roles.nodes(role))} of the nodes; the rest of the selector leaves none"
        else:
            names = (n.name or "" for n in self.nodes)
        wanted = argument.strip("*")
        unique = list(dict.fromkeys(name for name in names if name))
        near = (
            difflib.get_close_matches(wanted, unique, n=3, cutoff=0.4)
            or [n for n in unique if wanted and wanted in n][:3]
        )
        if not near:
            return f"see what there is with `qdqtool match MODEL '{kind + colon if kind else ''}*'`"
        return "nearest: " + ", ".join(near)


def _names(node: ir.Node) -> tuple[str, ...]:
    """The name of ``node``, and those of the original nodes that it stands for."""
    origin = ORIGIN.get(node)
    return (node.name or "", *(origin.nodes if origin is not None else ()))


def _stored_name(value: ir.Value) -> str:
    """The float name of a dequantized value whose integers are stored: ``w`` for ``w_quantized → DequantizeLinear``."""
    producer = value.producer()
    integers = producer.inputs[0] if producer is not None and is_dequantize(producer) and producer.inputs else None
    return (integers.name or "").removesuffix("_quantized") if integers is not None and is_constant(integers) else ""


def _integers_name(value: ir.Value) -> str:
    """The float name of integers that an operator other than Q and DQ makes or reads: ``w`` for ``w_quantized → QLinearConv``."""
    name = float_name(value.name or "")
    if name == value.name or value.dtype in FLOAT_TYPES:
        return ""
    producer = value.producer()
    nodes = [*value.consumers(), *([producer] if producer is not None else [])]
    return name if any(not is_dequantize(node) and not is_quantize(node) for node in nodes) else ""


def is_weight_of(value: ir.Value) -> bool:
    """Whether ``value`` is a stored parameter: constant, or the DequantizeLinear (and QuantizeLinear) of one."""
    if is_constant(value):
        return True
    producer = value.producer()
    if producer is None or not (is_dequantize(producer) or is_quantize(producer)) or not producer.inputs:
        return False
    source = producer.inputs[0]
    return source is not None and is_weight_of(source)


_KINDS: dict[str, Callable[[_Query, _Atom], _Hit]] = {
    "glob": _Query.glob,
    "re": _Query.regex,
    "op": _Query.op,
    "tensor": _Query.tensor,
    "scope": _Query.scope,
    "layer": _Query.layer,
    "path": _Query.path,
    "between": _Query.path,
    "after": _Query.after,
    "before": _Query.before,
    "in": _Query.read_by,
    "io": _Query.touched_by,
    "role": _Query.role,
}
