"""Slurm and Kubernetes: from the command to the first line of a task, beside what their own commands take for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.beds import TFLAUNCH
from bench.measure import LIMIT_S, Command, Failed, Figures, Table, interleave, started
from bench.plan import Plan
from tests.support import kubernetes, slurm
from tests.support.bed import Bed
from tests.support.kubernetes import IMAGE, KubernetesCluster
from tests.support.slurm import SlurmCluster

HELLO = "print('hello', flush=True)"
FIGURES = ("first line s", "wall s")
PODS = 3
# A job whose output its user reads: a controller starts those in its own time, up to 3 s later than what srun asks for.
BATCH = """\
rm -f {told}
printf '#!/bin/sh\\nexec srun %s -c "%s"\\n' {python} "{hello}" |
    sbatch -N{count} --ntasks-per-node=1 --output={told} >&2
until grep -s hello {told}; do sleep 0.05; done
until [ "$(grep -c hello {told})" = {count} ]; do sleep 0.05; done
"""


def first_line(command: Command) -> Figures:
    """When the first task has said hello, and when all was over.  Raises Failed."""
    until = command.started + LIMIT_S
    while b"hello" not in command.output.read_bytes() and time.monotonic() < until:
        if command.process.poll() is not None and b"hello" not in command.output.read_bytes():
            said = command.output.with_suffix(".err").read_text(errors="replace").strip()
            raise Failed(f"no task has said anything: {said[-300:]}")
        time.sleep(0.002)
    first_s = time.monotonic() - command.started
    command.process.wait(LIMIT_S)
    wall_s = time.monotonic() - command.started
    if command.process.returncode:
        said = command.output.with_suffix(".err").read_text(errors="replace").strip()
        raise Failed(f"exit code {command.process.returncode}: {said[-300:]}")
    return dict(zip(FIGURES, (first_s, wall_s), strict=True))


def on_slurm(plan: Plan) -> Iterator[Table]:
    """A task in each of 3 and 16 nodes: by srun, by sbatch, and by tflaunch: a job of its own, in one, and over SSH."""
    sizes = plan.sizes(3, 16)
    if reason := slurm.missing():
        yield Table("Slurm", "srun", FIGURES, remarks=[reason])
        return
    lab = plan.lab
    lab.hosts(max(sizes))
    cluster = SlurmCluster(lab.bed, lab.shared / "slurm")
    script = lab.file("hello/hello.py", HELLO)
    conf = ("env", f"SLURM_CONF={cluster.conf}")

    def measure(words: Sequence[str]) -> Figures:
        with lab.start(*words) as command:
            figures = first_line(command)
        cluster.wait_until_free()
        return figures

    try:
        for count in sizes:
            options = (script, "--ps=0", f"--workers={count}", "--no-flags")
            settings = f"python={sys.executable},dir={lab.shared / 'slots'}"
            size = (f"-N{count}", "--ntasks-per-node=1")
            methods = {
                "srun": (*conf, "srun", *size, sys.executable, "-c", HELLO),
                "sbatch": (
                    *conf,
                    "sh",
                    "-c",
                    BATCH.format(told=lab.shared / "told", python=sys.executable, hello=HELLO, count=count),
                ),
                "tflaunch, slurm:": (*conf, TFLAUNCH, "run", f"slurm:{count},{settings}", *options),
                "tflaunch in salloc": (
                    *(*conf, "salloc", *size),
                    *(TFLAUNCH, "run", f"slurm:{settings}", *options),
                ),
                "tflaunch, SSH": (TFLAUNCH, "run", lab.hostfile(count), *options),
            }
            table = Table(f"Slurm, {count} nodes", "srun", FIGURES, count)
            calls: Mapping[str, Callable[[], Figures]] = {
                name: partial(measure, words) for name, words in methods.items()
            }
            yield interleave(table, calls, plan.rounds, plan.tell)
    finally:
        cluster.close()


def on_kubernetes(plan: Plan) -> Iterator[Table]:
    """A task in each of 3 pods: by a Job and `kubectl logs`, and by tflaunch."""
    table = Table(f"Kubernetes, {PODS} pods on 2 nodes", "kubectl create, logs", FIGURES, PODS)
    if reason := kubernetes.missing():
        table.remarks.append(reason)
        yield table
        return
    with TemporaryDirectory(prefix="bench-k8s-") as place:
        directory = Path(place)
        bed = Bed(directory / "bed")
        try:
            bed.up(3, share=[place])
            cluster = KubernetesCluster(bed, directory / "cluster")
            try:
                yield _in_pods(plan, table, cluster, directory)
            finally:
                cluster.close()
        finally:
            bed.close()


def _in_pods(plan: Plan, table: Table, cluster: KubernetesCluster, directory: Path) -> Table:
    space = cluster.space()
    script = directory / "code/hello.py"
    script.parent.mkdir()
    script.write_text(HELLO)
    home = directory / "home"
    home.mkdir()
    env = {**os.environ, "PATH": kubernetes.PATH, "KUBECONFIG": str(space.kubeconfig), "HOME": str(home)}
    container = {"name": "hello", "image": IMAGE, "command": ["python3", "-c", HELLO]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "plain"},
        "spec": {
            "completionMode": "Indexed",
            "completions": PODS,
            "parallelism": PODS,
            "template": {"spec": pod},
        },
    }
    (directory / "job.json").write_text(json.dumps(job))
    plain = (
        f"kubectl create -f {directory}/job.json >&2 && "
        # It does not wait for a container that is being made.
        "until kubectl logs -f job/plain --pod-running-timeout=60s; do sleep 0.1; done && "
        "kubectl wait --for=condition=complete job/plain --timeout=60s >&2"
    )
    slots = f"k8s:{PODS},image={IMAGE},cpus=100m,memory=200Mi"
    ours = (TFLAUNCH, "run", slots, str(script), "--ps=0", f"--workers={PODS}", "--no-flags")

    def measure(words: Sequence[str]) -> Figures:
        argv = cluster.bed.launcher.inside(*words, cwd=directory)
        with started(argv, env=env, output=directory / "output") as command:
            figures = first_line(command)
        subprocess.run(
            cluster.bed.launcher.inside("kubectl", "delete", "job", "plain", "--ignore-not-found"),
            env=env,
            check=True,
            capture_output=True,
        )
        space.wait_until_free()
        return figures

    methods: Mapping[str, Callable[[], Figures]] = {
        "kubectl create, logs": partial(measure, ("sh", "-c", plain)),
        "tflaunch, k8s:": partial(measure, ours),
    }
    return interleave(table, methods, plan.rounds, plan.tell)
