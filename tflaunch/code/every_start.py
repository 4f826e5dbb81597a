"""The statements that every start of a program comes by, as far as its text tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_LEAVES = {"exit", "_exit", "quit"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the simple statements of a module that run whatever it is told, in the order of the text.

    Those of its functions are among them that such a statement calls, or hands on by name (`app.run(main)`).  What
    stands below `if`, in `try`, or after an `if` that may leave, is not.
    """
    functions = {each.name: each for each in tree.body if isinstance(each, Function)}
    yield from _of(tree.body, functions, set())


def parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of such a statement that are evaluated in any case: not those of `a if b else c`, of `and`."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda):
            pending += reversed(list(ast.iter_child_nodes(node)))


def _of(body: list[ast.stmt], functions: dict[str, Function], seen: set[str]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield from _of(statement.body, functions, seen)
        elif isinstance(statement, ast.If):
            if _is_main(statement):
                yield from _of(statement.body, functions, seen)
            elif _may_leave(statement):
                return
        elif not isinstance(statement, Function | ast.ClassDef | ast.Try | ast.For | ast.While | ast.Match):
            yield statement
            for name in _called(statement):
                if name in functions and name not in seen:
                    seen.add(name)
                    yield from _of(functions[name].body, functions, seen)


def _called(statement: ast.stmt) -> list[str]:
    """The names of what a statement calls, and of what it hands to such a call."""
    found = []
    for node in parts(statement):
        if isinstance(node, ast.Call):
            handed = [word.value for word in node.keywords]
            found += [each.id for each in (node.func, *node.args, *handed) if isinstance(each, ast.Name)]
    return found


def _may_leave(statement: ast.If) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Return | ast.Raise):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _LEAVES:
                return True
    return False


def _is_main(node: ast.If) -> bool:
    """Whether that is `if __name__ == "__main__":`."""
    left = node.test.left if isinstance(node.test, ast.Compare) else None
    return isinstance(left, ast.Name) and left.id == "__name__"
