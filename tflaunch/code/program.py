"""Which program runs: the script or module that is named, what it runs by, and which directory is its code."""

from __future__ import annotations

import difflib
import os
import pwd
import re
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.code.secrets import in_secret_directory
from tflaunch.inputs.gitignore import unreadable
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:  # a script is mostly one by its name
    import ast

_SHOWN = 5
_SHELL = (".sh", ".bash")
_SCRIPTS = (".py", *_SHELL)
_BY_ITSELF = ("/usr/bin/env",)  # which starts it from a directory where it may not be looked for


class Program(NamedTuple):
    """What to run in `directory`, the one to ship; `file` is in it."""

    directory: Path  # absolute, without symbolic links
    argv: tuple[str, ...]  # as JobSpec.program
    file: str  # the program's file, relative to `directory`
    place: str = ""  # what `directory` is, when what lies there is not all code: "your home directory"

    @property
    def package(self) -> str:
        """The package that the program is run in, "" for none."""
        if self.argv[0] != "-m":
            return ""
        return self.argv[1] if Path(self.file).name == "__main__.py" else self.argv[1].rpartition(".")[0]

    @property
    def roots(self) -> tuple[str, ...]:
        """Where in `directory` its modules may be: beside a script, and in `directory` itself."""
        own = "" if self.argv[0] == "-m" else str(Path(self.file).parent)
        return ("",) if own in ("", ".") else (own, "")


def find_program(target: str, module: bool, cwd: Path, root: Path | None = None) -> Program:
    """Find the script `target`, or with `module` the module of that dotted name, on this machine.

    A script's own directory is shipped, after symbolic links, as Python itself puts that one on sys.path; a
    module is looked for in `cwd`, which is shipped.  `root` names another directory to ship, which must hold
    the program; without it, `place` tells where more lies than the code of one program.  Raises UsageError that
    says what is there instead, also of what is neither Python nor runs by itself (`_runs_by`).
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
    """JobSpec.program of a script that is on the hosts, where nobody can look: only its name tells what it runs by."""
    return ("bash", target) if target.endswith(_SHELL) else (target,)


def _find_script(target: str, cwd: Path, root: Path | None) -> Program:
    if not target:
        raise UsageError("no program is named", "Name a Python script or, with -m, a module.")
    path = cwd / target
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise _no_script(target, path) from None
    if stat.S_ISDIR(mode):
        raise _directory_as_script(target, path)
    if not stat.S_ISREG(mode):
        raise UsageError(f"{target}: not a regular file, so it cannot be shipped", "Name a Python script.")
    runs_by = _runs_by(target, path)
    path = path.resolve()
    directory = root or path.parent
    if not path.is_relative_to(directory):
        raise UsageError(
            f"{path} is not in {directory}, the directory to ship",
            "Let --code-dir name a directory that holds the script.",
        )
    file = str(path.relative_to(directory))
    named = f"./{file}" if file.startswith("-") or runs_by == _BY_ITSELF else file
    return Program(directory, (*runs_by, named), file)


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
    return UsageError(f"{missing} in {path.parent}", "Name a Python script.")


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


# --- what it runs by -------------------------------------------------------------------------------------

_LOOKED_AT = 1 << 20  # bytes
_OTHERS = {
    "sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox", "pwsh", "perl", "ruby", "node", "nodejs",
    "deno", "bun", "php", "lua", "Rscript", "awk", "gawk", "sed", "make", "tclsh", "wish", "expect", "java", "groovy",
    "julia", "scala", "swift", "ocaml", "runhaskell", "guile", "osascript",
}  # fmt: skip
# What no data has, in lines that this Python may not be able to read: the hosts' may be another version.
_LOOKS_LIKE_PYTHON = (
    rb"(?m)^[ \t]*(?:import[ \t]+\w[\w., \t]*(?:#.*)?$|from[ \t]+[\w.]+[ \t]+import\b|(?:async[ \t]+)?def[ \t]+\w+"
    rb"|class[ \t]+\w+.*:|if[ \t]+__name__[ \t]*==|print\b)"
)


def _runs_by(target: str, path: Path) -> tuple[str, ...]:
    """The words in front of the program's file, as the kernel would put them; () for Python, which the hostfile names.

    An executable runs by its first line (`#!`), which is one word and perhaps one argument, or by itself; a .sh by its
    first line, executable or not, else by bash.  What names Python in its first line is Python.  Raises UsageError for
    everything else; reads no more than 1 MiB.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT)
    except PermissionError as error:
        raise unreadable(path, error) from None
    what = _instead(path, head)
    executable = os.access(path, os.X_OK)
    shell = path.suffix in _SHELL
    first = head.partition(b"\n")[0]
    if (what or executable or shell) and b"\0" not in head and not _names_python(first):
        words = os.fsdecode(first[2:]).strip(" \t").split(maxsplit=1) if first.startswith(b"#!") else []
        if (words or shell) and first.endswith(b"\r"):
            raise UsageError(
                f"{target}: its lines end as on Windows (CR LF), so it runs by nothing",
                f"Convert it: sed -i 's/\\r$//' {target}",
            )
        polyglot = not (what or shell) and _interpreter(" ".join(words)) in _OTHERS
        if words and (executable or shell) and not polyglot:
            return tuple(words)
        if shell:
            return ("bash",)
    if not what:
        return ()
    hint = "Name a Python script, a .sh, an executable or, with -m, a module."
    if head.startswith(b"\x7fELF"):
        if str(path.resolve().parent) in _SYSTEM or place_of(path.resolve().parent) == _OF_THE_SYSTEM:
            hint = "Name a script of yours that starts it."
        elif executable:
            return _BY_ITSELF
        else:
            hint = f"If it is to run by itself: chmod +x {target}"
    elif path.suffix == ".ipynb":
        hint = f"Make a script of the notebook: jupyter nbconvert --to script {target}"
    elif head.startswith(b"#!"):
        hint = f"If it is to run by its first line: chmod +x {target}"
    raise UsageError(f"{target}: this is no Python program, but {what}", hint)


