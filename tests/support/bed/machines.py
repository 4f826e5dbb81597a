"""The machines of a bed: hosts with an sshd, and the one on which tflaunch is typed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support import kept_agent
from tests.support.bed.network import close_pipes, plug, read_pid, ruleset, start_machine
from tests.support.launcher import Process
from tests.support.numa import simulate_nodes
from tests.support.nvml import LIBRARY
from tests.support.patience import until
from tests.support.sshd import SSHD, make_key, public

PRIVATE = ("/home", "/tmp", "/var/tmp", "/run")  # what each host has for itself
PCI = Path("/sys/bus/pci/devices")
NODES = Path("/sys/devices/system/node")
SSHD_CONFIG = """\
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PidFile /run/sshd.pid
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
MaxStartups 200
"""
# The first process of a host: starts sshd, then takes in orphans for ever.
INIT = f"""\
ip -batch /run/network || exit 1
{SSHD} -f /etc/ssh/sshd_config -E /run/sshd.log || exit 1
trap : HUP INT TERM USR1 USR2
while :; do sleep 1000000 & wait; done
"""
NVML_ENV = {"LD_LIBRARY_PATH": "/run/nvml", "NVML_STUB_FLEET": "/run/nvml/fleet.txt"}
CLOCK_ENV = {"LD_PRELOAD": "/run/clock.so", "BED_CLOCK": "/run/clock"}  # with the library from clock.c
NOWHERE = "10.77.255.53"  # nobody is there: a question to it waits for its time limit


class Machine:
    """A machine with a name, an address and a cable to the switch; the launcher's is just that."""

    namespaces: tuple[str, ...] = ("mount", "uts", "net")

    def __init__(self, directory: Path, number: int, name: str) -> None:
        self.directory = directory
        self.name = name
        self.address = f"10.77.{number >> 8}.{number & 255}"
        self.port = f"p{number}"
        self.pid = 0  # of its first process; 0 while it is off
        self.hardware = f"02:77:00:00:{number >> 8:02x}:{number & 255:02x}"
        self._process: subprocess.Popen[str] | None = None
        self._refused: list[str] = []  # rules of its firewall
        self._failing: dict[str, str] = {}  # where a disk is mounted that may fail -> its device
        self._errors = directory / "machine.log"
        directory.mkdir(parents=True)
        (directory / "resolv.conf").write_text("")
        (directory / "hosts").write_text("")

    # -- its life

    def furniture(self) -> dict[str, object]:
        """What `start_machine` is told of it."""
        return {
            "namespaces": self.namespaces,
            "binds": self._files(),
            "init": f"{self._network()}; exec sleep 1000000000",
        }

    def start(self) -> None:
        """Begin to boot; `wait_until_up` waits for the rest."""
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        stat = Path("/proc/stat").read_text()
        (self.directory / "stat").write_text(re.sub(r"(?m)^btime \d+$", f"btime {time.time():.0f}", stat))
        more = self.furniture()
        self._process = start_machine(hostname=self.name, errors=self._errors, **more)  # type: ignore[arg-type]

    def wire(self) -> tuple[int, str]:
        """For the switch: its pid and its hardware address."""
        assert self._process is not None
        self.pid = read_pid(self._process, self._errors)
        return self.pid, self.hardware

    def wait_until_up(self) -> None:
        """It has its cable: wait until it is of use."""
        assert self._process is not None
        plug(self._process)
        until(self._is_up, f"{self.name} is up; see {self._errors}")
        if self._refused:
            self._filter()

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {self._errors.read_text(errors='replace')}")
        return self.ready()

    def ready(self) -> bool:
        """Whether it has done its booting."""
        flags = Path(f"/proc/{self.pid}/net/route")
        with contextlib.suppress(OSError):
            return "eth0" in flags.read_text()
        return False

    def halt(self) -> None:
        """Kill every process and wait until they are gone; the kernel closes their connections."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
        if not self.pid:
            self._process.kill()
        self._process.wait()
        close_pipes(self._process)
        self._process, self.pid = None, 0

    # -- inside it

    def inside(self, *argv: str, cwd: str | Path = "/") -> list[str]:
        """The command that runs `argv` on it, without SSH; on the launcher's, it becomes `argv` itself."""
        namespaces = [f"--{each}" for each in self.namespaces]
        # Not nsenter's --wd: that directory would be one of another mount.
        return ["nsenter", "--target", str(self.pid), *namespaces, "--", "env", "-C", str(cwd), *argv]

    def namespace_files(self) -> list[str]:
        """What a process opens to enter it; no process gets into a PID namespace, only its children."""
        assert "pid" not in self.namespaces
        files = {"mount": "mnt"}
        return [f"/proc/{self.pid}/ns/{files.get(each, each)}" for each in self.namespaces]

    def do(self, *argv: str, cwd: str | Path = "/") -> str:
        """Run a command on it, without SSH; returns what it printed, raises CalledProcessError."""
        argv_inside = self.inside(*argv, cwd=cwd)
        return subprocess.run(argv_inside, check=True, capture_output=True, text=True).stdout

    def path(self, path: str | Path) -> Path:
        """A path on it, for the test to look at while it is up."""
        return Path(f"/proc/{self.pid}/root") / str(path).lstrip("/")

    # -- what may be wrong with it

    def small_disk(self, path: str | Path, size_bytes: int) -> None:
        """An empty file system of that size at `path`, until it is switched off; again: another size."""
        size = f"size={size_bytes}"
        if self.path(path).is_mount():
            self.do("mount", "-o", f"remount,{size}", str(path))
        else:
            self.do("mkdir", "-p", str(path))
            self.do("mount", "-t", "tmpfs", "-o", f"mode=1777,{size}", "tmpfs", str(path))

    def fill(self, path: str | Path) -> None:
        """Leave no room in the small disk at `path`: neither bytes nor a file more."""
        filler = "for n in 1 2; do cat /dev/zero > $1/filler$n; done; touch $1/last"
        subprocess.run(
            self.inside("sh", "-c", filler, "sh", str(path)), stderr=subprocess.DEVNULL, check=False
        )

    def failing_disk(self, path: str | Path) -> None:
        """An empty ext4 at `path`, on a loop device, until it is switched off; `fail_disk` makes it fail."""
        image = self.directory / "disk.img"
        image.write_bytes(b"")
        os.truncate(image, 32 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], check=True)
        argv = ["losetup", "--find", "--show", str(image)]
        device = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        self._failing[str(path)] = Path(device).name
        try:
            self.do("mount", "-o", "errors=remount-ro", device, str(path))
        finally:
            subprocess.run(["losetup", "--detach", device], check=True)  # once it is not mounted any more
        self.path(path).chmod(0o1777)

    def fail_disk(self, path: str | Path) -> None:
        """The kernel finds an error on that disk, and makes it read-only."""
        Path(f"/sys/fs/ext4/{self._failing[str(path)]}/trigger_fs_error").write_text("by a test")

    def forget_names(self) -> None:
        """No host has a name here any more, and the name server does not answer."""
        (self.directory / "hosts").write_text("127.0.0.1 localhost\n")
        (self.directory / "resolv.conf").write_text(f"nameserver {NOWHERE}\n")

    def learn_names(self, text: str) -> None:
        """These lines are its /etc/hosts; it has no name server."""
        (self.directory / "hosts").write_text(text)
        (self.directory / "resolv.conf").write_text("")

    def move(self, address: str) -> None:
        """Another address, from now on: what comes for the old one finds nobody."""
        self.do("ip", "addr", "del", f"{self.address}/16", "dev", "eth0")
        self.do("ip", "addr", "add", f"{address}/16", "dev", "eth0")
        self.address = address

    def refuse(self, address: str, port: int = 0) -> None:
        """Its firewall answers `address` with a refusal, not with silence; `port` is its own, 0 is every one."""
        own = f"tcp dport {port} " if port else ""
        # What the other's firewall answers must come through.
        self._refused.append(f"ip saddr {address} {own}tcp flags & rst == 0 reject with tcp reset")
        if not port:
            self._refused.append(f"ip saddr {address} meta l4proto != {{ tcp, icmp }} reject")
        self._filter()

    def drop(self, address: str) -> None:
        """Its firewall drops what comes from there, without a word."""
        self._refused.append(f"ip saddr {address} drop")
        self._filter()

    @property
    def fast_address(self) -> str:
        """In the second network of the bed, if it is in it."""
        return self.address.replace("10.77.", "10.78.", 1)

    def bytes_received(self, interface: str) -> int:
        """By that interface of its, so far."""
        return int(self.do("cat", f"/sys/class/net/{interface}/statistics/rx_bytes"))

    def refuse_nobody(self) -> None:
        """Take its firewall away."""
        if self._refused:
            self._refused.clear()
            self._filter()

    def _filter(self) -> None:
        text = ruleset("inet", "input", self._refused)
        subprocess.run(self.inside("nft", "-f", "-"), input=text, check=True, capture_output=True, text=True)

    def _network(self) -> str:
        return f"ip link set lo up; ip addr add {self.address}/16 dev eth0; ip link set eth0 up"  # no gateway

    def _files(self) -> tuple[tuple[str, str], ...]:
        names = tuple((str(self.directory / name), f"/etc/{name}") for name in ("hosts", "resolv.conf"))
        # One kernel, but each machine counts its own boots: by this id programs tell machines apart.
        boots = ((str(self.directory / "boot_id"), "/proc/sys/kernel/random/boot_id"),)
        return (*names, *boots, (str(self.directory / "stat"), "/proc/stat"))  # and since when it runs


