"""The man page, tflaunch(1): all verbs and options on one page."""

from __future__ import annotations

from generator import exit_codes, verbs
from generator.markdown import code, described, prose

ABOUT = "start distributed TensorFlow over SSH"

_HEAD = """\
---
orphan: true
---

# tflaunch

## SYNOPSIS

`tflaunch` *VERB* \\[*OPTIONS*\\] \\[*ARGUMENTS*\\]

## DESCRIPTION

tflaunch starts a distributed TensorFlow program on machines that have an SSH server and Python: one command places the
parameter servers and workers, tells each who it is, starts them together and shows their logs as one stream. However
the run ends, tflaunch stops every process that it started, and checks that none is left alive.

    tflaunch run hosts.yaml trainer.py --ps 2 --workers 4 -- --epochs 3

The hostfile may be left out where it is `./hosts.yaml`, `$TFLAUNCH_HOSTS` or `~/.config/tflaunch/hosts.yaml`.
"""
_TAIL = """\
## FILES

`./hosts.yaml`, `~/.config/tflaunch/hosts.yaml`
: the hostfile, where none is named

`~/.local/state/tflaunch/runs/`
: the records of your runs, with the logs of all tasks

`/var/tmp/tflaunch-UID/`
: on the hosts: logs, working directories, shipped code

`/var/tmp/tflaunch-leases/`
: on the hosts: which GPUs are leased, and the queue for them

## ENVIRONMENT

`TFLAUNCH_HOSTS`
: the hostfile, where none is named

`TFLAUNCH_CONNECTION`
: `ssh`, or `openssh` to connect with the system's ssh

`TFLAUNCH_ENGINES`
: `WORD=MODULE,...`: engines of your own, Python modules that give slots

`TFLAUNCH_YES`
: agree beforehand to what would be asked

`TFLAUNCH_STATE`
: the directory of the records
"""


def page() -> str:
    """Return the page."""
    parts = [_HEAD, "## VERBS\n"]
    for verb in verbs.every():
        parts += [f"### tflaunch {verb.name}\n", f"`{verb.page.usage}`\n"]
        parts += [prose(each) + "\n" for each in verb.about]
        rows = [*verb.arguments, *(row for section in verb.options for row in section.rows)]
        parts += [f"{code(name.strip())}\n: {described(text)}\n" for name, text in rows]
    parts.append("## EXIT STATUS\n")
    parts += [f"`{number}`\n: {prose(meaning)}\n" for number, meaning in exit_codes.every()]
    return "\n".join([*parts, _TAIL])
