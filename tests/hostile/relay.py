"""What stands in the place of `python3` on a hostile host: it starts the real one and rewrites what its agent says.

`$TFLAUNCH_HOSTILE` names a file that says what to do, read each time an agent is started:

    {"mode": "record", "to": DIRECTORY}                               write down what passes, for recordings.json
    {"mode": "mutate", "mutation": TEXT, "hosts": [...], "samples": FILE}          a real agent, one lie (or none)
    {"mode": "play", "channels": FILE, "scratch": DIRECTORY, "mutation": TEXT, ...} no agent: what one once said

Whatever is no agent becomes the real Python at once.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.hostile.mutations import Answer, Mutation, plain
from tests.support import ROOT
from tflaunch.protocol import wire

PLAN = "TFLAUNCH_HOSTILE"
PLAYS_S = 200  # no player outlives its launcher for longer
BEAT_S = 2.0
# What is asked only when something went wrong, and what answers it.
ANSWERS = {"finish": "finished", "end": "swept", "list": "runs", "measure": "usage", "find": "found"}
# What comes at any time, and is no question: what follows it was said without it.
ASIDE = ("renew", "credit", "taken", "holds", "said")


def main() -> None:
    """`python3 -I -S ... -c READER tflaunch-agent SIZE VERB RUN HOST RUN_DIR`."""
    words = sys.argv[1:]
    if PLAN not in os.environ or "tflaunch-agent" not in words:
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606
    size, verb, run, host = words[words.index("tflaunch-agent") + 1 :][:4]
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    if plan["mode"] == "play":
        signal.alarm(PLAYS_S)
        _Player(plan, int(size), verb, run, host).play()
    elif plan["mode"] == "record":
        _record(words, Path(plan["to"]), int(size), verb, host)
    else:
        _rewrite(words, plan, host)


class Liar:
    """Applies one mutation to what passes."""

    def __init__(self, plan: dict[str, Any], host: str) -> None:
        text = plan.get("mutation") if host in plan.get("hosts", [host]) else None
        self._mutation = Mutation.parse(text) if text else None
        self._samples = json.loads(Path(plan["samples"]).read_text()) if text and "samples" in plan else {}
        self._seen = 0
        self.told = False

    def says(self, message: wire.Message, frame: bytes) -> Answer:
        """What goes out in the place of that message."""
        mutation = self._mutation
        if mutation is None or message.type != mutation.type:
            return Answer(frame)
        self._seen += 1
        if mutation.nth not in (0, self._seen):
            return Answer(frame)
        self.told = True
        return mutation.applied(message, frame, self._samples)


def _start(words: list[str]) -> tuple[int, int, int]:
    """The real Python: its pid, its input and its output."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(theirs_in, 0)
        os.dup2(theirs_out, 1)
        for each in (theirs_in, theirs_out, ours_in, ours_out):
            os.close(each)
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606
    os.close(theirs_in)
    os.close(theirs_out)
    return pid, ours_out, ours_in


def _write(descriptor: int, data: bytes) -> bool:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        return False
    return True


def _pass_on(source: int, to: int, look: Any = None) -> None:
    while data := os.read(source, 1 << 16):
        if look is not None:
            look(data)
        if not _write(to, data):
            break
    os.close(to)


def _frames(decoder: wire.Decoder, data: bytes) -> list[tuple[wire.Message, bytes]]:
    return [(message, plain(message.type, message.fields, message.body)) for message in decoder.feed(data)]


def _rewrite(words: list[str], plan: dict[str, Any], host: str) -> None:
    pid, to_agent, from_agent = _start(words)
    threading.Thread(target=_pass_on, args=[0, to_agent], daemon=True).start()
    liar, decoder = Liar(plan, host), wire.Decoder(magic=True)
    silent = False
    magic = b""
    while data := os.read(from_agent, 1 << 16):
        frames = _frames(decoder, data)
        if not magic and not decoder.awaiting_magic:
            magic = wire.MAGIC
            _write(1, decoder.noise + magic)
        for message, frame in frames:
            answer = liar.says(message, frame)
            if not silent and not _write(1, answer.data):
                break
            if answer.after == "end":
                os._exit(0)
            silent = silent or answer.after == "silence"
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0x7F)


