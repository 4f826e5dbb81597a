"""Other ways to run one command on many hosts over SSH, each as its own documentation has it.

All of them get the same hosts, command, key and known hosts, and end with 0 only when every task did.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from bench.beds import Lab
from bench.plan import Plan
from tests.support import ROOT

PYTHON = str(ROOT / ".venv-bench/bin/python")
AT_A_TIME = 64

Argv = Callable[[Lab, Sequence[str], str], Sequence[str]]


@dataclass(frozen=True)
class Peer:
    """A way to run a command on hosts; a host that is named twice gets two tasks."""

    name: str
    argv: Argv
    lacks: Callable[[], str]  # why it is not there; "" when it is
    several: bool = True  # whether it can run several tasks on a host
    most: int = 1 << 20  # tasks: with more it would take minutes a round, for what each costs is known then


def _program(name: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(name) else f"there is no {name}"


@cache
def _imports(python: str, module: str) -> str:
    done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


def _module(module: str, python: str = PYTHON) -> Callable[[], str]:
    def lacks() -> str:
        try:
            return _imports(python, module)
        except OSError:
            return f"there is no {python}: see scripts/bench"

    return lacks


def _client(name: str, python: str = PYTHON) -> Argv:
    def argv(lab: Lab, hosts: Sequence[str], command: str) -> Sequence[str]:
        words = (python, "-m", f"bench.clients.{name}", lab.names_file(hosts), command)
        # torchrunx goes to the same directory on the hosts.
        return ("env", "-C", "/", f"PYTHONPATH={ROOT}", *words)

    return argv


def xargs_ssh(lab: Lab, hosts: Sequence[str], command: str, *options: str) -> Sequence[str]:
    """Plain ssh, so many at a time."""
    words = ("ssh", *options, "{}", command)
    return ("xargs", "-a", lab.names_file(hosts), "-P", str(AT_A_TIME), "-I{}", *words)


def _curve(lab: Lab, hosts: Sequence[str], command: str) -> Sequence[str]:
    return xargs_ssh(lab, hosts, command, "-oKexAlgorithms=curve25519-sha256")


def _pdsh(_: Lab, hosts: Sequence[str], command: str) -> Sequence[str]:
    return ("pdsh", "-S", "-R", "ssh", "-f", str(AT_A_TIME), "-w", ",".join(hosts), command)


def _clush(_: Lab, hosts: Sequence[str], command: str) -> Sequence[str]:
    return ("clush", "-S", "-w", ",".join(hosts), command)


def _mpirun(*more: str) -> Argv:
    def argv(lab: Lab, hosts: Sequence[str], command: str) -> Sequence[str]:
        slots = "".join(f"{host} slots={count}\n" for host, count in Counter(hosts).items())
        hostfile = lab.file(f"mpi-hosts-{len(hosts)}", slots)
        options = ("--allow-run-as-root", "--hostfile", hostfile, "-np", str(len(hosts)), "--oversubscribe")
        remote = ("--mca", "plm", "rsh", "--mca", "oob_tcp_if_include", "eth0", *more)
        return ("mpirun", *options, *remote, "sh", "-c", command)

    return argv


def _horovodrun(_: Lab, hosts: Sequence[str], command: str) -> Sequence[str]:
    slots = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    words = (PYTHON, "-m", "bench.clients.horovodrun", "--gloo", "--disable-cache", "--start-timeout", "120")
    options = ("--network-interfaces", "eth0", "-np", str(len(hosts)), "-H", slots)
    return ("env", f"PYTHONPATH={ROOT}", *words, *options, "sh", "-c", command)


SSH = Peer("ssh, xargs -P 64", xargs_ssh, _program("ssh"))
SSH_CURVE = Peer("ssh -oKexAlgorithms=curve25519-sha256", _curve, _program("ssh"))
PDSH = Peer("pdsh -f 64", _pdsh, _program("pdsh"), several=False)
CLUSH = Peer("clush", _clush, _program("clush"), several=False)
MPIRUN = Peer("mpirun, rsh launcher", _mpirun(), _program("mpirun"))
MPIRUN_FLAT = Peer(
    "mpirun, no tree",
    _mpirun("--mca", "plm_rsh_no_tree_spawn", "1"),
    _program("mpirun"),
)
PARALLEL_SSH = Peer("parallel-ssh", _client("parallel_ssh"), _module("pssh.clients"))
PARAMIKO = Peer("paramiko, tuned", _client("paramiko_tuned", sys.executable), lambda: "")
FABRIC = Peer("fabric ThreadingGroup", _client("fabric_group", sys.executable), lambda: "", several=False)
ASYNCSSH = Peer("asyncssh", _client("asyncssh_all"), _module("asyncssh"))
TORCHRUNX = Peer("torchrunx", _client("torchrunx_all"), _module("torchrunx"), most=8)
HOROVODRUN = Peer("horovodrun --gloo", _horovodrun, _module("horovod.runner"), most=64)

ALL = (
    SSH,
    SSH_CURVE,
    PDSH,
    CLUSH,
    MPIRUN,
    MPIRUN_FLAT,
    PARALLEL_SSH,
    PARAMIKO,
    FABRIC,
    ASYNCSSH,
    HOROVODRUN,
    TORCHRUNX,
)


def present(peers: Sequence[Peer], plan: Plan, tasks: int, remarks: list[str]) -> Iterator[Peer]:
    """Those of the peers that are wanted and there; a remark for each that is not there."""
    for peer in peers:
        if not plan.wants(peer.name):
            continue
        if lacks := peer.lacks():
            remarks.append(f"{peer.name} is left out: {lacks}")
        elif tasks > peer.most:
            remarks.append(f"{peer.name} is left out with more than {peer.most} tasks: it takes minutes")
        else:
            yield peer
