"""What was found in the text of a program, and the small things that those who look there share."""

from __future__ import annotations

import ast
from typing import NamedTuple

_MOST_PARTS = 16  # of a dotted name


class Found(NamedTuple):
    """Something that a program does, and where: `reads TF_CONFIG`, at `trainer.py:41`."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


def dotted(node: ast.expr) -> list[str]:
    """`tf.compat.v1.app` as its parts, as far as they are names; the last ones of a long chain."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MOST_PARTS:
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else parts


def is_argv(node: ast.AST) -> bool:
    """Whether that is `sys.argv`."""
    return isinstance(node, ast.Attribute) and dotted(node) == ["sys", "argv"]


def plain_name(name: str) -> str:
    """The name of a flag without the dashes in front, `_` for `-`."""
    return name.lstrip("-").replace("-", "_").lower()
