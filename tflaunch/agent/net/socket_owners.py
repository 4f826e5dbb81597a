"""Which task each socket belongs to, from look to look: descriptors are read again only where something is new."""

from tflaunch.agent.net.connections import inodes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Set

    from tflaunch.agent.host.processes import Process


class SocketOwners:
    """Remembers them."""

    def __init__(self) -> None:
        self.tasks = {}  # type: Dict[int, str]  # inode -> task
        self.hidden = set()  # type: Set[str]  # tasks whose descriptors this user may not see
        self._others = set()  # type: Set[int]  # inodes that are no task's
        self._processes = []  # type: List[tuple[str, int, int]]

    def find(self, trees: "Dict[str, List[Process]]", inodes: "Iterable[int]", whole: bool) -> None:
        """Find the owners of the sockets with these inodes among the processes of each task.

        `whole`: also of those that belonged to no task, as a process may hand a socket to another.
        """
        there = [(task, each.pid, each.start) for task, tree in trees.items() for each in tree]
        seen = set(inodes)
        if not whole and there == self._processes and seen <= self.tasks.keys() | self._others:
            return
        self._processes, self.tasks, self.hidden = there, {}, set()
        for task, pid, _ in there:
            own = inodes_of(pid)
            if own is None:
                self.hidden.add(task)
            else:
                self.tasks.update(dict.fromkeys(own, task))
        self._others = seen - self.tasks.keys()
