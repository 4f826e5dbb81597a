"""What is shipped, and how it is packed."""

from __future__ import annotations

import ast
import sys
import zlib
from pathlib import Path

import pytest

from tflaunch.protocol import wire
from tflaunch.sessions import payload

OF_SOME = {"_sha2", "_sha256"}  # not every Python has both
TYPES_ONLY = {"typing_extensions"}  # imported for the type checker alone


SHIPPED = payload.shipped_files()


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_needs_nothing_but_itself_and_the_standard_library(name: str) -> None:
    path = payload.shipped_files()[name]
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            base = node.module or ""
            whole = [f"{base}.{alias.name}" for alias in node.names]
            wanted = [each if each in SHIPPED else base for each in whole]
        else:
            continue
        for module in wanted:
            top = module.split(".")[0]
            if top == "tflaunch":
                assert module in SHIPPED, f"{path}:{node.lineno}: {module} is not shipped"
            elif module != "pynvml":  # the host's own, or sent when it is wanted
                known = {*sys.stdlib_module_names, *OF_SOME, *TYPES_ONLY}
                assert top in known, f"{path}:{node.lineno}: {module}"


def test_what_is_sent_has_every_line_in_its_place_and_means_the_same() -> None:
    class Bare(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            if (
                isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
                and ast.get_docstring(node) is not None
            ):
                node.body[0] = ast.Expr(ast.Constant(""), lineno=node.body[0].lineno, end_lineno=0)
            return node

        def visit_If(self, node: ast.If) -> ast.AST:
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = [ast.Expr(ast.Constant(""), lineno=node.lineno, end_lineno=0)]
            return self.generic_visit(node)

    for name, path in payload.shipped_files().items():
        source = path.read_text("utf-8")
        lean = payload.lean(source)
        assert lean.count("\n") == source.count("\n"), name
        trees = [Bare().visit(ast.parse(each)) for each in (source, lean)]
        lines = [[getattr(node, "lineno", 0) for node in ast.walk(tree)] for tree in trees]
        assert lines[0] == lines[1], name
        assert ast.dump(trees[0]) == ast.dump(trees[1]), name
        assert len(lean) < len(source), name


def test_what_is_sent_at_every_boot_is_small() -> None:
    assert len(payload.loader()) < 3_250
    assert len(payload.agent()) < 233_000, (
        "every run sends this to each host: take something out, or raise the limit, with the reason in the commit"
    )
    assert len(payload.boot_line("start", "r" * 60, "h" * 60)) < 4096
    assert payload.agent() is payload.agent()


def test_what_is_packed_is_what_the_loader_has_announced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An upgrade, or an edit, while tflaunch runs: no host may keep other modules under that digest."""
    names = ("tflaunch", "tflaunch.protocol.wire", "tflaunch.agent.loader", "tflaunch.protocol.ancestry")
    files = {name: tmp_path / f"{name}.py" for name in names}
    for path in files.values():
        path.write_text("old = 1\n")
    monkeypatch.setattr(payload, "shipped_files", lambda: files)
    for each in (payload._contents, payload._packed, payload.loader):
        each.cache_clear()
    payload.loader()
    for path in files.values():
        path.write_text("new = 1\n")
    (message,) = wire.Decoder().feed(payload.agent())
    packed = zlib.decompress(message.body)
    assert b"old = 1" in packed
    assert b"new = 1" not in packed
    for each in (payload._contents, payload._packed, payload.loader):
        each.cache_clear()


def test_the_only_module_that_a_host_may_lack_is_sent_compressed() -> None:
    assert b"def nvmlInit(" in zlib.decompress(payload.packed_module())
    assert len(payload.packed_module()) < 64 * 1024
