"""Reaction: from a task's death to the end of all others; from Ctrl-C to the prompt; `tflaunch stop`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from bench import peers
from bench.beds import TFLAUNCH, Lab
from bench.measure import Figures, Table, interleave
from bench.peers import present
from bench.plan import Plan
from bench.processes import Watch, having
from tests.support.launcher import Process

SLEEPER = "import signal\nsignal.pause()\n"
SLEEP = "exec python3 /home/root/sleeper.py"
LEFT_AFTER_S = 10.0  # who has not ended his tasks by then is said to leave them


def reaction(plan: Plan) -> Iterator[Table]:
    """On a few hosts, and on many."""
    for count in plan.sizes(4, 16, 64):
        for host in plan.lab.machines(count):
            (host.directory / "home/root/sleeper.py").write_text(SLEEPER)
        plan.lab.file("sleeper/sleeper.py", SLEEPER)
        yield _table(plan, count, "A task dies", _death, (peers.MPIRUN, peers.HOROVODRUN))
        interrupted = (peers.MPIRUN, peers.SSH, peers.CLUSH, peers.HOROVODRUN)
        yield _table(plan, count, "Ctrl-C", _interrupt, interrupted)
        yield _stop(plan, count)


Act = Callable[[Lab, Sequence[str], int], Figures]


def _ours(lab: Lab, count: int) -> Sequence[str]:
    return lab.launch(count, str(lab.home / "sleeper/sleeper.py"))


def _table(plan: Plan, count: int, title: str, act: Act, chosen: Sequence[peers.Peer]) -> Table:
    table = Table(f"{title}, {count} hosts", "tflaunch", ("tasks gone s", "prompt s"), count)
    table.remarks.append(f"tflaunch run HOSTS sleeper.py --ps 0 --workers {count}")
    methods = {"tflaunch": lambda: act(plan.lab, _ours(plan.lab, count), count)}
    for peer in present(chosen, plan, count, table.remarks):
        words = peer.argv(plan.lab, plan.lab.hosts(count), SLEEP)
        methods[peer.name] = lambda words=words: act(plan.lab, words, count)  # type: ignore[misc]
    return interleave(table, methods, plan.rounds, plan.tell)


def is_task(process: Process) -> bool:
    """Whether it is a sleeper, and not who has started it."""
    name = process.words[0].rpartition("/")[2] if process.words else ""
    return name.startswith("python3") and len(process.words) > 1 and process.words[1].endswith("sleeper.py")


def _death(lab: Lab, words: Sequence[str], count: int) -> Figures:
    """A task is killed."""
    with lab.start(*words) as command:
        first, *others = having(count, is_task, "tasks")
        return _after(lambda: os.kill(first.pid, signal.SIGKILL), others, command.process.pid)


def _interrupt(lab: Lab, words: Sequence[str], count: int) -> Figures:
    """Ctrl-C is for all processes of the terminal's foreground."""
    with lab.start(*words) as command:
        tasks, group = having(count, is_task, "tasks"), command.process.pid
        return _after(lambda: os.killpg(group, signal.SIGINT), tasks, group)


def _after(act: Callable[[], None], tasks: Sequence[Process], prompt: int) -> Figures:
    """When the tasks were gone, and when the prompt was there."""
    watch = Watch([prompt, *(each.pid for each in tasks)])
    begun = time.monotonic()
    act()
    watch.wait(LEFT_AFTER_S)
    left = {*watch.left} - {prompt}
    ended = dict(watch.ended)
    watch.kill()
    back = ended.pop(prompt, None)
    figures = {"tasks left": float(len(left))}
    if not left:
        figures["tasks gone s"] = max(ended.values(), default=begun) - begun
    return figures if back is None else {**figures, "prompt s": back - begun}


def _stop(plan: Plan, count: int) -> Table:
    """What runs in another terminal is ended; peers end by its name what plain ssh has started."""
    table = Table(f"stop, {count} hosts", "tflaunch stop", ("wall s", "client CPU s", "tasks gone s"), count)
    table.remarks.append("tflaunch stop also finds the run, and checks that nothing of it is left")
    lab, hosts = plan.lab, plan.lab.hosts(count)

    def method(start: Sequence[str], stop: Sequence[str]) -> Callable[[], Figures]:
        def measure() -> Figures:
            with lab.start(*start) as run:
                watch = Watch(each.pid for each in having(count, is_task, "tasks"))
                begun = time.monotonic()
                with lab.start(*stop, name="stop") as command:
                    watch.wait(60)
                    cost = command.wait()
                Watch([run.process.pid]).wait(60)
                return {**cost.figures(), "tasks gone s": max(watch.ended.values(), default=begun) - begun}

        return measure

    methods = {"tflaunch stop": method(_ours(lab, count), (TFLAUNCH, "stop"))}
    for peer in present((peers.SSH, peers.PDSH, peers.CLUSH), plan, count, table.remarks):
        start = peers.xargs_ssh(lab, hosts, SLEEP)
        methods[f"{peer.name}: pkill"] = method(start, peer.argv(lab, hosts, "pkill -f '[s]leeper.py'"))
    return interleave(table, methods, plan.rounds, plan.tell)
