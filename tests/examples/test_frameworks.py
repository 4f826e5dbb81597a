"""The examples of PyTorch and JAX: real training."""

from __future__ import annotations

import re

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.frameworks import EXAMPLES, needs, python_with
from tests.support.launcher import Launcher, processes
from tests.support.sshd import SshNetwork


def losses(output: str) -> set[tuple[float, float]]:
    """(first, final) loss of each worker."""
    found = re.findall(r"final loss (\S+) \(first (\S+)\)", output)
    return {(float(first), float(final)) for final, first in found}


@pytest.mark.parametrize(
    ("example", "framework", "steps"),  # enough for the kill to come in time
    [
        pytest.param("torch_ddp.py", "torch", 2000, marks=needs("torch")),
        pytest.param("jax_data_parallel.py", "jax", 4000, marks=needs("jax")),
    ],
)
def test_the_example_trains_on_two_hosts_and_goes_on_from_its_checkpoint(
    example: str, framework: str, steps: int, network: SshNetwork, launcher: Launcher
) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name], python=str(python_with(framework)))
    words = (
        f"--framework={framework}",
        "--workers=2",
        "--restarts=1",
        "--grace=1",
        "--env=OMP_NUM_THREADS=1",
    )
    more = ("--", f"--steps={steps}", "--checkpoint_steps=100")
    with launcher.start("run", hosts, EXAMPLES / example, *words, *more) as running:
        running.wait_for("step 200 ")
        for process in processes():
            mine = process.env.get("TFLAUNCH_RUN") == running.run_id
            if mine and process.env.get("TFLAUNCH_TASK") == "worker/1" and not process.is_agent:
                process.kill()
        done = running.done(300).ran()
    assert re.search(r"resumes at step \d+00 from", done.out)
    [(_, final)] = losses(done.out)  # the same on both
    assert final < 0.02  # the noise alone is 0.01


@needs("torch")
def test_gloo_finds_the_others_where_a_hosts_own_name_leads_to_loopback(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    for host in (one, two):
        host.learn_names(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n")  # as Debian installs it
    entries = [{"name": host.name, "address": host.address} for host in (one, two)]
    hosts = far.hostfile(entries, python=str(python_with("torch")), ports="22000-22009")
    done = far.run(
        "run", hosts, EXAMPLES / "torch_ddp.py", "--framework=torch", "--workers=2", "--", "--steps=300"
    ).ran()
    [(first, final)] = losses(done.out)
    assert final < 0.1 * first
