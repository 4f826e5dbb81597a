"""Words that other launchers want before the program: `-np 4 -H a,b -x NAME python`; and what tflaunch has for them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.cli.trainer_words import Line, Word, hosts_and_trainer, shell_command
from tflaunch.inputs.engine_words import names_hosts
from tflaunch.inputs.kinds import HOST_NAME, kind_of
from tflaunch.protocol.errors import TflaunchError, UsageError

# Those before the program start it; tflaunch does so itself.
_PYTHON = re.compile(r"(.*/)?(python|pypy)[0-9.]*")
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")
_LAUNCHERS = ("torchrun", "mpirun", "mpiexec", "horovodrun", "deepspeed", "accelerate", "srun")
_OF_PYTHON = {"-O": "PYTHONOPTIMIZE=1", "-B": "PYTHONDONTWRITEBYTECODE=1"}

_HOSTS = "HOSTS stand by themselves, before the trainer"
_SET_HERE = "tflaunch sees to that itself"


class _Meaning(NamedTuple):
    """An option of other launchers: how many words follow it, and what they are."""

    values: int
    what: str  # hosts, tasks, each (tasks of a host), env, or a sentence for what is left out


_OPTIONS = {
    **dict.fromkeys(
        ("--hosts", "--host", "--hostfile", "--machinefile", "-H", "-hostfile", "-host", "-machinefile", "-f"),
        _Meaning(1, "hosts"),
    ),
    **dict.fromkeys(
        ("-np", "-n", "--np", "--n", "--ntasks", "--num_proc", "--num-proc", "--num_processes"),
        _Meaning(1, "tasks"),
    ),
    **dict.fromkeys(
        (
            "--nproc_per_node", "--nproc-per-node", "-npernode", "--npernode", "-ppn", "--ppn", "-N",
            "--ntasks-per-node", "--num_gpus", "--num-gpus",
        ),
        _Meaning(1, "each"),
    ),
    **dict.fromkeys(("-x", "-genv", "--genv"), _Meaning(1, "env")),
    **dict.fromkeys(
        ("--nnodes", "-nnodes", "--nodes", "--num_nodes", "--num-nodes", "--num_machines"),
        _Meaning(1, "HOSTS say how many there are"),
    ),
    **dict.fromkeys(
        (
            "--node_rank", "--node-rank", "--machine_rank", "--master_addr", "--master-addr", "--master_port",
            "--master-port", "--rdzv_backend", "--rdzv-backend", "--rdzv_endpoint", "--rdzv-endpoint", "--rdzv_id",
            "--rdzv-id", "--main_process_ip", "--main_process_port", "--launcher", "--map-by", "-map-by",
            "--bind-to", "-bind-to", "--rank-by",
        ),
        _Meaning(1, _SET_HERE),
    ),
    **dict.fromkeys(("--mca", "-mca"), _Meaning(2, _SET_HERE)),
    **dict.fromkeys(
        ("--allow-run-as-root", "--oversubscribe", "--standalone", "--tag-output", "--multi_gpu", "--gloo", "--mpi"),
        _Meaning(0, _SET_HERE),
    ),
}  # fmt: skip


def as_here(verb: str, line: Line, known: Collection[str]) -> Line:
    """Return the line without a `python` or `bash` that stands before the program; `known` are the verb's options.

    Raises UsageError, with the whole command in tflaunch's words, where other launchers' words stand before the
    program.  Behind it they are the program's own.
    """
    place = _place_of_program(line)
    if place is None:
        only_hosts = all(kind_of(word) == "hosts" for word in line.plain)
        return Line(line.words, _started(line.after)) if line.after and only_hosts else line
    found = _Found(known, line.options)
    found.read(list(line.words[:place]))
    hosts = found.joined_hosts()
    first = [Word((hosts,), "plain")] if hosts else []
    made = [Word((each,), "option") for each in found.made_options(hosts)]
    program, *behind = line.words[place:]
    ours = Line((*first, program, *found.kept, *made, *behind), line.after)
    return _refuse(verb, ours, found.facts) if found.facts else ours


def hosts_behind(verb: str, line: Line, option: str) -> UsageError | None:
    """Return the error for `trainer.py --hosts hosts.yaml`; None for other options."""
    name, _, value = option.partition("=")
    if (meaning := _OPTIONS.get(name)) is None or meaning.what != "hosts":
        return None
    texts = [text for word in line.words if word.kind != "option" for text in word.texts]
    place = texts.index(option)
    before, behind = texts[:place], texts[place + 1 :]
    if not value and behind:
        value = behind.pop(0)
    # What the option names stands in place of hosts that stand there already.
    others = [*(each for each in before if each != value and kind_of(each) != "hosts"), *behind]
    return UsageError(
        f"tflaunch {verb} has no option {name}: {_HOSTS}",
        shell_command(verb, [value or "hosts.yaml", *others, *line.options], line.after),
    )


def _started(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command from its program on: without `python -u`, `bash`, `torchrun`."""
    rest = list(words)
    while rest and (_starts(rest[0]) or rest[0] == "-u"):
        rest.pop(0)
    return tuple(rest if rest and kind_of(rest[0]) in ("program", "job") else words)


