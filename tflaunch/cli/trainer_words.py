"""Find out which words of a command line are options, HOSTS, the trainer and its arguments; correct the command."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tflaunch.inputs.kinds import HOST_NAME, Kind, kind_of
from tflaunch.protocol.errors import UsageError

# Options of mpirun, which would be read as -m with a value.
_ROLES_OF_ONE = {"--chief": "chief", "--evaluator": "evaluator"}  # options without a number
ITS_VALUE = "..."  # stands for a value that is not shown
_OF_MPIRUN = ("-mca", "-map-by", "-machinefile")


class Word(NamedTuple):
    """A word before `--`, or an option with its value."""

    texts: tuple[str, ...]
    kind: Literal["option", "unknown", "plain"]  # unknown: an option that the verb does not have


@dataclass(frozen=True)
class Line:
    """The words after a verb, in their order; `after` are those after `--`, None where there is no `--`."""

    words: tuple[Word, ...]
    after: tuple[str, ...] | None

    @classmethod
    def read(
        cls, params: Iterable[Any], optional: Mapping[str, tuple[str, str]], args: Sequence[str]
    ) -> Line:
        """Split `args` as typer will; `params` are the verb's, `optional` its `optional_values`."""
        takes = {name: not param.is_flag for param in params for name in _names(param)}
        takes |= {"--help": False, "-h": False}
        words: list[Word] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return cls(tuple(words), tuple(rest))
            name, equals, _ = word.partition("=")
            if not word.startswith("-") or word == "-":
                words.append(Word((word,), "plain"))
            elif word in optional:
                pattern = optional[word][0]
                value = [rest.pop(0)] if rest and re.fullmatch(pattern, rest[0]) else []
                words.append(Word((word, *value), "option"))
            elif name in takes:
                value = [rest.pop(0)] if takes[name] and not equals and rest else []
                words.append(Word((word, *value), "option"))
            elif word.startswith("--") or word in _OF_MPIRUN:
                words.append(Word((word,), "unknown"))
            else:
                words.append(_cluster(word, takes, rest))
        return cls(tuple(words), None)

    @property
    def plain(self) -> list[str]:
        """The words that are not options."""
        return [word.texts[0] for word in self.words if word.kind == "plain"]

    @property
    def options(self) -> list[str]:
        """The options, with their values."""
        return [text for word in self.words if word.kind == "option" for text in word.texts]

    @property
    def unknown(self) -> list[str]:
        """The options that the verb lacks."""
        return [word.texts[0] for word in self.words if word.kind == "unknown"]

    def with_values(self) -> Line:
        """Return the line with the value of each unknown option beside it: `--epochs 3 trainer.py`.

        A word behind such an option is taken for its value if it is no file, and a program comes later.
        """
        words: list[Word] = []
        programs = [kind_of(word.texts[0]) in ("program", "job") for word in self.words]
        for number, word in enumerate(self.words):
            text = word.texts[0]
            bare = bool(words) and words[-1].kind == "unknown" and "=" not in words[-1].texts[0]
            its = bare and len(words[-1].texts) == 1 and word.kind == "plain" and any(programs[number + 1 :])
            if its and not kind_of(text) and not os.path.lexists(text):
                words[-1] = Word((*words[-1].texts, text), "unknown")
            else:
                words.append(word)
        return Line(tuple(words), self.after)

    def own(self, taken: int) -> list[str]:
        """Return the trainer's words before `--`: options that the verb lacks, plain words after the first `taken`."""
        found: list[str] = []
        plain = 0
        for word in self.words:
            plain += word.kind == "plain"
            if word.kind == "unknown" or (word.kind == "plain" and plain > taken):
                found += word.texts
        return found


def _names(param: Any) -> list[str]:
    return [*param.opts, *param.secondary_opts] if param.param_type_name == "option" else []


def _cluster(word: str, takes: Mapping[str, bool], rest: list[str]) -> Word:
    """Read `-dq` or `-eNAME=1`: the first letter that takes a value takes the rest of the word."""
    for number, letter in enumerate(word[1:], 2):
        if f"-{letter}" not in takes:
            return Word((word,), "unknown")
        if takes[f"-{letter}"]:
            value = [] if number < len(word) or not rest else [rest.pop(0)]
            return Word((word, *value), "option")
    return Word((word,), "option")


