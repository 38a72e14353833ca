"""Mutants of a Python file: small changes of the kind that a slip of the hand makes, each a new text of the file.

Comparisons, arithmetic, and/or, not, numbers, flags and words, what is returned, branches of an if expression, min and
max, the order of two arguments, statements that are left out. What only people read (docstrings, annotations, texts of
errors, names for people in `__repr__`) is left as it is.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,)}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}  # fmt: skip
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "heappush": "heappop"}
_FOR_PEOPLE = ("__repr__", "__str__", "_disagreement", "_deadlock", "_stuck_lines", "_waits", "_label", "_name")


@dataclass(frozen=True)
class Mutant:
    """file: from the root; line: its number; code: what stands there, stripped; change: in words, numbered where a file
    has the same line and change before; text: of the file."""

    file: str
    line: int
    code: str
    change: str
    text: str

    @property
    def key(self) -> str:
        """What it is known by when lines have moved."""
        return f"{self.file} | {self.code} | {self.change}"


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All of one file, in the order of their places."""
    text = (root / file).read_text(encoding="utf-8")
    lines, found = text.splitlines(keepends=True), []
    seen: Counter[tuple[str, str]] = Counter()
    for node, new in _changes(ast.parse(text)):
        old = ast.get_source_segment(text, node)
        assert old is not None
        made = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
        if isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Name | ast.Call):
            made = f"({made})"
        code, said = lines[node.lineno - 1].strip(), " ".join(f"{old} -> {made}".split())[:160]
        seen[code, said] += 1
        said += f" ({seen[code, said]})" if seen[code, said] > 1 else ""
        found.append(Mutant(file, node.lineno, code, said, _replaced(lines, node, made)))
    return found


def _replaced(lines: list[str], node: ast.stmt | ast.expr, made: str) -> str:
    """The file with a node replaced; columns count bytes."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    return "".join([*lines[:first], head + made + tail, *lines[last + 1 :]])


Change = tuple[ast.stmt | ast.expr, "ast.expr | ast.stmt | str"]


def _changes(node: ast.AST) -> Iterator[Change]:
    """Nodes, and what stands in their place; not in what only people read."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.arguments):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in _FOR_PEOPLE:
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.stmt):
        yield from _statement(node)
    elif isinstance(node, ast.expr):
        yield from _expression(node)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child)


def _statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"
    if isinstance(node, ast.AugAssign):
        yield node, "pass"
        if type(node.op) in _ARITHMETIC:
            new = deepcopy(node)
            new.op = _ARITHMETIC[type(node.op)]()
            yield node, ast.unparse(new)
    if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name):
        yield node, "pass"
    if isinstance(node, ast.Return) and node.value is not None and not _is(node.value, None):
        yield node, "return None"
    if isinstance(node, ast.Break | ast.Continue):
        yield node, "continue" if isinstance(node, ast.Break) else "break"
    if isinstance(node, ast.If | ast.While):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def _expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in _COMPARED[type(node.ops[0])]:
            yield node, ast.Compare(node.left, [op()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
            yield node, ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, node.operand
    elif isinstance(node, ast.Constant):
        yield from ((node, ast.Constant(value)) for value in _other(node.value))
    elif isinstance(node, ast.IfExp):
        yield node, ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
            yield node.func, ast.Name(_SWAPPED[node.func.id])
        if len(node.args) == 2 and not node.keywords and not any(isinstance(one, ast.Starred) for one in node.args):
            yield node, ast.Call(node.func, node.args[::-1], [])


def _other(value: object) -> list[object]:
    """Another value in the place of a constant."""
    if value is True or value is False:
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, *([0] if value else [])]
    return []


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
