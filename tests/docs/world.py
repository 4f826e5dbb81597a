"""The lab of the pages: gpu01 to gpu04 with eight GPUs each, storage without, and a reader who types in ~/proj."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docs import known
from tests.docs.pages import calls
from tests.support import ROOT, preloaded
from tests.support.bed import Bed
from tests.support.bed.machines import Machine
from tests.support.frameworks import NO_KERAS
from tests.support.launcher import TFLAUNCH
from tests.support.patience import PATIENCE_S, until

GPUS = 8
MODELS = {
    "gpu01": ("NVIDIA H100 80GB HBM3", 81559),
    "gpu02": ("NVIDIA H100 80GB HBM3", 81559),
    "gpu03": ("NVIDIA H100 80GB HBM3", 81559),
    "gpu04": ("NVIDIA A100-SXM4-40GB", 40960),
    "storage": ("", 0),
}
HOSTFILE = f"""\
defaults:
  python: {sys.executable}
hosts:
  - gpu01
  - gpu02
  - gpu03
  - name: storage
    gpus: 0
"""
JOB = """\
program: trainer.py
roles: {ps: 1, worker: 2}
"""
# Understands the classic flags and TF_CONFIG, says how it goes, and leaves a checkpoint.  A task that is not awaited
# waits to be stopped; with --hold, so do the workers.
TRAINER = """\
import argparse, json, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
for name in ("ps_hosts", "worker_hosts", "job_name", "task_index"):
    parser.add_argument(f"--{name}", default="")
parser.add_argument("--hold", action="store_true")
parser.add_argument("--lr", type=float, default=0.1)
flags, _ = parser.parse_known_args()
task = os.environ.get("TFLAUNCH_TASK", "worker/0")
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
port = int(os.environ.get("PORT", "0"))
if task.startswith("evaluator"):
    sys.exit(print("evaluated", flush=True))
if not task.startswith(("worker", "chief", "trial")):
    signal.pause()
for directory in ("checkpoints", "logs", "out"):
    pathlib.Path(directory).mkdir(exist_ok=True)
pathlib.Path("checkpoints", f"{task.replace('/', '-')}.ckpt").write_text(task)
pathlib.Path("out", "result.txt").write_text(task)
pathlib.Path("model.keras").write_text("a model")
for step in (1, 2, 3):
    print(f"epoch {step}  loss {flags.lr / step:.4f}", flush=True)
    print(json.dumps({"step": step, "loss": flags.lr / step, "acc": 1 - flags.lr / step}), flush=True)
while flags.hold:
    time.sleep(0.2)
"""
TORCH = """\
import os
if os.environ.get("WORLD_SIZE") is None:
    import torch.distributed
print("rank", os.environ["RANK"])
"""
LAB = f"""\
defaults:
  python: {sys.executable}
hosts:
  - gpu[01-04]
