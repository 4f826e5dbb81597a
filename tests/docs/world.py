"""The lab of the pages: gpu01 to gpu04 with eight GPUs each, those of gpu04 older, storage, and a user who types in ~/proj."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs import known
from tests.support import ROOT
from tests.support.bed import Bed
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
TORCH = "import os\nif os.environ.get('WORLD_SIZE') is None:\n    import torch.distributed\nprint('rank', os.environ['RANK'])\n"
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


class World:
    """The hosts, and what the user has; everything ends with `close`."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.nfs = directory / "nfs"  # a directory that all hosts share
        self.nfs.mkdir()
        self.bed = Bed(directory / "bed")
        self.hosts = dict(zip(MODELS, self.bed.up(len(MODELS), share=[str(self.nfs)]), strict=True))
        for number, (name, host) in enumerate(self.hosts.items(), 1):
            host.name = name
            host.do("hostname", name)
            model, memory = MODELS[name]
            lines = (
                f'gpu name="{model}" uuid=GPU-{number}{gpu} mem={memory} bus=0000:{number}{gpu}:00.0'
                for gpu in range(GPUS if model else 0)
            )
            host.give_gpus(library, *lines)
        self.bed.name_all()
        self.home = directory / "home"
        self.proj = self.home / "proj"
        self.proj.mkdir(parents=True)
        self.bed.ssh_directory(self.home)
        for name, text in FILES.items():
            (self.proj / name).write_text(text)
        (self.home / "proj/data").mkdir()
        programs = self.home / "bin"
        programs.mkdir()
        for name, words in (
            ("tflaunch", TFLAUNCH),
            # OpenSSH's own home is that of the account.
            ("ssh", ("/usr/bin/ssh", "-F", str(self.home / ".ssh/config"))),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TFLAUNCH_", "XDG_", "SSH_"))
        } | {
            "HOME": str(self.home),
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "TFLAUNCH_YES": "1",
            **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "TOKEN"), "x"),
        }
        self._output = directory / "output"
        self._output.mkdir()
        self._count = 0

    def type(
        self,
        text: str,
        *,
        until_said: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Typed:
        """Give `text` to a shell in ~/proj; with `until_said`, Ctrl-C once that was printed."""
        self._count += 1
        known.files_for([word for words in _words(text) for word in words], cwd or self.proj)
        files = [self._output / f"{self._count}.{name}" for name in ("out", "err")]
        argv = self.bed.launcher.inside("bash", "-o", "pipefail", "-c", text, cwd=cwd or self.proj)
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = subprocess.Popen(
                argv,
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        out_path, err_path = files

        def said() -> str:
            return out_path.read_text(errors="replace") + err_path.read_text(errors="replace")

        try:
            if until_said is not None:
                wanted = re.compile(until_said)
                until(lambda: process.poll() is not None or wanted.search(said()), f"{until_said!r} of {text}")
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
            code = process.wait(2 * PATIENCE_S)
        except (AssertionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"did not end: {text}\n{said()}") from None
        return Typed(code, out_path.read_text(errors="replace"), err_path.read_text(errors="replace"))

    def must(self, text: str) -> Typed:
        """The same; fails unless it succeeds."""
        typed = self.type(text)
        assert typed.code == 0, f"{text}: exit code {typed.code}\n{typed.all}"
        return typed

    def alive(self) -> str:
        """The id of a run that goes on, the only one."""
        names = self.must("tflaunch ps -q").out.split()
        if len(names) != 1:
            self.quiet()
            names = [
                self.must("tflaunch run --detach hosts.yaml trainer.py --ps 1 --workers 2 -- --hold").out.strip()
            ]
        return names[0]

    def ended(self) -> str:
        """The id of a run that has succeeded."""
        typed = self.must("tflaunch run hosts.yaml trainer.py --ps 0 --workers 1")
        return re.findall(r"^run (\S+)$", typed.err, re.MULTILINE)[0]

    def sweep(self) -> str:
        """The name of a sweep that is over."""
        words = "tflaunch sweep hosts.yaml trainer.py --metric loss --grid lr=0.1,0.2 --name lr"
        self.must(words)
        return "lr"

    def quiet(self) -> None:
        """End every run."""
        for name in self.must("tflaunch ps -q").out.split():
            self.must(f"tflaunch stop {name}")

    def left(self) -> list[str]:
        """What still runs on the hosts."""
        return [str(process) for host in self.bed.hosts for process in host.processes()]

    def close(self) -> None:
        """End everything."""
        self.bed.close()
        shutil.rmtree(self.home, ignore_errors=True)


def _words(text: str) -> Sequence[list[str]]:
    from tests.docs.pages import calls

    return calls(text)
