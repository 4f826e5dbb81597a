"""What a host must have before tasks can be staged, and what takes its time: an environment, an image."""

import time

from tflaunch.agent import container
from tflaunch.agent.aside import Aside
from tflaunch.agent.environment import Maker, activation, hold
from tflaunch.agent.rundir import HostError, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from tflaunch.agent.rundir import RunDirectory
    from tflaunch.agent.viewer import Viewer

TOLD = "prepared.json"


class Preparing:
    """One `prepare` message on its way to its `prepared`, and what came of it for the tasks."""

    def __init__(self, directory: "RunDirectory", relay: "Viewer", wanted: "Dict[str, Any]") -> None:
        self._directory = directory
        self._relay = relay
        self._wanted = wanted
        self._began = time.monotonic()
        self._lock = None  # type: Optional[int]  # on the environment, as long as the agent lives
        self.setup = []  # type: List[str]  # lines more for every task
        self._stopped = False
        directory.write(TOLD, {})
        self._aside = Aside(self._work)

    @property
    def alive(self) -> bool:
        return self._aside.alive

    def stop(self) -> None:
        """Leave nothing half, and tell nobody."""
        self._stopped = True
        self._aside.stop()

    def _work(self) -> None:
        told = {}  # type: Dict[str, Any]
        try:
            if self._wanted["images"]:
                engine = container.find(self._wanted["engine"])
                told["made"] = True in [container.pull(engine, image) for image in self._wanted["images"]]
                told["engine"] = engine
            if self._wanted["requirements"]:
                told.update(
                    Maker(self._directory.parent, self._directory.path + "/prepare", self._wanted).make()
                )
        except HostError as error:
            told = {"failed": error.reason, "hint": error.hint}
        self._directory.write(TOLD, told)

    def reaped(self, pid: int) -> None:
        """That process has ended; if it was the one that prepares, the launcher is told."""
        if not self._aside.reaped(pid) or self._stopped:
            return
        told = self._directory.read(TOLD)
        try:
            self._use(told)
        except HostError as error:
            told = {"failed": error.reason, "hint": error.hint}
        except OSError as error:
            explained = explain(error, self._directory.path)
            told = {"failed": explained.reason, "hint": explained.hint}
        if told.get("failed") or not told:
            reason = told.get("failed") or "what prepares the tasks was killed (is there memory enough?)"
            self._relay.send("failed", reason=reason, hint=told.get("hint", "see agent.log there"))
            return
        self._relay.send("prepared", made=told["made"], seconds=round(time.monotonic() - self._began, 1))

    def _use(self, told: "Dict[str, Any]") -> None:
        if told.get("engine"):
            self._directory.write(container.RECORD, told["engine"])
        if told.get("path"):
            self._lock = hold(told["path"])
            self.setup = [activation(told["path"])]
            if self._lock is None:
                raise HostError("the environment was removed as soon as it was made", "start the run again")
