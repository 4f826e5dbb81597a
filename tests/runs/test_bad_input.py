"""What a user can get wrong, or a machine: each has a sentence, a next step and an exit code, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork

TRAINER = "import os; print(os.environ['TFLAUNCH_TASK'])"


@dataclass(frozen=True)
class Case:
    """A command line, and what must come of it; `setup` prepares and returns the words behind `tflaunch`."""

    name: str
    setup: Callable[[Launcher], list[str | Path]]
    code: int
    sentence: str  # the fact
    hint: str = ""  # the next step


def hosts_that_say(text: str) -> Callable[[Launcher], list[str | Path]]:
    """A hostfile of exactly that text."""

    def setup(launcher: Launcher) -> list[str | Path]:
        path = launcher.directory / "hosts.yaml"
        path.write_text(text)
        return ["run", path, launcher.script(TRAINER)]

    return setup


def words(*words: str) -> Callable[[Launcher], list[str | Path]]:
    """`tflaunch run HOSTS words`, beside a trainer.py; HOSTS are four that are this machine."""

    def setup(launcher: Launcher) -> list[str | Path]:
        launcher.script(TRAINER)
        (launcher.code / "directory").mkdir()
        return ["run", launcher.local(), *words]

    return setup


CASES = (
    Case("no-command", lambda _: ["start"], 2, "no command 'start'; use run", "tflaunch run"),
    Case("nothing", lambda _: ["run"], 2, "neither TRAINER.py nor -m PKG.MOD", "tflaunch run"),
    Case("no-hosts", lambda launcher: ["run", launcher.script("")], 2, "no hostfile: ", "tflaunch init"),
    Case(
        "hostfile-missing",
        lambda launcher: ["run", "no-such.yaml", launcher.script(TRAINER)],
        2,
        "no-such.yaml",
    ),
    Case("hostfile-is-a-directory", lambda launcher: ["run", launcher.code, "x.py"], 2, "directory"),
    Case("hostfile-not-yaml", hosts_that_say("hosts: [a, b\nx: y"), 2, "hosts.yaml:2:"),
    Case("hostfile-tabs", hosts_that_say("hosts:\n\t- a\n"), 2, "hosts.yaml:2:1"),
    Case("hostfile-empty", hosts_that_say(""), 2, "hosts.yaml"),
    Case("hostfile-misspelt-key", hosts_that_say("hosts:\n  - name: a\n    adress: b\n"), 2, "address"),
    Case("hostfile-host-twice", hosts_that_say("hosts: [a, b, a]\n"), 2, "a"),
    Case("script-missing", words("no-such.py"), 2, "no-such.py"),
    Case("script-is-a-directory", words("directory"), 2, "directory"),
    Case("no-script", words(), 2, "neither TRAINER.py nor -m PKG.MOD", "hosts.yaml trainer.py"),
    Case("module-missing", words("-m", "no.such"), 2, "no.such"),
    Case("nothing-to-start", words("trainer.py", "--workers=0", "--ps=0"), 2, "--workers 0"),
    Case("negative", words("trainer.py", "--workers=-1"), 2, "--workers"),
    Case("misspelt-option", words("trainer.py", "--worker=2"), 2, "has no option --worker", "mean --workers"),
    Case("trainers-option-before-the-dashes", words("trainer.py", "--steps=5"), 2, "--steps", "--"),
    Case("misspelt-flag", words("trainer.py", "--flag=task_idx=id"), 2, "task_idx", "task_index"),
    Case(
        "env-not-set", words("trainer.py", "--env=NOT_SET_HERE"), 2, "NOT_SET_HERE is not set here", "=VALUE"
    ),
    Case("env-that-tflaunch-sets", words("trainer.py", "--env=TF_CONFIG=x"), 2, "TF_CONFIG", "Leave it out"),
    Case("only-no-task", words("trainer.py", "--only=worker"), 2, "--only worker", "worker/0"),
    Case(
        "no-such-host", words("trainer.py", "--worker-hosts=gpu*"), 2, "'gpu*' selects no host", "local[1-4]"
    ),
    Case(
        "more-gpus-than-free",
        words("trainer.py", "--workers=3", "--gpus-per-worker=2"),
        65,
        "need 6 GPUs (3 workers x 2), 0 are free",
        "Lower --gpus-per-worker",
    ),
    Case(
        "more-ports-than-there-are",
        lambda launcher: [
            *("run", launcher.local(1, ports="21500-21501"), launcher.script(TRAINER)),
            *("--workers=3", "--ps=0"),
        ],
        65,
        "need 3 ports",
        "Widen `ports:`",
    ),
    Case(
        "unknown-name",
        lambda launcher: [
            "run",
            launcher.hostfile(["no-such-host.invalid"]),
            launcher.script(TRAINER),
            "--connect-timeout=5",
        ],
        69,
        "the only host could not be used",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bad_input(launcher: Launcher, case: Case) -> None:
    verb, *rest = case.setup(launcher)
    done = launcher.run(str(verb), *rest).ran(case.code)
    assert case.sentence in done.sentences
    assert case.hint in done.sentences
    assert "✗ " in done.err  # one style of error
    assert not set("╭│╰") & set(done.err)
    assert done.out == ""
    assert launcher.records() == []
    launcher.wait_until_no_run_is_kept()


def test_every_problem_of_a_hostfile_is_told_at_once(launcher: Launcher) -> None:
    verb, *rest = hosts_that_say("hosts:\n  - name: a\n    adress: b\n  - name: c\n    port: many\n")(
        launcher
    )
    done = launcher.run(str(verb), *rest).ran(2)
    assert "hosts.yaml:3:5" in done.err
    assert "hosts.yaml:5:11" in done.err


def test_all_hosts_down(network: SshNetwork, launcher: Launcher) -> None:
    names = [network.add().name for _ in range(3)]
    for sshd in network.sshds:
        sshd.kill()
    done = launcher.run("run", launcher.hostfile(names), launcher.script(TRAINER)).ran(69)
    assert "3 of 3 hosts could not be used" in done.sentences


def test_one_machine_under_two_names(network: SshNetwork, launcher: Launcher) -> None:
    sshd = network.add()
    block = sshd.config(network.key, network.known_hosts)
    network.prepend(block.replace(f"Host {sshd.name}", "Host alias"))
    done = launcher.run("run", launcher.hostfile([sshd.name, "alias"]), launcher.script(TRAINER)).ran(65)
    assert f"{sshd.name} and alias are one machine" in done.sentences
    assert "list it once" in done.sentences
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()


def test_the_record_cannot_be_written(launcher: Launcher) -> None:
    (launcher.directory / "state").write_text("a file where the records should be")
    done = launcher.run("run", launcher.local(2), launcher.script(TRAINER)).ran(73)
    assert "cannot write the record" in done.sentences
    assert "TFLAUNCH_STATE" in done.sentences
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_record_directory_is_not_writable(launcher: Launcher) -> None:
    launcher.state.mkdir(mode=0o500)
    done = launcher.run("run", launcher.local(2), launcher.script(TRAINER)).ran(73)
    assert "Permission denied" in done.sentences
    launcher.wait_until_nothing_is_left()


def test_a_run_directory_that_cannot_be_made(launcher: Launcher) -> None:
    launcher.forget_agent()
    launcher.hosts.write_text("a file where the runs should be")
    done = launcher.run("run", launcher.local(2), launcher.script(TRAINER)).ran(69)
    assert str(launcher.hosts) in done.sentences
    assert "run_dir:" in done.sentences
    launcher.wait_until_nothing_is_left()


@pytest.fixture
def small_disk(launcher: Launcher) -> Iterator[Path]:
    """A file system of 1 MiB, as long as the test lasts."""
    path = launcher.directory / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=200", "tflaunch-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root and the right to mount: a disk that is full")
    try:
        yield path
        launcher.wait_until_nothing_is_left()
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            return


def test_a_full_disk_on_a_host_before_it_starts(launcher: Launcher, small_disk: Path) -> None:
    fill(small_disk)
    hostfile = launcher.hostfile(
        ["local1", {"name": "local2", "run_dir": str(small_disk)}], connection="local"
    )
    done = launcher.run("run", hostfile, launcher.script(TRAINER)).ran(69)
    assert "No space left on device" in done.sentences
    assert "MiB" in done.sentences  # how much is free
    assert "run_dir:" in done.sentences
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()


def test_code_that_does_not_fit_on_the_disk_of_a_host(launcher: Launcher, small_disk: Path) -> None:
    script = launcher.script(TRAINER)
    (script.parent / "weights").write_bytes(os.urandom(2 << 20))
    hostfile = launcher.hostfile(
        ["local1", {"name": "local2", "run_dir": str(small_disk)}], connection="local"
    )
    done = launcher.run("run", hostfile, script, "--ps=0", "--workers=2").ran(70)
    assert "No space left on device" in done.sentences
    assert "local1" not in done.err.partition("✗")[2]
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()
    assert launcher.records() == []
    assert not [path for path in small_disk.rglob("*") if path.is_file()]


def test_a_disk_of_a_host_that_fills_up_while_it_trains(launcher: Launcher, small_disk: Path) -> None:
    trainer = launcher.script(
        """
        import os, sys, time
        for number in range(40_000):
            try:
                os.write(1, b"line %d and a good many more words to fill the disk\\n" % number)
            except OSError as error:
                sys.exit(3)
        """
    )
    hostfile = launcher.hostfile(["local1"], connection="local", run_dir=str(small_disk))
    done = launcher.run("run", hostfile, trainer, "--ps=0", "--workers=1").ran(3)  # the task's own code
    assert "exited with code 3" in done.sentences


def test_a_record_on_a_full_disk(launcher: Launcher, small_disk: Path) -> None:
    fill(small_disk)
    done = launcher.run(
        *("run", launcher.local(2), launcher.script(TRAINER)),
        env={"TFLAUNCH_STATE": str(small_disk / "state")},
    ).ran(73)
    assert "No space left on device" in done.sentences
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()


def test_a_record_whose_disk_fills_up_does_not_end_the_run(launcher: Launcher, small_disk: Path) -> None:
    trainer = launcher.script("for number in range(40_000):\n    print('line', number, 'x' * 60)")
    done = launcher.run(
        *("run", launcher.local(1), trainer, "--ps=0", "--workers=1"),
        env={"TFLAUNCH_STATE": str(small_disk / "state")},
    ).ran(73)
    assert "No space left on device" in done.sentences
    assert "its exit code is 73 if nothing else fails" in done.sentences
    assert "succeeded: 1 task" in done.sentences
    assert len(done.out.splitlines()) == 40_000
