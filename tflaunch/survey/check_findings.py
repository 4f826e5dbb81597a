"""What `tflaunch check` makes of what hosts have told: findings, each with what to do about it; pure.

An *error* would make a run fail, a *warning* may, a *note* is good to know.  Findings that are the same on several
hosts are one.
"""

from __future__ import annotations

import functools
import ipaddress
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tflaunch.hosts import fold
from tflaunch.inputs.times import duration
from tflaunch.planning import dial_check
from tflaunch.planning.addresses import is_loopback
from tflaunch.planning.command import endpoint, interpreter
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol import dialling
from tflaunch.protocol.errors import EXIT_CONNECT, EXIT_LAUNCH
from tflaunch.protocol.job import JobSpec
from tflaunch.survey.check_answers import Checked, Row, Tried, Visited, is_open

GIB = 2**30
LEAST_DISK_BYTES, LITTLE_DISK_BYTES = GIB // 5, 2 * GIB
LITTLE_FILES = 1000  # inodes
FEW_DESCRIPTORS, FEW_PROCESSES = 4096, 4096
MUCH_MEMLOCK_BYTES = GIB
SKEW_S = 2.0
SLOW_IMPORT_S = 30.0
UNGUARDED = (
    "TensorFlow listens on all interfaces and asks nobody for a password: who reaches it can do what you can"
)
PRIVATE = "let a firewall admit only the hosts, or use a private network"
VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxc", "podman", "cali")

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, on these hosts; `fix` is the next step to take."""

    level: Level
    topic: str  # for scripts: connection, setup, tensorflow, gpus, ports, exposed, ...
    hosts: tuple[str, ...]
    what: str
    fix: str = ""
    lines: tuple[str, ...] = ()  # what was printed on the first of them


@dataclass(frozen=True)
class Verdict:
    """What is to be said of what the hosts have told."""

    checked: Checked

    @functools.cached_property
    def findings(self) -> list[Finding]:
        """Everything that would or may go wrong: errors first, what many hosts have in common before the rest."""
        found: dict[tuple[Level, str, str, str], Finding] = {}
        for each in self._findings():
            key = (each.level, each.topic, each.what, each.fix)
            same = found.get(key, each)
            hosts = tuple(dict.fromkeys([*same.hosts, *each.hosts]))
            found[key] = replace(same, hosts=hosts)
        folded = [replace(each, fix=each.fix.replace("{host}", each.hosts[0])) for each in found.values()]
        return sorted(folded, key=lambda each: (LEVELS.index(each.level), -len(each.hosts)))

    def exit_code(self, strict: bool = False) -> int:
        """69 if a host could not be asked, 70 if something would fail (strict: or may), else 0."""
        if any(each.error or each.lost for each in self.checked.hosts):
            return EXIT_CONNECT
        bad = ("error", "warning") if strict else ("error",)
        return EXIT_LAUNCH if any(each.level in bad for each in self.findings) else 0

    def level(self, host: str) -> Level | None:
        """The worst that was found on that host."""
        return self._levels.get(host)

    @functools.cached_property
    def _levels(self) -> dict[str, Level]:
        return {host: each.level for each in reversed(self.findings) for host in each.hosts}

    # -- what is found

    def _findings(self) -> Iterator[Finding]:
        for each in self.checked.hosts:
            if each.error is not None:
                yield Finding("error", "connection", (each.host.name,), each.error.message, each.error.hint)
            if each.facts is not None:
                for level, topic, what, fix, *lines in self._of_host(each, each.facts):
                    yield Finding(level, topic, (each.host.name,), what, fix, *lines)
        if trouble := next((each.address_error for each in self.checked.told if each.address_error), None):
            # Its message begins with the host that is meant.
            name = trouble.message.partition(":")[0]
            what = trouble.message.removeprefix(f"{name}: ")
            yield Finding("error", "network", (name,), what, trouble.hint)
        yield from self._blocked()
        yield from self._skewed()
        yield from self._exposed()
        for row in self.checked.matrix:
            if row.matters and row.odd:
                yield from _differing(row)

    def _of_host(self, each: Visited, facts: HostFacts) -> Iterator[Any]:
        if each.refused is not None:
            what = each.refused.message.removeprefix(f"{each.host.name}: ")
            yield "error", "setup", what, each.refused.hint
        if each.lost is not None:
            what = f"its connection was lost: {each.lost.message}; what was started there ends by itself"
            yield "error", "connection", what, each.lost.hint
        elif each.unswept:
            fix = f"it ends by itself within a minute; to see to it: tflaunch stop {self.checked.run_id} --hosts HOSTS"
            yield "error", "session", f"something of this check may still be alive: {each.unswept}", fix
        if each.tried is not None:
            yield from _of_task(each, each.tried, self.checked.timeout_s)
        yield from _of_cards(each, facts)
        yield from _of_ports(each, facts)
        yield from _of_disks(each)
        yield from _of_limits(each, facts)
        yield from _of_network(each, self.checked.interfaces.get(each.host.name, {}))
        logout = each.system.get("logout", {})
        if logout.get("kills"):
            user = logout["user"]
            yield (
                "warning",
                "session",
                "systemd-logind has KillUserProcesses=yes: it kills what is left when the last connection is closed, "
                "a detached run too",
                f"have KillExcludeUsers={user} or KillUserProcesses=no in /etc/systemd/logind.conf there"
                + ("; that the user lingers does not help" if logout["linger"] else ""),
            )

    def _blocked(self) -> Iterator[Finding]:
        lost = {each.host.name for each in self.checked.told if each.lost is not None}
        blocked: dict[tuple[str, str], dict[str, list[str]]] = {}
        for source, ways in self.checked.dials.items():
            for to, way in ways.items():
                if not is_open(way["result"]) and to not in lost:
                    verdict, detail = way["result"] or (dialling.FAILED, "given up")
                    blocked.setdefault((verdict, detail), {}).setdefault(source, []).append(to)
        for (verdict, detail), missed in blocked.items():
            circles = Counter(frozenset([source, *names]) for source, names in missed.items())
            for source, names in missed.items():
                circle = frozenset([source, *names])
                each_other = len(circle) > 2 and circles[circle] == len(circle)  # then one sentence is enough
                ways = self.checked.dials[source]
                whom = sorted(circle) if each_other else names
                whose = "each other" if each_other else "itself" if names == [source] else fold(names)
                what = (
                    f"cannot reach {whose} at {self._where(whom, ways)}: {dialling.meaning(verdict, detail)}"
                )
                yield Finding("error", "network", (source,), what, dial_check.NEXT_STEP.get(verdict, ""))

    @staticmethod
    def _where(names: Sequence[str], ways: Mapping[str, Mapping[str, Any]]) -> str:
        ports = sorted({ways[name]["port"] for name in names})
        if len(names) == 1:
            return endpoint(ways[names[0]]["address"], ports[0])
        return f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]}"

    def _skewed(self) -> Iterator[Finding]:
        clocks = {each.host.name: each.clock for each in self.checked.told if each.clock is not None}
        if not clocks:
            return
        told = [clock.ahead_s for clock in clocks.values()]
        # Of two clocks nobody knows which is wrong; then this machine's counts, too.
        right = statistics.median([0.0, *told] if len(told) == 2 else told) if len(told) > 1 else 0.0
        for name, clock in clocks.items():
            off = clock.ahead_s - right
            if abs(off) > SKEW_S + clock.within_s:
                whose = "those of the others" if len(clocks) > 1 else "this machine's"
                way = f"{duration(abs(off))} {'ahead of' if off > 0 else 'behind'} {whose}"
                yield Finding(
                    "warning",
                    "clock",
                    (name,),
                    f"its clock is {way}: times of logs and checkpoints mislead",
                    "let it be set by NTP there: timedatectl set-ntp true",
                )

    def _exposed(self) -> Iterator[Finding]:
        ways_in = {way["address"] for ways in self.checked.dials.values() for way in ways.values()}
        if not self.checked.outside and not all(map(is_loopback, ways_in)):
            yield Finding(
                "note",
                "exposed",
                tuple(self.checked.dials),
                "this machine is one of the hosts, and cannot tell who else reaches the ports of their tasks. "
                + UNGUARDED,
                PRIVATE,
            )
        for name, ways in self.checked.outside.items():
            reached = [address for address, way in ways.items() if is_open(way["result"])]
            if reached:
                public = any(ipaddress.ip_address(address.partition("%")[0]).is_global for address in reached)
                yield Finding(
                    "warning" if public else "note",
                    "exposed",
                    (name,),
                    "this machine, which is none of the hosts, reaches the ports of their tasks"
                    f"{' at a public address' if public else ''}. {UNGUARDED}",
                    PRIVATE,
                )


def _of_task(each: Visited, tried: Tried, timeout_s: float) -> Iterator[Any]:
    report = tried.report
    if report is None:
        if tried.late:
            what = f"TensorFlow was not imported within {timeout_s:g} s, and was ended"
            yield "error", "tensorflow", what, "a slow file system? --timeout TIME waits longer", tried.lines
        else:
            how = f"code {tried.code}" if tried.code is not None else tried.signal_name
            fix = "look at what it has printed"
            if tried.signal_name == "SIGILL":
                fix = "its processor lacks what this TensorFlow is built for: install another build of it"
            yield "error", "tensorflow", f"its Python ended with {how} on import", fix, tried.lines
    elif report["error"]:
        missing = report["error"].startswith("ModuleNotFoundError") and "'tensorflow'" in report["error"]
        python = report["executable"] or interpreter(each.host, JobSpec(()))
        what = f"TensorFlow does not import in {python}: {report['error'].splitlines()[0]}"
        fix = f"install it there, with {python} -m pip, or name" if missing else "repair it, or name"
        fix += " another interpreter by `python:`, or what activates it by `setup:`"
        if each.source:
            fix = f"{'add it to' if missing else 'repair it in'} {each.source}"
        yield "error", "tensorflow", what, fix, () if missing else tried.lines
    elif (seconds := report.get("tensorflow", {}).get("seconds", 0)) > SLOW_IMPORT_S:
        what = f"importing TensorFlow took {duration(seconds // 10 * 10)}"
        yield "note", "tensorflow", what, "it is quicker from a local disk; a second time may be, too"
    for name in (report or {}).get("proxies", ()):
        if "no_grpc_proxy" not in each.host.env:
            yield "note", "proxy", f"{name} is set; gRPC between tasks goes around it (no_grpc_proxy)", ""


def _of_cards(each: Visited, facts: HostFacts) -> Iterator[Any]:
    if facts.gpu_note and each.host.gpus != 0:
        yield "error", "gpus", f"its cards cannot be seen: {facts.gpu_note}", "look there with nvidia-smi"
    for gpu in facts.gpus:
        if gpu.error:
            yield (
                "warning",
                "gpus",
                f"card {gpu.label} is broken: {gpu.error}",
                "look there with nvidia-smi -q",
            )
    tensorflow = each.report.get("tensorflow", {})
    seen, build = tensorflow.get("gpus"), tensorflow.get("build", {})
    if not each.cards or seen is None or seen == len(each.cards):
        return
    needs, serves = build.get("cuda_version", ""), facts.cuda
    what = f"TensorFlow sees {seen} of {len(each.cards)} free cards"
    if build.get("is_cuda_build") == "False":
        yield "error", "gpus", f"{what}: it is built without CUDA", "install a build with CUDA there"
    elif needs and serves and _major(needs) > _major(serves):
        fix = "install a newer driver there, or an older TensorFlow"
        yield (
            "error",
            "gpus",
            f"{what}: it is built for CUDA {needs}, the driver serves {serves} at most",
            fix,
        )
    else:
        fix = "are its CUDA libraries found? (tensorflow[and-cuda], `module load cuda` in `setup:`)"
        yield "error", "gpus", what, fix, each.tried.lines if each.tried else ()


def _major(version: str) -> int:
    """The first number of a version; 0 of what is none."""
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() and len(first) < 10 else 0


def _of_ports(each: Visited, facts: HostFacts) -> Iterator[Any]:
    if each.host.ports is None:
        if not facts.ports:
            yield "error", "ports", "no port could be had", "name a free range by `ports:` in the hostfile"
        return
    first, last = each.host.ports
    taken = last - first + 1 - len(facts.ports)
    what = f"`ports: {first}-{last}`: {len(facts.ports)} of {last - first + 1} could be had"
    fix = "see who listens there (ss -tlnp), or name another range"
    if not facts.ports:
        yield "error", "ports", what, fix
    elif taken > 0 and len(facts.ports) < ENOUGH_PORTS:
        yield "warning", "ports", what, fix


ENOUGH_PORTS = 16  # for the tasks of one host, and runs beside it


def _of_disks(each: Visited) -> Iterator[Any]:
    for disk in each.system.get("disks", ()):
        free, files = disk["free_bytes"], disk["free_files"]
        fix = "make room there, or set `run_dir:` to another disk"
        where = disk["path"].partition("/tflaunch-")[0]
        if free < LITTLE_DISK_BYTES:
            level = "error" if free < LEAST_DISK_BYTES else "warning"
            yield level, "disk", f"{free / 2**20:,.0f} MiB are free on the disk of {where}", fix
        if files is not None and files < LITTLE_FILES:
            yield "warning", "disk", f"{files} inodes are free on the disk of {where}", fix


def _of_limits(each: Visited, facts: HostFacts) -> Iterator[Any]:
    limits = each.report.get("limits", {})
    conf = "raise it in /etc/security/limits.conf there, or by `ulimit` in `setup:`"
    few = limits.get("nofile")
    if few is not None and few < FEW_DESCRIPTORS:
        yield "warning", "limits", f"a task may have {few} files and connections open (nofile)", conf
    few = limits.get("nproc")
    if few is not None and few < max(FEW_PROCESSES, 16 * facts.cores):
        yield "warning", "limits", f"its user may have {few} processes and threads (nproc)", conf
    few = limits.get("memlock")
    if few is not None and few < MUCH_MEMLOCK_BYTES and each.system.get("infiniband"):
        what = f"a task may lock {few // 1024:,} KiB of memory (memlock), too little for RDMA"
        yield "warning", "limits", what, conf


def _of_network(each: Visited, face: Mapping[str, Any]) -> Iterator[Any]:
    faces = [face for face in each.system.get("interfaces", ()) if not face["name"].startswith(VIRTUAL)]
    chosen = face.get("name", "")
    if chosen.startswith(VIRTUAL):
        what = f"its tasks are dialled at the address of {chosen}, a bridge within the host"
        yield "warning", "network", what, "name the address of its network by `address:` in the hostfile"
    elif chosen and len(faces) > 1 and each.host.address is None:
        names = ", ".join(face["name"] for face in faces)
        what = f"it is in several networks ({names}); tasks are dialled by {chosen}"
        yield "note", "network", what, "`address:` in the hostfile names another"


def _differing(row: Row) -> Iterator[Finding]:
    fix = "have the same on all hosts: what one writes another may not read"
    topic = "versions"
    if row.name == "MTU":
        topic, fix = "network", "set them all alike: larger packets may vanish on the way without a word"
    level: Level = "warning"
    if row.name == "Python" and len({value.rpartition(".")[0] for value in row.values.values()}) == 1:
        level, fix = "note", ""
    if not row.common:
        told = ", ".join(f"{value} on {fold(hosts)}" for value, hosts in row.odd.items())
        yield Finding(level, topic, tuple(row.values), f"{row.name} differs: {told}", fix)
        return
    for value, hosts in row.odd.items():
        what = f"{row.name} is {value}, on the other hosts {row.common}"
        yield Finding(level, topic, tuple(hosts), what, fix)
