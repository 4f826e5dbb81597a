"""What tflaunch does where other users may write, place by place: `python -m tests.support.trap_places PLACE LAB`.

With a number of seconds behind, another user exchanges what is there in a loop meanwhile, instead of between two calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.other_users import BECOME
from tests.support.traps import FOR_DIRECTORIES, FOR_FILES, NOBODY, Trap, World, between_calls
from tflaunch.agent import (
    garbage,  # noqa: F401 - loaded before anything is hooked
    visit,
)
from tflaunch.agent.files import code_store
from tflaunch.agent.gpus import leases, tickets
from tflaunch.agent.host import (
    journal,  # noqa: F401 - likewise
    processes,
)
from tflaunch.agent.host.rundir import HostError, RunDirectory, parent_directory
from tflaunch.cli import up
from tflaunch.cli.output_file import OutputFile
from tflaunch.protocol import wire
from tflaunch.protocol.errors import FetchError, RecordError, UsageError
from tflaunch.runs import clean_records, record, told
from tflaunch.runs.fetch_destination import Destination
from tflaunch.runs.fetch_part import FilePart, Refused, make_executable, part_name
from tflaunch.runs.record_files import write_object

LONG_AGO = 1000000000.0


class Place:
    """Somewhere in a lab, where a name is played with while `play` runs."""

    def __init__(self, world: World) -> None:
        self.world = world

    name: Path
    traps: tuple[Trap, ...] = FOR_DIRECTORIES
    his = False  # the directory is: whatever he moves there he may remove, too

    def prepare(self) -> None:
        """Complete a new world."""

    def play(self) -> None:
        """What tflaunch does there."""
        raise NotImplementedError


class Leases(Place):
    """The directory of leases, which is made where it is not there."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = Path(leases.DIRECTORY)

    def play(self) -> None:
        held = leases.Leases("trainer-aaaaaa")
        with contextlib.suppress(HostError):
            leases.holder("GPU-a")
        with contextlib.suppress(HostError):
            held.take("GPU-a")
        held.check(leases.TOUCH_S + 1)
        held.keep(["GPU-a"])
        held.keep([])


class Queue(Leases):
    """The directory of leases with a queue in it."""

    def play(self) -> None:
        waiting = tickets.QueuePlace("trainer-aaaaaa", "h1")
        waiting.take(time.time(), 1, ["GPU-a"], False)
        tickets.QueuePlace().ahead()
        waiting.check()
        waiting.leave()


class QueueInside(Queue):
    """The queue, in a directory of leases that is his."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name /= "queue"

    def prepare(self) -> None:
        his_leases()


class LeaseFile(Leases):
    """A lease file, in a directory of leases that is his: he may exchange what the victim has made, too."""

    traps = FOR_FILES
    his = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name /= "GPU-a"

    def prepare(self) -> None:
        his_leases()


class TicketFile(Queue):
    """The file that says until when a ticket counts, in a queue that is his."""

    traps = FOR_FILES
    his = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name /= f"queue/{LONG_AGO:017.6f}-trainer-aaaaaa-h1.until"

    def prepare(self) -> None:
        his_leases("", "queue")

    def play(self) -> None:
        waiting = tickets.QueuePlace("trainer-aaaaaa", "h1")
        waiting.take(LONG_AGO, 1, ["GPU-a"], False)
        tickets.QueuePlace().ahead()
        waiting.check()
        waiting.leave()


def his_leases(*below: str) -> None:
    """A directory of leases that he was the first to make."""
    for each in below or ("",):
        path = Path(leases.DIRECTORY) / each
        path.mkdir()
        path.chmod(0o1777)
        os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)


class RunDir(Place):
    """The directory of a user's runs, and what is on the way to it and not there yet."""

    def __init__(self, world: World, configured: str = "") -> None:
        super().__init__(world)
        self.parent = parent_directory(str(world.lab / configured))
        self.name = Path(self.parent)

    def play(self) -> None:
        directory = RunDirectory(self.parent, "trainer-aaaaaa", "h1")
        try:
            directory.create()
        except HostError:
            return
        listener = directory.listen()
        directory.append("events.jsonl", {"type": "started", "n": 1, "time": 1.0})
        directory.read("agent.json")
        if (connection := directory.connect()) is not None:
            connection.close()
        with contextlib.suppress(HostError):
            store = code_store.CodeStore(self.parent, "abc")
            store.lacks(b"nonsense", last=True)
        listener.close()
        directory.close()
        directory.remove()


