"""Memory and idle work of a run that waits: of the launcher, and on a host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import peers
from bench.beds import Lab
from bench.measure import Figures, Table, interleave
from bench.peers import present
from bench.plan import Plan
from bench.processes import Watch, cpu_s, descendants, having, memory_bytes
from bench.reaction import SLEEP, SLEEPER, is_task

IDLE_S = 10.0
MIB = 2**20


def memory(plan: Plan) -> Iterator[Table]:
    """With few hosts and with many: the difference is what a host costs."""
    for count in plan.sizes(4, 64):
        lab = plan.lab
        for host in lab.machines(count):
            (host.directory / "home/root/sleeper.py").write_text(SLEEPER)
        program = lab.file("sleeper/sleeper.py", SLEEPER)
        table = Table(f"Memory, {count} hosts", "tflaunch run", ("client MiB",), count)
        table.remarks.append(
            f"PSS; on a host: sshd's session and all that it has started, without the task; "
            f"idle CPU over {IDLE_S:.0f} s"
        )
        run = lab.launch(count, program)
        methods = {"tflaunch run": _method(lab, run, count)}
        chosen = (peers.SSH, peers.MPIRUN, peers.PARAMIKO, peers.FABRIC, peers.ASYNCSSH, peers.PARALLEL_SSH)
        for peer in present(chosen, plan, count, table.remarks):
            words = peer.argv(lab, lab.hosts(count), SLEEP)
            methods[peer.name] = _method(lab, words, count)
        yield interleave(table, methods, min(plan.rounds, 3), plan.tell)


def _method(lab: Lab, words: Sequence[str], count: int) -> Callable[[], Figures]:
    def measure() -> Figures:
        with lab.start(*words) as command:
            tasks = having(count, is_task, "tasks")
            time.sleep(3)  # what is only needed to start is over
            client = descendants(command.process.pid)
            host = lab.bed.hosts[0]
            furniture = {host.pid, host.listener}
            running = [pid for pid in host.pids() if pid not in furniture]
            there = [pid for pid in running if pid not in {each.pid for each in tasks} and not _sleeps(pid)]
            used, used_there = cpu_s(client), cpu_s(there)
            figures = {
                "client MiB": memory_bytes(client) / MIB,
                "client threads": float(sum(len([*Path(f"/proc/{pid}/task").iterdir()]) for pid in client)),
                "client files": float(sum(len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in client)),
                "host MiB": memory_bytes(there) / MIB,
            }
            time.sleep(IDLE_S)
            figures["client idle CPU %"] = (cpu_s(client) - used) / IDLE_S * 100
            figures["host idle CPU %"] = (cpu_s(there) - used_there) / IDLE_S * 100
            watch = Watch([each.pid for each in tasks])
            watch.kill()  # all at once, and the command ends by itself
            Watch([command.process.pid]).wait(60)
        return figures

    return measure


def _sleeps(pid: int) -> bool:
    """The host's first process waits for this one."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")
    except OSError:
        return True
