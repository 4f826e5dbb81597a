"""Looks up the names of hosts, in a child process: a resolver blocks, and the agent's one loop must not.

For those that /etc/hosts decides there is no resolver to wait for, and no child.
"""

import os
import time

from tflaunch.agent.host import foreign, processes
from tflaunch.agent.net import hosts_file
from tflaunch.protocol import wire
from tflaunch.protocol.dialling import addresses_of
from tflaunch.protocol.light_stdlib import sha256, signal
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _thread
    from typing import Dict, List, Optional, Sequence, Tuple, Union

    from tflaunch.protocol.dialling import AnySelector

    Addresses = Dict[str, Union[str, List[Tuple[int, str]]]]  # of each name, or why it has none

RESOLVER_THREADS = 16
QUICK_S = 0.02  # the child starts another thread whenever the newest one has been busy for so long


class NameLookup:
    """Looks names up; what a child looks up is given up when `patience_s` pass without a further result.

    `digest`: of the addresses of the names `compared`, "" if they are not found in time.
    """

    def __init__(
        self, selector: "AnySelector", names: "List[str]", patience_s: float, compared: "Sequence[str]" = ()
    ) -> None:
        self.digest = ""
        self._selector = selector
        self._names = names
        self._deadline = time.monotonic() + patience_s
        self._patience_s = patience_s
        self._said = b""
        self._pipe = -1
        self._known = known = dict(hosts_file.listed({*names, *compared}))  # type: Addresses
        asked = [name for name in [*{*compared}.difference(names), *names] if name not in known]
        self._lines = len(set(names).intersection(asked)) + bool(compared)  # that the child writes
        self._child = None  # type: Optional[processes.Process]
        self._ended = not asked
        if asked:
            pid, self._pipe = foreign.child(lambda pipe: _resolve(asked, pipe, known, names, compared))
            os.set_blocking(self._pipe, False)
            self._child = processes.read(pid)
            selector.register(self._pipe, EVENT_READ, self._read)
        elif compared:
            self.digest = _digest(known, compared)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        self._said += data
        self._deadline = time.monotonic() + self._patience_s
        if not data and not self._ended:
            self._ended = True
            self._selector.unregister(self._pipe)

    def step(self, now: float) -> "Optional[Addresses]":
        """The (family, address) of each name, or why it has none; None while the child still works."""
        lines = self._said.splitlines()
        if len(lines) < self._lines and not self._ended and now < self._deadline:
            return None
        self.close()
        late = "no answer within %g s" % self._patience_s
        addresses = {name: self._known.get(name, late) for name in self._names}
        for line in lines:
            name, found = wire.loads(line.decode("ascii"))
            if name:
                addresses[name] = found
            else:
                self.digest = found
        return addresses

    def close(self) -> None:
        """End the child."""
        if self._pipe < 0:
            return
        if not self._ended:
            self._ended = True
            self._selector.unregister(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        if self._child is not None:
            processes.send(self._child, signal.SIGKILL)  # the agent's loop reaps it


def _resolve(
    asked: "List[str]", pipe: int, known: "Addresses", names: "Sequence[str]", compared: "Sequence[str]"
) -> None:
    """In the child: write a line for each of the `names` as soon as it is known, however long the others take.

    Then one for no name, with the digest of what was found for those that are `compared`.
    """
    import _thread  # `threading` takes longer to load than the names of a small run to look up

    wanted = frozenset(names)

    def work(done: "_thread.LockType") -> None:
        try:
            while True:
                name = asked.pop()
                found = addresses_of(name, 0)
                if not isinstance(found, str):
                    found = [(family, where[0]) for family, where in found]
                known[name] = found
                if name in wanted:
                    # Shorter than PIPE_BUF, so written in one piece: threads do not mix their lines.
                    os.write(pipe, wire.dumps([name, found]).encode("ascii") + b"\n")
        except IndexError:
            pass  # that was the last
        finally:
            done.release()

    working = []  # type: List[_thread.LockType]
    while asked and len(working) < RESOLVER_THREADS:  # one is enough for a file of names
        done = _thread.allocate_lock()
        done.acquire()
        try:
            _thread.start_new_thread(work, (done,))
        except RuntimeError:  # the system allows no more threads
            if not working:
                work(done)
            break
        working.append(done)
        if done.acquire(timeout=QUICK_S):
            done.release()
    for done in working:
        done.acquire()
    if compared:
        os.write(pipe, wire.dumps(["", _digest(known, compared)]).encode() + b"\n")


def _digest(known: "Addresses", compared: "Sequence[str]") -> str:
    """As tflaunch.planning.dials.names_digests has it."""
    text = ""
    for name in compared:
        text += "%s %s\n" % (name, " ".join(sorted(each[1] for each in known[name] if each[1:])))
    return sha256(text.encode()).hexdigest()
