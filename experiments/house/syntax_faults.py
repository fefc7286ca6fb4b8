"""Faults as a person makes them: small changes of a file's syntax tree.

Docstrings, strings, messages of errors and warnings, ``__repr__``, annotations and decorators stay
as they are.  Some faults change nothing that anybody could see.
"""

import ast
import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

KINDS = {
    "comparison": "< is <= or >, == is !=, in is not in",
    "sign": "+ is -, += is -=",
    "constant": "a number is one more or less, True is False",
    "condition": "the condition of an if, a while or a comprehension is negated",
    "extreme": "min is max, any is all",
    "arguments": "the first two arguments of a call, two names say, are swapped",
    "order": "a sequence is returned in reversed order",
    "left out": "a call, or an assignment to an attribute or an item, is left out",
    "and/or": "and is or",
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
TYPED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "NewType", "TypeVar"}
"""Functions whose first two arguments nobody swaps."""


class Fault(NamedTuple):
    """One change of a file.

    Attributes:
        package, file, line: where.
        kind: one of :data:`KINDS`.
        start, end: the bytes of the file that are replaced.
        before, after: what stands there, and what replaces it.
    """

    package: str
    file: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str

    @property
    def what(self) -> str:
        """The change on one line, from shortly before the first difference."""
        old, new = (" ".join(text.split()).strip("()") for text in (self.before, self.after))
        differ = (
            place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]
        )
        start = max(0, next(differ, 0) - 40)
        return f"{old[start : start + 100]} -> {new[start : start + 100]}"

    def put_into(self, source: bytes) -> bytes:
        """Return the file with the fault."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def places(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be changed, with those below them."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn"):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from places(child)


def with_field(node: ast.AST, **fields: Any) -> str:
    """Return the source of a node of which some fields are changed."""
    changed = copy.copy(node)
    for field, value in fields.items():
        setattr(changed, field, value)
    text = ast.unparse(changed)
    return text if isinstance(node, ast.stmt) else f"({text})"


def changes(node: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield each fault of one node: its kind, the node to be replaced, the new source."""
    match node:
        case ast.Compare(ops=[first, *rest]):
            for other in COMPARISONS[type(first)]:
                yield "comparison", node, with_field(node, ops=[other(), *rest])
        case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign(op=ast.Add() | ast.Sub()):
            ends = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
            if not any(is_text(end) for end in ends):
                other_sign = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
                yield "sign", node, with_field(node, op=other_sign)
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, str(value + 1)
            yield "constant", node, f"({value - 1})"
        case ast.BoolOp():
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, with_field(node, op=other_op)
        case ast.Call(func=ast.Name(id=name)) if name in EXTREMES:
            yield "extreme", node.func, EXTREMES[name]
        case ast.Call(args=[first, second, *rest]) if may_be_swapped(node):
            yield "arguments", node, with_field(node, args=[second, first, *rest])
        case ast.Return(
            value=ast.Tuple(elts=[_, _, *_])
            | ast.List(elts=[_, _, *_])
            | ast.ListComp()
            | ast.Call(func=ast.Name(id="tuple" | "list" | "sorted")) as value
        ):
            yield "order", value, f"({ast.unparse(value)})[::-1]"
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "condition", test, f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield "condition", test, f"(not ({ast.unparse(test)}))"
        case ast.Expr(value=ast.Call()):
            yield "left out", node, "pass"
        case (
            ast.Assign(targets=[target])
            | ast.AnnAssign(target=target)
            | ast.AugAssign(target=target)
        ):
            kept = isinstance(target, ast.Name) and not isinstance(node, ast.AugAssign)
            if not kept and node.value is not None:
                yield "left out", node, "pass"


def is_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr)


def may_be_swapped(call: ast.Call) -> bool:
    first, second = call.args[:2]
    alike = type(first) is type(second) and ast.dump(first) != ast.dump(second)
    starred = isinstance(first, ast.Starred)
    return alike and not starred and ast.unparse(call.func).split(".")[-1] not in TYPED


def faults_of(root: Path, package: str) -> Iterator[Fault]:
    """Yield each fault that a package can have."""
    for path in sorted((root / "pipekit" / package).rglob("*.py")):
        source = path.read_bytes()
        lines = [0]
        for line in source.splitlines(keepends=True):
            lines.append(lines[-1] + len(line))
        for node in places(ast.parse(source)):
            for kind, old, new in changes(node):
                start, end = (
                    lines[getattr(old, f"{prefix}lineno") - 1] + getattr(old, f"{prefix}col_offset")
                    for prefix in ("", "end_")
                )
                before, file = source[start:end].decode(), str(path.relative_to(root))
                yield Fault(package, file, old.lineno, kind, start, end, before, new)


def draw(root: Path, package: str, count: int, seed: int) -> list[Fault]:
    """Return different faults of a package: each time a kind is drawn, then a place."""
    draws = random.Random(f"{seed} {package}")
    by_kind: dict[str, list[Fault]] = {}
    for fault in faults_of(root, package):
        by_kind.setdefault(fault.kind, []).append(fault)
    drawn: list[Fault] = []
    while len(drawn) < count:
        kind = draws.choice([kind for kind in KINDS if by_kind.get(kind)])
        fault = by_kind[kind].pop(draws.randrange(len(by_kind[kind])))
        compile(fault.put_into((root / fault.file).read_bytes()), fault.file, "exec")
        drawn.append(fault)
    return drawn
