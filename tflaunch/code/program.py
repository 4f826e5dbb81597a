"""Finding the program that the user names, a script or a module, and the directory that is its code."""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from tflaunch.code.interpreter import BY_ITSELF, SHELL_SUFFIXES, runs_by
from tflaunch.code.program_place import place_of
from tflaunch.inputs.gitignore import unreadable
from tflaunch.protocol.errors import UsageError

_SHOWN = 5
_SCRIPTS = (".py", *SHELL_SUFFIXES)


class Program(NamedTuple):
    """What to run in `directory`, the one to ship; `file` is in it."""

    directory: Path  # absolute, without symbolic links
    argv: tuple[str, ...]  # as JobSpec.program
    file: str  # the program's file, relative to `directory`
    place: str = ""  # what `directory` is, if it holds more than code: "your home directory"

    @property
    def package(self) -> str:
        """The package that the program runs in, "" for none."""
        if self.argv[0] != "-m":
            return ""
        return self.argv[1] if Path(self.file).name == "__main__.py" else self.argv[1].rpartition(".")[0]

    @property
    def roots(self) -> tuple[str, ...]:
        """The directories, below `directory`, where its modules may be: beside a script, and `directory` itself."""
        own = "" if self.argv[0] == "-m" else str(Path(self.file).parent)
        return ("",) if own in ("", ".") else (own, "")


def find_program(target: str, module: bool, cwd: Path, root: Path | None = None) -> Program:
    """Find the script `target`, or with `module` the module of that dotted name, on this machine.

    For a script, its own directory is shipped, after symbolic links: Python itself puts that one on sys.path.  A module
    is looked for in `cwd`, which is shipped.  `root` names another directory to ship, which must hold the program.
    Without `root`, `place` of the result says whether the directory holds more than the code of one program.  Raises
    UsageError, which says what is there instead; also for a file that nothing runs (see `interpreter.runs_by`).
    """
    if root is not None:
        root = cwd / root
        if not root.is_dir():
            raise UsageError(f"{root}: there is no such directory to ship", "Correct --code-dir.")
        root = root.resolve()
    try:
        found = _find_module(target, root or cwd.resolve()) if module else _find_script(target, cwd, root)
        return found if root else found._replace(place=place_of(found.directory))
    except OSError as error:
        hint = "Name a Python script or, with -m, a module."
        raise UsageError(f"{target[:200]!r}: {error.strerror}", hint) from None


def program_there(target: str) -> tuple[str, ...]:
    """JobSpec.program of a script on the hosts; this machine can choose what it runs by only from its name."""
    return ("bash", target) if target.endswith(SHELL_SUFFIXES) else (target,)


def _find_script(target: str, cwd: Path, root: Path | None) -> Program:
    if not target:
        raise UsageError("the command names no program", "Name a Python script or, with -m, a module.")
    path = cwd / target
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _no_script(target, path) from None
    if stat.S_ISDIR(mode):
        raise _directory_as_script(target, path)
    if not stat.S_ISREG(mode):
        raise UsageError(f"{target}: not a regular file, so it cannot be shipped", "Name a Python script.")
    words = runs_by(target, path)
    path = path.resolve()
    directory = root or path.parent
    if not path.is_relative_to(directory):
        raise UsageError(
            f"{path} is not in {directory}, the directory to ship",
            "Let --code-dir name a directory that holds the script.",
        )
    file = str(path.relative_to(directory))
    named = f"./{file}" if file.startswith("-") or words == BY_ITSELF else file
    return Program(directory, (*words, named), file)


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except PermissionError as error:
        raise unreadable(path, error) from None


def _no_script(target: str, path: Path) -> UsageError:
    if not path.parent.is_dir():
        return UsageError(f"{target}: there is no directory {path.parent}", "Correct the path of the script.")
    missing = f"{target}: there is no such file"
    module = path.name.replace(".", "/")
    if "." in path.name and (path.parent / f"{module}.py").is_file():
        return UsageError(missing, f"To run the module: -m {target}")
    here = {entry.stem: entry.name for entry in sorted(path.parent.glob("*")) if entry.suffix in _SCRIPTS}
    if near := difflib.get_close_matches(path.stem, here, n=3):
        folder = os.path.dirname(target)  # noqa: PTH120 - as the user wrote it
        meant = " or ".join(os.path.join(folder, here[stem]) for stem in near)  # noqa: PTH118
        return UsageError(missing, f"Did you mean {meant}?")
    return UsageError(f"{missing} in {path.parent}", "Correct the path of the script.")


def _directory_as_script(target: str, path: Path) -> UsageError:
    if (path / "__main__.py").is_file():
        return UsageError(f"{target}: a directory, not a script", f"To run it as a module: -m {path.name}")
    scripts = sorted(entry.name for entry in path.iterdir() if entry.suffix in _SCRIPTS)
    if not scripts:
        missing = f"{target}: a directory, not a script, and no .py or .sh file is in it"
        return UsageError(missing, "Name a script.")
    shown = ", ".join(os.path.join(target, name) for name in scripts[:_SHOWN])  # noqa: PTH118
    more = ", ..." if len(scripts) > _SHOWN else ""
    return UsageError(f"{target}: a directory, not a script", f"Name one of its scripts: {shown}{more}")


def _find_module(name: str, directory: Path) -> Program:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        dotted = ".".join(Path(name.removesuffix(".py")).parts)
        fits = all(part.isidentifier() for part in dotted.split("."))
        raise UsageError(
            f"-m {name}: not the name of a module",
            f"Did you mean -m {dotted}?" if fits else "Write it with dots: -m package.module",
        )
    base = Path(*parts)
    for file in (base / "__main__.py", base.with_name(f"{base.name}.py")):  # a package comes before a module
        if (directory / file).is_file():
            _check_readable(directory / file)
            return Program(directory, ("-m", name), str(file))
    if (directory / base).is_dir():
        raise UsageError(
            f"-m {name}: {directory / base} is a package without __main__.py",
            f"Name one of its modules, -m {name}.MODULE, or add {base / '__main__.py'}.",
        )
    if name.endswith(".py") and (directory / base.parent).with_suffix(".py").is_file():
        meant = f"Did you mean -m {name.removesuffix('.py')}?"
        raise UsageError(f"-m {name}: not the name of a module", meant)
    modules = {path.stem for path in (directory / base.parent).glob("*.py")}
    modules |= {path.parent.name for path in (directory / base.parent).glob("*/__main__.py")}
    near = difflib.get_close_matches(base.name, sorted(modules), n=1)
    raise UsageError(
        f"-m {name}: neither {base}.py nor {base / '__main__.py'} is in {directory}",
        f"Did you mean -m {'.'.join([*parts[:-1], near[0]])}?"
        if near
        else "Start tflaunch in the directory that holds the package, or name it with --code-dir.",
    )
