"""The errors for code that is larger than the limit; they name its largest parts."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from tflaunch.code.code_tree import CodeTree
from tflaunch.code.program_place import home_directories
from tflaunch.protocol.errors import UsageError

_LARGEST_SHOWN = 5
_LARGEST_SHARE = 0.9  # of a directory's size: a part this large is named in its place


def grew(root: Path, path: str, limit_bytes: int) -> UsageError:
    return UsageError(
        f"{root}: more than {_amount(limit_bytes)} to ship: {path} grew while it was read",
        "Add files that programs write to .gitignore or .tflaunchignore.",
    )


def too_large(root: Path, tree: CodeTree, limit_bytes: int) -> UsageError:
    at_least = "at least " if tree.cut_short else ""
    largest = "\n".join(f"  {_amount(size):>9}  {path}" for path, size in _largest(tree))
    unlikely = ""
    if root in (Path("/"), *home_directories()):
        what = "the root of the file system" if root == Path("/") else "your home directory"
        unlikely = f" (that is {what}: is the script where you want it?)"
    return UsageError(
        f"{root}: {at_least}{_amount(tree.size)} to ship, {_amount(limit_bytes)} is the limit{unlikely}; the"
        f" largest are\n{largest}",
        "Add what the program does not need to .gitignore, or to a .tflaunchignore beside it; --max-code SIZE ships"
        " more; or put the code on the hosts yourself and use --no-sync, or `workdir:` in the hostfile.",
    )


def _largest(tree: CodeTree) -> list[tuple[str, int]]:
    """The largest entries of the directory, each narrowed down to the part that makes it large."""
    sizes: dict[str, int] = defaultdict(int)
    parts: dict[str, set[str]] = defaultdict(set)
    for path, entry in tree.entries.items():
        below = path
        while entry.kind == "file" and below:
            sizes[below] += entry.size
            above = os.path.dirname(below)  # noqa: PTH120
            parts[above].add(below)
            below = above
    largest = []
    for path in sorted(parts[""], key=lambda path: -sizes[path])[:_LARGEST_SHOWN]:
        narrow = path
        while parts[narrow]:
            part = max(parts[narrow], key=lambda path: sizes[path])
            if sizes[part] < _LARGEST_SHARE * sizes[narrow]:
                break
            narrow = part
        closing = "/" if parts[narrow] else ""
        largest.append((narrow + closing, sizes[narrow]))
    return largest


def _amount(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