def _starts(word: str) -> bool:
    return (bool(_PYTHON.fullmatch(word)) and not names_hosts(word)) or word in _SHELLS or word in _LAUNCHERS


def _place_of_program(line: Line) -> int | None:
    """Return which word is the program: a file, or one that its name calls a program, or what a shell is to run."""
    for number, word in enumerate(line.words):
        text = word.texts[0]
        if word.kind == "plain" and kind_of(text) in ("program", "job"):
            return number
        if text in ("-m", "--module") or text.startswith("--module="):
            return number
        before = line.words[number - 1].texts[0] if number else ""
        if word.kind == "plain" and _starts(before) and Path(text).is_file():
            return number
    return None


class _Found:
    """What stands before the program, sorted: words that stay, hosts, options in tflaunch's words."""

    def __init__(self, known: Collection[str], given: Collection[str]) -> None:
        self.kept: list[Word] = []
        self.facts: list[tuple[str, str]] = []  # word, what is to be known of it
        self._known = known
        self._given = {word.partition("=")[0] for word in given}
        self._hosts: list[str] = []
        self._options: list[str] = []
        self._each: tuple[str, str] | None = None

    def read(self, words: list[Word]) -> None:
        python = False
        while words:
            word = words.pop(0)
            name, equals, value = word.texts[0].partition("=")
            if word.kind == "plain":
                python = self._plain(word.texts[0]) or python
            elif python and name in ("-u", *_OF_PYTHON):  # the tasks' output is never held back
                if name != "-u":
                    self._say(name, f"that is --env {_OF_PYTHON[name]} here", "--env", _OF_PYTHON[name])
                words[:0] = [Word((text,), "plain") for text in word.texts[1:]]
            elif word.kind == "unknown" and self._is_known(name):
                given = [value] if equals else []
                rest = [*word.texts[1:]]
                wanted = _OPTIONS[name].values
                while len(given) < wanted and (rest or (words and words[0].kind == "plain")):
                    given.append(rest.pop(0) if rest else words.pop(0).texts[0])
                words[:0] = [Word((text,), "plain") for text in rest]
                self._option(name, given)
            else:
                self.kept.append(word)

    def _is_known(self, name: str) -> bool:
        meaning = _OPTIONS.get(name)
        return meaning is not None and (meaning.what not in ("tasks", "each") or "--workers" in self._known)

    def _say(self, word: str, fact: str, *options: str) -> None:
        self.facts.append((word, fact))
        self._options += options

    def _plain(self, word: str) -> bool:
        """Take a word that is no option; return whether it is a Python."""
        if Path(word).is_file() or not _starts(word):
            self._hosts.append(word)
            return False
        if word in _LAUNCHERS:
            self.facts.append((word, "tflaunch starts the tasks itself"))
        elif word not in (*_SHELLS, "python", "python3"):
            self.facts.append((word, "the hostfile's `python:` says which Python the hosts use"))
        return word not in _SHELLS

    def _option(self, name: str, given: list[str]) -> None:
        what = _OPTIONS[name].what
        said = " ".join((name, *given))
        value = given[0] if given else ""
        if what == "hosts":
            self._hosts = [each for each in self._hosts if kind_of(each) != "hosts" and each != value]
            self._hosts.append(value or "hosts.yaml")
            self.facts.append((name, _HOSTS))
        elif what == "tasks":
            self._workers(said, value, "")
        elif what == "each":
            self._each = (said, value)
        elif what == "env":
            self._say(said, f"that is --env {value.partition('=')[0]} here", "--env", value or "NAME=VALUE")
        else:
            self.facts.append((said, what))

    def _workers(self, said: str, count: str, how: str) -> None:
        if not re.fullmatch("[0-9]+", count):  # `auto`, `gpu`
            self.facts.append((said, "one worker for each free GPU starts by itself"))
            return
        options = ["--workers", count] + ([] if "--ps" in self._given else ["--ps", "0"])
        self._say(said, f"that is {' '.join(options)} here{how}", *options)

    def joined_hosts(self) -> str:
        """Return the hosts as one word; "" for none."""
        words = self._hosts
        if len(words) < 2 or not all(map(_like_host, words)):
            self.kept[:0] = [Word((word,), "plain") for word in words[1:]]
            return words[0] if words else ""
        if Path(words[0]).is_file():
            only = ",".join(words[1:])
            self._say(only, f"only these hosts of {words[0]}: that is --include", "--include", only)
            return words[0]
        self.facts.append((" ".join(words), "several hosts are one word, with commas between them"))
        return ",".join(words)

    def made_options(self, hosts: str) -> list[str]:
        """Return the options in tflaunch's words; `hosts` is the word for HOSTS."""
        if self._each is not None:
            said, each = self._each
            count = _count_of(hosts)
            number = str(int(each) * count) if re.fullmatch(r"[0-9]{1,9}", each) else each
            self._workers(said, number, f", {each} on each of {count} hosts" if count > 1 else "")
        return self._options


