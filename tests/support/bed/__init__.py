"""A test bed: several hosts on this machine, as separate as the kernel can make them, and what may befall them.

    def test_it(bed, far):                        # fixtures of tests/conftest.py; `far` types tflaunch commands
        one, two = bed.up(2)
        with far.start("run", far.hostfile([one, two]), ...) as running:
            bed.cut(one)                          # pull the cable; heal(one) plugs it in
            bed.cut(one, two)                     # these two do not reach each other any more
            bed.cut_one_way(bed.launcher, one)    # what the launcher sends is lost, what the host sends arrives
            bed.block(one, two, 2222)             # one TCP port, seen from `one`; refuse=True: RST, not silence
            bed.delay(one, 200, loss_percent=2)
        bed.narrow(one, two, 1400)                # larger packets are lost, and nobody says so
            bed.reboot(one, keep_disk=False); bed.power_off(one); bed.boot(one)
            one.freeze(); one.thaw(); one.kill_sshd(sessions=True); one.reset_connections(); ...

A host has its own network interface and address (10.77.0.N), host name, processes, /home, /tmp, /var/tmp, /run and
sshd; everything else (Python, the project) it shares with this machine, but not the launcher's directories.
The launcher's machine is a host without an sshd whose files and processes are those of the test.  All of it is
real (Linux namespaces, nftables, sshd) but for NVML (tests/support/nvml) and a wrong clock (clock.c).

It needs root.  Nothing can be left behind: see machine.py.  Each bed has a network of its own, so that several
tests, and several workers of pytest-xdist, can have one at the same time.  `python -m
tests.support.bed 4` is one to try.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.support import ROOT
from tests.support.bed.machines import CGROUPS, CLOCK_ENV, PRIVATE, BedHost, Machine
from tests.support.bed.network import Rule, Switch
from tests.support.launcher import Inside, Launcher, Process
from tests.support.sshd import PRIVILEGE_SEPARATION, SSHD, make_key

# Machines that all talk to each other: the kernel of this one keeps 1024 neighbours for all of them.
MANY = 30
TOOLS = ("ip", "nft", "nsenter", "ss", "ssh-keygen")


@functools.cache
def missing() -> str:
    """Why there can be no bed here; "" when there can."""
    if os.geteuid() != 0:
        return "a test bed needs root, for namespaces"
    if lacking := [tool for tool in TOOLS if not shutil.which(tool)] + ([] if SSHD else ["sshd"]):
        return f"a test bed needs {', '.join(lacking)}: install iproute2, nftables and openssh-server"
    try:
        subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "true"], check=True, capture_output=True
        )
    except subprocess.CalledProcessError as error:
        return f"no namespaces here: {error.stderr.decode().strip()}"
    return ""


@functools.cache
def can_shape() -> bool:
    """Whether this kernel can hold what an interface sends to a rate."""
    tried = "tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 1s"
    return (
        subprocess.run(["unshare", "--net", *tried.split()], capture_output=True, check=False).returncode == 0
    )


def _shared() -> tuple[str, ...]:
    """What the hosts must see although it lies where each has its own: this project and its Python."""
    places = {str(ROOT), sys.prefix, sys.base_prefix}
    inside = {place for place in places if place.startswith(tuple(f"{each}/" for each in PRIVATE))}
    return tuple(
        sorted(
            place for place in inside if not any(other in Path(place).parents for other in map(Path, inside))
        )
    )


class Bed:
    """A switch, the launcher's machine, and hosts: host1, host2, ..."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_old_groups()
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        self.directory = directory
        self.key = make_key(directory / "id_ed25519")
        self.hosts: list[BedHost] = []
        self._switch = Switch(directory)
        self.launcher = Machine(directory / "launcher", 0xFFFE, "launcher")
        self._boot([self.launcher])

    def up(
        self,
        count: int,
        *,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        clock: bool = False,
        share: Sequence[str] = (),
        nodes: Sequence[str] = (),
    ) -> list[BedHost]:
        """Boot so many more hosts; `options` are lines for their sshd_config, `env` is in their logins.

        They see the directories of `share` as this machine has them, as if a file server had exported them.
        `nodes`: the CPUs of each of their NUMA nodes, which are simulated.
        """
        more = {**(env or {}), **(CLOCK_ENV if clock else {})}
        first = len(self.hosts) + 1
        seen = (*_shared(), *share)
        hosts = [
            BedHost(
                self.directory / f"host{n}",
                n,
                key=self.key,
                options=options,
                env=more,
                share=seen,
                nodes=nodes,
            )
            for n in range(first, first + count)
        ]
        if clock:
            library = clock_library(self.directory)
            for host in hosts:
                shutil.copy(library, host.directory / "run")
                host.set_clock(0)
        self.hosts += hosts
        self.name_all()
        self._boot(hosts)
        if len(self.hosts) > MANY:
            self._introduce_all()
        return hosts

    def _introduce_all(self) -> None:
        """Every machine knows every GPU: entries made by hand do not count for the kernel's limit."""
        machines = [self.launcher, *self.hosts]
        text = "".join(f"neigh replace {each.address} lladdr {each.hardware} dev eth0\n" for each in machines)
        for machine in machines:
            subprocess.run(machine.inside("ip", "-force", "-batch", "-"), input=text, text=True, check=False)

    def _boot(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            machine.start()
        self._switch.connect({machine.port: machine.wire() for machine in machines})
        for machine in machines:
            machine.wait_until_up()

    def name_all(self) -> None:
        """Every machine knows the names of all, also one that had forgotten them."""
        names = "".join(f"{each.address} {each.name}\n" for each in [self.launcher, *self.hosts])
        for machine in [self.launcher, *self.hosts]:
            machine.learn_names(f"127.0.0.1 localhost\n{names}")

    def ssh_directory(self, home: Path) -> None:
        """Write `home`/.ssh: the hosts are known there, and let its owner in."""
        place = home / ".ssh"
        place.mkdir(mode=0o700, exist_ok=True)
        (place / "known_hosts").write_text("".join(host.known_hosts_line for host in self.hosts))
        (place / "config").write_text(
            f"Host *\n  User root\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {place / 'known_hosts'}\n  GlobalKnownHostsFile none\n"
        )

    # -- the network

    def cut(self, machine: Machine, other: Machine | None = None, *, refuse: bool = False) -> None:
        """Nothing passes between `machine` and `other` (all, without) any more; `refuse`: each is told so."""
        if refuse:
            assert other is not None
            machine.refuse(other.address)
            other.refuse(machine.address)
        elif other is None:
            self._switch.lose(Rule(machine.port, ""), Rule("", machine.port))
        else:
            self._switch.lose(Rule(machine.port, other.port), Rule(other.port, machine.port))

    def cut_one_way(self, source: Machine, target: Machine) -> None:
        """What `source` sends does not reach `target` any more; the other way is as before."""
        self._switch.lose(Rule(source.port, target.port))

    def block(self, source: Machine, target: Machine, port: int, *, refuse: bool = False) -> None:
        """`source` reaches every TCP port of `target` but this one."""
        if refuse:
            target.refuse(source.address, port)
        else:
            self._switch.lose(Rule(source.port, target.port, port))

    def heal(self, *machines: Machine) -> None:
        """All is well again with one machine, between two, or everywhere; a delay stays."""
        self._switch.forget(*(machine.port for machine in machines))
        for machine in machines or [self.launcher, *self.hosts]:
            machine.refuse_nobody()

    def second_network(self, *hosts: BedHost, mbit_s: int = 1000) -> None:
        """Give them an eth1 of 10 Gbit/s in a network of its own; eth0 says from now on that it has `mbit_s`.

        That is also what it has, where this kernel can shape.
        """
        for host in hosts:
            self._switch.connect_fast(f"f{host.port}", host.pid)
            host.do("ip", "addr", "add", f"{host.fast_address}/16", "dev", "eth1")
            host.do("ip", "link", "set", "eth1", "up")
            host.path("/run/eth0-speed").write_text(f"{mbit_s}\n")
            host.do("mount", "--bind", "/run/eth0-speed", "/sys/class/net/eth0/speed")
            if can_shape():
                self.shape(host, "eth0", mbit_s)

    def shape(self, host: BedHost, interface: str, mbit_s: int) -> None:
        """It sends no more there from now on, whatever its link says."""
        rate = ("rate", f"{mbit_s}mbit", "burst", "256kb", "latency", "50ms")
        host.do("tc", "qdisc", "replace", "dev", interface, "root", "tbf", *rate)

    def block_fast(self, source: BedHost, target: BedHost) -> None:
        """A firewall of `target` drops what `source` sends over the second network."""
        target.drop(source.fast_address)

    def delay(self, machine: Machine, ms: float, loss_percent: float = 0.0) -> None:
        """What it sends and gets takes `ms` longer each way, and so much of it is lost; zeros end that."""
        self._switch.delay(machine.port, machine.pid, ms / 1000, loss_percent / 100)

    def narrow(self, machine: Machine, other: Machine, mtu: int) -> None:
        """Larger packets than that are lost between these two, and no ICMP tells their GPUs."""
        for each in (machine, other):
            each.do("ip", "link", "set", "eth0", "gso_max_segs", "1")  # else it sends many packets as one
        ways = ((machine.port, other.port), (other.port, machine.port))
        self._switch.lose(*(Rule(*way, longer=mtu) for way in ways))

    # -- off and on

    def power_off(self, host: BedHost) -> None:
        """The cable first, then everything: the others hear nothing, no FIN, no RST."""
        self._switch.unplug(host.port)
        host.halt()

    def boot(self, host: BedHost, *, keep_disk: bool = True) -> None:
        """Switch it on again: connections of old are answered with RST."""
        host.forget_boot(keep_disk=keep_disk)
        self._boot([host])

    def reboot(self, host: BedHost, *, keep_disk: bool = True) -> None:
        """Every process is killed, its connections end with FIN or RST, then it boots."""
        host.halt()
        self._switch.unplug(host.port)
        self.boot(host, keep_disk=keep_disk)

    def close(self) -> None:
        """End everything; idempotent."""
        for machine in [*self.hosts, self.launcher]:
            with contextlib.suppress(OSError):
                machine.halt()
        self._switch.close()
        _remove_old_groups(of=os.getpid())


class FarLauncher(Launcher):
    """`tflaunch` on the launcher's machine of a bed; the hosts' files and processes are their own."""

    def __init__(self, directory: Path, bed: Bed) -> None:
        super().__init__(directory)
        self.bed = bed

    def hostfile(self, hosts: Iterable[object], name: str = "hosts.yaml", **defaults: object) -> Path:
        """A hostfile of these hosts (of the bed, or entries)."""
        self.bed.ssh_directory(self.home)
        entries = [each.name if isinstance(each, Machine) else each for each in hosts]
        return super().hostfile(entries, name, **{"run_dir": None, **defaults})

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        """The command line, on its machine; the process that is started is tflaunch itself."""
        return [*self.inside().words, *super().argv(verb, *words)]

    def inside(self) -> Inside:
        machine = self.bed.launcher
        return Inside(machine.inside(cwd=self.code), machine.namespace_files(), self.code)

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What runs on the hosts beside their own furniture."""
        return [
            process
            for host in self.bed.hosts
            for process in host.processes()
            if run is None
            or process.env.get("TFLAUNCH_RUN") == run
            or (process.is_agent and run in process.words)
        ]

    def close(self) -> None:
        """End what the test started; fails when a run that had ended has left something behind."""
        ended = all(running.process.poll() is not None for running in self._started)
        for running in self._started:
            running.close()
        if ended:  # else the test has failed, and all of it ends with the bed
            self.wait_until_nothing_is_left()

    def run_directories(self) -> list[Path]:
        """The run directories on all hosts that are on: `<run>/<host>`."""
        return [path for host in self.bed.hosts for path in host.run_directories()]


def clock_library(directory: Path) -> Path:
    """Compile clock.c."""
    path = directory / "clock.so"
    if not path.exists():
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(path), str(source), "-ldl"], check=True)
    return path


def _remove_old_groups(of: int = 0) -> None:
    """The one thing that outlives a test that was killed: the empty cgroups of a `BedHost`."""
    places = (CGROUPS / "pids", CGROUPS / "cpu", CGROUPS / "cpuset", CGROUPS)  # of either generation
    for group in (each for place in places for each in place.glob("tflaunch-bed-*")):
        found = re.match(r"tflaunch-bed-(\d+)-", group.name)
        if found and (int(found[1]) == of or not Path(f"/proc/{found[1]}").exists()):
            with contextlib.suppress(OSError):
                group.rmdir()
