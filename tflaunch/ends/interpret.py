"""What an end of a task means, and what to type next: the rules, applied to a log and to facts.

A log is not trusted: its lines choose a rule, and the advice quotes nothing from them but short names and paths.
Which rule wins: one that fits the facts of a signal; else one for what the task said last (of several lines the last,
of several rules the first); else one for the calls of its traceback; else one for a cause that may stand further up;
else one for an error that follows from others; else the place in the program where it failed.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence

from tflaunch.ends import log_end
from tflaunch.ends.end_rule import AFTERMATH, ANYWHERE, FINAL, STACK, EndRule, SignalRule, pattern
from tflaunch.ends.files import READ_ONLY_LOG
from tflaunch.ends.gpu_faults import OF_PROGRAM, SICK_CARD
from tflaunch.ends.known_end import NOWHERE, Here, KnownEnd, Meaning, facts_of
from tflaunch.ends.log_end import LogEnd
from tflaunch.ends.signals import ABORTS, KNOWN, LIKELY
from tflaunch.ends.tables import patterns
from tflaunch.ends.xid_ends import at_the_end

_BY_SHELL = {
    128 + each: each for each in (4, 6, 7, 8, 9, 11, 15, 24, 25, 31)
}  # how shells and containers say it
_USR1 = 128 + 10  # the same, of SIGUSR1 on the hosts
_SENT = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM"}
_SEARCHED = 16_000  # characters of lines, the last ones first, which bounds the time that a log can cost
_SEEN = 200  # lines in which the words of a rule for signals are searched
# What formats may name, where it is not known.
_NO_WORDS = {
    "place": "the place that its log names",
    "place_or_file": "the line that its log names",
    "open_files": "the limit's number of",
    "peak": "an unknown amount",
}


def meaning(lines: Sequence[str], end: KnownEnd, here: Here = NOWHERE) -> Meaning:
    """Return what that end means, by the last lines of the log and by the facts."""
    xid = at_the_end(end.host or "the host", end.facts.get("xids", ()))
    if xid.card:
        return Meaning(SICK_CARD.format(told=xid.words, card=xid.card), True)
    found = _meaning(lines, end, here)
    if not xid.words:
        return found
    if not found.text:
        # Programs go on after most others, or they follow from something else.
        return Meaning(OF_PROGRAM.format(told=xid.words), True) if xid.program else Meaning(xid.words)
    return Meaning(f"{found.text}; {xid.words}", found.cause)


def _meaning(lines: Sequence[str], end: KnownEnd, here: Here) -> Meaning:
    name = end.signal or _signal_of(end.code)
    if end.code == _USR1 and end.facts.get("warned"):
        name = "SIGUSR1"
    log = log_end.read(lines, code=end.code, by_signal=bool(name))
    if name and not end.signal and log.ended_by_exception:
        name = ""  # a program that chose such a code
        log = log_end.read(lines, code=end.code, by_signal=False)
    facts = facts_of(end)
    if log.place:
        facts["place"] = log.place
    if log_end.writes(log.stack):
        facts["writes"] = "a file"
    if log_end.starts(log.stack):
        facts["starts"] = "a program"
    if (unset := log_end.unset(log.stack)) and f"env:{unset}" not in facts:
        facts["unset"] = unset
    if argument := log_end.argument(log.stack):
        facts["argument"] = argument
    if log_end.restores(log.stack):
        facts["restores"] = "a checkpoint"
    if end.port and any(re.search(rf"(?<!\d){end.port}(?!\d)", line) for line in log.final):
        facts["own_port"] = str(end.port)
    if any("Too many open files" in line for line in (*log.final, *log.above)[:_SEEN]):
        facts["no_files_left"] = "no files left"
    words = _words(facts)
    if name:
        return _of_signal(name, log, facts, words, here)
    if not end.code:
        return Meaning()
    if "read_only" in facts:
        return Meaning(READ_ONLY_LOG.format(**words), True)
    everything = (*log.final, *log.above)
    for where, searched in (
        (FINAL, log.final),
        (STACK, log.stack),
        (ANYWHERE, everything),
        (AFTERMATH, log.final),
    ):
        if text := _of_lines(searched, where, facts, words, here):
            return Meaning(text, where != AFTERMATH)
    return Meaning(_of_nothing_known(facts))


def _of_lines(
    lines: Iterable[str], where: str, facts: Mapping[str, str], words: Mapping[str, str], here: Here
) -> str:
    left = _SEARCHED
    for number, line in enumerate(lines):
        left -= len(line)
        if left < 0 and number:
            break
        for compiled, rule in patterns(where):
            if where != ANYWHERE and number >= rule.last:
                continue
            if _fits(rule, facts) and (found := compiled.search(line)):
                return _advice(rule, found, words, here)
    return ""


def _fits(rule: EndRule | SignalRule, facts: Mapping[str, str]) -> bool:
    return all(name in facts for name in rule.needs) and not any(name in facts for name in rule.unless)


def _advice(rule: EndRule, found: re.Match[str], words: Mapping[str, str], here: Here) -> str:
    groups = [group for group in found.groups() if group is not None]
    asked = {"module": here.module, "file": here.file}.get(rule.ask)
    if asked is not None and groups and (better := asked(groups[0])):
        return better
    return rule.advice.format(*groups, *[""] * 3, **words)


def _of_signal(
    name: str, log: LogEnd, facts: dict[str, str], words: Mapping[str, str], here: Here
) -> Meaning:
    lines = (*log.final, *log.above)[:_SEEN]
    if text := _signal_advice(KNOWN, name, lines, facts, words):
        return Meaning(text, True)
    if name not in _SENT:
        if text := _signal_advice(ABORTS, name, lines, facts, words):
            return Meaning(text, True)
        for where, searched in ((FINAL, log.final), (ANYWHERE, lines)):
            if text := _of_lines(searched, where, facts, words, here):
                return Meaning(text, True)
    return Meaning(_signal_advice(LIKELY, name, lines, facts, words), True)


def _signal_advice(
    rules: Iterable[SignalRule],
    name: str,
    lines: Sequence[str],
    facts: Mapping[str, str],
    words: Mapping[str, str],
) -> str:
    for rule in rules:
        said = not rule.words or any(re.search(pattern(rule.words), line) for line in lines)
        if rule.signal == name and said and _fits(rule, facts):
            return rule.advice.format(**words)
    return ""


def _signal_of(code: int | None) -> str:
    number = _BY_SHELL.get(code or 0)
    return signals.Signals(number).name if number else ""


def _of_nothing_known(facts: Mapping[str, str]) -> str:
    if "place" in facts:
        more = f"; versions differ between the hosts: {facts['differ']}" if "differ" in facts else ""
        return f"it failed at {facts['place']}{more}"
    if "differ" in facts:
        return f"versions differ between the hosts of the run: {facts['differ']}; let all have one (--requirements)"
    return ""


def _words(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts as formats take them, with words in place of those that are not known."""

    def text(form: str, *names: str) -> str:
        return form.format(*(facts[name] for name in names)) if all(name in facts for name in names) else ""

    made = {
        "of": text(" ({})", "tensorflow"),
        "of_keras": text(" ({})", "keras"),
        "of_numpy": text(" ({})", "numpy"),
        "of_protobuf": text(" ({})", "protobuf"),
        "of_torch": text(" ({})", "torch"),
        "version": text(" {}", "python_version"),
        "differ_text": text(" ({})", "differ"),
        "shm_text": text(" (it had {} of {} left at the end)", "shm_left", "shm"),
        "memory_text": text(" ({})", "memory"),
        "limit_text": text(" ({})", "memory_limit"),
        "memory_now": text(" ({} of memory were free right after)", "memory_left"),
        "peak_text": text(" ({} at its peak)", "peak"),
        "held": text(" ({})", "gpus_held"),
        "cpu_text": text("it has {}", "cpu") or "`grep flags /proc/cpuinfo` there shows what it has",
        "place_or_file": facts.get("place", ""),
    }
    known = {name: value for name, value in {**made, **facts}.items() if value or name not in _NO_WORDS}
    return {
        **dict.fromkeys(("no_avx", "no_avx2", "shm", "disk_full", "no_inodes", "near_limit"), ""),
        **_NO_WORDS,
        **known,
    }
