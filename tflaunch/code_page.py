"""What people and programs are told of the code that is shipped, and of what stays on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tflaunch.program import Program, place_of
from tflaunch.sizes import amount
from tflaunch.sources import Bundle

SHOWN = 8  # of each kind
_ABOVE = 2  # directories above the one that is shipped, where a module of the user's may be
_READS_ENV = re.compile(
    rb"\b(?:import[ \t]+dotenv|from[ \t]+dotenv|load_dotenv|dotenv_values|find_dotenv)\b|[\"'/]\.env[\"']"
)


class CodeReporter(Protocol):
    """`tflaunch.console.Reporter`, as far as it is needed here."""

    def warn(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def code(self, data: Mapping[str, Any]) -> None: ...


def tell(
    program: Program, bundle: Bundle, env_files: Sequence[Path], reporter: CodeReporter, dry_run: bool
) -> None:
    """Tell what stays here though a user may think otherwise; with `dry_run`, all that is left out."""
    reporter.code(code_data(program, bundle))
    for line in (*warnings(program, bundle, SHOWN if not dry_run else None), *_faults(program)):
        reporter.warn(line)
    if not env_files and (line := unread_env(program, bundle)):
        reporter.warn(line)
    if dry_run:
        reporter.note(summary(program, bundle))


def code_data(program: Program, bundle: Bundle) -> dict[str, Any]:
    """It, as what JSON can hold."""
    return {
        "directory": bundle.directory,
        "program": program.file,
        "digest": bundle.digest,
        "files": bundle.files,
        "bytes": bundle.size,
        "modules_only": program.place,
        "ignored": bundle.ignored,
        "caches": bundle.caches,
        "secrets": [secret._asdict() for secret in bundle.secrets],
        "links": dict(bundle.links),
        "skipped": list(bundle.skipped),
    }


def summary(program: Program, bundle: Bundle) -> str:
    """How much is shipped, and how much is not."""
    left = [
        text
        for number, text in (
            (bundle.ignored, f"{bundle.ignored} that .gitignore names"),
            (bundle.caches, f"{_count(bundle.caches, 'cache')} and the like"),
            (len(bundle.secrets), _count(len(bundle.secrets), "secret")),
            (len(bundle.skipped), f"{len(bundle.skipped)} that are no files"),
        )
        if number
    ]
    are = "is" if bundle.files == 1 else "are"
    shipped = f"{_count(bundle.files, 'file')} of {bundle.directory}, {amount(bundle.size)}, {are} shipped"
    if program.place:
        return f"{shipped}; all else that is there stays here"
    return f"{shipped}; left out: {', '.join(left)}" if left else f"{shipped}; nothing is left out"


def warnings(program: Program, bundle: Bundle, most: int | None) -> Iterator[str]:
    """A line for each thing that a user should look at, each with `most` names; None: with all."""
    if program.place:
        others = bundle.files - 1
        with_them = f"with {_count(others, 'file')} that it imports from there" if others else "alone"
        yield (
            f"{program.file} lies in {bundle.directory}, {program.place}, and is shipped {with_them}; "
            f"--code-dir {bundle.directory} ships all that is there but secrets, --ship FILE one more file"
        )
    if bundle.secrets:
        named = [f"{secret.path} ({secret.why})" for secret in bundle.secrets]
        first = bundle.secrets[0].path.rstrip("/")
        yield f"secrets stay here: {_some(named, most)}; --ship {first} would ship that one all the same"
    if bundle.links:
        named = [f"{path} -> {goal}" for path, goal in bundle.links]
        followable = any(_can_follow(goal, bundle.directory) for _, goal in bundle.links)
        option = "; --follow-links ships what they lead to" if followable else ""
        yield f"links that lead out of {bundle.directory} are shipped as links: {_some(named, most)}{option}"
    if bundle.skipped:
        yield f"not shipped: {_some(bundle.skipped, most)}"


def _faults(program: Program) -> list[str]:
    """A line for each file of the program that is none to the Python here."""
    from tflaunch.code_cluster import faults

    return list(faults(program))[:SHOWN]


def unread_env(program: Program, bundle: Bundle) -> str:
    """What to say when the program reads a `.env` that stays here; "" when it does not."""
    env = _env_that_stays(program, bundle)
    reader = _reader_of_env(program, bundle) if env is not None else None
    if env is None or reader is None:
        return ""
    shown = min(str(env), os.path.relpath(env), key=len)
    return (
        f"{reader} reads .env, and {shown} stays here; --env-file {shown} passes its variables to the tasks"
    )


def where_it_lies(module: str, directory: Path, program: str) -> str:
    """What to type for a module that a task did not find, if it lies here; `directory` was shipped, with `program`."""
    own = (directory / program).parent
    if found := _code_file(own, module):
        path = found.relative_to(directory)
        return f"{module} lies in {own} and did not come to the hosts: --ship {path} ships it"
    if _code_file(directory, module):
        return f"{module} lies in {directory}, not beside {program}: --env PYTHONPATH=. finds it there"
    for above in directory.parents[:_ABOVE]:
        if not place_of(above) and _code_file(above, module):
            shown = min(str(above), os.path.relpath(above), key=len)
            return (
                f"{module} lies in {above}, which is not shipped: --code-dir {shown} --env PYTHONPATH=. ships it, and "
                "finds it"
            )
    return ""


def _code_file(folder: Path, module: str) -> Path | None:
    """The file or package of that name, if there is code in it."""
    base = folder.joinpath(*module.split("."))
    if base.with_name(f"{base.name}.py").is_file():
        return base.with_name(f"{base.name}.py")
    return base if base.is_dir() and any(base.glob("*.py")) else None


def _env_that_stays(program: Program, bundle: Bundle) -> Path | None:
    """The one that python-dotenv finds from the program's directory upwards, else any that was left out."""
    root = Path(bundle.directory)
    shipped = {str(path) for path, *_ in bundle.entries}
    for folder in (root / program.file).parents:
        env = folder / ".env"
        if env.is_file():
            is_shipped = env.is_relative_to(root) and str(env.relative_to(root)) in shipped
            return None if is_shipped else env
    return next((root / path for path, _ in bundle.secrets if Path(path).name == ".env"), None)


def _reader_of_env(program: Program, bundle: Bundle) -> str | None:
    """Where the program, or a module that it imports, reads one; another program beside it may, and does not run."""
    readers = {}
    for path, kind, *more in bundle.entries:
        if kind not in ("f", "x") or not str(path).endswith(".py"):
            continue
        content = bundle.contents[str(more[0])]
        if b".env" not in content and b"dotenv" not in content:
            continue
        if found := _READS_ENV.search(content):
            readers[str(path)] = content.count(b"\n", 0, found.start()) + 1
    of_it = _files_of(program) if readers else ()
    return next((f"{path}:{line}" for path, line in readers.items() if path in of_it), None)


def _files_of(program: Program) -> set[str]:
    """The program's file and those that it imports, from the directory that is shipped or from its own."""
    from tflaunch.code_imports import imported_files

    return set(imported_files(program.directory, program.file, program.package, program.roots))


def _can_follow(goal: str, directory: str) -> bool:
    return os.path.exists(goal) and not Path(directory).is_relative_to(os.path.realpath(goal))  # noqa: PTH110


def _some(names: Iterable[str], most: int | None) -> str:
    names = list(names)
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
