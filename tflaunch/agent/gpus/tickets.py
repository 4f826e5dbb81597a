"""The queue for GPUs: a ticket for each run that waits, in a directory that all users of this host share.

A ticket is a file that its run's agent locks (flock): when its holder ends, the kernel frees the lock, and the ticket
is void.  It names the devices that the run could use if all were free; no run that comes later takes one of them.  A
ticket counts for a lease of its run; its agent goes on to put the end of that time off.  So the place of an agent that
hangs, or whose host was asleep, is void, too.

Tickets are served in the order of (since, run).  The launcher gives `since`, the same to all its hosts, so the order is
the same on every host, and two runs never wait for each other.  A run that lies about the time gains little: where
`since` is older than the file by more than clocks may differ, the age of the file counts.  That only moves a ticket
back, so no run waits for more others because of it.
"""

import os
import time

from tflaunch.agent.gpus import ticket_files
from tflaunch.agent.gpus.ticket_files import QUEUE, UNTIL, HeldTicket
from tflaunch.agent.host.rundir import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

FIRST_LEASE_S = 60.0  # until a launcher has said how long the run's lease is


class QueuePlace:
    """The place of one run in the queue of this host, if it has one."""

    def __init__(self, run: str = "", host: str = "") -> None:
        self.lease_s = FIRST_LEASE_S  # for how long the place counts unless `check` is called
        self._refused = ""  # why the run could get no place
        self._unseen = ""  # why the other tickets could not be read
        self._run = run
        self._host = host
        self._ticket = None  # type: Optional[HeldTicket]
        self._wanted = None  # type: Optional[Tuple[float, int, List[str], bool]]

    @property
    def error(self) -> str:
        """Why there is no queue here, or no place in it; "" if all is well."""
        return self._refused or self._unseen

    @property
    def taken(self) -> bool:
        return self._ticket is not None

    def take(self, since: float, wants: int, uuids: "List[str]", planning: bool) -> None:
        """Queue for `wants` of these devices; when that fails, `error` says why."""
        wanted = (since, wants, uuids, planning)
        if self._ticket is not None and wanted == self._wanted:
            return  # a new file would be a younger one
        self.leave()
        self._wanted = wanted
        about = {"wants": wants, "uuids": uuids, "planning": planning}
        try:
            self._ticket = HeldTicket(since, self._run, self._host, about, time.time() + self.lease_s)
            self._refused = ""
        except HostError as error:
            self._refused = error.reason
        except OSError as error:
            self._refused = "%s: %s" % (QUEUE, os.strerror(error.errno or 0))

    def check(self) -> None:
        """Keep the place for another lease.  Take it again if that failed, or if another user has removed it."""
        wanted = self._wanted
        if wanted is None:
            return
        if self._ticket is not None and self._ticket.in_place():
            try:
                self._ticket.put_off(time.time() + self.lease_s)
                return
            except OSError:
                pass  # `take` says why
        self.leave()
        self.take(*wanted)

    def leave(self) -> None:
        """Give the place up."""
        self._wanted = None
        if self._ticket is not None:
            self._ticket.close()
            self._ticket = None

    def ahead(self) -> "List[Dict[str, Any]]":
        """The live tickets of other runs before this run's, in order; without a place, all of them."""
        self._unseen = ""
        try:
            directory = ticket_files.opened(make=False)
        except FileNotFoundError:
            return []  # no run has ever waited here
        except HostError as error:
            self._unseen = error.reason
            return []
        try:
            names = ticket_files.listed(directory)
            read = ticket_files.live(directory, [name for name in names if not name.endswith(UNTIL)])
            ticket_files.clear(directory, names)
        except HostError as error:
            self._unseen = error.reason
            return []
        except OSError as error:
            self._unseen = "%s: %s" % (QUEUE, os.strerror(error.errno or 0))
            return []
        finally:
            os.close(directory)
        mine = (self._wanted[0], self._run) if self._ticket and self._wanted else None
        tickets = [ticket for ticket in read if ticket["run"] != self._run]
        return sorted((each for each in tickets if mine is None or _order(each) < mine), key=_order)


def promise(uuid: str, tickets: "Iterable[Dict[str, Any]]") -> "Optional[Dict[str, Any]]":
    """The first of these tickets that names that device, or None."""
    for ticket in tickets:
        if uuid in ticket["uuids"]:
            return {name: ticket[name] for name in ("user", "run", "since", "planning")}
    return None


def _order(ticket: "Dict[str, Any]") -> "Tuple[float, str]":
    return ticket["since"], ticket["run"]
