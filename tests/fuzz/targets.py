"""Every parser: what is called, which errors it documents, and what its input is made of."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from hypothesis import strategies as st

from tflaunch.protocol.errors import ConnectError, DocumentError, TflaunchError, UsageError

SLOW_S = 5.0  # an input that takes longer is a finding
CASES = Path(__file__).with_name("cases")


class Slow(Exception):
    """An input that took longer than SLOW_S."""


@dataclass(frozen=True)
class Target:
    """`parse(data, directory)` ends, or raises one of `errors`; `directory` is empty at first, and for its files."""

    name: str
    parse: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[str, ...]
    words: tuple[str, ...]  # what its language is made of, beside single characters


def _in_file(name: str, load: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def parse(data: bytes, directory: Path) -> object:
        path = directory / name
        path.write_bytes(data)
        return load(path)

    return parse


def _of_text(parse: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda data, _: parse(data.decode("utf-8", "surrogateescape"))


_CONFIG = """\
hosts = "hosts.yaml"
ports = [20000, 20999]
max_gpus_per_user_per_host = 4
banner = '''
one
two'''
[run]
grace = "30s"
env = { A = "1" }
threshold = [
  "wait_s=120",
]
[stop]
grace = 5
"""


# ---- what is called


def _hostfile(path: Path) -> object:
    from tflaunch import hosts

    return hosts.load(str(path))


def _host_list(text: str) -> object:
    from tflaunch import hosts

    if not text or os.path.sep in text or "\0" in text:
        return None  # a path, or no argument of any command line
    return hosts.load(text, environ={})


def _slurm(text: str) -> object:
    from tflaunch import hosts

    return hosts.load("slurm:", environ={"SLURM_JOB_NODELIST": text}, connection="ssh")


def _pbs(path: Path) -> object:
    from tflaunch import hosts

    return hosts.load("pbs:", environ={"PBS_NODEFILE": str(path)})


def _host_pattern(text: str) -> object:
    from tflaunch import hosts

    return hosts.match(text, _four_hosts())


@cache
def _four_hosts() -> object:
    from tflaunch import hosts

    return hosts.load("gpu[01-03].lab,big:8", environ={})


def _host_range(text: str) -> object:
    from tflaunch.inputs import hostnames

    return hostnames.fold(hostnames.expand(text))


def _job_file(path: Path) -> object:
    from tflaunch.inputs import job_file

    return job_file.load(str(path))


def _config(path: Path) -> object:
    from tflaunch.inputs import config

    return config.load({config.ETC: str(path.parent), "HOME": "/nonexistent"})


def _gpu_limit(text: str) -> object:
    """An agent never overlooks a limit that the launcher reads in the same file."""
    from tflaunch.agent.gpus import limit
    from tflaunch.agent.host.rundir import HostError
    from tflaunch.inputs import toml_document
    from tflaunch.inputs.yaml_document import Tree

    try:
        said = limit._said(text)
    except HostError:
        return None
    tree = Tree("config.toml")
    _, parsed = toml_document.read(text, tree)
    value = parsed.get(limit.KEY)
    assert tree.problems or said == (value if isinstance(value, int) else None), (said, value)
    return said


def _ssh_config(path: Path) -> object:
    from tflaunch.hosts import Host
    from tflaunch.ssh.ssh_config import SshConfig

    text = path.read_bytes().lower()
    if (b"include" in text and b"/dev" in text) or b"/proc" in text or b"canonicalize" in text:
        return None  # files without an end, and questions to a name server
    config = SshConfig(path)
    for name in ("gpu01", "big"):
        with contextlib.suppress(ConnectError):
            config.target(Host(name=name))
    return config.target(Host(name="x", ssh_host="y.lab", user="ada", port=22, proxy_jump="gw"))


def _known_hosts(path: Path) -> object:
    from tflaunch.ssh.known_hosts import KnownHosts

    known = KnownHosts([path])
    return [known.lookup(name) for name in ("gpu01", "[10.0.0.1]:2222", "x.lab", "*")]


def _fetch_pattern(text: str) -> object:
    from tflaunch.inputs.patterns import Pattern

    compiled = re.compile(Pattern.parse(text).regex)
    names = ("a" * 200, "out/.a.txt", "a/" * 60 + "b", "checkpoints/model-1.index", "ab" * 100)
    return [compiled.match(name) for name in names]


def _gitignore(data: bytes, directory: Path) -> object:
    return _bundled_with(".gitignore", data, directory)


def _fetched_mark(data: bytes, directory: Path) -> object:
    return _bundled_with(".tflaunch-fetched", data, directory)


def _bundled_with(name: str, data: bytes, directory: Path) -> object:
    from tflaunch.code import bundle

    code = directory / "code"
    if not code.exists():
        (code / "data" / "deep").mkdir(parents=True)
        for file in ("trainer.py", "a.log", "data/x.bin", "data/deep/a-b", "a" * 200):
            (code / file).touch()
    (code / name).write_bytes(data)
    return bundle.bundle(code)


def _wire(data: bytes, _: Path) -> object:
    from tflaunch.protocol import wire

    whole = wire.Decoder(magic=True).feed(wire.MAGIC + data)
    pieces = wire.Decoder()
    assert [message for at in range(len(data)) for message in pieces.feed(data[at : at + 1])] == whole
    return whole


def _message(data: bytes, _: Path) -> object:
    from tflaunch.protocol import messages, wire

    found = []
    for message in wire.Decoder().feed(len(data).to_bytes(4, "big") + bytes(4) + data):
        found.append(messages.check(message, messages.FROM_AGENT))
        wire.encode(message.type, **message.fields)
    return found


def _log_lines(data: bytes, _: Path) -> object:
    from tflaunch.text.lines import LineAssembler

    whole = LineAssembler()
    shown = whole.feed(data) + whole.end()
    pieces = LineAssembler()
    cut = "".join(pieces.feed(data[at : at + 1]) for at in range(len(data))) + pieces.end()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown), (
        "a control character"
    )
    assert shown == cut, "cut otherwise, it is another text"
    return shown


def _log_end(data: bytes, directory: Path) -> object:
    """What the end of a task means, by its log, and what is known of it here."""
    from tflaunch.documents.log_tail import lines_to_search
    from tflaunch.ends.here import where_file_lies, where_module_lies
    from tflaunch.ends.interpret import meaning
    from tflaunch.ends.known_end import Here, KnownEnd

    here = Here(
        lambda name: where_module_lies(name, directory, "trainer.py"),
        lambda path: where_file_lies(path, directory, "trainer.py", "gpu01"),
    )
    ends = [KnownEnd(code=1), KnownEnd(code=2), KnownEnd(signal="SIGABRT"), KnownEnd(signal="SIGKILL")]
    found = [meaning(lines_to_search(data), end, here).text for end in ends]
    assert all(len(text) < 2000 and "\n" not in text for text in found)
    return found


def _signs(data: bytes, _: Path) -> object:
    from tflaunch.diagnosis.signs import SIGNS, signs_in

    found = signs_in(data.decode("utf-8", "replace"))
    assert found.keys() <= set(SIGNS)
    return found


def _footer(text: str) -> object:
    from tflaunch.console.footer import Footer
    from tflaunch.console.pen import Pen
    from tflaunch.documents.writer import Stream
    from tflaunch.protocol.job import TaskId

    with Path(os.devnull).open("w") as nowhere:
        footer = Footer(Pen(Stream(nowhere)))
        footer.begin(1, 0.0)
        footer.output(TaskId("worker", 0), text, 1.0)
        line = footer.line(2.0)
    assert line is not None
    assert "\n" not in line.plain
    return line


def _stacks(data: bytes, _: Path) -> object:
    from tflaunch.agent.tasks.stack_text import parsed
    from tflaunch.protocol import messages, wire

    stacks = parsed(data.decode("ascii", "replace"), 0x7F50, str)
    program = {"pid": 1, "name": "python", "threads": [], "stacks": stacks, "why_none": ""}
    return messages.check(
        wire.Message("inspected", {"tasks": {"worker/0": [program]}}, b""), messages.FROM_AGENT
    )


def _netlink(data: bytes, _: Path) -> object:
    from tflaunch.agent.net import connections

    listening: list[tuple[int, int]] = []
    raw: list[tuple[int, bytes]] = []
    with contextlib.suppress(struct.error):  # as in `SocketTable`: then /proc tells
        connections._take(data, listening, raw)
        return [connections._connection(each).counts for _, each in raw]
    return listening


def _trials(suffix: str) -> Callable[[bytes, Path], object]:
    def load(path: Path) -> object:
        from tflaunch.sweeps import trials

        return trials.read(path)

    return _in_file(f"trials{suffix}", load)


def _grid(text: str) -> object:
    from tflaunch.sweeps import trials

    return trials.grid(text.split("\n"))


def _random(text: str) -> object:
    from tflaunch.sweeps import trials

    return trials.draw(text.split("\n"), 3, 0)


def _metric(text: str) -> object:
    from tflaunch.sweeps.results import Metric

    metric = Metric.parse(text, False)
    return [metric.find(line) for line in ("loss: 0.5", '{"loss": 1e400, "step": NaN}', '{"loss":' * 50)]


def _size(text: str) -> object:
    from tflaunch.inputs.amounts import size
    from tflaunch.text.numbers import amount

    return amount(size(text))


def _time(text: str) -> object:
    from tflaunch.inputs.amounts import seconds
    from tflaunch.text.times import written

    return written(seconds(text))


_HOSTFILE = """\
defaults: {user: ada, run_dir: /scratch, gpus: auto, labels: {rack: r1}}
hosts:
  - gpu[01-04].lab
  - name: big
    slots: 8
    port: 2222
    address: 10.0.0.1
    identity_file: ~/.ssh/id
    proxy_jump: gw
    ports: 20000-29999
    env: {A: "1"}
