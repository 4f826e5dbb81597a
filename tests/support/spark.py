"""A real Spark, standalone: its master on the launcher's machine of a bed, a worker on each host."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import NVML_ENV, BedHost, Machine
from tests.support.launcher import Process
from tests.support.patience import until

SPARK_S = 240.0  # for JVMs that start beside others
BOOT = "slot_holder"  # in the words of a slot holder that Spark's task has started
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
PORT = 7077


def missing() -> str:
    """Why there can be no Spark here; "" when there can."""
    if importlib.util.find_spec("pyspark") is None:
        return "no pyspark here: scripts/engines spark"
    return "" if shutil.which("java") else "Spark needs Java: scripts/engines spark"


def home() -> Path:
    """Where pyspark has Spark itself."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class SparkCluster:
    """One for each bed; everything that it starts ends with it."""

    def __init__(
        self,
        bed: Bed,
        directory: Path,
        *,
        cores: int = 2,
        gpus: Sequence[str] = (),
        hosts: Sequence[BedHost] | None = None,
    ) -> None:
        """`hosts`: those with a worker; all, without."""
        self.bed, self.directory = bed, directory
        hosts = bed.hosts if hosts is None else hosts
        directory.mkdir()
        self._started: list[subprocess.Popen[bytes]] = []
        self.conf = directory / "worker.conf"
        self.conf.write_text(self._cards(gpus))
        self.master = f"spark://{bed.launcher.address}:{PORT}"
        self._log = self._start(
            bed.launcher, MASTER, "--host", bed.launcher.address, "--port", str(PORT), "--webui-port", "0"
        )
        until(lambda: "New state: ALIVE" in self._log.read_text(), "Spark's master", SPARK_S)
        self._cores = cores
        for host in hosts:
            self._begin_worker(host)
        self.wait_for_workers(len(hosts))

    def start_worker(self, host: BedHost) -> None:
        """Start the worker there again, which has ended."""
        count = self._workers()
        self._begin_worker(host)
        self.wait_for_workers(count + 1)

    def _begin_worker(self, host: BedHost) -> None:
        size = ("--cores", str(self._cores), "--memory", "2g", "--webui-port", "0")
        self._start(
            host, WORKER, "--host", host.address, *size, "--properties-file", str(self.conf), self.master
        )

    def _workers(self) -> int:
        return self._log.read_text().count("Registering worker")

    def wait_for_workers(self, count: int) -> None:
        """Until so many have come, those that have ended among them."""
        until(lambda: self._workers() >= count, "Spark's workers", SPARK_S)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    def env(self) -> dict[str, str]:
        """What a launcher needs beside its own, to be a driver there."""
        return {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": self.bed.launcher.address,
            "SPARK_SUBMIT_OPTS": SMALL,
        }

    def _start(self, machine: Machine, main: str, *words: str) -> Path:
        log = self.directory / f"{machine.name}.log"
        more = NVML_ENV if isinstance(machine, BedHost) else {}
        env: Mapping[str, str] = {
            **os.environ,
            **more,
            "SPARK_HOME": str(home()),
            "SPARK_LOCAL_IP": machine.address,
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            "SPARK_WORKER_DIR": "/tmp/spark",
            "HOME": "/home/root" if isinstance(machine, BedHost) else str(self.directory),
        }
        with log.open("ab") as file:
            self._started.append(
                subprocess.Popen(
                    machine.inside(str(home() / "bin/spark-class"), main, *words),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=env,
                    start_new_session=True,
                )
            )
        return log

    def _cards(self, gpus: Sequence[str]) -> str:
        if not gpus:
            return ""
        script = self.directory / "gpus.sh"
        listed = ", ".join(f'"{each}"' for each in gpus)
        script.write_text(f"""#!/bin/sh\necho '{{"name": "gpu", "addresses": [{listed}]}}'\n""")
        script.chmod(0o755)
        return f"spark.worker.resource.gpu.amount {len(gpus)}\nspark.worker.resource.gpu.discoveryScript {script}\n"


@contextlib.contextmanager
def session_here(place: Path, log: Path, master: str = "local[2]", **conf: str) -> Iterator[Any]:
    """A Spark in this process; it and its Python workers write to `log`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_SUBMIT_OPTS", SMALL)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        settings = SparkConf().setMaster(master).setAppName("tests")
        for key, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "700m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.local.dir": str(place),
            **conf,
        }.items():
            settings.set(key, value)
        with log.open("wb") as file:
            gateway = launch_gateway(conf=settings, popen_kwargs={"stdout": file, "stderr": file})
        session = SparkSession(SparkContext(conf=settings, gateway=gateway))
        yield session
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends with it
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


# Executors, too, have little to do but to start a process.
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"


class OnSpark(FarLauncher):
    """`tflaunch` for a user of that Spark."""

    cluster: SparkCluster

    def env(self, **more: str) -> dict[str, str]:
        return super().env(**{**self.cluster.env(), **more})

    def slots(self, sizes: str, *words: str) -> str:
        """The word for so many slots."""
        return ",".join([f"{self.cluster.master}", sizes, "memory=480m", *words])

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What of tflaunch runs on the hosts: Spark's own processes are furniture here."""
        return [each for each in super().leftovers(run) if not is_sparks(each)]

    def on_host(self, host: BedHost, kind: str) -> list[Process]:
        """Spark's worker daemon, its executors or Python workers there, slot holders, or agents."""
        kinds: Mapping[str, Callable[[Process], bool]] = {
            "daemon": lambda each: WORKER in each.words,
            "executor": lambda each: "org.apache.spark.executor.CoarseGrainedExecutorBackend" in each.words,
            "worker": lambda each: "pyspark.daemon" in each.words and _is_forked(each.pid),
            "holder": is_holder,
            "agent": lambda each: each.is_agent,
        }
        return [each for each in host.processes() if kinds[kind](each)]


def is_holder(process: Process) -> bool:
    """Whether it is a slot holder."""
    return any(BOOT in word for word in process.words)


def is_sparks(process: Process) -> bool:
    """Whether it is Spark's own: a JVM, or a Python that it has started."""
    return process.words[0].endswith("java") or any(
        re.match(r"pyspark\.(daemon|worker)", each) for each in process.words
    )


def _is_forked(pid: int) -> bool:
    """Whether it is a child of the daemon, which forks a Python worker for each task."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent = Path(f"/proc/{stat[1]}/cmdline").read_bytes()
    return b"pyspark.daemon" in parent
