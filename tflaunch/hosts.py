"""The hostfile: which hosts there are and how to reach and use each; no network is touched here.

`load` takes a YAML hostfile (inputs/hostfile_model.py lists its keys), a plain one as MPI, DeepSpeed and Horovod use,
a list of hosts, `pbs:` (or `slurm:`, by SSH) for the nodes of the batch job that tflaunch runs in, or slots of an
engine (tflaunch.inputs.engine_words), which become hosts once the engine has given them.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tflaunch.inputs import engine_words, hostnames
from tflaunch.inputs.config import users_directory
from tflaunch.inputs.documents import PlacedText, read_file
from tflaunch.inputs.engine_words import SlotGroup
from tflaunch.inputs.hostnames import expand, fold
from tflaunch.inputs.ownership import planted
from tflaunch.protocol.errors import HostfileError, Problem, UsageError
from tflaunch.text.numbers import agreeing

_MOST_SLOTS = 256  # behind a colon; what is above is meant as a port, and so is 22

if TYPE_CHECKING:
    from tflaunch.inputs.batch_job import Allotted
    from tflaunch.inputs.engine_words import WantedSlots

__all__ = ["Host", "Hostfile", "expand", "find_default", "fold", "listed", "load", "match"]


@dataclass(frozen=True)
class Host:
    """One host of the hostfile, `defaults` and group settings already folded in.  None: the hostfile does not say."""

    name: str  # unique; what messages and patterns use
    connection: str = "ssh"  # ssh, openssh, local, or the word of an engine, which only the engine sets
    ssh_host: str = ""  # what SSH looks up in ~/.ssh/config (the name, unless the hostfile says otherwise)
    address: str | None = None  # what TensorFlow peers dial
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    python: str | None = None  # the interpreter of the tasks
    setup: tuple[str, ...] = ()  # shell text run before a task, in the task's own shell
    conda: str | None = None  # a conda environment, by its name or its directory, activated after `setup`
    venv: str | None = None  # the directory of a virtual environment, activated after those
    container: str | None = None  # the image that tasks run in
    mounts: tuple[str, ...] = ()  # SOURCE[:TARGET[:ro]]: what of the host is in the container
    workdir: str | None = None  # absolute directory on the host to run in, instead of shipped code
    run_dir: str | None = None  # holds tflaunch-<uid>/, the run directories (default /var/tmp)
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: Literal["auto"] | int | tuple[int | str, ...] = "auto"  # auto | count | labels or UUIDs | 0
    slots: int | None = None  # most workers that may run here (`slots=4` of an MPI hostfile)
    ports: tuple[int, int] | None = None  # first and last of the range that tasks may use, inclusive
    labels: Mapping[str, str] = field(default_factory=dict)
    # Where a batch job gives those slots: the variable and its value, as SLURM_TASKS_PER_NODE=2.
    slots_by: str = ""
    gpus_by: str = ""  # likewise, for `gpus`
    # Where an engine's slot is and what opens it: enough for every command of this user, from any terminal.
    slot: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has a secret in it


@dataclass(frozen=True)
class Hostfile:
    """Hosts in the order of the file; `source` is what messages call it."""

    source: str
    hosts: tuple[Host, ...]
    notes: tuple[str, ...] = ()  # what was read otherwise than the user may have meant it
    # The slots that an engine is to give: until it has, each of `hosts` stands for one of them.
    wanted: WantedSlots | None = None


def find_default(
    environ: Mapping[str, str], cwd: str | os.PathLike[str], *, users: bool = True
) -> str | None:
    """The HOSTS argument when the user gives none; None where there is no default.

    It is the first that exists: `$TFLAUNCH_HOSTS` (taken as it is), `hosts.yaml` in `cwd`, `tflaunch/hosts.yaml` in
    `$XDG_CONFIG_HOME` or `~/.config`, which does not count without `users`.  Raises UsageError for a file that
    another user (root aside) may have written: a hostfile decides where code and secrets go, and the user has not named
    this one.
    """
    if source := environ.get("TFLAUNCH_HOSTS"):
        return source
    own = [users_directory(environ) / "hosts.yaml"] if users else []
    for path in (Path(cwd) / "hosts.yaml", *own):
        try:
            if not path.is_file():
                continue
            reason = planted(path)
        except OSError:  # this user may not look at it
            continue
        if reason:
            named = shlex.quote(str(path))
            raise UsageError(
                f"{path} does not count as the default hostfile: {reason}",
                f"read it, then name it ({named}), or make file and directory yours alone (chown, chmod go-w)",
            )
        return str(path)
    return None


def load(source: str, *, environ: Mapping[str, str] = os.environ, connection: str = "") -> Hostfile:
    """The hosts that `source` names, in its order.

    `connection` (ssh, openssh) is the way to connect to hosts whose entry names none; if it is empty,
    TFLAUNCH_CONNECTION in `environ` counts, else it is ssh.  `pbs:`, and `slurm:` where a way to connect is named, are
    read from `environ`: the hosts of the batch job, with the tasks and GPUs that it has on each
    (tflaunch.inputs.batch_job).  Else `slurm:` are slots that Slurm gives.

    Anything that can be opened is a file: YAML, unless its first line is that of a plain hostfile (`host`,
    `host:4`, `host slots=4`).  What is no file is a list such as `gpu[01-04]:2,me@big:8` (`:N` is the number of
    slots; 22 and all above 256 are SSH's port, and a note says so), unless it looks like the path of a missing
    file: it has a `/`, a suffix such as `.yaml` or `.txt`, or ends in `hosts` or `hostfile`.

    `localhost` in a list or in a plain hostfile is this machine without SSH (`connection: local`); in YAML
    the key says so.  A name that stands n times on bare lines of a plain hostfile has n slots.  Private keys
    that `identity_file:` names must exist, for OpenSSH and paramiko would silently try others.

    Raises HostfileError with every problem that was found, UsageError for an unknown `connection`.
    """
    by_ssh = bool(connection or environ.get("TFLAUNCH_CONNECTION"))
    connection = _connection(connection, environ)
    if source == "slurm:" and by_ssh:
        return _of_slurm(environ, connection)
    if engine_words.engine_of(source, environ):
        return _of_engine(source)
    if source == "pbs:":
        return _of_pbs(environ, connection)
    text = _open(source)
    if _like_python(source, text):
        hint = f"HOSTS comes first: tflaunch run hosts.yaml {shlex.quote(source)}"
        raise _error(source, "is a Python file, not the hosts", hint)
    if text is None:
        if _like_a_path(source):
            hint = "Name a hostfile that is there, or the hosts themselves: gpu01,gpu02"
            raise _error(source, "no such file", hint)
        return listed(source, environ=environ, connection=connection)
    hosts = _Hosts(source, connection)
    if _like_plain(text):
        _read_plain(text, hosts)
        hint = "It was read as a plain hostfile (host slots=4); a YAML one begins with `hosts:` or `- `."
        return hosts.hostfile(source, hint)
    from tflaunch.inputs import hostfile_yaml
    from tflaunch.inputs.hostfile_entries import SlotEntries

    entries, hosts.problems = hostfile_yaml.read(text, source, _path(source).absolute().parent)
    if isinstance(entries, SlotEntries):
        if hosts.problems:
            raise HostfileError(hosts.problems)
        return slots(*entries, source)
    for entry in entries:
        hosts.add(*entry)
    return hosts.hostfile(source)


def _of_engine(word: str) -> Hostfile:
    """The slots that a word such as `slurm:4x8` names."""
    try:
        return slots(engine_words.wanted(word), {}, word)
    except engine_words.WrongSlots as error:
        column = error.at.column if isinstance(error.at, PlacedText) else 1
        raise HostfileError([Problem(word, 1, column, str(error))]) from None


def slot_identity(host: Host) -> object:
    """What names a slot: its engine and `id` there, else all that is known of it."""
    return host.connection, host.slot.get("id") or tuple(sorted(host.slot.items()))


def slots(wanted: WantedSlots, settings: Mapping[str, Any], source: str) -> Hostfile:
    """A hostfile of slots that are still to be given; `settings` are those of every host.

    One host stands for all slots where it is not said how many.
    """
    hosts: list[Host] = []
    for group in wanted.groups or (SlotGroup(1),):
        labels = {**settings.get("labels", {}), **({"role": group.role} if group.role else {})}
        said = {**settings, "gpus": group.gpus, "labels": labels, "connection": wanted.engine}
        first = len(hosts) + 1
        hosts += [_host(f"slot{number}", said) for number in range(first, first + group.count)]
    return Hostfile(source, tuple(hosts), wanted=wanted)


def _of_slurm(environ: Mapping[str, str], connection: str) -> Hostfile:
    """The nodes of the Slurm job that this process is part of, each with what the job has there."""
    from tflaunch.inputs import batch_job

    nodes = batch_job.slurm_nodes(environ)
    if not nodes:
        hint = "Run this inside a job: salloc, sbatch or srun."
        raise _error("slurm", "SLURM_JOB_NODELIST is not set", hint)
    hosts = _Hosts("slurm", connection)
    _read_list(nodes, hosts)
    hostfile = hosts.hostfile("slurm")
    names = [host.name for host in hostfile.hosts]
    try:
        return _given_by_job(hostfile, dict(zip(names, batch_job.slurm(environ, names), strict=True)))
    except ValueError as error:
        hint = "Run this inside the job whose nodes these are, or name the hosts."
        raise _error("slurm", str(error), hint) from None


def _of_pbs(environ: Mapping[str, str], connection: str) -> Hostfile:
    """The nodes of the PBS job that this process is part of, each with what the job has there."""
    from tflaunch.inputs import batch_job

    path = environ.get("PBS_NODEFILE")
    if not path:
        raise _error("pbs", "PBS_NODEFILE is not set", "Run this inside a job: qsub or qsub -I.")
    text = _open(path)
    if text is None:
        hint = "Run this on the first node of the job."
        raise _error(path, "no such file; PBS_NODEFILE names it", hint)
    hosts = _Hosts(path, connection)
    _read_plain(text, hosts, count_single=True)
    hostfile = hosts.hostfile("pbs")
    slots = {host.name: host.slots for host in hostfile.hosts}
    gpu_file = environ.get("PBS_GPUFILE")
    return _given_by_job(hostfile, batch_job.pbs(environ, slots, _open(gpu_file) if gpu_file else None))


def listed(names: str, *, environ: Mapping[str, str] = os.environ, connection: str = "") -> Hostfile:
    """The hosts of a list such as `gpu[01-04]:2,me@big`, even if a file has that name; otherwise as `load`."""
    hosts = _Hosts("<inline>", _connection(connection, environ))
    _read_list(names, hosts)
    return hosts.hostfile("<inline>")


def _connection(connection: str, environ: Mapping[str, str]) -> str:
    named = "--connection" if connection else "TFLAUNCH_CONNECTION"
    connection = connection or environ.get("TFLAUNCH_CONNECTION", "") or "ssh"
    if connection not in ("ssh", "openssh"):
        raise UsageError(f"{named} {connection[:60]!r} is not ssh or openssh")
    return connection


def match(pattern: str, hostfile: Hostfile) -> list[Host]:
    """The hosts that `pattern` selects, in its order, each once.

    Terms are names or ranges (`gpu[01-04]`), globs (`gpu*`) and labels (`rack=b`, also `@rack=b`), joined as
    in ClusterShell, from left to right: `,` adds, `!` takes away, `&` keeps what is in both, `^` what is in
    exactly one.  Raises UsageError when a term or the whole selects no host, and for a name that no host has.
    """
    chosen: dict[str, Host] = {}
    for operator, term, _ in hostnames.split(pattern, ",!&^"):
        found = _select(term.strip(), hostfile)
        if operator == "!":
            chosen = {name: host for name, host in chosen.items() if name not in found}
        elif operator == "&":
            chosen = {name: host for name, host in chosen.items() if name in found}
        elif operator == "^":
            both = chosen.keys() & found.keys()
            chosen = {name: host for name, host in {**chosen, **found}.items() if name not in both}
        else:
            chosen.update(found)
    if not chosen:
        raise UsageError(f"{pattern!r} selects no host", _choices(hostfile))
    return list(chosen.values())


def _given_by_job(hostfile: Hostfile, given: Mapping[str, Allotted]) -> Hostfile:
    """Return the hosts with the slots and GPUs that the batch job has on each."""

    def limited(host: Host) -> Host:
        mine = given[host.name]
        slots, slots_by = (host.slots, "") if mine.slots is None else (mine.slots, mine.slots_by)
        gpus, gpus_by = (host.gpus, "") if mine.gpus is None else (mine.gpus, mine.gpus_by)
        return replace(host, slots=slots, gpus=gpus, slots_by=slots_by, gpus_by=gpus_by)

    return replace(hostfile, hosts=tuple(map(limited, hostfile.hosts)))


def _select(term: str, hostfile: Hostfile) -> dict[str, Host]:
    accepts: Callable[[Host], bool]
    if "=" in term:
        key, _, value = term.removeprefix("@").partition("=")

        def accepts(host: Host) -> bool:
            return key in host.labels and fnmatch.fnmatchcase(host.labels[key], value)

    elif "*" in term or "?" in term:
        globs = expand(term, also="*?")

        def accepts(host: Host) -> bool:
            return any(fnmatch.fnmatchcase(host.name, glob) for glob in globs)

    else:
        known = {host.name: host for host in hostfile.hosts}
        names = expand(term)
        missing = [name for name in names if name not in known]
        if missing:
            raise UsageError(f"{hostfile.source} has no host {fold(missing)}", _choices(hostfile))
        return {name: known[name] for name in names}
    found = {host.name: host for host in hostfile.hosts if accepts(host)}
    if not found:
        raise UsageError(f"{term!r} selects no host of {hostfile.source}", _choices(hostfile))
    return found


def _choices(hostfile: Hostfile) -> str:
    labels = sorted({f"{key}={value}" for host in hostfile.hosts for key, value in host.labels.items()})
    names = f"Its hosts are {fold(host.name for host in hostfile.hosts)}"
    return f"{names}; its labels {', '.join(labels)}." if labels else f"{names}."


class _Hosts:
    """Collects the hosts of a hostfile of any form, and the problems found in it."""

    def __init__(self, where: str, connection: str) -> None:
        self.where = where
        self._connection = connection  # for entries that name none
        self.problems: list[Problem] = []
        self._hosts: dict[str, Host] = {}
        self._entries: dict[str, PlacedText] = {}  # host -> the name or range that brought it
        self._machines: dict[tuple[str, int | None, str | None], str] = {}  # what SSH would dial -> host
        self._with_port: list[str] = []  # words such as `gpu01:2222`
        self._count = 0

    def report(self, at: PlacedText, message: str) -> None:
        self.problems.append(Problem(self.where, at.line, at.column, message))

    def note_port(self, word: PlacedText) -> None:
        """Note that the number of `gpu01:2222` was read as a port."""
        self._with_port.append(str(word))

    def add(self, name: PlacedText, settings: Mapping[str, Any]) -> None:
        """Add the hosts of one name or range; the caller has checked it and the ranges in its settings."""
        size = hostnames.check(name)
        if self._count + size > hostnames.MOST_HOSTS:
            most = f"at most {hostnames.MOST_HOSTS:,} are allowed in all"
            self.report(name, f"{str(name)!r} makes {self._count + size:,} hosts; {most}")
            return
        self._count += size
        names = expand(name)
        each: dict[str, list[str]] = {}  # ranges in `ssh` and `address` go along with the range of names
        for key in ("ssh", "address"):
            pattern = settings.get(key, "")
            if "[" in pattern:
                machines = hostnames.check(pattern)
                each[key] = expand(pattern) if machines == size else []
                if len(each[key]) != len(names):
                    count = f"stands for {machines} machines, and {str(name)!r} for {size}"
                    self.report(pattern, f"{key}: {str(pattern)!r} {count}; write ranges of one size")
                    return
        repeated: dict[PlacedText, list[str]] = {}
        for index, host in enumerate(names):
            if host in self._hosts:
                repeated.setdefault(self._entries[host], []).append(host)
                continue
            own = {
                "connection": self._connection,
                **settings,
                **{key: values[index] for key, values in each.items()},
            }
            self._entries[host] = name
            self._hosts[host] = _host(host, own)
            self._check_machine(self._hosts[host])
            self._check_key(own)
        for first, again in repeated.items():
            if (port := settings.get("port")) and self._hosts[again[0]].port not in (None, port):
                entry = f"{{name: a, ssh: {again[0]}, port: {port}}}"
                self.report(
                    name, f"{again[0]} has several ports; in a YAML hostfile each has a name: {entry}"
                )
                continue
            verb = agreeing(len(again), "is", "are")
            self.report(name, f"{fold(again)} {verb} listed twice; first at {_place(first)}")

    def _check_machine(self, host: Host) -> None:
        """Report two names for one machine, as SSH dials it: their tasks would take each other's ports and GPUs."""
        if host.connection == "local":
            return
        machine = (host.ssh_host.lower(), host.port, host.user)
        first = self._machines.setdefault(machine, host.name)
        if first == host.name:
            return
        here, there = self._entries[host.name], self._entries[first]
        if here is there:
            said = f"{str(here)!r} are several hosts, and `ssh: {host.ssh_host}` is one; write it as a range"
            if not any(problem.message == said for problem in self.problems):
                self.report(here, said)
            return
        as_user = f", user {host.user}" if host.user else ""
        on_port = f", port {host.port}" if host.port else ""
        machine_said = f"(ssh {host.ssh_host}{on_port}{as_user})"
        self.report(here, f"{host.name} is the same machine as {first} at {_place(there)} {machine_said}")

    def _check_key(self, settings: Mapping[str, Any]) -> None:
        key = settings.get("identity_file")
        if key is None or settings.get("connection") == "local" or "%" in key:  # ssh fills in %h and the like
            return
        if not os.path.isfile(key):  # noqa: PTH113  Path.is_file may raise
            said = f"identity_file: there is no file {str(key)!r} on this machine"
            if Problem(self.where, key.line, key.column, said) not in self.problems:  # a range, or defaults
                self.report(key, said)

    def hostfile(self, source: str, hint: str = "") -> Hostfile:
        """Return the hosts that were collected; raises HostfileError with all problems, if there are any."""
        if not self._hosts and not self.problems:
            self.problems.append(Problem(self.where, 0, 0, "names no host; list at least one"))
        if self.problems:
            raise HostfileError(
                sorted(self.problems, key=lambda problem: (problem.line, problem.column)), hint
            )
        return Hostfile(source, tuple(self._hosts.values()), self._notes())

    def _notes(self) -> tuple[str, ...]:
        if not (words := self._with_port):
            return ()
        shown = ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
        numbers = agreeing(len(words), "number is", "numbers are")
        return (f"{shown}: the {numbers} read as SSH's port, not as slots",)


def _host(name: str, settings: Mapping[str, Any]) -> Host:
    said: dict[str, Any] = {
        key: str(value) if isinstance(value, PlacedText) else value for key, value in settings.items()
    }
    return Host(name=name, ssh_host=said.pop("ssh", name), **said)


def _place(text: PlacedText) -> str:
    return f"line {text.line}, column {text.column}"


def _error(where: str, message: str, hint: str = "") -> HostfileError:
    return HostfileError([Problem(where, 0, 0, message)], hint)


# --- the forms that are not YAML ---


def _path(source: str) -> Path:
    return Path(source).expanduser() if source.startswith("~/") else Path(source)


def _open(source: str) -> str | None:
    """The text of a hostfile, None when there is no such file; HostfileError when it cannot be read."""
    if not source:
        return None
    try:
        return read_file(_path(source), source, HostfileError)
    except IsADirectoryError:
        raise _error(
            source, "is a directory", f"Name a hostfile in it: {source.rstrip('/')}/hosts.yaml"
        ) from None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, or no encoding for it
        return None
    except OSError as error:
        if not _like_a_path(source):  # a list of hosts, longer than a file's name may be
            return None
        raise _error(source, f"cannot be read: {error.strerror}") from None


def _like_a_path(source: str) -> bool:
    """Whether `source`, which is no file, was most likely meant as the path of one."""
    named = (
        r"(?i)(.*[._-])?(my)?(hosts|(host|machine|node)_?(file|list)s?)(\.\w+)?"
        r"|.*\.(ya?ml|txt|json|conf|cfg|ini|toml|mpi|list)"
    )
    if source.startswith("ssh://"):
        return False
    return "/" in source or re.fullmatch(named, source, re.DOTALL) is not None


def _like_python(source: str, text: str | None) -> bool:
    """Whether the user named the program in place of the hosts; `gpu01.lab.py` is a host: .py is Paraguay's domain."""
    if text is None:
        return re.fullmatch(r"(.*/)?[\w-]+\.py", source) is not None
    begins = r"(#.*\n|\s)*(import \w[\w., ]*|from \w[\w.]* import .*)(\n|$)"
    return (
        source.endswith(".py")
        or re.match(r"#!.*\bpython", text) is not None
        or re.match(begins, text) is not None
    )


def _like_plain(text: str) -> bool:
    """Whether the first line that is not empty or a comment begins with a host name, and is no YAML mapping."""
    for line in text.splitlines():
        said = re.sub(r"(^|\s)#.*", "", line).strip()
        if said:
            return re.match(r"[\w.]", said) is not None and re.search(r":(\s|$)", said) is None
    return False


def _read_list(text: str, hosts: _Hosts) -> None:
    """`gpu[01-04]:2,me@big`: names and ranges, with slots after a colon."""
    for _, part, offset in hostnames.split(text):
        indent = len(part) - len(part.lstrip())
        _add_word(PlacedText(part.strip(), 1, offset + indent + 1), {}, hosts)


def _read_plain(text: str, hosts: _Hosts, *, count_single: bool = False) -> None:
    """Lines of `host`, `host:4` or `host slots=4 max_slots=8`.

    A bare name that stands n times has n slots; one that stands once has 1 with `count_single`, else no limit.
    """
    words: list[tuple[PlacedText, dict[str, Any]]] = []
    bare: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = re.sub(r"(^|\s)#.*", "", line).rstrip()
        first = re.search(r"\S+", said)
        if first is None:
            continue
        word = PlacedText(first[0], number, first.start() + 1)
        rest = said[first.end() :]
        if rest.strip():
            words.append((word, _plain_settings(rest, number, first.end() + 1, hosts)))
        elif ":" in word:
            words.append((word, {}))
        else:
            if word not in bare:
                words.append((word, {}))
            bare[word] = bare.get(word, 0) + 1
    for word, settings in words:
        count = bare.get(word, 0) if not settings else 0
        slots = {"slots": count} if count > 1 or (count and count_single) else {}
        _add_word(word, {**slots, **settings}, hosts)


def _plain_settings(rest: str, number: int, column: int, hosts: _Hosts) -> dict[str, Any]:
    """`slots=4 max_slots=8`; `max_slots` counts only where `slots` is missing."""
    said: dict[str, int] = {}
    for found in re.finditer(r"([\w-]+)\s*=\s*(\S+)|\S+", rest):
        at = PlacedText(found[0], number, column + found.start())
        key = (found[1] or "").replace("-", "_")
        if key not in ("slots", "max_slots"):
            hosts.report(
                at, f"{found[0][:60]!r} is not known here; a line is `host`, `host:4` or `host slots=4`"
            )
        elif not re.fullmatch(r"[0-9]{1,5}", found[2]) or int(found[2]) > 10_000:
            hosts.report(at, f"{found[1]}: {found[2][:60]!r} is not a whole number from 0 to 10000")
        else:
            said[key] = int(found[2])
    slots = said.get("slots", said.get("max_slots"))
    return {} if slots is None else {"slots": slots}


def _add_word(word: PlacedText, settings: dict[str, Any], hosts: _Hosts) -> None:
    """Add `[user@]name[:number]`: the number is that of slots, or SSH's port if only that makes sense."""
    said = word.removeprefix("ssh://").rstrip("/")
    user, at, rest = said.rpartition("@")
    name, colon, number = rest.rpartition(":") if rest.count(":") == 1 else (rest, "", "")
    settings = dict(settings)
    if at and not re.fullmatch(r"[\w.][\w.-]*", user):
        hosts.report(word, f"{user[:60]!r} is not a user name; write user@host")
        return
    if found := re.fullmatch(
        r"\[?([0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*(?:%\w+)?)(?:\](?::([0-9]+))?)?", rest
    ):
        more = (f", user: {user}" if at else "") + (f", port: {found[2]}" if found[2] else "")
        entry = f"- {{name: h1, ssh: '{found[1]}'{more}}}"
        hosts.report(word, f"{rest[:60]!r} is an IPv6 address; it needs a name, in a YAML hostfile: {entry}")
        return
    if at:
        settings["user"] = user
    if colon:
        if not re.fullmatch(r"[0-9]{1,5}", number) or int(number) > 65535:
            hosts.report(
                word,
                f"{number[:60]!r} is not a number of slots (host:4, at most {_MOST_SLOTS}) nor SSH's port (host:2222)",
            )
            return
        if _is_port(int(number)):
            settings["port"] = int(number)
            hosts.note_port(word)
        else:
            settings["slots"] = int(number)
    if name == "localhost" and not at and "port" not in settings:
        settings["connection"] = "local"
    try:
        hostnames.check(name)
    except ValueError as error:
        hosts.report(word, f"{name[:60]!r} {error}")
        return
    hosts.add(PlacedText(name, word.line, word.column + word.index(rest)), settings)


def _is_port(number: int) -> bool:
    """Whether who writes that number behind a host's name means a port."""
    return number == 22 or number > _MOST_SLOTS
