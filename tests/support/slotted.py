"""Slots on this machine, as an engine would give them, and a launcher whose hosts are such slots."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.launcher import Launcher, Process

# Stands for the engine's opener: it reaches the slots that $SLOTS names, host -> socket.
SLOTTED = """\
import dataclasses, json, os, shlex, sys
from pathlib import Path
from tflaunch import remote
from tflaunch.launch import launch
from tflaunch.protocol.errors import Gone

def slots():
    return json.loads(Path(os.environ["SLOTS"]).read_text())

def opened(self, host, command, first=b""):
    place = slots()[host.name]
    if not os.path.exists(place):
        raise Gone("the engine says that this slot is over", swept=bool(os.environ.get("SWEPT")))
    words = [sys.executable, "-c", os.environ["RELAY"], place, command]
    return remote.LocalWire("exec " + shlex.join(words), first)

def taking_again(self, request, *rest):
    def take_again():
        os.rename(os.environ["SLOTS"] + ".next", os.environ["SLOTS"])
        return request.hostfile
    if os.path.exists(os.environ["SLOTS"] + ".next"):
        request = dataclasses.replace(request, take_again=take_again)
    run(self, request, *rest)

remote.Connector.open = opened
run, launch.LaunchedRun.__init__ = launch.LaunchedRun.__init__, taking_again
from tflaunch.cli import main
sys.exit(main())
"""
HOLDER = """\
import json, os, socket, subprocess, sys, threading, time, signal, ctypes
settings = json.loads(sys.argv[1])
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
place = settings["place"]
os.makedirs(place, 0o700)
directory = os.open(place, os.O_RDONLY)
server = socket.socket(socket.AF_UNIX)
server.bind("/proc/self/fd/%d/slot.sock" % directory)
server.listen(64)
path = os.path.join(place, "slot.sock")
agents, told = [], []
def tell(agent):
    agent.sendall((json.dumps({"ends_in": told[0] - time.monotonic(), "why": told[1]}) + "\\n").encode())
def serve(caller):
    data, fds, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    said = json.loads(data)
    if "agent" in said:
        agents.append(caller)
        if told: tell(caller)
        while caller.recv(4096): pass
        return
    env = dict(os.environ, TFLAUNCH_SLOT=path, TFLAUNCH_SLOT_GPUS=settings["gpus"])
    words = ["/bin/sh", "-c", said["start"]]
    child = subprocess.Popen(
        words, stdin=fds[0], stdout=fds[1], stderr=fds[2], env=env, start_new_session=True, cwd=env["HOME"]
    )
    for fd in fds: os.close(fd)
    caller.sendall((json.dumps({"ended": child.wait()}) + "\\n").encode())
def accept():
    while True:
        caller, _ = server.accept()
        threading.Thread(target=serve, args=[caller], daemon=True).start()
def taken(*_):
    told[:] = [time.monotonic() + settings["grace_s"], "the engine ends this slot (SIGTERM)"]
    for each in agents: tell(each)
signal.signal(signal.SIGTERM, taken)
threading.Thread(target=accept, daemon=True).start()
print(json.dumps({"socket": path}), flush=True)
while not told or time.monotonic() < told[0] + 2: time.sleep(0.05)
os.unlink(path)
os._exit(75)
"""
RELAY = """\
import json, os, socket, sys
caller = socket.socket(socket.AF_UNIX)
directory = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
caller.connect("/proc/self/fd/%d/slot.sock" % directory)
socket.send_fds(caller, [json.dumps({"start": sys.argv[2]}).encode() + b"\\n"], [0, 1, 2])
null = os.open(os.devnull, os.O_RDWR); os.dup2(null, 0); os.dup2(null, 1)
data = caller.recv(4096)
sys.exit(json.loads(data)["ended"] if data else "slot: the slot holder has ended")
"""


class Slot:
    """A slot and its holder."""

    def __init__(self, env: Mapping[str, str], place: Path, **settings: Any) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        settings = {"place": str(place), "gpus": "", "grace_s": 10.0, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.socket = Path(json.loads(self.process.stdout.readline())["socket"])

    def take_back(self) -> None:
        """What an engine does."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the holder, and nothing else."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the holder."""
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Slots(Launcher):
    """A user whose hosts are slots of this machine."""

    def __init__(self, directory: Path, places: Path) -> None:
        super().__init__(directory)
        self._places = places
        self._slots = directory / "slots.json"
        self.all: list[Slot] = []
        self.more: dict[str, str] = {}

    def take(self, count: int, *, later: bool = False, **settings: Any) -> list[Slot]:
        """Slots for the hosts `slot1`, `slot2`, ...; `later`: for the next time that slots are taken."""
        slots = [
            Slot(Launcher.env(self), self._places / f"{len(self.all) + number}", **settings)
            for number in range(count)
        ]
        self.all += slots
        names = {f"slot{number}": str(slot.socket) for number, slot in enumerate(slots, 1)}
        Path(f"{self._slots}.next" if later else self._slots).write_text(json.dumps(names))
        return slots

    def slotted(self, count: int, **defaults: object) -> Path:
        """A hostfile of that many slots."""
        return self.hostfile([f"slot[1-{count}]"], connection="local", **defaults)

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        """The command line, of a tflaunch that reaches its hosts by their slots."""
        return [sys.executable, "-c", SLOTTED, verb, *words]

    def env(self, **more: str) -> dict[str, str]:
        """As a user whose engine is the test."""
        return super().env(SLOTS=str(self._slots), RELAY=RELAY, **self.more, **more)

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What runs on the hosts, without the holders."""
        holders = {slot.process.pid for slot in self.all}
        return [each for each in super().leftovers(run) if each.pid not in holders]

    def close(self) -> None:
        """End the slots, too."""
        for slot in self.all:
            slot.close()
        super().close()


@contextlib.contextmanager
def slots(directory: Path, places: Path | None = None) -> Iterator[Slots]:
    """A user whose hosts are slots."""
    user = Slots(directory, places or directory / "places")
    try:
        yield user
    finally:
        user.close()


def saved(user: Launcher) -> list[str]:
    """The tasks whose last line is in the launcher's record of the only run."""
    [record] = user.records()
    return sorted(path.stem for path in record.glob("logs/*.log") if "saved" in path.read_text())
