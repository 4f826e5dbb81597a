"""What a host must have before tasks can be staged, and what takes its time: an environment, an image."""

from tflaunch.agent.files.rundir import HostError
from tflaunch.agent.tasks import container
from tflaunch.agent.tasks.environment import Maker, activation, hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from tflaunch.agent.files.rundir import RunDirectory

TOLD = "prepared.json"


class Preparing:
    """What one `prepare` message wants, and what came of it for the tasks."""

    def __init__(self, directory: "RunDirectory", wanted: "Dict[str, Any]") -> None:
        self._directory = directory
        self._wanted = wanted
        self._lock = None  # type: Optional[int]  # on the environment, as long as the agent lives
        self.setup = []  # type: List[str]  # lines more for every task

    def work(self) -> "Dict[str, Any]":
        """Make it, in a process of its own; raises HostError."""
        told = {}  # type: Dict[str, Any]
        if self._wanted["images"]:
            engine = container.find(self._wanted["engine"])
            told["made"] = True in [container.pull(engine, image) for image in self._wanted["images"]]
            told["engine"] = engine
        if self._wanted["requirements"]:
            told.update(Maker(self._directory.parent, self._directory.path + "/prepare", self._wanted).make())
        return told

    def use(self, told: "Dict[str, Any]") -> None:
        """Have the tasks use what `work` has told of.

        Raises HostError, OSError; BlockingIOError when it is made anew just now: it is to be waited for by `work`.
        """
        if told.get("engine"):
            self._directory.write(container.RECORD, told["engine"])
        if told.get("path"):
            self._lock = hold(told["path"], wait=False)
            self.setup = [activation(told["path"])]
            if self._lock is None:
                raise HostError("the environment was removed as soon as it was made", "start the run again")
