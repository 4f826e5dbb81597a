"""A real YARN in a bed: its ResourceManager on the launcher's machine, a NodeManager with two cards on each host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import NVML_ENV, BedHost, Machine
from tests.support.launcher import Process
from tests.support.patience import until

VERSION = "3.4.2"  # as tests/support/yarn_build/pom.xml has it
YARN_S = 240.0  # for JVMs that start beside others
BUILD = Path(__file__).with_name("yarn_build")
CARDS = 2
MEMORY_MB, CPUS = 2048, 8  # of each node
PORT = 18000  # of a NodeManager: the same again when it is started again
LABEL = "big"  # of no node, at first
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"
# ResourceManager and NodeManager look into the JVM, which Java 17 does not like.
OPEN = "--add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED"
LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""
CARD = """\
<gpu id="00000000:0{number}:00.0"><product_name>Simulated</product_name><uuid>{uuid}</uuid>\
<minor_number>{number}</minor_number><fb_memory_usage><total>16384 MiB</total><used>0 MiB</used>\
<free>16384 MiB</free></fb_memory_usage><utilization><gpu_util>0 %</gpu_util></utilization>\
<temperature><gpu_temp>30 C</gpu_temp><gpu_temp_max_threshold>90 C</gpu_temp_max_threshold>\
<gpu_temp_slow_threshold>85 C</gpu_temp_slow_threshold></temperature></gpu>"""


def home() -> Path:
    """Where scripts/engines keeps Hadoop's jars."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / f"tflaunch-tests/hadoop-{VERSION}"


def missing() -> str:
    """Why there can be no YARN here; "" when there can."""
    if not home().exists():
        return f"no Hadoop in {home()}: scripts/engines yarn"
    return "" if shutil.which("java") else "Hadoop needs Java: scripts/engines yarn"


