"""Teaches the interpreter's rewriting of kernels that `not`, `and`, `or` and chains work element by element."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from sanitizer.triton.patching import Patches

__all__ = ["HELPERS", "mend_integers", "visit_BoolOp", "visit_Compare", "visit_UnaryOp"]


def _is_block(value: Any) -> bool:
    """Whether `value` is a Triton tensor of more than one element, which Python would call true."""
    handle = getattr(value, "handle", None)
    return handle is not None and getattr(getattr(handle, "data", None), "size", 1) != 1


def _negation(value: Any) -> Any:
    return value == 0 if _is_block(value) else not value


def _conjunction(first: Any, second: Callable[[], Any]) -> Any:
    if not _is_block(first):
        return first and second()
    return (first != 0) & _truth(second())


def _disjunction(first: Any, second: Callable[[], Any]) -> Any:
    if not _is_block(first):
        return first or second()
    return (first != 0) | _truth(second())


def _truth(value: Any) -> Any:
    return value != 0 if getattr(value, "handle", None) is not None else bool(value)


# What rewritten kernels call; they find it among the interpreter's globals, which are handed to every kernel.
HELPERS: Final[dict[str, Callable[..., Any]]] = {
    "mended_not": _negation,
    "mended_and": _conjunction,
    "mended_or": _disjunction,
}


def visit_UnaryOp(transformer: ast.NodeTransformer, node: ast.UnaryOp) -> ast.AST:  # noqa: N802 - ast's own name
    """Rewrite `not x`."""
    node = _visited(transformer, node)
    if not isinstance(node.op, ast.Not):
        return node
    return ast.copy_location(_call("mended_not", node.operand), node)


def visit_BoolOp(transformer: ast.NodeTransformer, node: ast.BoolOp) -> ast.AST:  # noqa: N802 - ast's own name
    """Rewrite `a and b`, `a or b`; the right side stays unevaluated where Python would not evaluate it."""
    if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node)):
        return transformer.generic_visit(node)  # a name bound inside a lambda would be lost
    node = _visited(transformer, node)
    helper = "mended_and" if isinstance(node.op, ast.And) else "mended_or"
    *firsts, joined = node.values
    for value in reversed(firsts):
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        joined = _call(helper, value, ast.Lambda(args=nothing, body=joined))
    return ast.copy_location(joined, node)


def visit_Compare(transformer: ast.NodeTransformer, node: ast.Compare) -> ast.AST:  # noqa: N802 - ast's own name
    """Rewrite `a < b < c` as `a < b and b < c`: evaluating b twice changes nothing, kernels' expressions are pure."""
    if len(node.ops) == 1:
        return transformer.generic_visit(node)
    sides = [node.left, *node.comparators]
    pairs: list[ast.expr] = [
        ast.copy_location(ast.Compare(left=left, ops=[op], comparators=[right]), node)
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False)
    ]
    return visit_BoolOp(transformer, ast.copy_location(ast.BoolOp(op=ast.And(), values=pairs), node))


def mend_integers(interpreter: Any, patches: Patches) -> None:
    """Triton sets the methods of its tensors anew for every launch; ours comes last."""
    stock = interpreter._patch_lang_tensor

    def index(tensor: Any) -> int:
        return int(tensor.handle.data.squeeze())

    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        stock(tensor, *scope)
        if scope:
            scope[0].set_attr(tensor, "__index__", index)
        else:
            tensor.__index__ = index

    patches.set(interpreter, "_patch_lang_tensor", patch_lang_tensor)


def _visited(transformer: ast.NodeTransformer, node: Any) -> Any:
    return transformer.generic_visit(node)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])
