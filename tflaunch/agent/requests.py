"""What launchers, viewers and the coordinator ask of an agent: each type of message has its method.

What takes longer than its turn is kept here, and goes on with `tick` and with the end of child processes.
"""

import os
import time
import zlib

from tflaunch import gpu_probe
from tflaunch.agent import facts
from tflaunch.agent.files.code_store import CodeStore
from tflaunch.agent.files.journal import note
from tflaunch.agent.files.outputs import Outputs
from tflaunch.agent.files.rundir import CODE, HostError, Unaged, explain
from tflaunch.agent.gpus import leases
from tflaunch.agent.gpus.freed import Cards
from tflaunch.agent.gpus.leases import Leases
from tflaunch.agent.gpus.tickets import Place
from tflaunch.agent.net.ports import HeldPorts
from tflaunch.agent.viewer import Viewer, Viewers
from tflaunch.protocol import messages, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

    from tflaunch.agent.aside import Errand
    from tflaunch.agent.entrusted import Entrusted
    from tflaunch.agent.files.journal import Journal
    from tflaunch.agent.files.rundir import RunDirectory
    from tflaunch.agent.net.dial_answering import Answering
    from tflaunch.agent.net.peers import SealedStream
    from tflaunch.agent.net.tensorboard import Board
    from tflaunch.agent.tasks.prepare import Preparing
    from tflaunch.agent.tasks.team import Team
    from tflaunch.protocol.dialling import Dialling
    from tflaunch.protocol.selector import Selector

SHIPPED = "shipped.json"
CHECK_S = 2.0  # how often what others on this host could take away is looked at