class BedHost(Machine):
    """A host: an sshd on port 22, processes, a home and disks of its own; root logs in, or the user `ada`."""

    namespaces = (*Machine.namespaces, "ipc", "pid")

    def __init__(
        self,
        directory: Path,
        number: int,
        *,
        key: Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        share: Sequence[str] = (),
        nodes: Sequence[str] = (),
    ) -> None:
        """`nodes` are the CPUs of each of its NUMA nodes: `0-3`; without, it has those of this machine."""
        super().__init__(directory, number, f"host{number}")
        self._share = tuple(share)
        self._nodes = tuple(nodes)
        for each in ("etc-ssh", "home/root", "home/ada", *self._disks.values(), "run/sshd", "pci", "nodes"):
            (directory / each).mkdir(parents=True, exist_ok=True)
        for each in ("tmp", "var-tmp"):
            (directory / each).chmod(0o1777)
        kept_agent.keep(self.disk, kept_agent.pythons_here()[-1])
        (directory / "home/root").chmod(0o700)
        os.chown(directory / "home/ada", 20001, 20001)
        given = {line.split()[0].lower() for line in options}
        lines = [
            *options,
            *(each for each in SSHD_CONFIG.splitlines() if each.split()[0].lower() not in given),
        ]
        variables = " ".join(f'"{name}={value}"' for name, value in {**NVML_ENV, **(env or {})}.items())
        lines.append(f"SetEnv {variables}")
        (directory / "etc-ssh/sshd_config").write_text("".join(f"{line}\n" for line in lines))
        (directory / "etc-ssh/authorized_keys").write_text(public(key) + "\n")
        self.host_key = make_key(directory / "etc-ssh/host_key")
        (directory / "passwd").write_text(_passwd())
        (directory / "shadow").write_text("root:*:19000:0:99999:7:::\nada:*:19000:0:99999:7:::\n")
        (directory / "run/network").write_text(
            f"link set lo up\naddr add {self.address}/16 dev eth0\nlink set eth0 up\n"
        )

    _disks = {"/tmp": "tmp", "/var/tmp": "var-tmp", "/home": "home", "/run": "run"}  # noqa: RUF012

    @property
    def disk(self) -> Path:
        """/var/tmp, where the run directories are; also while the host is off."""
        return self.path("/var/tmp") if self.pid else self.directory / "var-tmp"

    @property
    def known_hosts_line(self) -> str:
        """How known_hosts names it."""
        kind, blob = public(self.host_key).split()[:2]
        return f"{self.name},{self.address} {kind} {blob}\n"

    def furniture(self) -> dict[str, object]:
        own = {"/etc/ssh": "etc-ssh", "/etc/passwd": "passwd", "/etc/shadow": "shadow", **self._disks}
        if PCI.is_dir():  # simulated GPUs must not be taken for those of this machine, nor for each other's
            own[str(PCI)] = "pci"
        if self._nodes:
            simulate_nodes(self.directory / "nodes", self._nodes)
            own[str(NODES)] = "nodes"
        binds = ((str(self.directory / source), target) for target, source in own.items())
        return {
            "namespaces": self.namespaces,
            "binds": (*self._files(), *binds),
            "share": self._share,
            "init": INIT,
        }

    # -- processes

    def pids(self) -> list[int]:
        """Every process on it, in the numbers of the test."""
        if not self.pid:
            return []
        with contextlib.suppress(OSError):
            own = os.readlink(f"/proc/{self.pid}/ns/pid")  # noqa: PTH115 - `pid:[1]` is no path
            every = filter(str.isdecimal, os.listdir("/proc"))  # noqa: PTH208 - often asked, of every process
            return [int(each) for each in every if _namespace(each) == own]
        return []

    def outside(self, pid: int) -> int:
        """The number by which the test knows the process that is `pid` on this host; 0 when there is none."""
        return next((each for each in self.pids() if _inner_pid(each) == str(pid)), 0)

    def processes(self) -> list[Process]:
        """What runs on it beside its first process and sshd: of a run, all of it, whatever its environment says."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                place = Path(f"/proc/{pid}")
                words = tuple(map(os.fsdecode, (place / "cmdline").read_bytes().split(b"\0")[:-1]))
                variables = (place / "environ").read_bytes().split(b"\0")
                env = dict(os.fsdecode(each).partition("=")[::2] for each in variables if each)
                if words and not _is_furniture(words):  # a zombie has no words
                    found.append(Process(pid, words, env))
        return found

    def freeze(self) -> None:
        """Stop every process: it answers pings and takes what is sent to it, but nobody is at home."""
        until(lambda: self._signal_all(signal.SIGSTOP, "T"), f"{self.name} is frozen")

    def thaw(self) -> None:
        """Let all processes go on."""
        self._signal_all(signal.SIGCONT, "")

    def _signal_all(self, number: signal.Signals, unless: str) -> bool:
        """Signal all processes but those in state `unless`; whether there was none left to signal."""
        signalled = False
        for pid in self.pids():
            if _state(pid) not in (unless, "Z", "X", ""):
                signalled = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return not signalled

    @contextlib.contextmanager
    def at_most(self, processes: int) -> Iterator[None]:
        """Inside, the host has room for so many more processes, as a user with `ulimit -u` has."""
        with self._in_group(_cgroup("pids")) as group:
            (group / "pids.max").write_text(str(len(self.pids()) + processes))
            try:
                yield
            finally:
                (group / "pids.max").write_text("max")

    @contextlib.contextmanager
    def quota(self, cores: float) -> Iterator[None]:
        """Inside, its processes get no more processor time than that, as a container with a limit."""
        with self._in_group(_cgroup("cpu")) as group:
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{int(cores * 100_000)} 100000")
            else:
                (group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
            yield

    @contextlib.contextmanager
    def cpuset(self, cpus: str) -> Iterator[None]:
        """Inside, its processes use these CPUs only: as the kubelet holds a pod that has cores of its own."""
        with self._in_group(_cgroup("cpuset"), **{"cpuset.cpus": cpus, "cpuset.mems": "0"}):
            yield

    @contextlib.contextmanager
    def _in_group(self, above: Path, **files: str) -> Iterator[Path]:
        """A cgroup with these files, all its processes, and those that they start."""
        group = above / f"tflaunch-bed-{os.getpid()}-{self.name}"
        group.mkdir(exist_ok=True)
        for name, text in files.items():
            (group / name).write_text(text)
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        try:
            yield group
        finally:
            for left in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (group.parent / "cgroup.procs").write_text(left)
            until(lambda: _removed(group), f"{group} is empty")

    # -- its sshd

    @property
    def listener(self) -> int:
        """The sshd that listens, in the numbers of the test; 0 when there is none."""
        with contextlib.suppress(OSError):
            return self.outside(int((self.directory / "run/sshd.pid").read_text()))
        return 0

    def sessions(self) -> list[int]:
        """The sshd processes behind open connections."""
        listener = self.listener
        return [pid for pid in self._sshds() if pid != listener]

    def kill_sshd(self, *, sessions: bool) -> None:
        """Kill the listener with -9, and `sessions` too; without, what is connected stays so."""
        listener = self.listener
        for pid in [listener, *(self.sessions() if sessions else [])]:
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: listener not in self.pids(), "the end of sshd")

    def start_sshd(self) -> None:
        """Start the listener again."""
        (self.directory / "run/sshd.pid").unlink(missing_ok=True)
        self.do(str(SSHD), "-f", "/etc/ssh/sshd_config", "-E", "/run/sshd.log")
        until(self.ready, f"sshd of {self.name} listens")

    def kill_sessions(self) -> None:
        """Kill what serves the open connections: they end with a FIN."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def reset_connections(self) -> None:
        """Every connection to its sshd ends with a RST, as a firewall that forgot them does it."""
        self.do("ss", "-K", "state", "established", "sport = :22")

    def ready(self) -> bool:
        return (self.directory / "run/sshd.pid").exists()

    def log(self) -> str:
        """What its sshd has said."""
        path = self.directory / "run/sshd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _sshds(self) -> list[int]:
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    found.append(pid)
        return found

    # -- off and on

    def forget_boot(self, *, keep_disk: bool = True) -> None:
        """While it is off: what does not outlive a reboot is gone, and without `keep_disk` its disks, too."""
        for name in ("run/sshd.pid", "run/sshd.log"):
            (self.directory / name).unlink(missing_ok=True)
        for name in ("tmp", *(() if keep_disk else ("var-tmp",))):
            for path in (self.directory / name).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    # -- GPUs and clock

    def give_gpus(self, library: Path, *lines: str) -> None:
        """Its GPUs, as the head of tests/support/nvml/nvml_stub.c describes them; without lines they are gone."""
        place = self.directory / "run/nvml"
        place.mkdir(exist_ok=True)
        if not (place / LIBRARY).exists():
            shutil.copy(library / LIBRARY, place)
        (place / "fleet.new").write_text("".join(f"{line}\n" for line in lines))
        (place / "fleet.new").rename(place / "fleet.txt")

    def plug_gpu(self, bus: str, node: int) -> None:
        """The GPU at that PCI bus id is beside this NUMA node."""
        place = self.directory / "pci" / bus
        place.mkdir()
        (place / "numa_node").write_text(f"{node}\n")
        (place / "vendor").write_text("0x10de\n")  # what a lease of it locks

    def set_clock(self, ahead_s: int) -> None:
        """Its wall clock is wrong by so much from now on (simulated: `Bed.up(clock=True)`, see clock.c)."""
        (self.directory / "run/clock.new").write_text(str(ahead_s))
        (self.directory / "run/clock.new").rename(self.directory / "run/clock")

    # -- leases and runs

    def held_leases(self) -> list[str]:
        """The GPUs of it that somebody holds."""
        held = []
        for path in sorted(self.disk.glob("tflaunch-leases/*")):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(path.name)
        return held

    def run_directories(self) -> list[Path]:
        """`<run>/<host>` of every run that this host knows of, root's and ada's."""
        found = self.disk.glob("tflaunch-*/*/*")
        return sorted(path for path in found if path.is_dir() and path.parent.name != "code")


def _namespace(pid: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - `pid:[1]` is no path
    return ""


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _inner_pid(pid: int) -> str:
    """Its number on its own host."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:"))
    return ""


def _is_furniture(words: tuple[str, ...]) -> bool:
    program = words[0].rpartition("/")[2]
    return program.startswith("sshd") or words[0] == "init" or words == ("sleep", "1000000")


def _passwd() -> str:
    lines = Path("/etc/passwd").read_text().splitlines()
    mine = "root:x:0:0:root:/home/root:/bin/bash"
    lines = [mine if line.startswith("root:") else line for line in lines]
    return "\n".join([*lines, "ada:x:20001:20001:Ada:/home/ada:/bin/bash", ""])


CGROUPS = Path("/sys/fs/cgroup")


def _cgroup(controller: str) -> Path:
    """The directory of that controller, in either generation."""
    old = CGROUPS / controller
    if old.is_dir():
        return old
    with contextlib.suppress(OSError):
        (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
    return CGROUPS


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True
