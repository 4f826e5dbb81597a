"""Slots for one command: asked for, given, and given back at its end unless the run goes on without it."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tflaunch.engines import registry
from tflaunch.engines.engine import Engine, GivenSlots, Handle, check
from tflaunch.hosts import Host, Hostfile
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.events import Interrupted
from tflaunch.sessions.group import Stopped
from tflaunch.sessions.interrupts import interrupts
from tflaunch.sessions.watcher import SLOTS, ProgressWatcher

RELEASE_S = 15.0  # for an engine to take its slots back
END_S = 20.0  # for slot holders to end by themselves, once their run has ended
LOOK_S = 0.25  # between two looks whether they have
WORDS_S = 5.0  # for an engine to say why a slot is over, after its holder has


def checked(hostfile: Hostfile) -> Hostfile:
    """The same; raises HostfileError for settings that its engine does not know.  Nothing is asked of the engine."""
    if hostfile.wanted is None:
        return hostfile
    wanted = check(hostfile.wanted, _engine(hostfile.wanted.engine), hostfile.source)
    return dataclasses.replace(hostfile, wanted=wanted)


def why_it_stays(hostfile: Hostfile) -> str:
    """Why a run on these hosts cannot go on without its launcher; "" if it can."""
    return "" if hostfile.wanted is None else _engine(hostfile.wanted.engine).stays


@dataclass
class ForCommand:
    """The command that slots are taken for; see tflaunch.engines.engine.ForWhom."""

    run_id: str
    watcher: ProgressWatcher
    limit_s: float | None = None
    keep: Callable[[Handle], None] = lambda _: None  # what `note` does
    _asked: queue.SimpleQueue[Interrupted] = field(default_factory=queue.SimpleQueue)

    def note(self, handle: Handle) -> None:
        self.keep(handle)

    def waits(self, given: int, wanted: int, why: str) -> None:
        self.watcher.phase(SLOTS, given, wanted, line=why)

    def pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            raise Stopped(self._asked.get(timeout=max(0.0, deadline - time.monotonic())))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, Ctrl-C, SIGTERM and the end of the terminal end the next `pause`."""
        with interrupts(self._asked.put), _hangup(self._asked.put):
            yield


@contextlib.contextmanager
def _hangup(put: Callable[[Interrupted], None]) -> Iterator[None]:
    """Inside, SIGHUP is one of the interrupts, unless it is ignored or this program has a use of its own for it."""
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGHUP) != signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGHUP, lambda number, _: put(Interrupted(number)))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


