"""What a run holds of its host, from the first look to its end: ports, GPU leases, a place in the queue for GPUs."""

import os
import zlib

from tflaunch.agent import facts, strays
from tflaunch.agent.files.journal import note
from tflaunch.agent.files.rundir import CODE, Unaged
from tflaunch.agent.gpus import leases, limit
from tflaunch.agent.gpus.freed import RunGpus
from tflaunch.agent.gpus.leases import Leases
from tflaunch.agent.gpus.tickets import Place
from tflaunch.agent.net.ports import HeldPorts
from tflaunch.gpu_probe import Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

    from tflaunch.agent.files.journal import Journal
    from tflaunch.agent.files.rundir import RunDirectory
    from tflaunch.agent.viewer import Viewer
    from tflaunch.protocol.wire import Message

CHECK_S = 2.0  # how often the agent looks whether another user has taken something away


class Holdings:
    """Holds all of these for one run, and answers `probe` with the facts of this host."""

    def __init__(self, directory: "RunDirectory", journal: "Journal") -> None:
        self._directory = directory
        self._journal = journal
        self._ports = HeldPorts()
        self._leases = Leases(directory.run)
        self._place = Place(directory.run, directory.host)
        self._unaged = Unaged()
        self._unaged.add(directory.path)
        self._unaged.add(os.path.join(directory.parent, CODE))
        self._checked_at = 0.0
        self._look = Look()
        self._devices = {}  # type: Dict[str, str]  # UUID -> the kernel's file for its lock
        self._to_lease = []  # type: Union[bool, List[str]]  # UUIDs, or whether to lease all
        self._range = None  # type: Optional[Tuple[int, int]]  # where the ports lie
        self.door_port = 0  # the port for the run's other agents, 0 for none
        self.gpus = RunGpus(directory.run)

    # -- messages

    def probe(self, viewer: "Viewer", message: "Message") -> None:
        wanted = message["ports"]
        seed = zlib.crc32(self._directory.run.encode())
        self._range = tuple(wanted) if wanted else None
        self._ports.hold(message["count"], self._range, seed)
        self._to_lease = message["lease"]
        for each in strays.end_all(self._directory.parent, engines=False):
            note("%(run)s was left without agent and guard on %(host)s: ended %(killed)s" % each)
        self._send_facts(viewer)

    def module(self, viewer: "Viewer", message: "Message") -> None:
        facts.take_module(message["name"], message.body)
        self._send_facts(viewer)

    def queue(self, viewer: "Viewer", message: "Message") -> None:
        self._place.take(message["since"], message["wants"], message["gpus"], message["planning"])

    def let_go(self, viewer: "Viewer", message: "Message") -> None:
        self._leases.keep([])

    def keep(self, viewer: "Viewer", message: "Message") -> None:
        """Keep these GPUs only.  Raises HostError where the user's runs would hold more than the host allows."""
        wanted = message["gpus"]
        self._leases.keep(wanted)
        if wanted and limit.most() is not None:
            others = [uuid for uuid in self._devices if uuid and uuid not in wanted]
            found = [{"lease": leases.holder(uuid, self._devices[uuid])} for uuid in others]
            limit.check(len(wanted), limit.held(found, self._directory.run))
        self.gpus.keep(message["gpus"])
        self._place.leave()
        self._look.close()

    def _send_facts(self, viewer: "Viewer") -> None:
        probed = facts.probe(self._look)
        if not self._place.taken:  # only a run that waits in the queue looks again; others leave NVML alone
            self._look.close()
        found = facts.collect(
            self._ports.held,
            self._directory.path,
            probed,
            self._place,
            lease=self._lease,
            strays=strays.leases(self._directory.parent),
            run=self._directory.run,
        )
        self._devices = {
            device["uuid"]: probed["locks"].get(device["uuid"], "") for device in facts.devices_of(found)
        }
        self.gpus.seen(found["gpus"])
        viewer.send("facts", **found)

    def _lease(self, uuid: str, file: str) -> "Optional[Dict[str, Any]]":
        if self._to_lease is True or (self._to_lease and uuid in self._to_lease):
            return self._leases.take(uuid, file)
        return leases.holder(uuid, file)

    # -- for the tasks

    def keep_ports(self, ports: "List[int]", door: bool) -> None:
        """Give up all ports but these; with `door` keep one more, for the run's other agents."""
        spare = next((port for port in self._ports.held if port not in ports), 0)
        self.door_port = spare if door else 0
        self._ports.keep([*ports, self.door_port] if door else ports)

    def hold_door(self) -> int:
        """The port for the run's other agents, held from now on; 0 if none is free."""
        if not self.door_port:
            before = self._ports.held
            held = self._ports.hold(len(before) + 1, self._range, zlib.crc32(self._directory.run.encode()))
            self.door_port = next((port for port in held if port not in before), 0)
        return self.door_port

    def share_port(self, port: int) -> None:
        """See HeldPorts.share."""
        self._ports.share(port)

    def protect(self, directory: str) -> None:
        """Keep systemd-tmpfiles from that directory as long as the agent lives."""
        self._unaged.add(directory)

    # -- the agent's loop

    def tick(self, now: float) -> None:
        """Every CHECK_S seconds, take again what another user has taken away."""
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        self._unaged.check()
        self._place.check()
        for text in self._leases.check(now):
            note(text)
            self._journal.add("said", text=text, replanned=False)

    def release(self) -> None:
        """Give up everything: the run has ended on this host."""
        self._ports.keep([])
        self._leases.keep([])
        self._place.leave()
