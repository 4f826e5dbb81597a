"""What the launcher's machine knows of a module or file that a task did not find."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tflaunch.code.program_place import place_of
from tflaunch.inputs.gitignore import above, left_out_by, with_those_in, work_tree
from tflaunch.protocol.errors import UsageError

_ABOVE = 2  # directories above the code in which a module is looked for
_FOLDERS = 2000  # below it
_RUN_WORK = re.compile(r"/.*/work/(.+)")  # a path in the run's directory on a host
# A host may name any path in its log: here nothing is mounted for it, no device is touched, and no advice to copy a
# hidden file, which may be a key, comes of it.
_NOT_ASKED = re.compile(r"/+(?:net|misc|afs|proc|sys|dev)(?:/|$)|.*/\.[^./]")
_NEVER = {".git", "__pycache__", "node_modules", "venv", ".venv", "site-packages"}


def where_module_lies(module: str, directory: Path, program: str) -> str:
    """Say how to ship a module that a task did not find, if it is on this machine; "" if not.

    directory, program: the directory that was shipped, and the program's file there.
    """
    own = (directory / program).parent
    if found := _code_file(own, module):
        path = found.relative_to(directory)
        if reason := _kept_by(directory, str(path)):
            return f"{module} lies in {own} and did not come to the hosts: --ship {path} ships it ({reason} keeps it)"
        return f"{module} lies in {own} and did not come to the hosts: --ship {path} ships it"
    if _code_file(directory, module):
        return f"{module} lies in {directory}, not beside {program}: --env PYTHONPATH=. finds it there"
    if folder := _below(directory, module):
        return f"{module} lies in {folder}/, which Python does not search: --env PYTHONPATH={folder} finds it there"
    for folder_above in directory.parents[:_ABOVE]:
        if not place_of(folder_above) and _code_file(folder_above, module):
            shown = min(str(folder_above), os.path.relpath(folder_above), key=len)
            return (
                f"{module} lies in {folder_above}, which is not shipped: --code-dir {shown} --env PYTHONPATH=. ships "
                "it, and finds it"
            )
    return ""


def where_file_lies(path: str, directory: Path, program: str, host: str) -> str:
    """Say why a file that is on this machine was not found by a task, and what helps; "" if it is not here."""
    inside = _RUN_WORK.fullmatch(path)
    relative = inside.group(1) if inside else path
    relative = os.path.normpath(relative)
    if relative.startswith("/"):
        if not _is_here(relative):
            return ""
        return (
            f"{relative} is on this machine, and not on {host}: copy it there, to the same path, or to a disk that all "
            "hosts share, and name that after --"
        )
    if relative.startswith(".."):
        if not _is_here(os.path.normpath(directory / Path(program).parent / relative)):
            return ""
        return f"{relative} lies outside of {directory}, which is what was shipped: --code-dir names a directory above"
    for base in ("", str(Path(program).parent)):
        below = os.path.normpath(f"{base}/{relative}" if base else relative)
        if not os.path.lexists(directory / below):
            continue
        if reason := _kept_by(directory, below):
            return (
                f"{below} is here in {directory}, and was not shipped, by {reason}: --ship {below} ships it"
            )
        if not inside and base not in ("", "."):
            return (
                f"{relative} was shipped as {below}, and the task looks for it in the directory that holds {base}: "
                f"open it by Path(__file__).parent, or say --code-dir {base}"
            )
        return (
            f"{below} is here in {directory}, and not on {host}: --dry-run --show-files tells why it is not shipped; "
            f"--ship {below} ships it"
        )
    return ""


def _is_here(path: str) -> bool:
    return not _NOT_ASKED.match(path) and os.path.lexists(path)


def _kept_by(directory: Path, path: str) -> str:
    """`.gitignore line 3, \\`data/\\``: the line that leaves out that path below `directory`, "" for none."""
    directory = directory.resolve()
    try:
        top = work_tree(directory)
        base, ignores, _ = above(directory, top)
        folder = directory
        parts = Path(path).parts
        for depth, part in enumerate(parts):
            ignores = with_those_in(folder, base, ignores)
            folder /= part
            if by := left_out_by(base + part, folder.is_dir(), ignores):
                file, line = by
                shown = file.relative_to(directory) if file.is_relative_to(directory) else file
                return f"{shown} line {line.number} (`{line.text.strip()[:80]}`)"
            base += f"{part}/"
            if depth > 40:
                break
    except (OSError, UsageError, ValueError):
        pass
    return ""


def _code_file(folder: Path, module: str) -> Path | None:
    """Return the file or package of that name, if there is code in it."""
    base = folder.joinpath(*module.split("."))
    try:
        if base.with_name(f"{base.name}.py").is_file():
            return base.with_name(f"{base.name}.py")
        return base if base.is_dir() and any(base.glob("*.py")) else None
    except OSError:  # such a long name, or a directory that may not be read
        return None


def _below(directory: Path, module: str) -> str:
    """The folder below `directory`, relative to it, in which that module lies; "" for none, or if several hold it."""
    found = []
    for seen, (folder, names, _) in enumerate(os.walk(directory)):
        if seen > _FOLDERS:
            break
        names[:] = sorted(name for name in names if name not in _NEVER and not name.startswith("."))
        if folder != str(directory) and _code_file(Path(folder), module):
            found.append(os.path.relpath(folder, directory))
    return found[0] if len(found) == 1 else ""
