"""The text of the hostfile that `tflaunch init` writes: the hosts, each with a comment that says what is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tflaunch.hosts import Host
from tflaunch.text.safe import one_line

LONGEST_COMMENT = 160  # characters; some of its text comes from the hosts

# Words that YAML 1.1 does not take for text.
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

_HEAD = """\
# The hosts of tflaunch, as `tflaunch init` found them on {date}.
#
#   tflaunch check             imports TensorFlow on every host, as a task would
#   tflaunch run trainer.py    runs on these hosts where this file is ./hosts.yaml
#
# Settings of one host or, under `defaults:`, of all hosts (tflaunch schema lists them all):
#
# defaults:
#   python: ~/venv/bin/python    # the Python that has TensorFlow, if that is not python3
#   setup: module load cuda      # what the shell of a task runs first
#   ports: 22000-22099           # the ports that the firewall between the hosts admits
#   workdir: /srv/train          # the code is there already; without this, tflaunch ships yours

hosts:
"""


@dataclass(frozen=True)
class HostEntry:
    """One host of the hostfile, and what is known of it."""

    host: Host
    gpus: tuple[str, ...] = ()  # the models of its GPUs
    cores: int = 0
    memory: str = ""  # with its unit, as people read it
    python: str = ""  # the version of its `python3`, "" where that does not start
    tensorflow: str = ""  # the version that is installed for that python3, "" for none
    note: str = ""  # what the user should look at
    why_not: str = ""  # why the host cannot be used: a phrase without its name

    @property
    def described(self) -> str:
        """What the host has: `4 x H100 80GB HBM3, 64 cores, 512 GiB; Python 3.11.7, TensorFlow 2.16.1`."""
        counted = Counter(self.gpus).items()
        gpus = " + ".join(f"{count} x {model}" for model, count in counted) or "no GPU"
        python = f"Python {self.python}" if self.python else "no Python that starts"
        packages = f"TensorFlow {self.tensorflow}" if self.tensorflow else "no TensorFlow"
        note = f"; {self.note}" if self.note else ""
        return f"{gpus}, {self.cores} cores, {self.memory}; {python}, {packages}{note}"


def hostfile_text(entries: Sequence[HostEntry], date: str) -> str:
    """The YAML of these hosts; a host that cannot be used is a comment that says why."""
    return _HEAD.format(date=date) + "".join(line + "\n" for each in entries for line in _lines(each))


def _lines(entry: HostEntry) -> Iterable[str]:
    yield f"  # {comment(entry.why_not or entry.described)}"
    for line in _settings(entry.host):
        yield f"  # {line}" if entry.why_not else f"  {line}"


def _settings(host: Host) -> Iterable[str]:
    settings: dict[str, object] = {}
    if host.user is not None:
        settings["user"] = _scalar(host.user)
    if host.slots is not None:
        settings["slots"] = host.slots
    if host.connection != "ssh":
        settings["connection"] = host.connection
    if not settings:
        yield f"- {_scalar(host.name)}"
        return
    yield f"- name: {_scalar(host.name)}"
    for key, value in settings.items():
        yield f"  {key}: {value}"


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", text, re.ASCII) and text.lower() not in _NOT_TEXT
    return text if plain else "'" + text.replace("'", "''") + "'"


def comment(text: str) -> str:
    """Text that may come from a host, made fit to stand behind a `#`: one line, of characters that YAML takes."""
    line = "".join(
        each if each.isprintable() else "?" for each in one_line(" ".join(text.splitlines())).strip()
    )
    return line if len(line) <= LONGEST_COMMENT else line[: LONGEST_COMMENT - 3] + "..."