class TakenSlots:
    """The slots of one command."""

    def __init__(self, hostfile: Hostfile, about: ForCommand) -> None:
        assert hostfile.wanted is not None  # noqa: S101 - `taking` makes these
        self._as_wanted, self._wanted = hostfile, hostfile.wanted
        self._engine = _engine(self._wanted.engine)
        self._about = about
        self._taken: GivenSlots | None = None

    def take(self, after_s: float = 0.0) -> Hostfile:
        """Wait for the slots and return the hostfile with them as its hosts.  Raises TflaunchError, Stopped.

        after_s: so long tasks may run in slots that the command had before; they are asked for afterwards.
        """
        self.release()
        with self._about.listening():
            if after_s > 0:
                why = f"tasks may run for another {after_s:.0f} s in a slot that is gone, until their lease is over"
                self._about.waits(0, self._wanted.count, why)
                self._about.pause(after_s)
            taken = self._taken = self._engine.take(self._wanted, self._about)
        self._about.waits(len(taken.hosts), len(taken.hosts), "")
        self._about.pause(0.0)
        hosts = tuple(_as_wanted(host, self._as_wanted.hosts) for host in taken.hosts)
        return dataclasses.replace(self._as_wanted, hosts=hosts)

    def why(self, name: str) -> str:
        """Why the slot of that name is taken back, in the engine's words; "" if it does not say soon."""
        host = next((host for host in self._taken.hosts if host.name == name), None) if self._taken else None
        until = time.monotonic() + WORDS_S
        while host is not None and time.monotonic() < until:
            if (words := self._engine.why(host)) != "":
                return words or ""
            time.sleep(0.1)
        return ""

    def keep(self) -> None:
        """Leave the slots to the run, which goes on without this command; they end with it."""
        self._taken = None

    def release(self) -> None:
        """Give the slots back; idempotent."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        over = queue.SimpleQueue[Interrupted | None]()

        def give_back() -> None:
            with contextlib.suppress(Exception):  # slot holders end by themselves, too
                self._engine.release(taken.handle, taken.hosts)
            over.put(None)

        # How the run has ended is known by now: whoever presses Ctrl-C ends the wait, and nothing else.
        with interrupts(over.put), contextlib.suppress(queue.Empty):
            threading.Thread(target=give_back, name="give back", daemon=True).start()
            over.get(timeout=RELEASE_S)


@contextlib.contextmanager
def taking(hostfile: Hostfile, about: ForCommand) -> Iterator[tuple[Hostfile, TakenSlots | None]]:
    """The hostfile with real hosts: as it is, or with slots that are given back at the end of the block.

    Raises TflaunchError, Stopped.
    """
    if hostfile.wanted is None:
        yield hostfile, None
        return
    slots = TakenSlots(hostfile, about)
    with about.listening():  # what comes between two steps that listen themselves must not end this process
        try:
            yield slots.take(), slots
        finally:
            slots.release()


def there(hostfile: Hostfile) -> Hostfile:
    """The hostfile as it is, or with one's own slots that its engine knows; nothing is taken.  Raises ConnectError."""
    if hostfile.wanted is None:
        return hostfile
    found = _engine(hostfile.wanted.engine).there(hostfile.wanted.settings)
    return dataclasses.replace(
        hostfile, hosts=tuple(host for taken in found for host in taken.hosts), wanted=None
    )


def release(engine: str, handle: Handle, hosts: Sequence[Host]) -> None:
    """Give slots back, or the request for them; idempotent, silent."""
    if (found := registry.engine(engine)) is not None:
        found.release(handle, hosts)


def let_end(hosts: Sequence[Host]) -> None:
    """Give back slots whose run has ended, and is on record elsewhere: there the engine tells how.  Silent.

    Slot holders end by themselves soon after; what is left of them then is given back in any case.
    """
    engines = {
        host.name: engine for host in hosts if (engine := registry.engine(host.connection)) is not None
    }
    left = [host for host in hosts if host.slot and host.name in engines]
    mine, until = left, time.monotonic() + END_S
    while left and time.monotonic() < until:
        left = [host for host in left if engines[host.name].over(host) is None]
        time.sleep(LOOK_S if left else 0.0)
    for host in left or [host for host in mine if not engines[host.name].forgets]:
        engines[host.name].release(host.slot, [host])


def forget(engine: str, handle: Handle, hosts: Sequence[Host]) -> None:
    """Remove what is left of slots only to tell how their run has ended; idempotent, silent."""
    if (found := registry.engine(engine)) is not None and found.forgets:
        found.release(handle, hosts)


def _engine(word: str) -> Engine:
    if (found := registry.engine(word)) is None:
        raise UsageError(f"there is no engine {word!r}", f"there are: {', '.join(registry.names())}")
    return found


def _as_wanted(given: Host, wanted: Sequence[Host]) -> Host:
    """A slot as the engine has given it, with the settings that the user wants for its role."""
    role = given.labels.get("role", "")
    like = next((host for host in wanted if host.labels.get("role", "") == role), wanted[0])
    return dataclasses.replace(
        like,
        name=given.name,
        ssh_host=given.name,
        address=given.address,
        python=like.python or given.python,
        run_dir=like.run_dir or given.run_dir,
        gpus=given.gpus,
        slots=given.slots if given.slots is not None else like.slots,
        slots_by=given.slots_by,
        gpus_by=given.gpus_by,
        labels={**like.labels, **given.labels},
        env={**given.env, **like.env},
        slot=given.slot,
    )
