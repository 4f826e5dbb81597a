"""What `tflaunch check` finds in the answers of the hosts, each finding with what to do about it.  Pure.

An *error* would make a run fail, a *warning* may make it fail, a *note* is good to know.  Equal findings on several
hosts become one.
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
from tflaunch.planning import dials, networks
from tflaunch.planning.addresses import is_loopback, who_has_them
from tflaunch.planning.gpu_words import repair
from tflaunch.planning.inventory import HostFacts
from tflaunch.planning.task_commands import endpoint, interpreter
from tflaunch.protocol import dialling
from tflaunch.protocol.errors import EXIT_CONNECT, EXIT_LAUNCH
from tflaunch.protocol.job import JobSpec
from tflaunch.ssh.refused_keys import together
from tflaunch.survey import check_bandwidth
from tflaunch.survey.check_answers import CheckAnswers, HostAnswer, MatrixRow, TaskAnswer, is_open
from tflaunch.text.times import duration

GIB = 2**30
# Less than these is a finding; less than LEAST_DISK_BYTES is an error.
LEAST_DISK_BYTES, LITTLE_DISK_BYTES = GIB // 5, 2 * GIB
LITTLE_FILES = 1000  # inodes
FEW_DESCRIPTORS, FEW_PROCESSES = 4096, 4096
MUCH_MEMLOCK_BYTES = GIB
# More than these is a finding.
SKEW_S = 2.0
SLOW_IMPORT_S = 30.0
UNGUARDED = (
    "TensorFlow listens on all interfaces and asks for no password: what reaches its port can do what you can"
)
PRIVATE = "let a firewall admit only the hosts, or use a private network"
ONE_CONNECTION = 10e9  # bit/s: over faster links, one TCP connection may not fill them
ENOUGH_PORTS = 16  # for the tasks of one host, and for other runs on it

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class CheckFinding:
    """Something that is not as it should be, on these hosts; `fix` is the next step to take."""

    level: Level
    topic: str  # for scripts: connection, setup, tensorflow, gpus, ports, exposed, ...
    hosts: tuple[str, ...]
    what: str
    fix: str = ""
    lines: tuple[
        str, ...
    ] = ()  # what the task printed on the first of these hosts, or how hosts without a wire differ


@dataclass(frozen=True)
class Findings:
    """The findings in the answers of all hosts."""

    answers: CheckAnswers

    @functools.cached_property
    def all(self) -> list[CheckFinding]:
        """All findings: errors before warnings before notes, and those of many hosts before those of few."""
        found: dict[tuple[Level, str, str, str], CheckFinding] = {}
        for each in self._findings():
            key = (each.level, each.topic, each.what, each.fix)
            same = found.get(key, each)
            hosts = tuple(dict.fromkeys([*same.hosts, *each.hosts]))
            found[key] = replace(same, hosts=hosts)
        folded = [replace(each, fix=each.fix.replace("{host}", each.hosts[0])) for each in found.values()]
        return sorted(folded, key=lambda each: (LEVELS.index(each.level), -len(each.hosts)))

    def exit_code(self, strict: bool = False) -> int:
        """69 if a host could not be asked, 70 if a run would fail (`strict`: or may fail), else 0."""
        if any(each.error or each.lost for each in self.answers.hosts):
            return EXIT_CONNECT
        bad = ("error", "warning") if strict else ("error",)
        return EXIT_LAUNCH if any(each.level in bad for each in self.all) else 0

    def level(self, host: str) -> Level | None:
        """The worst level of the findings on that host; None without findings."""
        return self._levels.get(host)

    @functools.cached_property
    def _levels(self) -> dict[str, Level]:
        return {host: each.level for each in reversed(self.all) for host in each.hosts}

    def _findings(self) -> Iterator[CheckFinding]:
        for failed in together({each.host.name: each.error for each in self.answers.hosts if each.error}):
            yield CheckFinding(
                "error", "connection", failed.hosts, failed.cause, failed.whole_hint, failed.lines
            )
        for each in self.answers.hosts:
            if each.facts is not None:
                for level, topic, what, fix, *lines in self._of_host(each, each.facts):
                    yield CheckFinding(level, topic, (each.host.name,), what, fix, *lines)
        if trouble := next((each.address_error for each in self.answers.asked if each.address_error), None):
            name = trouble.message.partition(":")[0]  # the message begins with the host
            what = trouble.message.removeprefix(f"{name}: ")
            yield CheckFinding("error", "network", (name,), what, trouble.hint)
        yield from self._one_machine()
        yield from self._blocked()
        yield from self._faster_network()
        for odd in (*self.answers.odd, *check_bandwidth.odd_ways(self.answers.bandwidth)):
            yield CheckFinding("warning", "network", odd.hosts, odd.what, odd.fix)
        yield from self._slow_networks()
        yield from self._skewed()
        yield from self._exposed()
        for row in self.answers.matrix:
            if row.matters and row.odd:
                yield from _differing(row)

    def _of_host(self, each: HostAnswer, facts: HostFacts) -> Iterator[Any]:
        if each.refused is not None:
            what = each.refused.message.removeprefix(f"{each.host.name}: ")
            yield "error", "setup", what, each.refused.hint
        if each.lost is not None:
            what = f"the connection was lost: {each.lost.message}; what was started there ends by itself"
            yield "error", "connection", what, each.lost.hint
        elif each.unswept:
            fix = f"it ends by itself within a minute; or end it: tflaunch stop {self.answers.run_id} --hosts HOSTS"
            yield "error", "session", f"something of this check may still be alive: {each.unswept}", fix
        if each.task is not None:
            yield from _of_task(each, each.task, self.answers.timeout_s)
        yield from _of_gpus(each, facts)
        yield from _of_ports(each, facts)
        yield from _of_disks(each)
        yield from _of_limits(each, facts)
        yield from _of_network(each, self.answers.interfaces.get(each.host.name, {}))
        logout = each.system.get("logout", {})
        if logout.get("kills"):
            user = logout["user"]
            yield (
                "warning",
                "session",
                "systemd-logind has KillUserProcesses=yes: when the user's last connection closes, it kills all of the "
                "user's processes, a detached run too",
                f"set KillExcludeUsers={user} or KillUserProcesses=no in /etc/systemd/logind.conf there"
                + ("; `loginctl enable-linger` does not help" if logout["linger"] else ""),
            )

    def _one_machine(self) -> Iterator[CheckFinding]:
        """Hosts that are one machine, which a run refuses: see tflaunch.launch.roll_call."""
        names: dict[tuple[str, str], list[str]] = {}
        for each in self.answers.hosts:
            if each.facts is None or not each.facts.boot_id:
                continue
            key = each.host_key or (each.facts.hostname if each.host.connection == "openssh" else "")
            if key:
                names.setdefault((key, each.facts.boot_id), []).append(each.host.name)
        for same in names.values():
            if len(same) > 1:
                yield CheckFinding(
                    "error",
                    "hosts",
                    tuple(same),
                    f"{fold(same)} are one machine, and a run refuses that",
                    "list it once; several workers on it are --workers N or slots:",
                )

    def _blocked(self) -> Iterator[CheckFinding]:
        """Calls between hosts that failed; hosts that all fail to reach each other share one finding."""
        lost = {each.host.name for each in self.answers.asked if each.lost is not None}
        blocked: dict[tuple[str, str], dict[str, list[str]]] = {}
        for source, ways in self.answers.dials.items():
            for to, way in ways.items():
                if not is_open(way["result"]) and to not in lost:
                    failure, detail = way["result"] or (dialling.FAILED, "given up")
                    blocked.setdefault((failure, detail), {}).setdefault(source, []).append(to)
        for (failure, detail), missed in blocked.items():
            groups = Counter(frozenset([source, *names]) for source, names in missed.items())
            for source, names in missed.items():
                group = frozenset([source, *names])
                each_other = len(group) > 2 and groups[group] == len(group)
                ways = self.answers.dials[source]
                whom = sorted(group) if each_other else names
                whose = "each other" if each_other else "itself" if names == [source] else fold(names)
                what = (
                    f"cannot reach {whose} at {self._where(whom, ways)}: {dialling.meaning(failure, detail)}"
                )
                fix = dials.NEXT_STEP.get(failure, "")
                if failure == dialling.NARROW:
                    fix = dials.narrow_step(dialling.arriving(detail), ways[names[0]]["address"])
                yield CheckFinding("error", "network", (source,), what, fix)

    @staticmethod
    def _where(names: Sequence[str], ways: Mapping[str, Mapping[str, Any]]) -> str:
        ports = sorted({ways[name]["port"] for name in names})
        if len(names) == 1:
            return endpoint(ways[names[0]]["address"], ports[0])
        return f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]}-{ports[-1]}"

    def _faster_network(self) -> Iterator[CheckFinding]:
        """A network that all hosts are in, and that is faster than that of the addresses."""
        facts = {each.host.name: each.facts for each in self.answers.asked if each.facts is not None}
        dialled = {to: way["address"] for ways in self.answers.dials.values() for to, way in ways.items()}
        dialled = {
            to: self.answers.resolved.get(each, [each])[0] for to, each in dialled.items() if to in facts
        }
        found = networks.faster(dialled, facts) if len(dialled) == len(facts) else None
        if found is None:
            return
        now, other = found
        names = ", ".join(dict.fromkeys(face["name"] for face in self.answers.interfaces.values()))
        what = f"the addresses lie on {names} ({networks.speed(now * 1e6)}); {other.told} connects all hosts, too"
        if any(each.host.address and not each.host.slot for each in self.answers.asked):
            fix = f"--network {other.prefix} takes it for one run; `address:` in the hostfile names the usual one"
            yield CheckFinding("warning", "network", tuple(dialled), what, fix)
        elif blocked := [each for answer in self.answers.networks[:1] for each in answer.blocked]:
            source, to, result = blocked[0]
            why = dialling.meaning(*(result or (dialling.FAILED, "given up")))
            what += f", but {source} cannot reach {to} there ({why}): a run goes without it"
            yield CheckFinding(
                "warning", "network", tuple(dialled), what, dials.NEXT_STEP.get((result or "?")[0], "")
            )
        else:
            what += ": a run takes it"
            yield CheckFinding(
                "note", "network", tuple(dialled), what, "--network none keeps to the addresses"
            )

    def _slow_networks(self) -> Iterator[CheckFinding]:
        """Networks over which less can be sent than their links say."""
        faces = self.answers.interfaces
        facts = {each.host.name: each.facts for each in self.answers.asked if each.facts is not None}
        links = [
            next((nic.mbit_s for nic in facts[name].nics if nic.name == face["name"]), None)
            for name, face in faces.items()
            if name in facts
        ]
        names = ", ".join(dict.fromkeys(face["name"] for face in faces.values()))
        link = min((each or 0 for each in links), default=0)
        own = (f"{names} ({networks.speed(link * 1e6)})", link, self.answers.bandwidth, tuple(faces))
        others = (
            (each.network.told, each.network.mbit_s or 0, each.bandwidth, tuple(each.dials))
            for each in self.answers.networks
        )
        for told, mbit_s, bandwidth, hosts in (own, *others):
            best = check_bandwidth.best(bandwidth)
            if best is not None and best < min(mbit_s * 1e6, ONE_CONNECTION) * check_bandwidth.SLOW_SHARE:
                what = f"{told}: no way between the hosts had more than {networks.speed(best)}"
                yield CheckFinding("warning", "network", hosts, what, check_bandwidth.SLOW_STEP)

    def _skewed(self) -> Iterator[CheckFinding]:
        """Clocks that are wrong."""
        clocks = {each.host.name: each.clock for each in self.answers.asked if each.clock is not None}
        if not clocks:
            return
        ahead = [clock.ahead_s for clock in clocks.values()]
        # With two hosts, either clock may be wrong: the clock of this machine, 0.0, decides.
        right = statistics.median([0.0, *ahead] if len(ahead) == 2 else ahead) if len(ahead) > 1 else 0.0
        for name, clock in clocks.items():
            off = clock.ahead_s - right
            if abs(off) > SKEW_S + clock.within_s:
                whose = "those of the others" if len(clocks) > 1 else "this machine's"
                way = f"{duration(abs(off))} {'ahead of' if off > 0 else 'behind'} {whose}"
                yield CheckFinding(
                    "warning",
                    "clock",
                    (name,),
                    f"its clock is {way}: the times of logs and checkpoints are wrong",
                    "let NTP set it there: timedatectl set-ntp true",
                )

    def _exposed(self) -> Iterator[CheckFinding]:
        """Hosts whose ports a machine outside of the cluster, this one, can reach."""
        ways_in = {way["address"] for ways in self.answers.dials.values() for way in ways.values()}
        if not self.answers.outside and not all(map(is_loopback, ways_in)):
            yield CheckFinding(
                "note",
                "exposed",
                tuple(self.answers.dials),
                "this machine is one of the hosts, so it cannot tell which others reach the ports of the tasks. "
                + UNGUARDED,
                PRIVATE,
            )
        for name, ways in self.answers.outside.items():
            reached = [address for address, way in ways.items() if is_open(way["result"])]
            if reached:
                public = any(ipaddress.ip_address(address.partition("%")[0]).is_global for address in reached)
                yield CheckFinding(
                    "warning" if public else "note",
                    "exposed",
                    (name,),
                    "this machine, which is not one of the hosts, reaches the ports of the tasks"
                    f"{' at a public address' if public else ''}. {UNGUARDED}",
                    PRIVATE,
                )


def _of_task(each: HostAnswer, task: TaskAnswer, timeout_s: float) -> Iterator[Any]:
    report = task.report
    if report is None:
        if task.late:
            what = f"the import of TensorFlow did not end within {timeout_s:g} s, and was stopped"
            yield "error", "tensorflow", what, "a slow file system? --timeout TIME waits longer", task.lines
        else:
            how = f"code {task.code}" if task.code is not None else task.signal_name
            fix = "read what it printed"
            if task.signal_name == "SIGILL":
                fix = "its processor lacks instructions that this TensorFlow is built for: install another build"
            yield "error", "tensorflow", f"its Python ended with {how} on import", fix, task.lines
    elif report["error"]:
        missing = report["error"].startswith("ModuleNotFoundError") and "'tensorflow'" in report["error"]
        python = report["executable"] or interpreter(each.host, JobSpec(()))
        what = f"TensorFlow does not import in {python}: {report['error'].splitlines()[0]}"
        fix = (
            f"name a Python that has it by `python:`, `venv:` or `conda:` in the hostfile, or have the hosts install it"
            f"{'' if missing else ' anew'}: --requirements FILE, with a line `tensorflow`"
        )
        if each.source:
            fix = f"{'add it to' if missing else 'repair it in'} {each.source}"
        yield "error", "tensorflow", what, fix, () if missing else task.lines
    elif (seconds := report.get("tensorflow", {}).get("seconds", 0)) > SLOW_IMPORT_S:
        what = f"importing TensorFlow took {duration(seconds // 10 * 10)}"
        yield "note", "tensorflow", what, "from a local disk it is quicker; so may be the second import"
    for name in (report or {}).get("proxies", ()):
        if "no_grpc_proxy" not in each.host.env:
            yield "note", "proxy", f"{name} is set; gRPC between tasks bypasses it (no_grpc_proxy)", ""


def _of_gpus(each: HostAnswer, facts: HostFacts) -> Iterator[Any]:
    if facts.gpu_note and each.host.gpus != 0:
        way = repair(facts.gpu_note, each.host.name)
        yield "error", "gpus", f"its GPUs cannot be seen: {facts.gpu_note}", way
    for gpu in facts.gpus:
        if gpu.error:
            what = f"GPU {gpu.label} is broken: {gpu.error}"
            yield "warning", "gpus", what, repair(gpu.error)
    tensorflow = each.report.get("tensorflow", {})
    seen, build = tensorflow.get("gpus"), tensorflow.get("build", {})
    if not each.visible_gpus or seen is None or seen == len(each.visible_gpus):
        return
    needs, serves = build.get("cuda_version", ""), facts.cuda
    what = f"TensorFlow sees {seen} of {len(each.visible_gpus)} free GPUs"
    if build.get("is_cuda_build") == "False":
        yield "error", "gpus", f"{what}: it is built without CUDA", "install a build with CUDA there"
    elif needs and serves and _major(needs) > _major(serves):
        what += f": it is built for CUDA {needs}, the driver serves {serves} at most"
        yield "error", "gpus", what, "install a newer driver there, or an older TensorFlow"
    else:
        fix = "does it find its CUDA libraries? (tensorflow[and-cuda], `module load cuda` in `setup:`)"
        yield "error", "gpus", what, fix, each.task.lines if each.task else ()


def _major(version: str) -> int:
    """The first number of a version; 0 if `version` does not begin with a number."""
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() and len(first) < 10 else 0


def _of_ports(each: HostAnswer, facts: HostFacts) -> Iterator[Any]:
    if each.host.ports is None:
        if not facts.ports:
            yield "error", "ports", "it has no free port", "name a free range by `ports:` in the hostfile"
        return
    first, last = each.host.ports
    taken = last - first + 1 - len(facts.ports)
    what = f"`ports: {first}-{last}`: {len(facts.ports)} of {last - first + 1} are free{who_has_them(facts)}"
    fix = "see what listens there (ss -tlnp), or name another range"
    if not facts.ports:
        yield "error", "ports", what, fix
    elif taken > 0 and len(facts.ports) < ENOUGH_PORTS:
        yield "warning", "ports", what, fix


def _of_disks(each: HostAnswer) -> Iterator[Any]:
    for disk in each.system.get("disks", ()):
        free, files = disk["free_bytes"], disk["free_files"]
        fix = "make room there, or set `run_dir:` to another disk"
        where = disk["path"].partition("/tflaunch-")[0]
        if free < LITTLE_DISK_BYTES:
            level = "error" if free < LEAST_DISK_BYTES else "warning"
            yield level, "disk", f"{free / 2**20:,.0f} MiB are free on the disk of {where}", fix
        if files is not None and files < LITTLE_FILES:
            yield "warning", "disk", f"{files} inodes are free on the disk of {where}", fix


def _of_limits(each: HostAnswer, facts: HostFacts) -> Iterator[Any]:
    limits = each.report.get("limits", {})
    fix = "raise it in /etc/security/limits.conf there, or by `ulimit` in `setup:`"
    few = limits.get("nofile")
    if few is not None and few < FEW_DESCRIPTORS:
        yield "warning", "limits", f"a task may have only {few} files and connections open (nofile)", fix
    few = limits.get("nproc")
    if few is not None and few < max(FEW_PROCESSES, 16 * facts.cores):
        yield "warning", "limits", f"the user may have only {few} processes and threads (nproc)", fix
    few = limits.get("memlock")
    if few is not None and few < MUCH_MEMLOCK_BYTES and each.system.get("infiniband"):
        what = f"a task may lock only {few // 1024:,} KiB of memory (memlock), too little for RDMA"
        yield "warning", "limits", what, fix


def _of_network(each: HostAnswer, face: Mapping[str, Any]) -> Iterator[Any]:
    faces = [
        face for face in each.system.get("interfaces", ()) if not face["name"].startswith(networks.VIRTUAL)
    ]
    chosen = face.get("name", "")
    if chosen.startswith(networks.VIRTUAL):
        what = f"other hosts call its tasks at the address of {chosen}, a bridge within the host"
        yield (
            "warning",
            "network",
            what,
            "name its address in the hosts' network by `address:` in the hostfile",
        )
    elif chosen and len(faces) > 1 and each.host.address is None:
        names = ", ".join(face["name"] for face in faces)
        what = f"it is in several networks ({names}); other hosts call its tasks through {chosen}"
        yield "note", "network", what, "`address:` in the hostfile chooses another"


def _differing(row: MatrixRow) -> Iterator[CheckFinding]:
    fix = "install the same version on all hosts: one may not be able to read what another writes"
    topic = "versions"
    if row.name == "MTU":
        topic, fix = (
            "network",
            "set the same MTU everywhere: larger packets may vanish on the way without an error",
        )
    level: Level = "warning"
    if row.name == "Python" and len({value.rpartition(".")[0] for value in row.values.values()}) == 1:
        level, fix = "note", ""
    if not row.common:
        found = ", ".join(f"{value} on {fold(hosts)}" for value, hosts in row.odd.items())
        yield CheckFinding(level, topic, tuple(row.values), f"{row.name} differs: {found}", fix)
        return
    for value, hosts in row.odd.items():
        what = f"{row.name} is {value}, on the other hosts {row.common}"
        yield CheckFinding(level, topic, tuple(hosts), what, fix)