class YarnCluster:
    """One for each bed, whose hosts share `directory` and `home()`; everything that it starts ends with it.

    Queues: `default`, of whose memory application masters may take half, and `night`, which takes the rest.
    """

    def __init__(
        self,
        bed: Bed,
        directory: Path,
        file_system: Mapping[str, str] | None = None,
        nodes: Sequence[BedHost] = (),
    ) -> None:
        """Make it, of all hosts that are there if no nodes are named.

        `file_system` is what core-site.xml says of the file system that they share.
        """
        self.bed, self.directory = bed, directory
        self.nodes = nodes or tuple(bed.hosts)
        self.at = bed.launcher.address
        self._file_system = file_system or {"fs.defaultFS": "file:///"}
        (directory / "tmp").mkdir(parents=True)
        self._discovery = directory / "nvidia-smi"
        self._write_discovery()
        self.conf = self._configure("conf", self._common())
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.start_manager()
        for host in self.nodes:
            self._configure(host.name, {**self._common(), **self._of_node(host)})
            self.start_node(host)
        self.wait_for_nodes()

    # -- its life

    def start_manager(self) -> None:
        """Start the ResourceManager."""
        temporary = self.directory / "tmp"  # the hosts' /tmp is their own
        options = f"-Xmx256m -Djava.io.tmpdir={temporary}"
        self._start(self.bed.launcher, "resourcemanager", self.conf, options)

    def start_node(self, host: BedHost) -> None:
        """Start the NodeManager of a host."""
        self._start(host, "nodemanager", self.directory / host.name, "-Xmx160m")

    def wait_for_nodes(self) -> None:
        """Until every node is there."""
        until(lambda: self._active() == len(self.nodes), "YARN has its nodes", YARN_S)

    def _active(self) -> int:
        try:
            return int(self.ask("metrics")["clusterMetrics"]["activeNodes"])
        except OSError:
            return -1

    def kill_manager(self) -> None:
        self._kill(self.bed.launcher.name)

    def kill_node(self, host: BedHost) -> None:
        """Kill the NodeManager of a host: its containers run on."""
        [found] = [each for each in host.processes() if "NodeManager" in each.words[-1]]
        found.kill()
        self._started[host.name].wait()

    def _kill(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._started[name].pid, signal.SIGKILL)
        self._started[name].wait()

    def close(self) -> None:
        for name in self._started:
            self._kill(name)

    # -- what it says

    def ask(self, what: str, method: str = "GET", **body: str) -> dict[str, Any]:
        """What the ResourceManager answers to a question below /ws/v1/cluster.  Raises OSError."""
        script = (
            "import sys, urllib.request as u; "
            "r = u.Request(sys.argv[1], sys.argv[3].encode() or None, method=sys.argv[2], headers="
            "{'Content-Type': 'application/json'}); sys.stdout.write(u.urlopen(r, timeout=20).read().decode())"
        )
        url = f"http://{self.at}:8088/ws/v1/cluster/{what}"
        words = [sys.executable, "-S", "-c", script, url, method, json.dumps(body) if body else ""]
        done = subprocess.run(self.bed.launcher.inside(*words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.splitlines()[-1])
        return dict(json.loads(done.stdout)) if done.stdout else {}

    def applications(self, *states: str) -> list[dict[str, Any]]:
        """The applications in one of these states, in any that is no end without; the oldest first."""
        wanted = ",".join(states) or "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
        found = (self.ask(f"apps?states={wanted}")["apps"] or {}).get("app", [])
        return sorted(found, key=lambda each: str(each["id"]))

    def application(self, name: str) -> dict[str, Any]:
        return dict(self.ask(f"apps/{name}")["app"])

    def kill(self, application: str) -> None:
        """As `yarn application -kill` does it."""
        self.do("application", "-kill", application)

    def give_memory(self, megabytes: int) -> None:
        """Let containers have so much of every node, as an administrator does it."""
        size = f"memory-mb={megabytes}Mi,vcores={CPUS},yarn.io/gpu={CARDS}"
        for host in self.nodes:
            self.do("rmadmin", "-updateNodeResource", f"{host.name}:{PORT}", size)

    def do(self, *words: str) -> str:
        """What a `yarn` command prints on the launcher's machine.  Raises CalledProcessError."""
        inside = self.bed.launcher.inside(str(BUILD / "yarn"), *words)
        env = {**os.environ, **self.env(Path("/nowhere"))}
        return subprocess.run(inside, env=env, check=True, capture_output=True, text=True).stdout

    def env(self, user_home: Path) -> dict[str, str]:
        """What a user of that YARN has in the environment; `user_home` is where files for it are put."""
        return {
            "HADOOP_CONF_DIR": str(self.conf),
            "HADOOP_HOME": str(home()),
            # Java takes the home directory from /etc/passwd; a Hadoop without HDFS wants one that nodes see, too.
            "HADOOP_CLIENT_OPTS": f"-Duser.home={user_home}",
            "PATH": f"{BUILD}:{os.environ['PATH']}",
        }

    # -- its configuration

    def _common(self) -> dict[str, str]:
        place = f"file://{self.directory}"
        return {
            "yarn.resourcemanager.hostname": self.at,
            "yarn.resourcemanager.bind-host": self.at,
            "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity."
            "CapacityScheduler",
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery."
            "FileSystemRMStateStore",
            "yarn.resourcemanager.fs.state-store.uri": f"{place}/state",
            "yarn.resourcemanager.connect.retry-interval.ms": "2000",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "250",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
            "yarn.scheduler.minimum-allocation-mb": "64",
            "yarn.scheduler.maximum-allocation-mb": str(MEMORY_MB),
            "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
            "yarn.nodemanager.resource.cpu-vcores": str(CPUS),
            "yarn.nodemanager.vmem-check-enabled": "false",
            # Else cgroups are trusted to kill who uses too much, also where there are none.
            "yarn.nodemanager.resource.memory.enforced": "false",
            "yarn.nodemanager.container-monitor.interval-ms": "1000",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.recovery.enabled": "true",
            "yarn.log-aggregation-enable": "true",
            "yarn.nodemanager.remote-app-log-dir": f"{place}/logs",
            "yarn.node-labels.enabled": "true",
            "yarn.node-labels.fs-store.root-dir": f"{place}/labels",
            "yarn.node-attribute.fs-store.root-dir": f"{place}/attributes",
            "yarn.application.classpath": f"{self.directory}/conf,{home()}/jars/*",
        }

    def _of_node(self, host: BedHost) -> dict[str, str]:
        gpu = "yarn.nodemanager.resource-plugins.gpu"
        ports = {"address": 0, "localizer.address": 40, "webapp.address": 42, "collector-service.address": 48}
        passed = [
            "JAVA_HOME",
            "HADOOP_COMMON_HOME",
            "HADOOP_HDFS_HOME",
            "HADOOP_CONF_DIR",
            "LANG",
            "PATH",
            "JAVA_TOOL_OPTIONS",
            *NVML_ENV,
        ]
        return {
            "yarn.nodemanager.hostname": host.name,
            "yarn.nodemanager.bind-host": host.address,
            **{f"yarn.nodemanager.{name}": f"{host.name}:{PORT + more}" for name, more in ports.items()},
            "yarn.nodemanager.local-dirs": "/var/tmp/yarn/local",
            "yarn.nodemanager.log-dirs": "/var/tmp/yarn/logs",
            "yarn.nodemanager.recovery.dir": "/var/tmp/yarn/recovery",
            "yarn.nodemanager.env-whitelist": ",".join(passed),
            "yarn.nodemanager.resource-plugins": "yarn.io/gpu",
            f"{gpu}.path-to-discovery-executables": str(self._discovery),
        }

    def _configure(self, name: str, yarn: Mapping[str, str]) -> Path:
        place = self.directory / name
        place.mkdir()
        core = {
            **self._file_system,
            "hadoop.tmp.dir": "/var/tmp/hadoop" if name != "conf" else f"{self.directory}/tmp",
            "hadoop.http.staticuser.user": "root",
        }
        capacity = "yarn.scheduler.capacity"
        queues = {
            f"{capacity}.root.queues": "default,night",
            f"{capacity}.root.default.capacity": "60",
            f"{capacity}.root.night.capacity": "40",
            f"{capacity}.root.default.maximum-capacity": "100",
            f"{capacity}.root.night.maximum-capacity": "40",
            f"{capacity}.root.default.user-limit-factor": "10",
            f"{capacity}.maximum-am-resource-percent": "0.5",
            f"{capacity}.root.night.maximum-am-resource-percent": "0.01",
            f"{capacity}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
            f"{capacity}.root.accessible-node-labels": "*",
            f"{capacity}.root.accessible-node-labels.{LABEL}.capacity": "100",
            f"{capacity}.root.default.accessible-node-labels": "*",
            f"{capacity}.root.default.accessible-node-labels.{LABEL}.capacity": "100",
        }
        write_properties(place / "core-site.xml", core)
        write_properties(place / "yarn-site.xml", yarn)
        write_properties(place / "capacity-scheduler.xml", queues)
        write_properties(place / "resource-types.xml", {"yarn.resource-types": "yarn.io/gpu"})
        (place / "log4j.properties").write_text(LOG4J)
        return place

    def _write_discovery(self) -> None:
        """What says which cards a node has, as nvidia-smi does it."""
        cards = [
            CARD.format(number=number, uuid=f"GPU-$(hostname)-{number}").replace('"', '\\"')
            for number in range(CARDS)
        ]
        self._discovery.write_text(
            '#!/bin/sh\necho "<?xml version=\\"1.0\\" ?><nvidia_smi_log><timestamp>now</timestamp>'
            f"<driver_version>550.1</driver_version><attached_gpus>{CARDS}</attached_gpus>"
            f'{"".join(cards)}</nvidia_smi_log>"\n'
        )
        self._discovery.chmod(0o755)

    def _start(self, machine: Machine, what: str, conf: Path, options: str) -> None:
        log = self.directory / f"{machine.name}.log"
        self._started[machine.name] = start_daemon(machine, what, conf, options, log)


def start_daemon(
    machine: Machine, what: str, conf: Path, options: str, log: Path, *words: str
) -> subprocess.Popen[bytes]:
    """Start a daemon of Hadoop, as `yarn` calls it or by its class; it leads a process group of its own."""
    more = NVML_ENV if isinstance(machine, BedHost) else {}
    env = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith(("TFLAUNCH_", "HADOOP_"))
        },
        **more,
        "HADOOP_CONF_DIR": str(conf),
        "HADOOP_HOME": str(home()),
        "HADOOP_CLIENT_OPTS": f"{OPEN} {options}",
        "JAVA_TOOL_OPTIONS": JAVA,  # the masters of applications have them from their NodeManagers
        "JAVA_HOME": str(Path(shutil.which("java") or "").resolve().parents[1]),
        "HOME": "/home/root" if isinstance(machine, BedHost) else str(log.parent),
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            machine.inside(str(BUILD / "yarn"), what, *words),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=env,
            start_new_session=True,
        )