def _like_host(word: str) -> bool:
    return (
        bool(HOST_NAME.fullmatch(word))
        or kind_of(word) == "hosts"
        or re.fullmatch(r"[0-9.]{7,}", word) is not None
    )


def _count_of(hosts: str) -> int:
    """Return how many hosts that word names; 1 if that cannot be said."""
    from tflaunch.api.requests.which_hosts import load_hosts

    try:
        return len(load_hosts(hosts or None).hosts)
    except TflaunchError:
        return 1


def _refuse(verb: str, line: Line, facts: Sequence[tuple[str, str]]) -> Line:
    """Raise UsageError with what was found, and with the command as tflaunch takes it."""
    texts = [text for word in line.words for text in word.texts]
    corrected = shell_command(verb, texts, line.after)
    module = next((word.texts[-1] for word in line.words if word.texts[0] in ("-m", "--module")), None)
    try:
        hosts_and_trainer(verb, line, module)
    except UsageError as more:  # arguments of the trainer without -- before them
        if (more.hint or "").startswith("tflaunch "):
            corrected = str(more.hint)
    by_fact: dict[str, list[str]] = {}
    for word, fact in facts:
        by_fact.setdefault(fact, []).append(word)
    told = "; ".join(f"{', '.join(words)}: {fact}" for fact, words in by_fact.items())
    lacks = f"tflaunch {verb} has no option " if told.startswith("-") else ""
    raise UsageError(lacks + told, corrected)


def joined(words: Sequence[str], hosts: str, more: str, choose: str = "") -> str:
    """Return the command `words` with the hosts in one word, where `more` (`b c`) stood behind `hosts`; "" if unclear.

    choose: the verb's option that chooses hosts of a hostfile; "" for none.
    """
    extra = shlex.split(more)
    rest = list(words)
    for each in reversed(extra):
        if each not in rest:
            return ""
        del rest[len(rest) - 1 - rest[::-1].index(each)]
    if not hosts or not all(map(_like_host, (hosts, *extra))) or any(Path(each).is_file() for each in extra):
        return ""
    if Path(hosts).is_file():
        return shlex.join(["tflaunch", *rest, choose, ",".join(extra)]) if choose else ""
    for number, word in enumerate(rest):
        if word == hosts or word.endswith(f"={hosts}"):
            rest[number] = ",".join((word, *extra))
            return shlex.join(["tflaunch", *rest])
    return ""


def hosts_by_option(option: str, words: Sequence[str], instead: str = "") -> str:
    """Return the command `words` (verb first) with HOSTS where the verb takes them; "" if `option` names no hosts.

    instead: the verb's own option for hosts; "" where they stand by themselves.
    """
    meaning = _OPTIONS.get(option)
    if meaning is None or meaning.what != "hosts":
        return ""
    rest = list(words)
    for number, word in enumerate(rest):
        name, equals, value = word.partition("=")
        if name == option:
            del rest[number]
            if not equals:
                value = rest.pop(number) if number < len(rest) else "hosts.yaml"
            own = [instead] if instead else []
            return shlex.join(["tflaunch", *rest[:1], *own, value, *rest[1:]])
    return ""
