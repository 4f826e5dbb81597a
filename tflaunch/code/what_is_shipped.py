"""What tells the user of the code that is shipped, and of what stays on this machine."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tflaunch.code.bundle import Bundle
from tflaunch.code.program import Program
from tflaunch.hosts import fold
from tflaunch.text.numbers import amount, counted

if TYPE_CHECKING:
    from tflaunch.code.shipping import Shipped
    from tflaunch.hosts import Hostfile

SHOWN = 8  # names of each kind, at most
_READS_ENV = re.compile(
    rb"\b(?:import[ \t]+dotenv|from[ \t]+dotenv|load_dotenv|dotenv_values|find_dotenv)\b|[\"'/]\.env[\"']"
)


class CodeReporter(Protocol):
    """The methods of `tflaunch.documents.reporter.Reporter` that this module calls."""

    def warn(self, text: str) -> None: ...
    def warn_once(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def code(self, data: Mapping[str, Any]) -> None: ...
    def files(self, bundle: Bundle) -> None: ...


def tell(
    program: Program,
    bundle: Bundle,
    env_files: Sequence[Path],
    reporter: CodeReporter,
    *,
    dry_run: bool,
    show_files: bool = False,
) -> None:
    """Warn about files that stay on this machine although the user may expect them on the hosts.

    dry_run: name all that is left out, not only the first few.  show_files: show each file that is shipped, and each
    that is not.
    """
    reporter.code({**code_data(program, bundle), **(files_data(bundle) if show_files else {})})
    most = SHOWN if not dry_run else None
    unread = unread_env(program, bundle) if not env_files else ""
    for line in standing(program, bundle, most, propose_env_file=not (env_files or unread)):
        reporter.warn(line) if dry_run else reporter.warn_once(line)
    for line in (*warnings(bundle, most), *_faults(program)):
        reporter.warn(line)
    if unread:
        reporter.warn(unread)
    for line in notes(bundle, most):
        reporter.note(line)
    if show_files:
        reporter.files(bundle)
    elif dry_run:
        reporter.note(f"to ship: {summary(bundle)}; --show-files lists them")


def own_code(hostfile: Hostfile) -> str:
    """Say which hosts have their own copy of the code, so that nothing is shipped there; "" for none."""
    having: dict[str, list[str]] = {}
    for host in hostfile.hosts:
        if host.workdir is not None:
            having.setdefault(host.workdir, []).append(host.name)
    where = (f"{fold(hosts)}, where it is in {workdir}" for workdir, hosts in having.items())
    return f"no code is shipped to {'; '.join(where)} (`workdir:` in {hostfile.source})" if having else ""


def code_data(program: Program, bundle: Bundle) -> dict[str, Any]:
    """Return what is shipped and what is left out, as JSON has it."""
    return {
        "directory": bundle.directory,
        "program": program.file,
        "digest": bundle.digest,
        "files": bundle.files,
        "bytes": bundle.size,
        "modules_only": bundle.place,
        "ignored": bundle.ignored,
        "caches": bundle.caches,
        "secrets": [secret._asdict() for secret in bundle.secrets],
        "fetched": list(bundle.fetched),
        "links": dict(bundle.links),
        "skipped": list(bundle.skipped),
    }


_RULE = re.compile(r".*?((?:\.git/info/|\.)[a-z]+):[0-9]+: ", re.DOTALL)  # the file of an ignore rule
_KINDS = {"f": "file", "x": "executable", "l": "link", "d": "directory"}


def files_data(bundle: Bundle) -> dict[str, Any]:
    """Return each file that is shipped, and each that is not, as JSON has it."""
    return {
        "shipped": [
            {
                "path": path,
                "kind": _KINDS[str(kind)],
                "bytes": more[1] if kind in ("f", "x") else None,
                "goal": more[0] if kind == "l" else None,
            }
            for path, kind, *more in bundle.entries
        ],
        "left": [left._asdict() for left in bundle.left],
    }


def summary(bundle: Bundle) -> str:
    """Say how much is shipped, how much not: `14 files, 96 KiB of ~/proj (3 left out by .gitignore, 2 secrets)`."""
    shipped = f"{counted(bundle.files, 'file')}, {amount(bundle.size)}"
    if bundle.directory:
        shipped += f" of {_shown(bundle.directory)}"
    if bundle.place:
        return f"{shipped} (only the program and what it imports)"
    rules = (_RULE.match(left.why) for left in bundle.left if left.kind == "ignored")
    by = Counter(rule[1] for rule in rules if rule)
    left = [
        f"{number} {'by' if at else 'left out by'} {file}"
        for at, (file, number) in enumerate(sorted(by.items()))
    ]
    left += [counted(len(bundle.secrets), "secret")] * bool(bundle.secrets)
    left += [f"{len(bundle.fetched)} fetched"] * bool(bundle.fetched)
    return f"{shipped} ({', '.join(left)})" if left else shipped


def shipped_text(bundle: Bundle, shipped: Shipped) -> str:
    """Say how much of the code was new to the hosts; "" if nothing was and the code has no directory."""
    if not shipped.contents and bundle.contents:
        return f"{summary(bundle)}: already there" if bundle.directory else ""
    if shipped.whole:
        return f"shipped {summary(bundle)}"
    new = sum(1 for contents, _ in shipped.sent.values() if contents)
    which = f"{new} of {len(shipped.sent)} hosts" if new < len(shipped.sent) else "the hosts"
    return f"shipped {summary(bundle)}; new to {which}: {counted(shipped.contents, 'file')}, {amount(shipped.bytes)}"


def notes(bundle: Bundle, most: int | None) -> Iterator[str]:
    """Yield a line for each thing that is good to know; it lists at most `most` names (None: all)."""
    if bundle.fetched:
        first = shlex.quote(bundle.fetched[0].rstrip("/"))
        fetched = _some(bundle.fetched, most)
        yield f"fetched before, so not shipped: {fetched}; --ship {first} ships that one all the same"
    if bundle.dangling:
        named = [f"{path} -> {goal}" for path, goal in bundle.dangling]
        first = shlex.quote(bundle.dangling[0][1])
        yield f"links to what is not shipped lead nowhere on the hosts: {_some(named, most)}; --ship {first} ships it"
    if bundle.links:
        named = [f"{path} -> {goal}" for path, goal in bundle.links]
        followable = any(_can_follow(goal, bundle.directory) for _, goal in bundle.links)
        option = "; --follow-links ships what they lead to" if followable else ""
        yield f"links that lead out of {bundle.directory} are shipped as links: {_some(named, most)}{option}"


def warnings(bundle: Bundle, most: int | None) -> Iterator[str]:
    """Yield a line for each thing that the user should mend; it lists at most `most` names (None: all)."""
    yield from bundle.odd
    if bundle.skipped:
        yield f"not shipped: {_some(bundle.skipped, most)}"


def standing(
    program: Program, bundle: Bundle, most: int | None, propose_env_file: bool = False
) -> Iterator[str]:
    """Yield a line for each thing that the user should know, and that is the same in each run of that program.

    It lists at most `most` names (None: all).
    """
    if program.place:
        others = bundle.files - 1
        with_them = f"with {counted(others, 'file')} that it imports from there" if others else "alone"
        yield (
            f"{program.file} lies in {bundle.directory}, {program.place}, and is shipped {with_them}; "
            f"--code-dir {bundle.directory} ships all that is there but secrets, --ship FILE one more file"
        )
    if bundle.secrets:
        named = [f"{secret.path} ({secret.why})" for secret in bundle.secrets]
        first = shlex.quote(bundle.secrets[0].path.rstrip("/"))
        env = next((secret.path for secret in bundle.secrets if _is_env_file(secret.path)), None)
        instead = ""
        if env is not None and propose_env_file:
            shown = shlex.quote(_from_here(Path(bundle.directory, env)))
            instead = f"; --env-file {shown} gives the tasks its variables"
        yield f"secrets stay here: {_some(named, most)}{instead}; --ship {first} would ship that one all the same"


def _faults(program: Program) -> list[str]:
    """Make a line for each file of the program that the Python on this machine cannot parse."""
    from tflaunch.code.program_reading import faults

    return list(faults(program))[:SHOWN]


def unread_env(program: Program, bundle: Bundle) -> str:
    """Say that the program reads a `.env` that stays here; "" when it does not."""
    env = _env_that_stays(program, bundle)
    reader = _reader_of_env(program, bundle) if env is not None else None
    if env is None or reader is None:
        return ""
    shown = _from_here(env)
    return (
        f"{reader} reads .env, and {shown} stays here; --env-file {shown} passes its variables to the tasks"
    )


def _env_that_stays(program: Program, bundle: Bundle) -> Path | None:
    """Return the `.env` that stays here: the first that python-dotenv would find, else any left out."""
    root = Path(bundle.directory)
    shipped = {str(path) for path, *_ in bundle.entries}
    for folder in (root / program.file).parents:
        env = folder / ".env"
        if env.is_file():
            is_shipped = env.is_relative_to(root) and str(env.relative_to(root)) in shipped
            return None if is_shipped else env
    return next((root / path for path, _ in bundle.secrets if Path(path).name == ".env"), None)


def _reader_of_env(program: Program, bundle: Bundle) -> str | None:
    """Return where (FILE:LINE) the program, or a module that it imports, reads a `.env`."""
    readers = {}
    for path, kind, *more in bundle.entries:
        if kind not in ("f", "x") or not str(path).endswith(".py"):
            continue
        content = bundle.contents[str(more[0])]
        if b".env" not in content and b"dotenv" not in content:
            continue
        if found := _READS_ENV.search(content):
            readers[str(path)] = content.count(b"\n", 0, found.start()) + 1
    own = _files_of(program) if readers else ()
    return next((f"{path}:{line}" for path, line in readers.items() if path in own), None)


def _files_of(program: Program) -> set[str]:
    """Return the program's file and the files that it imports from the shipped directory or its own."""
    from tflaunch.code.imports import imported_files

    return set(imported_files(program.directory, program.file, program.package, program.roots))


def _is_env_file(path: str) -> bool:
    name = Path(path).name
    return name == ".env" or name.startswith(".env.")


def _from_here(path: Path) -> str:
    return min(str(path), os.path.relpath(path), key=len)


def _shown(directory: str) -> str:
    """Return the path of a directory, with `~` for the user's home directory."""
    home = os.path.realpath(Path.home())
    if directory == home:
        return "~"
    return f"~/{os.path.relpath(directory, home)}" if directory.startswith(f"{home}/") else directory


def _can_follow(goal: str, directory: str) -> bool:
    return os.path.exists(goal) and not Path(directory).is_relative_to(os.path.realpath(goal))  # noqa: PTH110


def _some(names: Iterable[str], most: int | None) -> str:
    names = list(names)
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
