"""Probe: the GPUs of all hosts, the first look and each further one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from bench import peers
from bench.beds import TFLAUNCH, Lab, patience
from bench.measure import Figures, Table, busy_s, interleave
from bench.peers import PYTHON, present
from bench.plan import Plan
from bench.processes import cpu_s
from tests.support.launcher import processes

GPUS = 8
LOOKS = 20
EVERY_S = 0.1  # so a look cannot take less
# As much as `nvidia-smi --query-gpu=index,name,memory.used,memory.total,utilization.gpu --format=csv` tells.
SMI = """\
import pynvml as n
n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    GPU = n.nvmlDeviceGetHandleByIndex(i)
    memory, use = n.nvmlDeviceGetMemoryInfo(GPU), n.nvmlDeviceGetUtilizationRates(GPU)
    print(i, n.nvmlDeviceGetName(GPU), memory.used, memory.total, use.gpu, sep=", ")
"""


def probe(plan: Plan) -> Iterator[Table]:
    """Hosts with eight simulated GPUs each."""
    for count in plan.sizes(4, 16, 64):
        plan.lab.give_gpus(count, GPUS)
        for host in plan.lab.machines(count):
            (host.directory / "home/root/smi.py").write_text(SMI)
        yield first_look(plan, count)
        yield _again(plan, count)


def first_look(plan: Plan, count: int) -> Table:
    table = Table(f"GPUs, the first look, {count} hosts", "tflaunch gpus", ("wall s", "client CPU s"), count)
    table.remarks.append(
        f"tflaunch gpus HOSTS --json; each host has {GPUS} simulated GPUs; smi.py is pynvml alone"
    )
    lab, hosts = plan.lab, plan.lab.hosts(count)
    ours = (TFLAUNCH, "gpus", lab.hostfile(count), "--json", *patience(count, "--timeout"))
    methods = {"tflaunch gpus": lambda: lab.run(*ours).figures()}
    commands = {"gpustat": f"{PYTHON} -m gpustat --json", "smi.py": f"{PYTHON} smi.py"}
    for peer in present((peers.SSH, peers.CLUSH, peers.ASYNCSSH), plan, count, table.remarks):
        for name, command in commands.items():
            words = peer.argv(lab, hosts, command)
            methods[f"{peer.name}: {name}"] = lambda words=words: lab.run(*words).figures()  # type: ignore[misc]
    return interleave(table, methods, plan.rounds, plan.tell)


def _again(plan: Plan, count: int) -> Table:
    reference = "tflaunch gpus --watch"
    table = Table(f"GPUs, each further look, {count} hosts", reference, ("wall s", "client CPU s"), count)
    table.remarks.append(
        f"tflaunch gpus HOSTS --json --watch {EVERY_S}, mean of {LOOKS} looks; with ControlPersist ssh, too, "
        "keeps its connections"
    )
    lab, hosts = plan.lab, plan.lab.hosts(count)
    look = f"{PYTHON} smi.py"
    words = peers.SSH.argv(lab, hosts, look)
    options = ("-oControlMaster=auto", "-oControlPersist=300", "-oControlPath=~/mux-%h")
    kept = peers.xargs_ssh(lab, hosts, look, *options)
    methods: dict[str, Callable[[], Figures]] = {
        reference: lambda: _watched(lab, count),
        "ssh, xargs -P 64: smi.py": lambda: lab.run(*words).figures(),
        "ssh, xargs -P 64, ControlPersist: smi.py": lambda: _persistent(lab, kept),
    }
    try:
        return interleave(table, methods, plan.rounds, plan.tell)
    finally:
        for host in hosts:
            words = ("ssh", f"-oControlPath={lab.home}/mux-{host}", "-Oexit", host)
            subprocess.run(lab.argv(*words), env=lab.env, capture_output=True, check=False)


def _watched(lab: Lab, count: int) -> Figures:
    """The first look connects; then so many are counted."""
    reading, writing = os.pipe()
    words = (TFLAUNCH, "gpus", lab.hostfile(count), "--json", "--watch", str(EVERY_S))
    with os.fdopen(reading) as lines, lab.start(*words, stdout=writing) as command:
        os.close(writing)
        for _ in range(2):
            lines.readline()
        pid = command.process.pid
        begun, used, busy = time.monotonic(), cpu_s([pid]), busy_s()
        for _ in range(LOOKS):
            lines.readline()
        wall_s, client_s = time.monotonic() - begun, cpu_s([pid]) - used
        hosts_s = busy_s() - busy - client_s
    return {
        "wall s": wall_s / LOOKS,
        "client CPU s": client_s / LOOKS,
        "hosts' CPU s": hosts_s / LOOKS,
    }


def _persistent(lab: Lab, words: Sequence[str]) -> Figures:
    """What the connections cost that stay open is counted, too."""
    if not _masters():
        lab.run(*words)
    masters = _masters()
    used = cpu_s(masters)
    figures = lab.run(*words).figures()
    more = cpu_s(masters) - used
    return {
        **figures,
        "client CPU s": figures["client CPU s"] + more,
        "hosts' CPU s": figures["hosts' CPU s"] - more,
    }


def _masters() -> list[int]:
    return [each.pid for each in processes() if each.words and each.words[0].endswith("[mux]")]
