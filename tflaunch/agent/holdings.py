"""What a run holds of its host, from the first look to its end: ports, GPU leases, a place in the queue for GPUs."""

import os
import time
import zlib

from tflaunch.agent import host_facts, slot
from tflaunch.agent.files.unaged import Unaged
from tflaunch.agent.gpus import leases, limit
from tflaunch.agent.gpus.freed import RunGpus
from tflaunch.agent.gpus.gpu_driver import LOOK_S, GpuDriver
from tflaunch.agent.gpus.leases import Leases
from tflaunch.agent.gpus.tickets import QueuePlace
from tflaunch.agent.host import strays
from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import CODE
from tflaunch.agent.net.ports import HeldPorts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

    from tflaunch.agent.gpus.gpu_driver import DeviceAnswer
    from tflaunch.agent.host.journal import Journal
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.viewer import Viewer
    from tflaunch.protocol.selector import Selector
    from tflaunch.protocol.wire import Message

TELL_S = 1.0  # how often the launcher hears that NVML is slow
CHECK_S = 2.0  # how often the agent looks whether another user has taken something away


class Holdings:
    """Holds all of these for one run, and answers `probe` with the facts of this host."""

    def __init__(self, directory: "RunDirectory", journal: "Journal", selector: "Selector") -> None:
        self._directory = directory
        self._journal = journal
        self._ports = HeldPorts()
        self._leases = Leases(directory.run)
        self._place = QueuePlace(directory.run, directory.host)
        self._unaged = Unaged()
        self._unaged.add(directory.path)
        self._unaged.add(os.path.join(directory.parent, CODE))
        self._checked_at = 0.0
        self.driver = GpuDriver(selector)
        self._asking = []  # type: List[Viewer]  # they wait for the facts
        self._question = (True, LOOK_S)  # whether to ask NVML at all, and for how long
        self._told_at = 0.0
        self._devices = {}  # type: Dict[str, str]  # UUID -> the kernel's file for its lock
        self._to_lease = []  # type: Union[bool, List[str]]  # UUIDs, or whether to lease all
        self._wanted = 0  # ports
        self._range = None  # type: Optional[Tuple[int, int]]  # where the ports lie
        self.door_port = 0  # the port for the run's other agents, 0 for none
        self.gpus = RunGpus(directory.run, self.driver)

    # -- messages

    def probe(self, viewer: "Viewer", message: "Message") -> None:
        wanted = message["ports"]
        seed = zlib.crc32(self._directory.run.encode())
        self._range = tuple(wanted) if wanted else None
        self._wanted = message["count"]
        self._ports.hold(self._wanted, self._range, seed)
        self._to_lease = message["lease"]
        for each in strays.end_all(self._directory.parent, engines=False):
            note("%(run)s was left without agent and guard on %(host)s: ended %(killed)s" % each)
        fields = message.fields
        self._question = fields.get("ask_gpus", True), fields.get("within_s", LOOK_S)
        self._ask(viewer)

    def module(self, viewer: "Viewer", message: "Message") -> None:
        self.driver.take_module(message.body)
        self._ask(viewer)

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
        if wanted:
            self.driver.rest()
        else:
            self.driver.keep_open(False)

    def _ask(self, viewer: "Viewer") -> None:
        asks, within_s = self._question
        if not asks:
            self.driver.stop()  # it was begun in case
            self._send_facts(viewer, None)
            return
        self._asking.append(viewer)
        if not self.driver.busy:
            self._told_at = time.monotonic()
            self.driver.ask({"ask": "probe", "topology": True}, within_s, self._answered)

    def _answered(self, answer: "DeviceAnswer") -> None:
        if not self._place.taken:  # only a run that waits in the queue looks again; others leave NVML alone
            self.driver.rest()
        asking, self._asking = self._asking, []
        for viewer in asking:
            viewer.attempt(
                lambda viewer=viewer: self._send_facts(viewer, answer.gpus),  # type: ignore[misc]
                self._directory.path,
            )

    def _send_facts(self, viewer: "Viewer", probed: "Optional[Dict[str, Any]]") -> None:
        found = host_facts.collect(
            self._ports.held,
            self._directory.path,
            probed,
            self._place,
            lease=self._lease,
            strays=strays.leases(self._directory.parent),
            run=self._directory.run,
        )
        locks = probed["locks"] if probed is not None else {}
        self._devices = {
            device["uuid"]: locks.get(device["uuid"], "") for device in host_facts.devices_of(found)
        }
        if self._range and len(found["ports"]) < self._wanted:
            from tflaunch.agent.net.port_holders import holders

            found["ports_taken"] = holders(*self._range, run=self._directory.run)
        self.gpus.seen(found["gpus"])
        viewer.send("facts", **found)

    def _lease(self, uuid: str, file: str) -> "Optional[Dict[str, Any]]":
        if self._to_lease is True or (self._to_lease and uuid in self._to_lease):
            if uuid not in self._leases.held and len(self._leases.held) == slot.most():
                return {}  # the slot has as many as it was given
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

    def take_lease(self, lease_s: float) -> None:
        """The lease of the run: so long its place in the queue counts without this agent."""
        self._place.lease_s = lease_s

    def tick(self, now: float) -> None:
        """Take again, every CHECK_S, what another user has taken away; see that nobody waits in vain for NVML."""
        if self.driver.busy:
            self.driver.tick(now)
        if self._asking:
            self._ask_or_tell(now)
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        self._unaged.check()
        self._place.check()
        for text in self._leases.check(now):
            note(text)
            self._journal.add("said", text=text, replanned=False)

    def _ask_or_tell(self, now: float) -> None:
        if not self.driver.busy:  # something else was asked when these came
            waiting, self._asking = self._asking, []
            for viewer in waiting:
                self._ask(viewer)
        line = self.driver.waits_for
        if line and now - self._told_at >= TELL_S:
            self._told_at = now
            for viewer in self._asking:
                viewer.send("preparing", line=line)

    def stop(self) -> None:
        """The run ends here: nobody waits for the facts any more."""
        self._asking = []
        if self.driver.busy:
            self.driver.stop()

    def release(self) -> None:
        """Give up everything: the run has ended on this host."""
        self._ports.keep([])
        self._leases.keep([])
        self._place.leave()