def _names_python(first: bytes) -> bool:
    return (
        first.startswith(b"#!")
        and re.match(r"(python|pypy)", _interpreter(os.fsdecode(first[2:]))) is not None
    )


def _instead(path: Path, head: bytes) -> str:
    """What the file is, if it is no Python."""
    if not head.strip() or (path.suffix == ".pyc" and head[2:4] == b"\r\n"):
        return ""
    if b"\0" in head:
        import zipfile

        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return "" if "__main__.py" in archive.namelist() else "a zip archive without __main__.py"
        return "an executable of this system" if head.startswith(b"\x7fELF") else "a binary file"
    named = path.suffix in (".py", ".pyw")
    first, _, rest = head.partition(b"\n")
    if first.startswith(b"#!"):
        interpreter = _interpreter(os.fsdecode(first[2:]))
        if b"python" in first or b"pypy" in first:
            return ""
        if interpreter in _OTHERS:  # some begin as a shell script, and are Python all the same
            start = rest[:1000]
            polyglot = b"python" in start and _parsed(head) is not None
            return "" if polyglot else f"a script for {interpreter}"
    if named:
        return ""  # Python itself tells what is wrong with it
    parsed = _parsed(head) if len(head) < _LOOKED_AT else None
    if parsed is None:
        return "" if re.search(_LOOKS_LIKE_PYTHON, head) else "text that no Python can read"
    return "" if any(map(_does_something, parsed)) else "data"


def _interpreter(line: str) -> str:
    words = line.split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return Path(words[0]).name if words else ""


def _parsed(text: bytes) -> list[ast.stmt] | None:
    """Its statements; None: this Python cannot read it."""
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _does_something(statement: ast.stmt) -> bool:
    """What no JSON, YAML, TOML or list of words has that happens to read as Python."""
    import ast

    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    return not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Pass, ast.Delete))


# --- what lies around it ---------------------------------------------------------------------------------

_OF_THE_SYSTEM = "a directory of the system"

# Directories of the system, and those that hold the directories of users and disks; what is below may be a project.
_SYSTEM = {
    "/", "/Applications", "/Users", "/Volumes", "/dev", "/home", "/media", "/mnt", "/opt", "/private", "/private/var",
    "/root", "/run", "/srv", "/usr", "/usr/games", "/usr/local", "/usr/src", "/var", "/var/lib",
    "/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp",  # noqa: S108 - where they are the user's alone
}  # fmt: skip
# And those with nothing else below them.
_SYSTEM_TREES = (
    "/Library", "/System", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/private/etc", "/proc",
    "/sbin", "/sys", "/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec",
    "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/var/log", "/var/spool",
)  # fmt: skip


def place_of(directory: Path) -> str:
    """What that directory is, where more lies in it than the code of one program; "" where it may be all code."""
    homes = home_directories()
    if directory in homes:
        return "your home directory"
    if why := in_secret_directory(str(directory)):
        return f"a directory for {why}"
    mode = directory.stat().st_mode
    # Containers and some file systems show every directory as everybody's: only one that is meant for all counts.
    if mode & stat.S_IWOTH and mode & stat.S_ISVTX:
        return "a directory that everybody may write to"
    if str(directory) in _SYSTEM or any(directory.is_relative_to(tree) for tree in _SYSTEM_TREES):
        return _OF_THE_SYSTEM
    if any(home.is_relative_to(directory) for home in homes):
        return "a directory of home directories"
    return ""


def home_directories() -> set[Path]:
    """The user's, by $HOME and by the system's list of users, without symbolic links."""
    homes = {os.environ.get("HOME", "")}
    try:
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # an account that is in no list
        pass
    return {Path(home).resolve() for home in homes if home.startswith("/")}