class OnTheWay(RunDir):
    """A directory on the way."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "a/b")
        self.name = world.lab / "a"


class Visits(RunDir):
    """A visit that lists, ends, measures and cleans."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        processes.every = dict  # this machine's have no part in it

    def play(self) -> None:
        mine, its = os.pipe(), os.pipe()
        os.close(mine[1])
        orders = (
            ("list", {"all": True}),
            ("finish", {"run": "trainer-aaaaaa", "grace_s": 0.0}),
            ("measure", {}),
            ("clean", {"runs": ["trainer-aaaaaa"], "code_older_s": 0.0, "dry_run": False}),
            ("bye", {}),
        )
        early = b"".join(wire.encode(type, b"", **fields) for type, fields in orders)
        try:
            visit.Visit(self.parent, mine[0], its[1]).run(early)
        finally:
            for each in (mine[0], *its):
                os.close(each)


class Records(Place):
    """The directory of records."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = Path(os.environ["TFLAUNCH_STATE"])

    def play(self) -> None:
        with contextlib.suppress(RecordError), record.run_ids_locked():
            pass
        told.is_new("something")
        with contextlib.suppress(RecordError):
            clean_records.remove_records(["trainer-aaaaaa"], dry_run=False)
        with contextlib.suppress(RecordError, record.UsageError):
            reopened = record.Record.reopen("trainer-aaaaaa")
            write_object(reopened.path / "run.json", {})
            reopened.discard()


class Fetched(Place):
    """A directory that files are fetched into, and that other users may write to."""

    traps = FOR_FILES
    his = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.to = world.lab / "out"
        self.name = self.to / part_name("which", "content")  # as anybody may compute it

    def prepare(self) -> None:
        self.to.mkdir()
        self.to.chmod(0o777)

    def play(self) -> None:
        destination = Destination(self.to)
        with contextlib.suppress(FetchError, Refused, OSError):
            destination.mark(["metrics.csv"])
            with destination.beside("metrics.csv") as (directory, name):
                part = FilePart(directory, name, "which", "content")
                part.forget()
                part.write(0, b"1,2\n")
                make_executable(part.file)
                part.finish(1, True, False)
                part.close()
            destination.settle(["metrics.csv"])


class FetchedInto(Fetched):
    """The directory that files are fetched into, in one in which others may exchange it."""

    traps = FOR_DIRECTORIES

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.to = self.name = world.lab / "shared/out"

    def prepare(self) -> None:
        self.to.parent.mkdir()
        self.to.parent.chmod(0o777)


class Spec(Place):
    """The file of `up --spec`, in a directory that other users may write to."""

    # A file of the victim's that he moves there is what the victim wants to overwrite.
    traps = tuple(trap for trap in FOR_FILES if trap is not World.moved)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.name = world.lab / "cluster.json"

    def play(self) -> None:
        with contextlib.suppress(RecordError, UsageError):
            spec = OutputFile(self.name, "--spec")
            up._open(spec)
            up._write(spec, {"worker": ["h1:20000"]})


PLACES: dict[str, Callable[[World], Place]] = {
    "leases": Leases,
    "lease-file": LeaseFile,
    "queue": Queue,
    "queue-inside": QueueInside,
    "ticket": TicketFile,
    "run-directory": RunDir,
    "on-the-way": OnTheWay,
    "visit": Visits,
    "records": Records,
    "fetch": Fetched,
    "fetch-into": FetchedInto,
    "spec": Spec,
}

# What he does all the time; the world is made anew meanwhile.
LOOP = f"""\
import itertools, os, sys
from pathlib import Path
from tests.support import traps
from tests.support.trap_places import PLACES
world = traps.World(Path(sys.argv[2]))
place = PLACES[sys.argv[1]](world)
{BECOME}
print("ready", flush=True)
for trap in itertools.cycle(place.traps):
    try:
        trap(world, place.name)
    except (OSError, RuntimeError):
        pass
"""


def in_a_loop(name: str, place: Place, seconds: float) -> int:
    """Play for so long, while he exchanges; returns how often."""
    played = 0
    words = [sys.executable, "-c", LOOP, name, str(place.world.lab)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            end = time.monotonic() + seconds
            while time.monotonic() < end or played < 40:
                os.kill(other.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, other.pid, os.WSTOPPED)
                place.world.make()
                place.prepare()
                os.kill(other.pid, signal.SIGCONT)
                for _ in range(20):
                    place.play()
                    played += 1
                place.world.check(f"after {played}", place.his)
        finally:
            other.kill()
    return played


def main(name: str, lab: Path, seconds: float = 0.0) -> None:
    place = PLACES[name](World(lab))
    if seconds:
        print(in_a_loop(name, place, seconds))
    else:
        told = place.world, place.name, place.traps, place.prepare, place.play
        print(between_calls(*told, removable=place.his))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(float, sys.argv[3:]))