class Requests:
    """Serves them, one after another, and holds for the run what it has of this host: ports and cards."""

    def __init__(
        self,
        directory: "RunDirectory",
        journal: "Journal",
        selector: "Selector",
        team: "Team",
        viewers: Viewers,
        *,
        more: "Mapping[str, Callable[[Viewer, wire.Message], None]]",
    ) -> None:
        """`more` are types of messages that concern the agent's own life."""
        self._directory = directory
        self._journal = journal
        self._selector = selector
        self._team = team
        self._viewers = viewers
        self._more = more
        self._ports = HeldPorts()
        self._leases = Leases(directory.run)
        self._place = Place(directory.run, directory.host)
        self._unaged = Unaged()
        self._unaged.add(directory.path)
        self._unaged.add(os.path.join(directory.parent, CODE))
        self._checked = 0.0
        self._look = gpu_probe.Look()
        self._to_lease = []  # type: Union[bool, List[str]]
        self._door_port = 0
        self._code = None  # type: Optional[CodeStore]
        self._damaged = set()  # type: set[str]  # of kept code, that was asked for again
        self._preparing = None  # type: Optional[Preparing]
        self._errand = None  # type: Optional[Errand]
        self._returned = lambda: None  # type: Callable[[], None]  # what is done once that is back
        self._answering = None  # type: Optional[Answering]
        self._dialling = []  # type: List[tuple[Viewer, Dialling]]
        self._board = None  # type: Optional[Board]
        self._outputs = Outputs(directory)
        self._finding = []  # type: List[tuple[Viewer, Iterator[Dict[str, Any]]]]
        self.cards = Cards(directory.run)
        self.entrusted = None  # type: Optional[Entrusted]
        self.passing = False  # a check: it ends with its launcher, and leaves nothing

    def handle(self, viewer: Viewer, message: wire.Message) -> None:
        """Do what was asked, or tell why not; raises WireError when nobody knows what it is."""
        table = messages.TO_AGENT if viewer.private else messages.FROM_PEER
        if message.type not in table:
            raise wire.WireError("a message that is not taken from there: %r" % message.type)
        handler = self._more.get(message.type) or getattr(self, "_on_" + message.type)
        try:
            messages.check(message, table)
        except wire.WireError as error:
            note(str(error))
            viewer.send("failed", reason="its agent does not take that: %s" % error, hint="")
            return
        self._try(viewer, lambda: handler(viewer, message))

    def _try(self, viewer: Viewer, work: "Callable[[], None]") -> None:
        try:
            work()
        except HostError as error:
            viewer.send("failed", reason=error.reason, hint=error.hint)
        except OSError as error:
            told = explain(error, self._directory.path)
            viewer.send("failed", reason=told.reason, hint=told.hint)
        except wire.WireError:
            raise
        except Exception as error:  # what one request gets wrong must not end the tasks
            import traceback

            note(traceback.format_exc())
            viewer.send(
                "failed", reason="a defect of tflaunch's agent: %r" % error, hint="see agent.log there"
            )

    # -- what goes on

    @property
    def restless(self) -> bool:
        """Whether there is more to be done at once."""
        return any(not viewer.out for viewer, _ in self._finding)

    @property
    def awaits_outcome(self) -> bool:
        """Whether a coordinator, this one or the next, has still to hear how it ended here, and to say how all did."""
        started, told = self._journal.has("started"), self._journal.has("outcome")
        return self.entrusted is not None and started and not told

    def tick(self, now: float, over: bool) -> None:
        """What time brings about; `over`: the run has ended here."""
        if self.entrusted is not None and (self.awaits_outcome or not over):
            self.entrusted.tick(now)
        for viewer, dialling in list(self._dialling):
            if dialling.step(now):
                self._dialling.remove((viewer, dialling))
                if viewer in self._viewers.all:
                    viewer.send("dialled", results=dialling.results, addresses=dialling.addresses)
        self._find_further()
        if now - self._checked >= CHECK_S:
            self._checked = now
            self._unaged.check()
            self._place.check()
            for text in self._leases.check(now):
                note(text)
                self._journal.add("said", text=text, replanned=False)
        if self._board is not None:
            self._board.tick(now)

    def reaped(self, pid: int, status: int) -> None:
        """That process has ended: one of those that were started here, or one that some task left behind."""
        if self._errand is not None and self._errand.reaped(pid) and not self._team.ending:
            self._returned()
        if self._board is not None and self._board.reaped(pid, status):
            return
        if self.entrusted is not None:
            self.entrusted.reaped(pid)

    def left(self, viewer: Viewer) -> None:
        """That viewer is gone."""
        if self._board is not None:
            self._board.leave(viewer)

    # -- the end

    def stop(self) -> None:
        """Nothing more comes of what is under way."""
        self._stop_dialling()
        if self._errand is not None:
            self._errand.stop()
        if self._board is not None:
            self._board.stop()

    @property
    def alive(self) -> bool:
        """Whether processes that `stop` has told to end are there still."""
        return any(each is not None and each.alive for each in (self._errand, self._board))

    def let_go(self) -> None:
        """What the run holds of the host is free again."""
        self._ports.keep([])
        self._leases.keep([])
        self._place.leave()

    def close(self) -> None:
        """The agent leaves."""
        if self._code is not None:
            self._code.discard()

    # -- the types of messages

    def _on_probe(self, viewer: Viewer, message: wire.Message) -> None:
        wanted = message["ports"]
        seed = zlib.crc32(self._directory.run.encode())
        self._ports.hold(message["count"], tuple(wanted) if wanted else None, seed)
        self._to_lease = message["lease"]
        self._send_facts(viewer)

    def _on_clock(self, viewer: Viewer, message: wire.Message) -> None:
        viewer.send("clock", sent=message["sent"], time=time.time())

    def _on_check(self, viewer: Viewer, message: wire.Message) -> None:
        from tflaunch.agent import host_check

        viewer.send("checked", **host_check.look([self._directory.path, *message["directories"]]))

    def _on_queue(self, viewer: Viewer, message: wire.Message) -> None:
        self._place.take(message["since"], message["wants"], message["gpus"], message["planning"])

    def _on_let_go(self, viewer: Viewer, message: wire.Message) -> None:
        self._leases.keep([])

    def _on_keep(self, viewer: Viewer, message: wire.Message) -> None:
        self._leases.keep(message["gpus"])
        self.cards.keep(message["gpus"])
        self._place.leave()
        self._look.close()

    def _on_module(self, viewer: Viewer, message: wire.Message) -> None:
        facts.take_module(message["name"], message.body)
        self._send_facts(viewer)

    def _send_facts(self, viewer: Viewer) -> None:
        probed = facts.ask(self._look)
        if not self._place.taken:  # while it waits there will be another look, else NVML is left alone
            self._look.close()
        told = facts.collect(self._ports.held, self._directory.path, probed, self._place, self._lease)
        self.cards.seen(told["gpus"])
        viewer.send("facts", **told)

    def _lease(self, uuid: str, device: str) -> "Optional[Dict[str, Any]]":
        if self._to_lease is True or (self._to_lease and uuid in self._to_lease):
            return self._leases.take(uuid, device)
        return leases.holder(uuid, device)

    def _on_code(self, viewer: Viewer, message: wire.Message) -> None:
        if self._code is not None:
            self._code.discard()
        self._code = CodeStore(self._directory.parent, message["digest"], self._damaged)
        if self._code.here:
            viewer.send("code", have=True, lacks=[])
        elif message.body:
            self._compare(viewer, message.body, last=True)
        else:
            viewer.send("code", have=False, lacks=None)

    def _on_manifest(self, viewer: Viewer, message: wire.Message) -> None:
        self._compare(viewer, message.body, message["last"])

    def _compare(self, viewer: Viewer, manifest: bytes, last: bool) -> None:
        lacks = self._announced.lacks(manifest, last)
        if lacks is not None:
            viewer.send("code", have=not lacks, lacks=lacks)

    def _on_blob(self, viewer: Viewer, message: wire.Message) -> None:
        self._announced.add(message.body, message["packed"], message["last"])
        if message["last"]:
            viewer.send("code", have=True, lacks=[])

    @property
    def _announced(self) -> CodeStore:
        if self._code is None:
            raise HostError("code came that nobody announced")
        return self._code

    def _on_prepare(self, viewer: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.tasks.prepare import TOLD, Preparing

        if self._preparing is not None or self._team.ending or self._busy:
            raise HostError("this run has been prepared on this host before")
        began = time.monotonic()
        preparing = self._preparing = Preparing(self._directory, message.fields)

        def use(told: "Dict[str, Any]") -> None:
            try:
                preparing.use(told)
            except BlockingIOError:
                self._send_for(viewer, TOLD, preparing.work, use)
                return
            if told.get("path"):
                self._unaged.add(
                    os.path.dirname(told["path"])
                )  # with the locks of environments, which are files
            viewer.send("prepared", made=told["made"], seconds=round(time.monotonic() - began, 1))

        self._send_for(viewer, TOLD, preparing.work, use)

    def _send_for(
        self,
        viewer: Viewer,
        name: str,
        work: "Callable[[], Dict[str, Any]]",
        then: "Callable[[Dict[str, Any]], None]",
    ) -> None:
        """Have `work` done aside, then go on with what it brings, which is left in that file of the run."""
        from tflaunch.agent.aside import Errand

        errand = self._errand = Errand(self._directory, name, work)
        self._returned = lambda: self._try(viewer, lambda: then(errand.result()))

    @property
    def _busy(self) -> bool:
        return self._errand is not None and self._errand.alive

    def _on_stage(self, viewer: Viewer, message: wire.Message) -> None:
        if self._team.tasks or self._team.ending or self._busy:
            raise HostError("this run has been staged on this host before")
        self.passing = message.fields.get("passing", False)
        self._door_port = next((port for port in self._ports.held if port not in message["ports"]), 0)
        self._ports.keep([*message["ports"], self._door_port] if message["door"] else message["ports"])
        self._on_keep(viewer, message)
        if message.fields.get("dial_key") and self._answering is None:
            from tflaunch.agent.net.dial_answering import Answering

            self._answering = Answering(self._selector, message["dial_key"], self._directory.host)
            self._answering.listen(message["ports"])
        tasks = self._prepared(message["tasks"])
        self._directory.write("plan.json", dict(message.fields, tasks=tasks))
        if message["code"] is None:
            self._team.stage(tasks, message["attempt"])
            return
        store = CodeStore(self._directory.parent, message["code"])

        def use(told: "Dict[str, Any]") -> None:
            if "damaged" in told:
                self._tell_damaged(viewer, told["damaged"])
            else:
                self._team.stage(tasks, message["attempt"], message.fields.get("program"))

        if store.small:
            told = store.copy_to(self._directory.work)
            self._directory.write(SHIPPED, told)
            use(told)
        else:
            self._send_for(viewer, SHIPPED, lambda: store.copy_to(self._directory.work), use)

    def _tell_damaged(self, viewer: Viewer, damaged: "Dict[str, str]") -> None:
        again = self._damaged.isdisjoint(damaged)  # what was sent again and is not whole yet never will be
        self._damaged.update(damaged)
        viewer.send(
            "failed",
            reason="the code that is kept there is damaged: %s" % next(iter(damaged.values())),
            hint="start the run again; is that disk sound?",
            again=again,
        )

    def _prepared(self, requests: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
        more = self._preparing.setup if self._preparing is not None else []
        return [dict(request, setup=request["setup"] + more) for request in requests]

    def _on_entrust(self, viewer: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.entrusted import Entrusted

        if not self._door_port:
            raise HostError("no port is left for the run's agents", "widen `ports:` of this host by one")
        self.entrusted = Entrusted(
            self._directory, self._selector, message, self._door_port, self._attach_peer
        )
        viewer.send("entrusted", port=self._door_port, wide=self.entrusted.wide)

    def _attach_peer(self, stream: "SealedStream") -> None:
        self._viewers.attach(stream, private=False)

    def _on_coordinate(self, viewer: Viewer, message: wire.Message) -> None:
        if self.entrusted is None:
            raise HostError("this host has not been entrusted with the run")
        self.entrusted.coordinate(message.fields)

    def _on_coordinating(self, viewer: Viewer, message: wire.Message) -> None:
        for other in self._viewers.all:  # the launcher may have come back by another connection
            if (other.drives or other.launches) and other is not viewer:
                other.send(message.type, **message.fields)

    def _on_memory(self, viewer: Viewer, message: wire.Message) -> None:
        if self.entrusted is not None and viewer.private:  # it is of this host
            self.entrusted.remember(message.body, message["offset"], message["last"])

    def _on_said(self, viewer: Viewer, message: wire.Message) -> None:
        self._journal.add("said", text=message["text"], replanned=message.fields.get("replanned", False))

    def _on_outcome(self, viewer: Viewer, message: wire.Message) -> None:
        if not self._journal.has("outcome"):
            self._journal.add("outcome", outcome=message["outcome"])

    def _on_dial(self, viewer: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.net.name_lookup import NameLookup
        from tflaunch.protocol.dialling import Dialling

        wanted = message["targets"], message["patience_s"]
        dialling = Dialling(
            self._selector,
            message["key"],
            *wanted,
            load=message.fields.get("load", False),
            look_up=NameLookup,
        )
        self._dialling.append((viewer, dialling))

    def _stop_dialling(self) -> None:
        if self._answering is not None:
            self._answering.close()
        for _, dialling in self._dialling:
            dialling.close()
        self._dialling = []

    def _on_look(self, viewer: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.tasks.look import look

        try:
            seen = look(self._team.tasks.values())
        except (
            OSError
        ) as error:  # no descriptor is free: that is no failure of the run, and it is asked again
            note("look: %s" % error)
            seen = {}
        viewer.send("looked", tasks=seen)

    def _on_find(self, viewer: Viewer, message: wire.Message) -> None:
        if viewer.private:  # nobody else reads what the tasks have written
            self._finding.append((viewer, self._outputs.find(message["patterns"], message["roots"])))

    def _find_further(self) -> None:
        for viewer, found in list(self._finding):
            if viewer not in self._viewers.all or not viewer.find(found):
                self._finding.remove((viewer, found))

    def _on_read(self, viewer: Viewer, message: wire.Message) -> None:
        if viewer.private:
            viewer.read(self._outputs, message)

    def _on_board(self, viewer: Viewer, message: wire.Message) -> None:
        from tflaunch.agent.net.tensorboard import Board

        if self._board is None and viewer.private and not self._team.ending:
            self._board = Board(self._directory, self._selector)
        if self._board is not None and viewer.private:
            self._board.want(viewer, message["logdir"])

    def _on_connect(self, viewer: Viewer, message: wire.Message) -> None:
        if self._board is not None:
            self._board.take(viewer, message)

    _on_bytes = _on_taken = _on_cut = _on_connect

    def _on_release(self, viewer: Viewer, message: wire.Message) -> None:
        self._stop_dialling()
        for task in self._team.tasks.values():
            if task.request.get("shares_port"):
                self._ports.share(task.request["port"])
        self._team.release()

    def _on_add(self, viewer: Viewer, message: wire.Message) -> None:
        if not self._team.ending:
            self._team.add(self._prepared(message["tasks"]), message["attempt"])

    def _on_restart(self, viewer: Viewer, message: wire.Message) -> None:
        self._team.restart(message["tasks"])

    def _on_watch(self, viewer: Viewer, message: wire.Message) -> None:
        for other in list(self._viewers.all):
            if message["client"] and other.client == message["client"] and other is not viewer:
                self._viewers.detach(other)  # what it had before its connection was cut
        viewer.watch(message)

    def _on_credit(self, viewer: Viewer, message: wire.Message) -> None:
        viewer.credit += message["bytes"]

    def _on_stop(self, viewer: Viewer, message: wire.Message) -> None:
        self._team.stop(message["tasks"], message["grace_s"])