"""
_JOB = """\
trainer: trainer.py
args: [--epochs, 3]
workers: 4
ps: 1
env: {NAME: value}
roles:
  data: {count: 2, gpus: 0, end: stopped}
restarts: 2
timeout: 12h
sweep:
  grid: {lr: [0.1, 0.01]}
"""
_SSH = """\
Include conf.d/*
Host gpu* !gpu09
  HostName %h.lab
  User ada
  Port 22
  IdentityFile ~/.ssh/id_%r
  ProxyJump gw:22,ada@gw2
Match host "x" user ada
  ProxyCommand ssh -W %h:%p gw
Host *
  UserKnownHostsFile ~/.ssh/known_hosts
  StrictHostKeyChecking accept-new
  ConnectTimeout 10
"""
_KNOWN = """\
gpu01,10.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1jZ0mDg7mpfV9w8cKcWwvRk0mJpYI0C0qkq1m1e0XQ ada
[10.0.0.1]:2222 ssh-rsa AAAAB3NzaC1yc2E=
|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-rsa AAAA
@revoked * ssh-ed25519 AAAA
@cert-authority *.lab ssh-rsa AAAA
# comment
"""
_YAML = (
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!python/object:os.system ",
    "!!binary ",
    "!!timestamp ",
    "<<: *a",
)
_YAML += (
    "|\n  ",
    "? ",
    "\n  ",
    "\t",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "'",
    '"',
    "#",
    "2001-01-01",
    "0x1F",
    "1_000",
    "~",
)
_YAML += (
    ".inf",
    ".nan",
    "1e400",
    "9" * 5000,
    "null",
    "yes",
    "\ufeff",
    "\u2028",
    "\x85",
    "\0",
    "\x1b[2J",
    "\ud800",
)
_RANGES = (
    "gpu",
    "[01-16]",
    "[1,3,5]",
    "[0-14/2]",
    "[",
    "]",
    ",",
    "-",
    ".",
    ":2",
    "@",
    "me@",
    "[0-9999999999]",
    "[1-2][3]",
)
_RANGES += (
    "*",
    "?",
    "!",
    "label=x",
    "=",
    " ",
    "\n",
    "\t",
    "#",
    "slots=4",
    "slots=-1",
    "max_slots=2",
    "\0",
    "\u0663",
    "[\u0661-\u0663]",
)
_GLOBS = (
    "*",
    "**",
    "**/",
    "?",
    "[a-z]",
    "[z-a]",
    "[!a]",
    "[^a]",
    "[]",
    "[",
    "]",
    "\\",
    "/",
    "!",
    "#",
    "a",
    "*a",
    ".",
    "..",
)
_GLOBS += (
    "[[:alpha:]]",
    "[a-",
    "{a,b}",
    " ",
    "~",
    "\n",
    "\r",
    "\0",
    "*a*a*a*a*a*a*a*a*b",
    "\u00e9",
    "\ud800",
)
_SSH_WORDS = (
    "Host ",
    "Match ",
    "host ",
    "originalhost ",
    "user ",
    "localuser ",
    "final ",
    "canonical ",
    "all ",
    "!",
    "*",
    '"',
)
_SSH_WORDS += (
    "Include ",
    "~nosuchuser/x",
    "~",
    "%h",
    "%r",
    "%%",
    "%",
    "%p",
    "HostName ",
    "Port ",
    "User ",
    "ProxyJump ",
)
_SSH_WORDS += (
    "ProxyCommand ",
    "IdentityFile ",
    "ConnectTimeout ",
    "AddressFamily ",
    "=",
    "\n",
    "  ",
    "\t",
    ",",
    "[",
    "]",
)
_SSH_WORDS += (
    "UserKnownHostsFile ",
    "none",
    "yes",
    "22",
    "-1",
    "99999999999999999999",
    "gpu01",
    "x",
    "'",
    "$(x)",
    "${X}",
    "\\",
)
_SSH_WORDS += (
    "conf.d/*",
    "config",
    "IdentitiesOnly ",
    "StrictHostKeyChecking ",
    "Tag ",
    "tagged ",
    "localnetwork ",
    "9" * 5000,
)
_NUMBERS = (
    "9",
    "0",
    "-",
    "+",
    ".",
    "e",
    "E",
    "_",
    " ",
    "GiB",
    "G",
    "KB",
    "TiB",
    "s",
    "m",
    "h",
    "d",
    "inf",
    "nan",
    "1e400",
    "\u0663",
)
_NUMBERS += ("9" * 5000, "½", "0x1", "\n", "²")
_LOG = (
    "\r",
    "\n",
    "\b",
    "\x1b[31m",
    "\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\x1b",
    "é",
    "€",
    "\U0001f600",
    "\u202e",
    "\x85",
    "\0",
)
_LOG += ("a" * 20, "\x7f", "\x1bP", "\x1b\\", "\x07", "\u2028", " " * 10)
_TRIALS = (
    ",",
    "\n",
    "\r",
    '"',
    "lr",
    "x",
    "0.1",
    "1e-3",
    "null",
    "true",
    "{",
    "}",
    "[",
    "]",
    ":",
    " ",
    "\0",
    "1e400",
    "NaN",
    "\ufeff",
)
_TRIALS += (
    "9" * 5000,
    "=",
    "..",
    ":log",
    "1..4",
    "0.1..0.2:log",
    "-1..1:log",
    "\ud800",
    '{"x":' * 100,
    "[" * 2000,
    "'",
)
_JSON = (
    '{"type":"',
    "facts",
    "log",
    "exit",
    "swept",
    "hello",
    '":',
    ",",
    "{",
    "}",
    "[",
    "]",
    "null",
    "true",
    "NaN",
    "-Infinity",
)
_JSON += (
    "9" * 5000,
    "1e400",
    '"\\ud800"',
    '"\\u0000"',
    "[" * 2000,
    '"task"',
    '"n"',
    '"worker/0"',
    '"time"',
    "-1",
    "0.5",
    '"gpus"',
)
_ENDS = (
    "Traceback (most recent call last):\n",
    '  File "/x/work/trainer.py", line 3, in f\n',
    "\nModuleNotFoundError: No module named '",
    "\nFileNotFoundError: [Errno 2] No such file or directory: '",
    "\nError: ",
    "error: unrecognized arguments: --",
    "CUDA error: ",
    "UNAVAILABLE: ",
    "/net/x/",
    "../",
    "~",
    "data",
    "'",
    ";",
    " is not a package",
    "{0.__class__}",
    "\U00010400" * 80,
    "a" * 300,
    "a." * 100,
)
_PROGRESS = (
    "loss",
    "step ",
    "epoch",
    ": ",
    "=",
    "nan",
    "inf",
    "\u0131nf",
    "1e9",
    "\u0663",
    "\u00b2",
    "9" * 500,
    ",",
    "tensor(",
)
_PROGRESS += ("nan, " * 4000, "GPU:", "Created device /", "UNAVAILABLE", "[", "\r", "\b", "cost", "NaN loss")
_DUMP = (
    "Thread 0x",
    "Current thread 0x",
    "7f50",
    " (most recent call first):\n",
    '  File "',
    '", line ',
    " in ",
    "9" * 5000,
    "a" * 70000,
    "\n",
    "...",
    "<no Python frame>",
)
_PARTS = ("\0", "\1", "\n", "\x14", "\x02", "\x03", "\x90\0\0\0", "\xff", "\x7f", "\0" * 64)
_REGEX = ("loss: ([\\d.]+)", "(", ")", "(?P<x>", "[", "]", "{1,9999999}", "*", "+", "?", "\\", "(?:", "loss")
_REGEX += (
    "(?i)",
    "(?<=a)",
    "\\1",
    "{",
    "}",
    "|",
    "^",
    "$",
    ".",
    "\ud800",
    "\\N{DIGIT ONE}",
    "(?#",
    "((((((((((",
)
_FRAMES = (
    "\0\0\0\x02\0\0\0\0{}",
    "\0\0\0\x0d\0\0\0\0",
    '{"type":"log"}',
    "\0",
    "\0\0\0\x0e\0\0\0\x01",
    "\x7f",
    "{}",
    "[]",
    '"',
    "\x10",
)