"""
FILES = {
    "hosts.yaml": HOSTFILE,
    "lab.yaml": LAB,
    "job.yaml": JOB,
    "trainer.py": TRAINER,
    "train.py": TORCH,
    "mnist/__init__.py": "",
    "mnist/task.py": TRAINER,
    "server.py": "import signal\nsignal.pause()\n",
    "requirements.txt": "# nothing is missing\n",
}


@dataclass(frozen=True)
class Typed:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        """What a terminal shows."""
        return self.err + self.out


class Reader:
    """Somebody who types what a page says, in ~/proj on the launcher's machine of a bed."""

    def __init__(self, directory: Path, bed: Bed) -> None:
        self.bed = bed
        self.home = directory / "home"
        self.proj = self.home / "proj"
        self.nfs = directory / "nfs"  # what all hosts share; a page calls it /nfs
        self.proj.mkdir(parents=True)
        self.write({})
        bed.ssh_directory(self.home)
        programs = self.home / "bin"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TFLAUNCH_", "XDG_", "SSH_"))
        } | {
            "HOME": str(self.home),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "TFLAUNCH_YES": "1",
            **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "TOKEN"), "x"),
        }
        # OpenSSH's own home is that of the account.
        ssh = shlex.join(("/usr/bin/ssh", "-F", str(self.home / ".ssh/config")))
        programs.mkdir()
        for name, text in (
            ("tflaunch", preloaded.forked(TFLAUNCH[2], self.env, directory / "typed")),
            ("ssh", f'#!/bin/sh\nexec {ssh} "$@"\n'),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self._output = directory / "output"
        self._output.mkdir()
        self._count = 0

    def here(self, text: str) -> str:
        """A page's words with the places of this reader."""
        return re.sub(r"/nfs\b", str(self.nfs), text)

    def write(self, files: Mapping[str, str]) -> None:
        """Write the files that every reader has, and a page's own."""
        for name, text in {**files, **FILES}.items():
            if not name.startswith(("/", "~", ".")):
                (self.proj / name).parent.mkdir(parents=True, exist_ok=True)
                (self.proj / name).write_text(self.here(text))

    def type(
        self, text: str, *, until_said: str | None = None, env: Mapping[str, str] | None = None
    ) -> Typed:
        """Give `text` to a shell in ~/proj; with `until_said`, Ctrl-C once that was printed."""
        self._count += 1
        known.files_for([word for words in calls(text) for word in words], self.proj)
        out, err = (self._output / f"{self._count}.{name}" for name in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                self.bed.launcher.inside("bash", "-o", "pipefail", "-c", self.here(text), cwd=self.proj),
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

        def typed() -> Typed:
            code = process.returncode
            return Typed(
                -1 if code is None else code,
                out.read_text("utf-8", "replace"),
                err.read_text("utf-8", "replace"),
            )

        try:
            if until_said is not None:
                wanted = re.compile(until_said)
                until(
                    lambda: process.poll() is not None or wanted.search(typed().all),
                    f"{until_said!r} of {text}",
                )
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
            process.wait(2 * PATIENCE_S)
        except (AssertionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"did not end: {text}\n{typed().all}") from None
        return typed()

    def must(self, text: str) -> Typed:
        """The same; fails unless it succeeds."""
        typed = self.type(text)
        assert typed.code == 0, f"{text}: exit code {typed.code}\n{typed.all}"
        return typed

    def left(self) -> list[str]:
        """What still runs on the hosts."""
        return [str(process) for host in self.bed.hosts for process in host.processes()]


class World(Reader):
    """The lab and its reader; everything ends with `close`."""

    def __init__(self, directory: Path, library: Path) -> None:
        bed = Bed(directory / "bed")
        nfs = directory / "nfs"
        (nfs / "ada/proj").mkdir(parents=True)
        for number, host in enumerate(bed.up(len(MODELS), env=NO_KERAS, share=[str(nfs)])):
            name, (model, memory) = list(MODELS.items())[number]
            rename(host, name)
            lines = (
                f'gpu name="{model}" uuid=GPU-{number}{gpu} mem={memory} bus=0000:{number}{gpu}:00.0'
                for gpu in range(GPUS if model else 0)
            )
            host.give_gpus(library, *lines)
        bed.name_all()
        super().__init__(directory, bed)
        (nfs / "ada/proj/trainer.py").write_text(TRAINER)
        for environment in (nfs / "ada/venv", nfs / "envs/tf"):
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        (nfs / "envs/tf/conda-meta").mkdir()

    def alive(self) -> str:
        """The id of a run that goes on, the only one."""
        return self._alive("--detach hosts.yaml trainer.py --ps 1 --workers 2 -- --hold", "hosts.yaml")

    def busy(self) -> str:
        """The same, of one that has 12 GPUs of the lab."""
        self.quiet()
        return self._alive(
            "--detach lab.yaml trainer.py --name bert --ps 0 --workers 12 -- --hold", "lab.yaml"
        )

    def _alive(self, words: str, hosts: str) -> str:
        names = self.must(f"tflaunch ps -q {hosts}").out.split()
        if len(names) != 1:
            self.quiet()
            names = [self.must(f"tflaunch run {words}").out.strip()]
        return names[0]

    def ended(self) -> str:
        """The id of a run that has succeeded."""
        typed = self.must("tflaunch run hosts.yaml trainer.py --ps 0 --workers 1")
        return re.findall(r"^run (\S+)$", typed.err, re.MULTILINE)[0]

    def compared(self) -> str:
        """The ids of two such runs."""
        return f"{self.ended()} {self.ended()}"

    def fetched(self) -> str:
        """The id of a run whose checkpoints are in ./results."""
        typed = self.must(
            "tflaunch run hosts.yaml trainer.py --ps 0 --workers 1 --fetch 'checkpoints/**' --fetch-to results"
        )
        return re.findall(r"^run (\S+)$", typed.err, re.MULTILINE)[0]

    def reported(self) -> str:
        """The id of a run whose events are in ./run.jsonl."""
        self.must("tflaunch run hosts.yaml trainer.py --ps 0 --workers 1 --json > run.jsonl")
        return ""

    def without_hostfile(self) -> None:
        """Take away what `tflaunch init` writes."""
        (self.proj / "hosts.yaml").unlink()

    def sweep(self) -> str:
        """The name of a sweep that is over."""
        self.must("tflaunch sweep hosts.yaml trainer.py --metric loss --grid lr=0.1,0.2 --name lr")
        return "lr"

    def quiet(self) -> None:
        """End every run."""
        for name in self.must("tflaunch ps -q lab.yaml").out.split():
            self.must(f"tflaunch stop {name} --hosts lab.yaml")

    def close(self) -> None:
        """End everything."""
        self.bed.close()
        shutil.rmtree(self.home, ignore_errors=True)


def rename(host: Machine, name: str) -> None:
    """Give a machine of a bed another name; `Bed.name_all` tells the others."""
    host.name = name
    host.do("hostname", name)
