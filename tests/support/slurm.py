"""A real Slurm in a bed: slurmctld on the launcher's machine, a slurmd on each host, two cards on each node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import NVML_ENV, BedHost, Machine
from tests.support.launcher import Process
from tests.support.patience import until

SLURM_S = 120.0  # for what Slurm does every 30 s, or once two of its periods are over
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch")
SBIN = "/usr/sbin"
CARDS = 2
CONF = """
ClusterName=bed
SlurmctldHost=launcher
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={at}/state
SlurmdSpoolDir=/run/slurmd-%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile=/run/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskProlog={at}/prolog
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=15
SlurmctldTimeout=30
SlurmdTimeout=20
SchedulerParameters=sched_interval=2,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=host[1-{count}] CPUs=4 RealMemory=4000 Gres=gpu:{cards} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"


def missing() -> str:
    """Why there can be no Slurm here; "" when there can."""
    lacking = [each for each in PROGRAMS if not shutil.which(each, path=f"{os.environ['PATH']}:{SBIN}")]
    return f"no {', '.join(lacking)} here: scripts/engines slurm" if lacking else ""


class SlurmCluster:
    """One for each bed, whose hosts share `directory`; everything that it starts ends with it, or with the bed."""

    def __init__(self, bed: Bed, directory: Path) -> None:
        self.bed, self.directory = bed, directory
        (directory / "state").mkdir(parents=True)
        self.conf = directory / "slurm.conf"
        self.conf.write_text(CONF.format(at=directory, count=len(bed.hosts), cards=CARDS))
        (directory / "cgroup.conf").write_text(CGROUP)
        self._cards()
        prolog = directory / "prolog"  # what the environment of a node's jobs has, wherever they come from
        more = {**NVML_ENV, "HOME": "/home/root"}
        lines = "".join(f"echo 'export {name}={value}'\n" for name, value in more.items())
        prolog.write_text(f'#!/bin/sh\ncase "$SLURMD_NODENAME" in host*)\n{lines};; esac\n')
        prolog.chmod(0o755)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.start_controller()
        for host in bed.hosts:
            self.start_node(host)
        self.wait_for_nodes()

    def _cards(self) -> None:
        """Slurm wants a device for each card; any will do."""
        devices = self.directory / "dev"
        devices.mkdir()
        for index in range(CARDS):
            os.mknod(devices / f"nvidia{index}", 0o20666, os.makedev(1, 3))
        nodes = f"NodeName=host[1-{len(self.bed.hosts)}]"
        (self.directory / "gres.conf").write_text(
            f"{nodes} Name=gpu File={devices}/nvidia[0-{CARDS - 1}] Flags=nvidia_gpu_env\n"
        )

    def start_controller(self) -> None:
        self._start(self.bed.launcher, "slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, host: BedHost) -> None:
        self._start(host, "slurmd", "-D", "-f", str(self.conf), "-N", host.name)

    def wait_for_nodes(self) -> None:
        """Until every node is idle."""
        count = len(self.bed.hosts)

        def idle() -> bool:
            try:
                states = self.do("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()
            except subprocess.CalledProcessError:
                return False  # the controller does not answer yet
            return states == ["idle"] * count

        until(idle, "all nodes of Slurm are idle", SLURM_S)

    def env(self) -> dict[str, str]:
        """What Slurm's commands need beside a user's own environment."""
        return {"SLURM_CONF": str(self.conf)}

    def do(self, *words: str) -> str:
        """What a command prints on the launcher's machine.  Raises CalledProcessError."""
        env = {**os.environ, **self.env()}
        return subprocess.run(
            self.bed.launcher.inside(*words), env=env, check=True, capture_output=True, text=True
        ).stdout

    def jobs(self) -> list[str]:
        """The ids of the jobs that wait, run or end."""
        return self.do("squeue", "-h", "-o", "%A").split()

    def steps(self) -> list[str]:
        """The steps of running jobs, without those that are Slurm's own."""
        found = self.do("squeue", "-h", "-s", "-o", "%i").split()
        return [each for each in found if each.rpartition(".")[2].isdigit()]

    def wait_until_free(self) -> None:
        until(lambda: not self.jobs(), "no job is left", SLURM_S)

    def slurmd(self, host: BedHost) -> Process:
        """That of a host."""
        [found] = [each for each in host.processes() if each.words[0].endswith("slurmd")]
        return found

    def close(self) -> None:
        """End the controller and the nodes, with what they have started."""
        self._started["launcher"].terminate()
        for host in self.bed.hosts:
            for each in host.processes():
                if each.words[0].endswith("slurmd"):
                    each.kill()
        for process in self._started.values():
            process.wait()

    def _start(self, machine: Machine, program: str, *words: str) -> None:
        if machine.name in self._started:
            self._started[machine.name].wait()
        with (self.directory / f"{machine.name}.out").open("ab") as file:
            self._started[machine.name] = subprocess.Popen(
                machine.inside(f"{SBIN}/{program}", *words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **self.env()},
                start_new_session=True,
            )


class OnSlurm(FarLauncher):
    """`tflaunch` for a user of that Slurm, on its login node."""

    cluster: SlurmCluster

    def env(self, **more: str) -> dict[str, str]:
        return super().env(**{**self.cluster.env(), **more})

    def slots(self, sizes: str, *words: str) -> str:
        """The word for so many slots, with the tests' own Python."""
        return ",".join([f"slurm:{sizes}", f"python={sys.executable}", *words])

    def inside_job(self, words: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """A command of Slurm, which gives tflaunch a job; `text` is its stdin."""
        return subprocess.run(
            self.bed.launcher.inside(*words, cwd=self.code),
            env=self.env(),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=SLURM_S,
        )

    def leftovers(self, run: str | None = None) -> list[Process]:
        """What of tflaunch runs on the hosts: Slurm's own processes are furniture here."""
        return [each for each in super().leftovers(run) if not is_slurms(each)]

    def holders(self) -> list[Process]:
        """The slot holders on all hosts."""
        return [each for host in self.bed.hosts for each in host.processes() if is_holder(each)]

    def close(self) -> None:
        """End what the test started; every job must be over by itself."""
        for running in self._started:
            running.close()
        try:
            self.cluster.wait_until_free()
        finally:
            for job in self.cluster.jobs():
                self.cluster.do("scancel", job)
        super().close()


def is_holder(process: Process) -> bool:
    """Whether it is a slot holder, which srun has started."""
    return "SLURM_STEP_ID" in process.env and "-" in process.words[1:]


def is_slurms(process: Process) -> bool:
    """Whether it is Slurm's own, or the script of a job."""
    program = process.words[0].rpartition("/")[2]
    return program.rstrip(":") in (
        "slurmd",
        "slurmstepd",
        "srun",
        "nsenter",
        "sleep",
    ) or "slurm_script" in " ".join(process.words)