_USER = (DocumentError, UsageError)
TARGETS = (
    Target(
        "hostfile",
        _in_file("hosts.yaml", _hostfile),
        _USER,
        (_HOSTFILE, "- a\n- b\n"),
        (*_YAML, "hosts", "gpu01", "name"),
    ),
    Target(
        "plain-hostfile",
        _in_file("hostfile", _hostfile),
        _USER,
        ("gpu01 slots=4\ngpu02 slots=2 max_slots=3\n", "gpu01:4\n# x\nme@gpu02\n", "a\na\nb\n"),
        _RANGES,
    ),
    Target("host-list", _of_text(_host_list), _USER, ("gpu[01-04]:2,me@big:8", "localhost"), _RANGES),
    Target("slurm", _of_text(_slurm), _USER, ("gpu[01-04],big", "tux[1-3,5].lab"), _RANGES),
    Target("pbs", _in_file("nodes", _pbs), _USER, ("gpu01\ngpu01\ngpu02\n",), _RANGES),
    Target(
        "host-pattern",
        _of_text(_host_pattern),
        _USER,
        ("gpu*", "!gpu01.lab,label=x", "gpu[01-02].lab"),
        _RANGES,
    ),
    Target("host-range", _of_text(_host_range), _USER, ("gpu[01-16].lab,x", "r[1-2]n[1-4]"), _RANGES),
    Target(
        "job-file",
        _in_file("job.yaml", _job_file),
        _USER,
        (_JOB, "{}"),
        (*_YAML, "sweep", "roles", "workers", "12h"),
    ),
    Target(
        "config",
        _in_file("config.toml", _config),
        _USER,
        (_CONFIG, ""),
        (
            "[run]",
            "=",
            "true",
            '"""',
            "'''",
            "{",
            "}",
            "[[",
            "]]",
            "1979-05-27",
            "0x1",
            "grace",
            "env",
            "\\u0041",
            "inf",
        ),
    ),
    Target(
        "gpu-limit",
        _of_text(_gpu_limit),
        (),
        (_CONFIG,),
        ("max_gpus_per_user_per_host", "=", "4", '"""', "'''", "["),
    ),
    Target("ssh-config", _in_file("config", _ssh_config), (ConnectError,), (_SSH,), _SSH_WORDS),
    Target(
        "known-hosts",
        _in_file("known_hosts", _known_hosts),
        (),
        (_KNOWN,),
        (
            "|1|",
            "=",
            "AAAA",
            "ssh-ed25519 ",
            "@revoked ",
            "@cert-authority ",
            "*",
            "?",
            "!",
            ",",
            "\n",
            " ",
            "[",
            "]:22",
            "#",
            "\0",
        ),
    ),
    Target(
        "fetch-pattern",
        _of_text(_fetch_pattern),
        (ValueError,),
        ("checkpoints/**", "*.txt", "!out/*.tmp", "/a/[b-d]?"),
        _GLOBS,
    ),
    Target("gitignore", _gitignore, _USER, ("*.log\n!a.log\n/data/\n# x\n", "**/deep/\\!x\n"), _GLOBS),
    Target("fetched-mark", _fetched_mark, _USER, ("# x\n/data/\n/a.log\n",), _GLOBS),
    Target("wire", _wire, (), (), _FRAMES),
    Target(
        "messages",
        _message,
        (),
        (
            '{"type":"log","task":"worker/0","attempt":0,"offset":0}',
            '{"type":"started","task":"a/0","attempt":0,"pid":1}',
        ),
        _JSON,
    ),
    Target(
        "log-end",
        _log_end,
        (),
        (
            'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nModuleNotFoundError: No module '
            "named 'x'\n",
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.csv'\n",
        ),
        _ENDS,
    ),
    Target("signs", _signs, (), ("step 1, loss: nan\n", "Created device /GPU:0\n"), _PROGRESS),
    Target("footer", _of_text(_footer), (), ("step 402 loss 0.5\nEpoch 3/10\n",), _PROGRESS),
    Target(
        "stacks",
        _stacks,
        (),
        ('Current thread 0x7f50 (most recent call first):\n  File "/w/t.py", line 3 in f\n',),
        _DUMP,
    ),
    Target("netlink", _netlink, (OSError,), ("\x10\0\0\0\3\0\0\0\1\0\0\0\0\0\0\0",), _PARTS),
    Target("log-lines", _log_lines, (), ("a\rb\nc\n", "\x1b[31mred\x1b[0m\n", "50%\b\b\b60%\n"), _LOG),
    Target(
        "trials-yaml", _trials(".yaml"), _USER, ("- {lr: 0.1, x: [1, 2]}\n- {lr: 0.2}\n",), (*_YAML, *_TRIALS)
    ),
    Target("trials-json", _trials(".json"), _USER, ('[{"lr": 0.1}, {"lr": 1e-3, "x": null}]',), _TRIALS),
    Target("trials-jsonl", _trials(".jsonl"), _USER, ('{"lr": 0.1}\n{"lr": 2}\n',), _TRIALS),
    Target("trials-csv", _trials(".csv"), _USER, ("lr,x\n0.1,a\n0.2,b\n",), _TRIALS),
    Target("grid", _of_text(_grid), _USER, ("lr=0.1,0.01\nlayers=2,3",), _TRIALS),
    Target(
        "random", _of_text(_random), _USER, ("lr=0.001..0.1:log\nlayers=1..4\noptimizer=adam,sgd",), _TRIALS
    ),
    Target("metric", _of_text(_metric), _USER, ("loss", "loss: ([\\d.]+)"), _REGEX),
    Target("size", _of_text(_size), _USER, ("40GiB", "1.5G", "40 GB"), _NUMBERS),
    Target("time", _of_text(_time), (*_USER, ValueError), ("90", "15m", "1.5h", "2d"), _NUMBERS),
)
BY_NAME = {target.name: target for target in TARGETS}


