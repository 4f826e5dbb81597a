"""Known last lines of failed tasks, each with advice on what to type: data, one rule to a line.

A task's log is not trusted: its lines only choose a rule, and the advice quotes nothing from them but a name of
letters and digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_LONGEST = 1000  # characters of a line that are searched: this bounds the time that a pattern takes

_NO_FLAGS = (
    "the program does not take the cluster flags: --no-flags leaves them out, and TF_CONFIG describes the cluster "
    "(add --ps 0 if it has no parameter servers); --flag ps_hosts=NAME if it calls them otherwise"
)
_ONE_FLAG = "the program has no {0}: --flag {0}=NAME says what it calls it, --flag {0}= leaves it out"
_WITH_FLAGS = (
    "the program needs the cluster flags: --flags passes them; --flag ps_hosts=NAME, --flag task_index=NAME say what "
    "it calls them"
)
_WRONG_WORD = "that is an argument of the program: correct what follows --"
_NO_MODULE = (
    "{python} on {host} has no {0}: name another Python by `python:`, `venv:` or `conda:` in the hostfile, or install "
    "{0} by --requirements; if the module is yours, see --code-dir"
)
_SHARDED = (
    "each ps writes its part of the checkpoint on its own host: give it a directory that all hosts share (a `workdir:` "
    "on a shared disk with --no-sync, or its path as the program's own argument), or Saver(sharded=False) in the "
    "program, then the chief writes all of it"
)
_HELD_PORT = (
    "tflaunch holds rank 0's port for TensorFlow, so PyTorch's store cannot use it: say --framework torch"
)
_NOT_TOLD = (
    "JAX finds the coordinator by itself, but not the rest: call jax.distributed.initialize("
    'num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"]))'
)
_LOOPBACK = (
    "gloo listens on the address of its host's own name: on {host}, /etc/hosts must give that name the address that "
    "the other hosts reach; with PyTorch, --env GLOO_SOCKET_IFNAME=eth0 (the name of an interface) will do"
)
_ONE_GPU = (
    "each task sees its own GPUs only: its device is cuda:LOCAL_RANK, which is 0 in each task, not cuda:RANK"
)
_NO_PS = "MultiWorkerMirroredStrategy takes no parameter servers: --ps 0"

_HOSTS = r"(?:ps|worker|chief)[-_]hosts"
_OWN = r"(job_name|task_index)"


class Rule(NamedTuple):
    """The pattern `words` is searched in the `last` lines of a log; `{0}` in `advice` is its first group."""

    words: str
    advice: str
    last: int = 30


# The last line of the log that matches any rule decides; if several rules match it, the first one counts.
RULES = (
    Rule(rf"unrecognized arguments: (?:.*? )??--{_HOSTS}\b", _NO_FLAGS),  # argparse
    Rule(rf"unrecognized arguments: (?:.*? )??--{_OWN}\b", _ONE_FLAG),
    Rule(r"unrecognized arguments: ", _WRONG_WORD),
    Rule(rf"Unknown command line flag '{_HOSTS}'", _NO_FLAGS),  # absl
    Rule(rf"Unknown command line flag '{_OWN}'", _ONE_FLAG),
    Rule(rf"FATAL Flags parsing error: flag --{_HOSTS}=None:", _WITH_FLAGS),
    Rule(r"(?:FATAL Flags parsing error|Unknown command line flag)", _WRONG_WORD),
    Rule(rf"[Nn]o such option:? '?--{_HOSTS}\b", _NO_FLAGS),  # click, typer
    Rule(rf"[Nn]o such option:? '?--{_OWN}\b", _ONE_FLAG),
    Rule(r"(?:[Nn]o such option:? '?-|Got unexpected extra arguments?\b)", _WRONG_WORD),
    Rule(rf"Could not consume arg: --{_HOSTS}\b", _NO_FLAGS),  # fire
    Rule(rf"option --{_HOSTS} not recognized", _NO_FLAGS),  # getopt
    Rule(rf"the following arguments are required: (?:.*? )??--{_HOSTS}\b", _WITH_FLAGS),
    Rule(r"^\S{1,200}: (?:.{0,400}: )?No module named '?(\w{1,80}(?:\.\w{1,80}){0,8})", _NO_MODULE),
    Rule(r"server socket has failed to listen on any .{0,400}(?:EADDRINUSE|Address already in use)", _HELD_PORT),
    Rule(r"(?:Number of processes|The process id of the current process) must be defined", _NOT_TOLD),
    Rule(r"[Gg]loo.{0,400}(?:remote=\[127\.|tcp/device\.cc:\d{1,5}\] rv == 0)", _LOOPBACK),
    Rule(r"CUDA error: invalid device ordinal", _ONE_GPU),
    Rule(r"There is no id for task_type 'ps'", _NO_PS),
    Rule(r"ckpt\S{0,100}_temp\S{0,200}; No such file or directory", _SHARDED, last=1000),  # a graph's 30 lines follow
)  # fmt: skip
_PATTERNS = tuple((re.compile(rule.words), rule) for rule in RULES)


def advice(
    lines: Sequence[str], *, python: str = "", host: str = "", where: Callable[[str], str] = lambda _: ""
) -> str:
    """One line of advice on what to type after a failure with these last lines, or "".

    `python` is the interpreter that ran on `host`; `where` gives better advice for a missing module that lies on the
    launcher's machine, or "".
    """
    for number, line in enumerate(reversed(lines)):
        text = line[:_LONGEST]
        for pattern, rule in _PATTERNS:
            if number < rule.last and (found := pattern.search(text)):
                names = found.groups()
                here = where(names[0]) if rule.advice is _NO_MODULE else ""
                return here or rule.advice.format(
                    *names, python=python or "the interpreter", host=host or "the host"
                )
    return ""