def shell_command(verb: str, words: Iterable[str], after: Sequence[str] | None = None) -> str:
    """Return `tflaunch VERB ...`, quoted for a shell.

    If stderr is not a terminal, ITS_VALUE stands for the values of --env and --job-env: it may be a log.
    """
    from tflaunch.runs.hidden_values import VALUE_LEFT_OUT, without_values

    whole = ("tflaunch", verb, *words, *(("--", *after) if after else ()))
    if sys.stderr is None or not sys.stderr.isatty():
        whole = tuple(
            word if word == said else word.replace(VALUE_LEFT_OUT, ITS_VALUE)
            for word, said in zip(without_values(whole), whole, strict=True)
        )
    return shlex.join(whole)


def moved(verb: str, line: Line) -> str:
    """Return the command with the trainer's own words after `--`; "" where it is unclear which word is the trainer."""
    plain = line.plain
    module = any(text in ("-m", "--module") or text.startswith(("-m", "--module=")) for text in line.options)
    taken = 0 if module else 1
    if plain and kind_of(plain[0]) not in ("program", "job"):
        taken = min(len(plain), taken + 1)
    if not module and not plain:
        return ""
    return shell_command(verb, [*plain[:taken], *line.options], [*line.own(taken), *(line.after or ())])


class HostsAndTrainer(NamedTuple):
    """What a command line says to run, and where."""

    hosts: str | None  # None: the default hostfile
    script: str | None
    arguments: list[str]  # the trainer's own


def _no_number(verb: str, line: Line) -> None:
    """Raise UsageError for `--chief 1`, which looks as if a number of chiefs could be said so."""
    for at, (option, number) in enumerate(itertools.pairwise(line.words)):
        role = _ROLES_OF_ONE.get(option.texts[0], "")
        if role and number.kind == "plain" and re.fullmatch("[0-9]{1,4}", number.texts[0]):
            count = number.texts[0]
            written = ["--" + role] if int(count) == 1 else ["--job", f"{role}={count}"]
            before = [text for word in line.words[:at] for text in word.texts]
            behind = [text for word in line.words[at + 2 :] for text in word.texts]
            raise UsageError(
                f"--{role} {count}: --{role} takes no number",
                shell_command(verb, [*before, *written, *behind], line.after),
            )


def _no_env(verb: str, line: Line) -> None:
    """Raise UsageError for `--env A=1 B=2`, where each variable has its own --env."""
    words: list[str] = []
    without: list[str] = []
    behind = False  # what stands before is a variable
    for word in line.words:
        name, equals, _ = word.texts[0].partition("=")
        is_variable = behind and word.kind == "plain" and equals and name.isidentifier()
        if is_variable and not os.path.lexists(word.texts[0]):
            without.append(f"{name}={ITS_VALUE}")
            words.append("--env")
        else:
            behind = word.texts[0] in ("--env", "-e")
        words += word.texts
    if without:
        raise UsageError(
            f"{' '.join(without)}: no --env before {'it' if len(without) == 1 else 'them'}",
            shell_command(verb, words, line.after),
        )


def _not_in_one_word(verb: str, line: Line, module: str | None) -> None:
    """Raise UsageError for `'trainer.py --epochs 3'`, a program and its arguments in one word."""
    for number, word in enumerate(line.words):
        text = word.texts[0]
        if module is not None or word.kind != "plain" or " " not in text or os.path.lexists(text):
            continue
        try:
            program, *own = shlex.split(text)
        except ValueError:
            continue
        if own and kind_of(program) == "program":
            before, behind = (
                [each for other in part for each in other.texts]
                for part in (line.words[:number], line.words[number + 1 :])
            )
            raise UsageError(
                f"{text}: the program and its arguments are in one word",
                shell_command(verb, [*before, program, *behind], [*own, *(line.after or ())]),
            )


