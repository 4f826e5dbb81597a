"""What the tasks' Python finds: the environments of the hostfile, and the requirements that hosts install."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tflaunch.hosts import Host
from tflaunch.inputs.local_python import local_python
from tflaunch.inputs.missing_files import no_such_file
from tflaunch.inputs.placeholders import filled, names_in
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import JobSpec, Requirements

PREPARE_TIMEOUT_S = 7200.0  # TensorFlow with CUDA is gigabytes
LARGEST = 4 * 1024 * 1024  # characters of all files together

_VENV = """\
test -f %(path)s/bin/activate || {
    echo "tflaunch: venv: there is no" %(path)s/bin/activate "on this host" >&2; false; }
. %(path)s/bin/activate"""

# What `conda activate` does; where there is an environment but no conda (conda-pack), the steps that it comes down to.
_CONDA = """\
tflaunch_conda() {
    if test "$(type -t conda 2>/dev/null)" = function; then  # the profile, or a line of `setup:`, has made it
        conda activate "$1"
        return
    fi
    for conda in "${CONDA_EXE:-}" "$(command -v conda || true)" ~/miniconda3/bin/conda ~/miniforge3/bin/conda \\
        ~/mambaforge/bin/conda ~/anaconda3/bin/conda /opt/conda/bin/conda /opt/miniconda3/bin/conda \\
        /opt/miniforge3/bin/conda /opt/anaconda3/bin/conda; do
        if test -x "$conda" && test -f "$conda"; then
            eval "$("$conda" shell.posix hook)" && conda activate "$1"
            return
        fi
    done
    test -d "$1/conda-meta" || {
        echo "tflaunch: conda: no conda on this host, and no environment at $1" >&2; return 1; }
    export CONDA_PREFIX="$1" CONDA_DEFAULT_ENV="$1" CONDA_SHLVL=1 PATH="$1/bin:$PATH"
    for hook in "$1"/etc/conda/activate.d/*.sh; do
        ! test -f "$hook" || . "$hook"
    done
}
tflaunch_conda %(path)s"""


# As a line of `setup:`; only an interactive shell is sure to have the function `conda`.
_ACTIVATE = re.compile(r"^([ \t]*)conda activate ([\w./~-]+)[ \t]*;?[ \t]*$", re.MULTILINE)


def setup(host: Host) -> tuple[str, ...]:
    """All shell lines before a task of that host: its `setup:`, then what activates its `conda:` and its `venv:`.

    A line `conda activate NAME` of `setup:` does at its place what `conda: NAME` does.
    """
    lines = [
        _ACTIVATE.sub(lambda found: _CONDA % {"path": _shell_path(found[2])}, text) for text in host.setup
    ]
    more = []
    if host.conda:
        more.append(_CONDA % {"path": _shell_path(host.conda)})
    if host.venv:
        more.append(_VENV % {"path": _shell_path(host.venv)})
    return (*lines, *more)


def _shell_path(path: str) -> str:
    return f'"$HOME"{shlex.quote(path[1:])}' if path.startswith("~") else shlex.quote(path)


def to_prepare(host: Host, job: JobSpec, images: Iterable[str]) -> dict[str, Any]:
    """The fields of the `prepare` message for a host whose tasks run in containers of these images, or in none."""
    needed = job.requirements
    # The tasks' shell is one as at a log-in, whose PATH may lack what the PATH of this shell has.
    uv = shutil.which("uv") if needed and host.connection == "local" else None
    return {
        **({"uv": uv} if uv else {}),
        "requirements": needed and {**dataclasses.asdict(needed), "digest": needed.digest},
        "images": sorted(images),
        "engine": job.container_engine,
        "python": host.python or (local_python().path if host.connection == "local" else "python3"),
        "setup": list(setup(host)),
        "env": {**_of_the_host(host.env), **_of_the_host(job.env, job.literal)},
    }


def _of_the_host(env: Mapping[str, str], literal: Collection[str] = ()) -> dict[str, str]:
    """The variables that are the same for all tasks: an environment is installed for the host, by no task."""
    there = {}
    for name, value in env.items():
        if name in literal:
            there[name] = value
        elif not names_in(value):
            there[name] = filled(value, str)
    return there


def read(path: Path, system_site: bool = False) -> Requirements:
    """The requirements that hosts are to install: of requirements.txt, with all that it includes, or of a project.

    A project is pyproject.toml, or uv.lock beside it, which then counts.  Raises UsageError, also for packages that
    only this machine has.
    """
    lock = path.with_name("uv.lock")
    if path.name == "uv.lock" or (path.name == "pyproject.toml" and lock.is_file()):
        project = path.with_name("pyproject.toml")
        files = {each.name: _text(each) for each in (lock, project)}
        _refuse_local(files[lock.name], lock, r'^source = \{ (?:directory|path|editable) = "(?!\.")(.*?)"')
        if system_site:
            raise UsageError(
                f"--system-site-packages: {lock} says of all packages which ones", "leave it out"
            )
        return Requirements("lock", lock.name, files)
    if path.name == "pyproject.toml":
        text = _text(path)
        _refuse_local(text, path, r'^[^#\n]*\{[^}\n]*\bpath\s*=\s*"(.*?)"')
        return Requirements("project", path.name, {path.name: text}, system_site)
    found: dict[Path, tuple[str, str]] = {}
    _include(path, path, found)
    if sum(len(text) for _, text in found.values()) > LARGEST:
        raise UsageError(f"{path}: more than {LARGEST // 1024**2} MiB with what it includes")
    return Requirements("pip", path.name, dict(found.values()), system_site)


def behind(needed: Requirements) -> str:
    """Say that uv.lock is older than the dependencies in pyproject.toml; "" if it is not, or if that is not certain.

    The hosts install what uv.lock says: to bring it up to date takes a package index.
    """
    if needed.kind != "lock" or sys.version_info < (3, 11):
        return ""
    import tomllib

    try:
        project = tomllib.loads(needed.files["pyproject.toml"])["project"]
        packages = tomllib.loads(needed.files["uv.lock"])["package"]
        mine = next(each for each in packages if "." in each["source"].values())
        locked = [
            each for each in mine["metadata"]["requires-dist"] if "extra ==" not in each.get("marker", "")
        ]
        there = _clauses((each["name"], each.get("specifier", "")) for each in locked)
        asked = [
            re.match(r"\s*([\w.-]+)\s*(?:\[[^]]*\])?\s*([^;@]*)", each) for each in project["dependencies"]
        ]
        wanted = _clauses((each[1], each[2]) for each in asked if each)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return ""
    changed = [name for name in {**wanted, **there} if wanted.get(name) != there.get(name)]
    if not changed:
        return ""
    name = changed[0]
    now = f"{name}{','.join(sorted(wanted[name]))}" if name in wanted else f"no {name}"
    more = f", and {len(changed) - 1} more" if changed[1:] else ""
    return (
        f"uv.lock is older than pyproject.toml, which now asks for {now}{more}: the hosts install what uv.lock says; "
        "`uv lock` brings it up to date"
    )


def _clauses(requirements: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The clauses of the versions that are wanted (`>=2`, `<3`), by the name of the package."""
    found: dict[str, set[str]] = {}
    for name, specifier in requirements:
        clauses = re.sub(r"[\s()]", "", specifier).split(",")
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).update(filter(None, clauses))
    return found


def _text(path: Path) -> str:
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise no_such_file("--requirements", path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--requirements {path}: cannot be read: {error}") from None
    if len(text) > LARGEST:
        raise UsageError(f"--requirements {path}: is larger than {LARGEST // 1024**2} MiB")
    return text


def _refuse_local(text: str, path: Path, pattern: str) -> None:
    if local := re.search(pattern, text, re.MULTILINE):
        raise _only_here(path, text.count("\n", 0, local.start()) + 1, local[1])


def _only_here(path: Path, line: int, what: str) -> UsageError:
    return UsageError(
        f"{path}:{line}: {what} is on this machine, and the hosts do not have it",
        "code of your own is shipped with the program (--code-dir); a package can be on an index, or in a directory "
        "of every host that --find-links names",
    )


def _include(path: Path, top: Path, found: dict[Path, tuple[str, str]]) -> str:
    """Read a file and those that it includes; returns the name that it goes by on the hosts."""
    key = path.resolve()
    if key in found:
        return found[key][0]
    name = path.name if path is top else f"{len(found)}-{path.name}"
    found[key] = (name, "")  # files may include each other
    lines = [_line(line, number, path, top, found) for number, line in _logical_lines(_text(path))]
    found[key] = (name, "".join(f"{line}\n" for line in lines))
    return name


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) without comments, lines that a backslash joins as one: as pip reads them."""
    began, held = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        began = began if held else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            held += line[:-1]
            continue
        whole, held = held + line, ""
        if whole := re.sub(r"(^|\s+)#.*$", "", whole).strip():
            yield began, whole
    if held.strip():
        yield began, held.strip()


def _line(line: str, number: int, path: Path, top: Path, found: dict[Path, tuple[str, str]]) -> str:
    option = re.fullmatch(
        r"(-r|-c|-e|-f|--requirement|--constraint|--editable|--find-links)(?:\s*=\s*|\s+|(?<=^-[rcef]))(.+)",
        line,
    )
    if option is None:
        target = re.sub(r"^[\w.-]+(\[.*?\])?\s*@\s*", "", line)  # name @ file:...
        if target.startswith(("./", "../", "file:.")) or (
            re.match(r"\S+\.(whl|zip|tar\.gz|tgz)(\s|\[|$)", target) and not re.match(r"/|[\w+]+:/", target)
        ):
            raise _only_here(path, number, line)
        return line
    word, value = option.groups()
    if re.match(r"[\w+]+:/", value) or (word in ("-f", "--find-links") and value.startswith("/")):
        return line
    if word in ("-e", "--editable", "-f", "--find-links"):
        raise _only_here(path, number, value)
    included = path.parent / value.strip("\"'")
    if not included.is_file():
        raise UsageError(f"{path}:{number}: {word} {value}: there is no such file")
    return f"{word} {_include(included, top, found)}"