class OnYarn(FarLauncher):
    """`tflaunch` for a user of that YARN, on its edge node.

    At the end no application of theirs is left, and nothing on the nodes.
    """

    def __init__(self, directory: Path, cluster: YarnCluster) -> None:
        super().__init__(directory, cluster.bed)
        self.cluster = cluster

    def env(self, **more: str) -> dict[str, str]:
        return super().env(**{**self.cluster.env(self.home), **more})

    def slots(self, sizes: str, *words: str) -> str:
        """The word for so many slots, with the tests' own Python."""
        usual = {"python": sys.executable, "memory": "256m", "master-memory": "256m"}
        said = usual | dict(each.split("=", 1) for each in words)
        return ",".join([f"yarn:{sizes}", *(f"{key}={value}" for key, value in said.items())])

    def staged(self) -> list[Path]:
        """What lies in the user's home for YARN's nodes to read."""
        return [each for each in self.home.glob("tflaunch-*/**/*") if each.is_file()]

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What of tflaunch runs on the hosts: YARN's own processes are furniture here."""
        return [each for each in super().leftovers(run) if not is_yarns(each)]

    def holders(self) -> list[Process]:
        """The slot holders on all hosts."""
        return [each for host in self.bed.hosts for each in host.processes() if is_holder(each)]

    def masters(self) -> list[Process]:
        """The application masters on all hosts."""
        name = "distributedshell.ApplicationMaster"
        return [
            each
            for host in self.bed.hosts
            for each in host.processes()
            if each.words[0].endswith("java") and any(word.endswith(name) for word in each.words)
        ]

    def close(self) -> None:
        """End what the test started; every application must be over by itself."""
        for running in self._started:
            running.close()
        try:
            until(lambda: not self.cluster.applications(), "no application is left", YARN_S)
        finally:
            for each in self.cluster.applications():
                self.cluster.kill(str(each["id"]))
        super().close()


def is_holder(process: Process) -> bool:
    """Whether it is a slot holder, which a container has started."""
    return "CONTAINER_ID" in process.env and process.words[1:2] == ("slot.py",)


def is_yarns(process: Process) -> bool:
    """Whether it is YARN's own: a JVM, or the shell around a container."""
    return (
        process.words[0].endswith(("java", "nsenter"))
        or "_container_executor" in " ".join(process.words)
        or ("launch_container" in " ".join(process.words))
    )


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    """Write a file of Hadoop's configuration."""
    lines = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in values.items()
    )
    path.write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")
