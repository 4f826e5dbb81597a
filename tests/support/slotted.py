"""A launcher whose hosts are slots of this machine, each with a slot holder, as an engine would have started it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.support.launcher import Launcher, Process
from tests.support.slots import Held
from tflaunch.engines.holder_text import relay_text

# Stands for an engine whose hosts an older launcher can reach, too: its opener reaches the slots that the file $SLOTS
# names, host -> socket.
ENGINE = """\
import json, os, sys
from pathlib import Path
from tflaunch import remote
from tflaunch.sessions.process_wire import ProcessWire
from tflaunch.protocol.errors import Gone
from tflaunch.slot import relay

slots = Path(os.environ["SLOTS"])

def opened(self, host, command, first=b""):
    place = json.loads(slots.read_text())[host.name]
    try:
        relay.dial(place).close()
    except OSError:
        raise Gone("the engine says that this slot is over", swept=True) from None
    words = [sys.executable, "-c", os.environ["RELAY"], place, command]
    return ProcessWire(words, first)

remote.Connector.open = opened
from tflaunch.cli import main
sys.exit(main())
"""


class Slots(Launcher):
    """A user whose hosts are slots."""

    def __init__(self, directory: Path, places: Path) -> None:
        super().__init__(directory)
        self._places = places
        self._slots = directory / "slots.json"
        self.all: list[Held] = []

    def take(self, count: int) -> list[Held]:
        """The hosts `slot1`, `slot2`, ...."""
        slots = []
        for _ in range(count):
            place = self._places / str(len(self.all))
            place.mkdir(parents=True)
            slots.append(Held(place, env=Launcher.env(self), door=False, grace_s=10.0))
            self.all.append(slots[-1])
        names = {f"slot{number}": slot.told["socket"] for number, slot in enumerate(slots, 1)}
        self._slots.write_text(json.dumps(names))
        return slots

    def hostfile_of(self, slots: list[Held], **defaults: object) -> Path:
        """A hostfile of these slots, with a run directory in each that ends with it."""
        hosts = [
            {"name": f"slot{number}", "run_dir": str(slot.directory / "runs")}
            for number, slot in enumerate(slots, 1)
        ]
        return self.hostfile(hosts, connection="local", run_dir=None, **defaults)

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        """The command line, of a tflaunch that reaches its hosts by their slots."""
        return [sys.executable, "-c", ENGINE, verb, *words]

    def env(self, **more: str) -> dict[str, str]:
        """As of a user whose engine is ENGINE."""
        return super().env(SLOTS=str(self._slots), RELAY=relay_text(), **more)

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What runs on the hosts, without the holders."""
        holders = {slot.process.pid for slot in self.all}
        return [each for each in super().leftovers(run) if each.pid not in holders]

    def close(self) -> None:
        """End the slots, too."""
        for slot in self.all:
            slot.close()
        super().close()


def take_back(slot: Held) -> None:
    """As an engine does."""
    os.kill(slot.pid, signal.SIGTERM)
