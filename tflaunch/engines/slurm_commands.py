"""Slurm, by its own commands: sbatch, srun, scontrol, squeue, scancel.

None of them sees the SLURM_* of this process but those that say which cluster and which job: the others change what
they do, and are of the step that this process may be in.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tflaunch.engines.client_command import ClientFailed, answer
from tflaunch.protocol.errors import ConnectError

TIMEOUT_S = 60.0  # for an answer: a controller may be busy
SAID = 400  # characters of what a command says
OURS = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_MPI_TYPE")
# What of this process's environment goes to the nodes, beside what their own prologs set.
PASSED = ("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ")
NOT_PASSED = ("SBATCH_EXPORT", "SBATCH_GET_USER_ENV", "SBATCH_REQUEUE", "SBATCH_WAIT", "SBATCH_ARRAY_INX")
_UNREACHED = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "slurm_persist_conn_open",
    "Zero Bytes",
)


class SlurmFailed(ClientFailed):
    """A command of Slurm has failed, with these words of it."""


@dataclass(frozen=True)
class JobFacts:
    """What scontrol says of a job; of one of several sizes, of all its parts."""

    parts: Sequence[str] = field(repr=False)  # a line each

    def get(self, name: str) -> str:
        """A value of the first part that has it."""
        return next(iter(self.each(name)), "")

    def each(self, name: str) -> list[str]:
        """The values of all parts."""
        key = f"{name}="
        words = (next((each for each in part.split() if each.startswith(key)), None) for part in self.parts)
        return [each.removeprefix(key) for each in words if each is not None]


class Slurm:
    """The cluster that SLURM_CONF, or Slurm's own default, leads to."""

    def __init__(self, conf: str = "") -> None:
        self.conf = conf

    def env(self, job: str = "") -> dict[str, str]:
        """The environment of a command of Slurm."""
        env = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith("LC_")}
        env |= {name: os.environ[name] for name in OURS if name in os.environ}
        env |= {name: value for name, value in os.environ.items() if name.startswith("SBATCH_")}
        for name in NOT_PASSED:
            env.pop(name, None)
        if self.conf:
            env["SLURM_CONF"] = self.conf
        return {**env, "SLURM_CPU_BIND": "none", **({"SLURM_JOB_ID": job} if job else {})}

    def run(self, *words: str, text: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """What a command prints.  Raises SlurmFailed where it fails, ConnectError where there is none."""
        if shutil.which(words[0]) is None:
            raise ConnectError(
                f"slurm: there is no {words[0]} here", "start tflaunch on a login node, or inside a job"
            )
        return answer(words, SlurmFailed, said, name=words[0], text=text, env=self.env(), timeout_s=timeout_s)

    def config(self) -> Mapping[str, str]:
        """How the cluster is configured.  Raises ConnectError."""
        try:
            lines = self.run("scontrol", "show", "config").splitlines()
        except SlurmFailed as refused:
            raise ConnectError(
                f"slurm: the cluster cannot be asked: {refused}", "does sinfo work here?"
            ) from None
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def job(self, job: str) -> JobFacts | None:
        """What the controller knows of a job; None once it has forgotten it.  Raises SlurmFailed, ConnectError."""
        try:
            found = self.run("scontrol", "-o", "show", "job", job).splitlines()
        except SlurmFailed as refused:
            if "Invalid job id" in str(refused):
                return None
            raise
        return JobFacts([line for line in found if line.startswith("JobId=")])

    def steps(self, job: str) -> dict[str, str]:
        """The names of a job's steps that run, by their ids, as `12.0`.  Raises SlurmFailed, ConnectError."""
        try:
            found = self.run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j")
        except SlurmFailed as refused:
            if "Invalid job id" in str(refused):
                return {}
            raise
        return {step: name for step, _, name in (line.strip().partition(" ") for line in found.splitlines())}

    def wire_words(self, job: str, node: str, *command: str) -> list[str]:
        """The command line that runs a command in a job on one of its nodes, on its own stdio."""
        kept = self.env(job)
        unset = [f"--unset={name}" for name in os.environ if name not in kept]
        here = [f"{name}={value}" for name, value in kept.items() if os.environ.get(name) != value]
        # Without --unbuffered whole lines alone pass; some networks need -n1 beside --overlap.
        srun = [
            "srun",
            f"--jobid={job}",
            "--overlap",
            "--unbuffered",
            "--quiet",
            "-N1",
            "-n1",
            f"--nodelist={node}",
        ]
        return ["env", *unset, *here, *srun, *command]


def is_unreached(refused: SlurmFailed) -> bool:
    """Whether the controller has not answered at all."""
    return any(words in str(refused) for words in _UNREACHED) or "has not answered" in str(refused)


def said(stderr: str) -> str:
    """What a command of Slurm has written to stderr, on one line, without the names of who says it."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line.strip()) for line in stderr.splitlines()]
    return "; ".join(line for line in lines if line)[-SAID:]
