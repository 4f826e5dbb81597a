"""A hostfile as `tflaunch init` writes it: the hosts that were found, with what is there as comments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tflaunch.hosts import Host
from tflaunch.sessions.log_lines import one_line

LONGEST = 160  # characters of a comment: what a host says of itself may be anything

# Words that YAML 1.1 takes for something else than text.
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

_HEAD = """\
# The hosts of tflaunch, as `tflaunch init` found them on {date}.
#
#   tflaunch check             imports TensorFlow on every host, as a task would
#   tflaunch run trainer.py    runs on these hosts where this file is ./hosts.yaml
#
# What may be said of one host, or of all under `defaults:` (tflaunch schema tells all there is):
#
# defaults:
#   python: ~/venv/bin/python    # the Python that has TensorFlow, if that is not python3
#   setup: module load cuda      # what the shell of a task runs first
#   ports: 22000-22099           # those that the firewall between the hosts lets through
#   workdir: /srv/train          # the code is there; without it, yours is shipped

hosts:
"""


@dataclass(frozen=True)
class Found:
    """What is known of one host; `why_not` says why it cannot be used, a phrase without its name."""

    host: Host
    cards: tuple[str, ...] = ()  # their models
    cores: int = 0
    memory: str = ""  # for people
    python: str = ""  # the version of its `python3`, "" where that does not start
    tensorflow: str = ""  # the version that is installed for it, "" for none
    note: str = ""  # what should be looked at
    why_not: str = ""

    @property
    def described(self) -> str:
        """`4 x H100 80GB HBM3, 64 cores, 512 GiB; Python 3.11.7, TensorFlow 2.16.1`."""
        counted = Counter(self.cards).items()
        cards = " + ".join(f"{count} x {model}" for model, count in counted) or "no GPU"
        python = f"Python {self.python}" if self.python else "no Python that starts"
        packages = f"TensorFlow {self.tensorflow}" if self.tensorflow else "no TensorFlow"
        note = f"; {self.note}" if self.note else ""
        return f"{cards}, {self.cores} cores, {self.memory}; {python}, {packages}{note}"


def hostfile_text(found: Sequence[Found], date: str) -> str:
    """The YAML; those that cannot be used are comments in it, each with why."""
    return _HEAD.format(date=date) + "".join(line + "\n" for each in found for line in _entry(each))


def _entry(found: Found) -> Iterable[str]:
    yield f"  # {comment(found.why_not or found.described)}"
    for line in _settings(found.host):
        yield f"  # {line}" if found.why_not else f"  {line}"


def _settings(host: Host) -> Iterable[str]:
    said: dict[str, object] = {}
    if host.user is not None:
        said["user"] = _scalar(host.user)
    if host.slots is not None:
        said["slots"] = host.slots
    if host.connection != "ssh":
        said["connection"] = host.connection
    if not said:
        yield f"- {_scalar(host.name)}"
        return
    yield f"- name: {_scalar(host.name)}"
    for key, value in said.items():
        yield f"  {key}: {value}"


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", text, re.ASCII) and text.lower() not in _NOT_TEXT
    return text if plain else "'" + text.replace("'", "''") + "'"


def comment(text: str) -> str:
    """Text of a host's own, or about it, as what stands behind a `#`: one line, of characters that YAML takes."""
    line = "".join(
        each if each.isprintable() else "?" for each in one_line(" ".join(text.splitlines())).strip()
    )
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