# ---- what they are given


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Input that is almost of its language: seeds, cut and spliced, its words in any order, and noise."""
    words = st.sampled_from(target.words)
    character = st.characters() | st.sampled_from("\0\t\r\n\x1b\x7f\x85\u2028\ud800\U0001f600")
    soup = st.lists(words | character, max_size=30).map("".join)

    @st.composite
    def spliced(draw: st.DrawFn) -> str:
        text = draw(st.sampled_from(target.seeds))
        for _ in range(draw(st.integers(1, 3))):
            start = draw(st.integers(0, len(text)))
            end = draw(st.integers(start, min(len(text), start + 20)))
            text = text[:start] + draw(soup) + text[end:]
        return text

    texts = soup | spliced() if target.seeds else soup
    repeated = st.builds(lambda word, times: word * times, words, st.integers(2, 300))
    encoded = (texts | repeated).map(lambda text: text.encode("utf-8", "surrogatepass"))
    if target.name in ("wire", "netlink"):
        encoded = (texts | repeated).map(lambda text: text.encode("latin-1", "ignore"))
    return encoded | st.binary(max_size=60)


# ---- and tried


def try_one(target: Target, data: bytes, directory: Path) -> None:
    """Give it that input; raises what it does not document, AssertionError, or Slow."""
    errors = target.errors
    if target.name in ("wire", "messages"):
        from tflaunch.protocol.wire import WireError

        errors = (WireError,)
    if target.name == "known-hosts":
        errors = (TflaunchError,)
    try:
        with _limited(), contextlib.suppress(*errors):
            target.parse(data, directory)
    except Slow as error:  # the bell may ring between two lines, where pytest cannot show the traceback
        raise Slow(str(error)) from None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def ring(_: int, frame: FrameType | None) -> None:
        raise Slow(f"more than {SLOW_S:g} s")

    before = signal.signal(signal.SIGVTALRM, ring)  # of the CPU's time: a busy machine is no finding
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def cases(target: Target) -> list[Path]:
    """What was found before."""
    return sorted((CASES / target.name).glob("*"))