def _record(words: list[str], directory: Path, size: int, verb: str, host: str) -> None:
    """A line for each frame, in the order in which they passed here."""
    pid, to_agent, from_agent = _start(words)
    name = f"{len(list(directory.iterdir())):03}-{verb}-{host}-{os.getpid()}.jsonl"
    lines = (directory / name).open("w", buffering=1)
    asked, left = wire.Decoder(), [size]

    def look(data: bytes) -> None:
        skipped = min(left[0], len(data))
        left[0] -= skipped
        for message in asked.feed(data[skipped:]):
            lines.write(json.dumps(["in", message.type]) + "\n")

    threading.Thread(target=_pass_on, args=[0, to_agent, look], daemon=True).start()
    decoder = wire.Decoder(magic=True)
    while data := os.read(from_agent, 1 << 16):
        for message in decoder.feed(data):
            body = base64.b64encode(message.body).decode()
            lines.write(json.dumps(["out", message.type, message.fields, body]) + "\n")
        if not _write(1, data):
            break
    os.close(from_agent)
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0x7F)


class _Player:
    """Says what was once said after each question; what was never asked is answered by what fits."""

    def __init__(self, plan: dict[str, Any], size: int, verb: str, run: str, host: str) -> None:
        self._plan, self._size, self._run = plan, size, run
        every: dict[str, list[Any]] = json.loads(Path(plan["channels"]).read_text())
        self._every = every
        channels = every.get(f"{verb} {host}") or [_again(every.get(f"start {host}", [[]])[0])]
        scratch = Path(plan["scratch"])
        before = len(list(scratch.glob(f"{verb}-{host}-*")))
        (scratch / f"{verb}-{host}-{os.getpid()}").touch()
        self._liar = Liar(plan, host)
        self._scratch = scratch
        # question -> what was said after it, each time that it was asked; "": before the first
        self._answers: dict[str, list[list[Any]]] = {}
        for kind, frames in channels[min(before, len(channels) - 1)]:
            self._answers.setdefault(kind, []).append(frames)
        self._asked: dict[str, int] = {}
        self._silent = False
        self._samples = json.loads(Path(plan["samples"]).read_text())

    def play(self) -> None:
        """Until the launcher hangs up."""
        self._write(wire.MAGIC)
        self._answer("")
        decoder, skip = wire.Decoder(), self._size
        beat, beaten = plain("beat", {}), time.monotonic()
        while True:
            ready, _, _ = select.select([0], [], [], BEAT_S)
            if time.monotonic() - beaten > BEAT_S:
                beaten = time.monotonic()
                self._write(beat)
            if not ready:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                os._exit(0)
            skipped = min(skip, len(data))
            skip -= skipped
            for message in decoder.feed(data[skipped:]):
                if message.type == "bye":
                    os._exit(0)
                if message.type not in ASIDE:
                    self._answer(message.type, message.fields)

    def _answer(self, question: str, asked: dict[str, Any] | None = None) -> None:
        number = self._asked.get(question, 0)
        self._asked[question] = number + 1
        groups = self._answers.get(question) or self._elsewhere(question)
        for kind, fields, body in groups[min(number, len(groups) - 1)]:
            told = self._here(fields)
            if kind == "dialled" and asked and told["results"]:
                count = len(asked["targets"])
                told = {**told, "results": (told["results"] * count)[:count]}
            message = wire.Message(kind, told, base64.b64decode(body))
            answer = self._liar.says(message, plain(kind, message.fields, message.body))
            self._write(answer.data)
            if self._liar.told:
                (self._scratch / "told").touch()
            if answer.after == "end":
                os._exit(0)
            self._silent = self._silent or answer.after == "silence"

    def _elsewhere(self, question: str) -> list[list[Any]]:
        """What another host said, or this one another time."""
        for channels in self._every.values():
            for groups in channels:
                if found := [said for asked, said in groups if asked == question and said]:
                    return found
        if question == "look":
            return [[["looked", {"tasks": {}}, ""]]]
        answer = ANSWERS.get(question)
        return [[[answer, *self._samples[answer]]]] if answer in self._samples else [[]]

    def _here(self, fields: dict[str, Any]) -> dict[str, Any]:
        if not self._run or "run" not in fields:
            return fields
        return {**fields, "run": self._run} if fields["run"] else fields

    def _write(self, data: bytes) -> None:
        if not self._silent and not _write(1, data):
            os._exit(0)


def _again(groups: list[Any]) -> list[Any]:
    """What an agent says to who comes back to it, made of what it said the first time."""
    said = [message for _, group in groups for message in group]
    hello = [message for message in said if message[0] == "hello"]
    visits = [[kind, {**fields, "run": ""}, body] for kind, fields, body in hello]
    events = [message for message in said if message[0] in ("started", "log", "exit", "through")]
    asked = [group for group in groups if group[0] in ("end", "find", "read", "outcome", "look")]
    return [["", visits], ["attach", hello], ["watch", events], *asked]


def install(directory: Path) -> Path:
    """A directory whose `python3` is this program; for the PATH of a host."""
    directory.mkdir(parents=True, exist_ok=True)
    root = ROOT
    program = directory / "python3"
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from tests.hostile.relay import main\nmain()\n"
    )
    program.chmod(0o755)
    return directory