def hosts_and_trainer(verb: str, line: Line, module: str | None) -> HostsAndTrainer:
    """Find out which word is HOSTS and which the trainer; raises UsageError with the corrected command."""
    _no_number(verb, line)
    _no_env(verb, line)
    _not_in_one_word(verb, line, module)
    plain, after = line.plain, list(line.after or ())
    if module is not None:
        return _of_module(verb, line, plain, module)
    kinds = [kind_of(word) for word in plain[:2]]

    def corrected(*words: str, own: Sequence[str] = ()) -> str:
        return shell_command(verb, [*words, *line.options], [*own, *after])

    if not plain:
        raise _nothing_to_run(verb, line, None)
    first, *more = plain
    if len(plain) == 1:
        if kinds[0] == "hosts":
            raise _nothing_to_run(verb, line, first)
        if kinds[0] == "" and not _may_be_program(first):
            raise UsageError(
                f"{first}: there is no such program here, nor a hostfile of that name",
                f"{corrected(first, 'trainer.py')} where {first} is a host; or name a program that is there"
                if HOST_NAME.fullmatch(first) and not first.endswith((".yaml", ".yml"))
                else f"name the trainer: {corrected('trainer.py')}",
            )
        if own := line.own(1):
            raise _before_the_dashes(verb, own, first, corrected(first, own=own))
        return HostsAndTrainer(None, first, after)
    second = more[0]
    if kinds[0] in ("program", "job"):
        raise _no_hosts_first(verb, line, (first, second), (kinds[0], kinds[1]), corrected)
    if kinds[1] == "hosts" and Path(second).is_file():
        raise UsageError(
            f"{second} is a hostfile, not a program", f"name the trainer: {corrected(first, 'trainer.py')}"
        )
    if own := line.own(2):
        raise _before_the_dashes(verb, own, second, corrected(first, second, own=own))
    return HostsAndTrainer(first, second, after)


def _may_be_program(word: str) -> bool:
    """Return whether a word of unknown kind may be a program: a file here, or a path on the hosts."""
    return os.path.lexists(word) or ("/" in word and not word.endswith((".yaml", ".yml")))


def _of_module(verb: str, line: Line, plain: list[str], module: str) -> HostsAndTrainer:
    """Do what `hosts_and_trainer` does, for a command line with -m."""
    after = list(line.after or ())
    kind = kind_of(plain[0]) if plain else ""
    if kind in ("program", "job"):
        raise UsageError(
            f"-m {module} and {plain[0]} both say what to run",
            f"leave one of them out; arguments of the module go after --: "
            f"{shell_command(verb, line.options, [*line.own(0), *after])}",
        )
    is_host = bool(plain) and (kind == "hosts" or not re.fullmatch(r"[0-9.]+", plain[0]))
    if own := line.own(int(is_host)):
        words = [*plain[: int(is_host)], *line.options]
        raise _before_the_dashes(verb, own, f"-m {module}", shell_command(verb, words, [*own, *after]))
    return HostsAndTrainer(plain[0] if plain else None, None, after)


def _nothing_to_run(verb: str, line: Line, hosts: str | None) -> UsageError:
    """Return the error for a command line without a trainer."""
    after = list(line.after or ())
    named = [] if hosts is None else [hosts]
    own = line.own(len(named))
    what = f"{hosts} says where; " if hosts is not None else ""
    if after and kind_of(after[0]) in ("program", "job"):
        return UsageError(
            f"{what}nothing to run before --: the words after it are the trainer's own",
            shell_command(verb, [*named, after[0], *line.options], [*own, *after[1:]]),
        )
    return UsageError(
        f"{what}nothing to run: neither TRAINER.py nor -m PKG.MOD",
        shell_command(verb, [*named, "trainer.py", *line.options], [*own, *after]),
    )


def _no_hosts_first(
    verb: str,
    line: Line,
    words: tuple[str, str],
    kinds: tuple[Kind, Kind],
    corrected: Callable[..., str],
) -> UsageError:
    """Return the error for a program as the first word, and a second word that is not an option."""
    first, second = words
    if kinds[1] == "hosts":
        return UsageError(
            f"HOSTS come first, then what to run: {first} and {second} are swapped",
            corrected(second, first, own=line.own(2)),
        )
    if kinds[0] == "job":
        return UsageError(
            f"{first} is a job file, which names its program: {second} is too much",
            f"{corrected(first)}; arguments of the program go after --",
        )
    own = line.own(1)
    as_argument = corrected(first, own=own)
    if HOST_NAME.fullmatch(second) and kinds[1] == "" and not os.path.lexists(second):
        return UsageError(
            f"{first} is a program, and {second} stands after it",
            f"{corrected(second, first, own=line.own(2))}   if {second} is a host\n"
            f"{as_argument}   if it is an argument of {first}",
        )
    return _before_the_dashes(verb, own, first, as_argument)


def _before_the_dashes(verb: str, own: Sequence[str], program: str, corrected: str) -> UsageError:
    """Return the error for words of the trainer's that stand before `--`."""
    words = shlex.join(own)
    return UsageError(
        f"{words}: tflaunch {verb} has no such option or argument; what is for {program} goes after --",
        corrected,
    )
