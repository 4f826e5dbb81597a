"""From the launcher's messages to the team of tasks: prepare, stage, release, add, restart, signal, stop, look."""

import os
import time

from tflaunch.agent.host.journal import note
from tflaunch.agent.host.rundir import HostError
from tflaunch.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from tflaunch.agent.files.code_upload import CodeUpload
    from tflaunch.agent.gpus.use import GpuUse
    from tflaunch.agent.holdings import Holdings
    from tflaunch.agent.host.aside import Errand
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.agent.net.dial_check import DialCheck
    from tflaunch.agent.tasks.live_stacks import Dumps
    from tflaunch.agent.tasks.look import Looks
    from tflaunch.agent.tasks.prepare import Preparing
    from tflaunch.agent.tasks.team import Team
    from tflaunch.agent.viewer import Viewer
    from tflaunch.protocol.wire import Message

SHIPPED = "shipped.json"


class Staging:
    """Brings the run's tasks onto this host, and gives the launcher's orders for them to the team."""

    def __init__(
        self,
        directory: "RunDirectory",
        team: "Team",
        holdings: "Holdings",
        code: "CodeUpload",
        dial_check: "DialCheck",
    ) -> None:
        self.passing = False  # the run is a check: it ends with its launcher, and leaves nothing
        self._directory = directory
        self._team = team
        self._holdings = holdings
        self._code = code
        self._dial_check = dial_check
        self._preparing = None  # type: Optional[Preparing]
        self._dumps = None  # type: Optional[Dumps]  # of the tasks' stacks
        self._tell = lambda _: None  # type: Callable[[str], None]  # tells the launcher what the installer says
        self._errand = None  # type: Optional[Errand]  # work in a process of its own
        self._moves = {}  # type: Dict[str, Any]  # how the run may go on when a host is lost (protocol/moves)
        self._moved = 0  # the attempt that began with the last move
        self._gpu_use = None  # type: Optional[GpuUse]
        self._looks = None  # type: Optional[Looks]
        self._go_on = lambda: None  # type: Callable[[], None]  # what to do once that process has ended

    # -- messages

    def prepare(self, viewer: "Viewer", message: "Message") -> None:
        from tflaunch.agent.tasks.prepare import PREPARED, Preparing

        if self._preparing is not None or self._team.ending or self.busy:
            raise HostError("this run has been prepared on this host before")
        began = time.monotonic()
        preparing = self._preparing = Preparing(self._directory, message.fields)

        def use(made: "Dict[str, Any]") -> None:
            try:
                preparing.use(made)
            except BlockingIOError:
                self._do_aside(viewer, PREPARED, preparing.work, use)
                return
            if made.get("path"):
                self._holdings.protect(os.path.dirname(made["path"]))  # and with it the environments' locks
            viewer.send("prepared", made=made["made"], seconds=round(time.monotonic() - began, 1))

        self._tell = lambda line: viewer.send("preparing", line=line)
        self._do_aside(viewer, PREPARED, preparing.work, use)

    def stage(self, viewer: "Viewer", message: "Message") -> None:
        if self._team.tasks or self._team.ending or self.busy:
            raise HostError("this run has been staged on this host before")
        self.passing = message.fields.get("passing", False)
        self._holdings.keep_ports(message["ports"], message["door"])
        self._holdings.keep(viewer, message)
        if message.fields.get("dial_key"):
            self._dial_check.answer(message["dial_key"], message["ports"])
        tasks = self._with_setup(message["tasks"])
        self._moves = message.fields.pop("moves", {})
        if "preload" in message.fields:
            self._team.preload(message.fields.pop("preload"))
        self._directory.write("plan.json", dict(message.fields, tasks=tasks))
        asks_keras = message.fields.get("keras", False)
        if message["code"] is None:
            self._team.stage(tasks, message["attempt"], asks_keras=asks_keras)
            return
        from tflaunch.agent.files.code_store import CodeStore

        store = CodeStore(self._directory.parent, message["code"])

        def use(copied: "Dict[str, Any]") -> None:
            if "damaged" in copied:
                self._code.report_damage(viewer, copied["damaged"])
            else:
                programs = message.fields.get("programs")
                self._team.stage(tasks, message["attempt"], programs, asks_keras=asks_keras)

        if store.small:
            copied = store.copy_to(self._directory.work)
            self._directory.write(SHIPPED, copied)
            use(copied)
        else:
            self._do_aside(viewer, SHIPPED, lambda: store.copy_to(self._directory.work), use)

    def release(self, viewer: "Viewer", message: "Message") -> None:
        self._dial_check.stop()
        for task in self._team.tasks.values():
            if task.request.get("shares_port"):
                self._holdings.share_port(task.request["port"])
        self._team.release()

    def add(self, viewer: "Viewer", message: "Message") -> None:
        if not self._team.ending:
            self._team.add(self._with_setup(message["tasks"]), message["attempt"])

    @property
    def reserved(self) -> bool:
        """Whether this host has no task, and waits for those of a lost host."""
        return bool(self._moves) and not self._team.tasks

    def move(self, viewer: "Viewer", message: "Message") -> None:
        """Start the tasks whose seats are on this host now; all of what they start with came from the launcher."""
        places, attempt = message["places"], message["attempt"]
        if self._team.ending or attempt <= self._moved:
            return
        from tflaunch.protocol import moves

        try:
            standing = moves.values(self._moves["marks"], self._moves["seats"], places)
        except KeyError as error:
            raise wire.WireError("a move to a host that is no spare: %s" % error) from None
        self._moved = attempt
        mine = moves.at(self._moves["requests"], self._directory.host, places)
        requests = [moves.fill(each, standing) for each in mine if each["id"] in message["tasks"]]
        for request in requests:
            if request.get("shares_port"):
                self._holdings.share_port(request["port"])
        self._team.take_over([each["id"] for each in requests])
        self._team.add(self._with_setup(requests), attempt, own_directory=False)
        self._note_places(places)

    def _note_places(self, places: "Dict[str, str]") -> None:
        """Note where all tasks are, for those who ask."""
        plan = self._directory.read("plan.json")
        about = dict(plan.get("about") or {})
        seats = self._moves["seats"]
        where = {task: places.get(seat, seat) for seat in seats for task in seats[seat][seat]["ports"]}
        about.update(tasks=where, hosts=sorted(set(where.values())))
        try:
            self._directory.write("plan.json", dict(plan, about=about))
        except OSError as error:
            note("plan.json: %s" % error)

    def restart(self, viewer: "Viewer", message: "Message") -> None:
        self._team.restart(message["tasks"])

    def stop_tasks(self, viewer: "Viewer", message: "Message") -> None:
        self._team.stop(message["tasks"], message["grace_s"])

    def signal(self, viewer: "Viewer", message: "Message") -> None:
        self._team.warn(message["tasks"])

    def look(self, viewer: "Viewer", message: "Message") -> None:
        try:
            from tflaunch.agent.tasks.look import Looks

            self._looks = self._looks or Looks()
            seen, more = self._looks.look(self._team.tasks.values(), viewer.private)
        except OSError as error:  # no descriptor is free: the run has not failed, and the launcher asks again
            note("look: %s" % error)
            seen, more = {}, {}
        every_s = message.fields.get("gpus_s")
        more.update(self._look_at_gpus(seen, every_s) if every_s else {})
        viewer.send("looked", tasks=seen, **more)

    def _look_at_gpus(self, seen: "Dict[str, Any]", every_s: float) -> "Dict[str, Any]":
        from tflaunch.agent.gpus.use import GpuUse
        from tflaunch.agent.tasks.masks import other_masks

        if self._gpu_use is None:
            self._gpu_use = GpuUse(self._holdings.driver, self._holdings.gpus)
            self._team.facts.xids_of = self._gpu_use.xids_of
        using = [task for task in seen if self._team.tasks[task].request.get("gpus")]
        for task in using:
            seen[task]["masks"] = other_masks(self._team.tasks[task].request, seen[task]["processes"])
        return self._gpu_use.look(every_s, bool(using))

    def inspect(self, viewer: "Viewer", message: "Message") -> None:
        """Answer what every thread of these tasks waits in, with `stacks` also where its Python is."""
        from tflaunch.agent.tasks.inspection import Inspection
        from tflaunch.agent.tasks.live_stacks import Dumps

        asker, on_demand = message.fields.get("asker", ""), message.fields.get("on_demand", False)
        try:
            inspection = Inspection(
                [self._team.tasks[each] for each in message["tasks"] if each in self._team.tasks]
            )
        except OSError as error:  # no descriptor is free: as for a look
            note("inspect: %s" % error)
            viewer.send("inspected", tasks={}, asker=asker)
            return

        def answer(dumps: "Optional[Dumps]") -> None:
            viewer.send("inspected", tasks=inspection.answer(dumps, time.monotonic()), asker=asker)

        if not message["stacks"]:
            answer(None)
            return
        if self._dumps is None:
            self._dumps = Dumps()
        dumps, signals = self._dumps, message.fields.get("signals", True)
        inspection.ask(dumps, on_demand, time.monotonic(), lambda: answer(dumps), signals)

    def in_cluster(self, targets: "List[List[Any]]") -> bool:
        """Whether each of these targets of a `dial` is a port of the run's cluster, as its tasks know it."""
        config = next((task.request["env"].get("TF_CONFIG") for task in self._team.tasks.values()), None)
        try:
            cluster = wire.loads(config or "{}").get("cluster", {})
        except (ValueError, TypeError, AttributeError):
            return False
        known = {endpoint for job in cluster.values() for endpoint in job}
        called = [
            ("[%s]:%d" if ":" in address else "%s:%d") % (address, port) for address, port, _ in targets
        ]
        return len(called) <= len(known) and known.issuperset(called)

    @property
    def restless(self) -> bool:
        """Whether `tick` has to come again soon."""
        return self._dumps is not None and self._dumps.waits

    def tick(self, now: float) -> None:
        """Take the stacks that tasks have written, and what installs their environment."""
        if self._preparing is not None and self.busy:
            line = self._preparing.last_line(now)
            if line:
                self._tell(line)
        if self._dumps is not None:
            self._dumps.tick(now)

    def _with_setup(self, requests: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
        """These tasks with the lines of setup that `prepare` has brought."""
        more = self._preparing.setup if self._preparing is not None else []
        return [dict(request, setup=request["setup"] + more) for request in requests]

    # -- work in a process of its own

    def _do_aside(
        self,
        viewer: "Viewer",
        name: str,
        work: "Callable[[], Dict[str, Any]]",
        then: "Callable[[Dict[str, Any]], None]",
    ) -> None:
        """Have another process do `work`; `then` takes its result.  The result stays in the run's file `name`."""
        from tflaunch.agent.host.aside import Errand

        errand = self._errand = Errand(self._directory, name, work)
        self._go_on = lambda: viewer.attempt(lambda: then(errand.result()), self._directory.path)

    @property
    def busy(self) -> bool:
        """Whether a process with such work is alive."""
        return self._errand is not None and self._errand.alive

    def reaped(self, pid: int) -> None:
        """A child process has ended, maybe one of these."""
        if self._errand is not None and self._errand.reaped(pid) and not self._team.ending:
            self._go_on()

    def stop(self) -> None:
        """Have the processes with such work end; see `busy`."""
        if self._errand is not None:
            self._errand.stop()
