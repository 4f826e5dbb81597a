"""What goes wrong without an enemy is told by its true cause, with its own sentence and the next step."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bed import Bed, BedHost, FarLauncher
from tests.support.bed.machines import _cgroup
from tests.support.launcher import Done, Launcher
from tests.support.patience import until

ONE = ("--workers", "1", "--ps", "0")


def run(far: FarLauncher, host: BedHost, *words: str, **defaults: object) -> Done:
    """A run of one task on that host."""
    return far.run("run", far.hostfile([host], **defaults), far.script("print('trained')"), *ONE, *words)


def refusal(done: Done, code: int = 69) -> str:
    done.ran(code)
    for wrong in ("lost the agent", "defect", "Python 3.8", "\\x", "its own log"):
        assert wrong not in done.sentences
    return done.sentences


@pytest.mark.parametrize("inodes", [*range(3, 20, 2), 10, 30, 40])
def test_a_disk_without_room_for_more_files(far: FarLauncher, bed: Bed, inodes: int) -> None:
    [host] = bed.up(1)
    host.do("mkdir", "/var/tmp/small")
    options = f"mode=1777,size=200m,nr_inodes={inodes}"
    host.do("mount", "-t", "tmpfs", "-o", options, "tmpfs", "/var/tmp/small")
    done = run(far, host, run_dir="/var/tmp/small")
    if done.code:
        said = refusal(done, 70 if done.code == 70 else 69)
        assert re.search(r"No space left on device, [0-9.]+ MiB and 0 inodes are free", said)
        assert "make room there, or set `run_dir:` to another disk" in said
    assert done.code == 0 or inodes < 30  # what is kept for the next run takes nothing from this one
    far.wait_until_nothing_is_left()  # the agent takes leave when the launcher has


@pytest.mark.parametrize("mtu", [600, 1000, 1400])
def test_packets_that_are_too_large_for_the_network(far: FarLauncher, bed: Bed, mtu: int) -> None:
    [host] = bed.up(1)
    bed.narrow(bed.launcher, host, mtu)
    said = refusal(run(far, host, "--connect-timeout", "20"))
    assert "has not acknowledged " + ("the command" if mtu == 1400 else "what was sent after it") in said
    assert "are large packets lost between here and there (MTU)? try: ping -M do -s 1472 host1" in said


def test_a_server_that_is_frozen_in_the_key_exchange_may_be_overloaded(far: FarLauncher, bed: Bed) -> None:
    [host] = bed.up(1, options=["LoginGraceTime 0"])
    hostfile = far.hostfile([host])
    frozen = threading.Event()

    def freeze() -> None:
        until(lambda: "Connection from" in host.log(), "a connection")
        host.freeze()
        frozen.set()

    freezer = threading.Thread(target=freeze)
    freezer.start()
    done = far.run("run", hostfile, far.script("print()"), *ONE, "--connect-timeout", "3")
    freezer.join()
    host.thaw()
    if "did not end within" in done.sentences:  # else it froze before or after
        assert "is the host overloaded (give --connect-timeout)" in refusal(done)


@pytest.mark.parametrize("more", range(2, 7))
def test_a_host_that_lets_the_user_start_no_more_processes(far: FarLauncher, bed: Bed, more: int) -> None:
    [host] = bed.up(1)
    with host.at_most(more):
        done = run(far, host)
    if done.code:
        said = refusal(done, 70 if done.code == 70 else 69)
        assert "this host lets the user start no more processes" in said
        assert "ulimit -u, or TasksMax of systemd" in said
    assert done.code or more > 3


@pytest.fixture
def few() -> Iterator[Path]:
    """A cgroup for a command that may have but so many threads."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a cgroup")
    group = _cgroup("pids") / f"tflaunch-bed-{os.getpid()}-launcher"
    group.mkdir()
    yield group
    (group / "pids.max").write_text("max")

    def empty() -> bool:
        for pid in (group / "cgroup.procs").read_text().split():
            try:
                (group.parent / "cgroup.procs").write_text(pid)
            except ProcessLookupError:
                continue
        try:
            group.rmdir()
        except OSError:
            return False
        return True

    until(empty, f"{group} is empty")


@pytest.mark.parametrize("way", ["ssh", "local"])
@pytest.mark.parametrize("threads", [1, 2, 3, 5, 7])
def test_a_launcher_that_may_start_no_more_threads(
    launcher: Launcher, few: Path, threads: int, way: str
) -> None:
    if way == "ssh":
        assert launcher._network is not None
        hosts = launcher.hostfile([launcher._network.add().name for _ in range(4)])  # type: ignore[attr-defined]
    else:
        hosts = launcher.local(4)
    (few / "pids.max").write_text(str(threads))
    words = launcher.argv("run", hosts, launcher.script("print()"), "--workers", "4", "--ps", "0")
    limited = ["sh", "-c", f'echo $$ > {few}/cgroup.procs; exec "$@"', "sh", *map(os.fspath, words)]
    done = subprocess.run(
        limited, cwd=launcher.code, env=launcher.env(), capture_output=True, text=True, check=False
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 69, done.stderr
    assert "this machine, on which tflaunch was called, lets you start no more threads" in said
    assert "ulimit -u, or TasksMax of systemd" in said
    for wrong in ("Traceback", "defect", "banner"):
        assert wrong not in done.stderr


def test_more_hosts_than_this_process_may_open_files(launcher: Launcher) -> None:
    words = launcher.argv("run", "host[1-40]", launcher.script("print()"), "--workers", "4", "--ps", "0")
    limited = ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh", *map(os.fspath, words)]
    done = subprocess.run(
        limited, cwd=launcher.code, env=launcher.env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "40 hosts need 80 open files at least, and this process may have 60" in said
    assert "ulimit -Hn 120" in said


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        (
            "/usr/bin/python3",
            'does not run commands: File "<string>", line 1; SyntaxError: invalid ',
        ),  # syntax, or a literal: the run's id decides
        ("/usr/bin/perl", "does not run commands: Can't open perl script"),
        ("/usr/bin/git-shell", "does not run commands: fatal: unrecognized command"),
    ],
)
def test_a_login_shell_that_is_no_shell(far: FarLauncher, bed: Bed, shell: str, said: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"no {shell} here")
    [host] = bed.up(1)
    passwd = host.directory / "passwd"
    passwd.write_text(re.sub(r"(?m)^(root:.*:)[^:]*$", rf"\g<1>{shell}", passwd.read_text()))
    sentences = refusal(run(far, host))
    assert f"the login shell there {said}" in sentences
    assert "chsh -s /bin/bash" in sentences


@pytest.mark.parametrize("line", ["read line", "read -n 1 x", "head -c 100 >/dev/null"])
def test_a_bashrc_that_reads_what_is_sent_to_the_agent(far: FarLauncher, bed: Bed, line: str) -> None:
    [host] = bed.up(1)
    host.path("/home/root/.bashrc").write_text(f"{line}\n")
    sentences = refusal(run(far, host))
    assert "a start-up file of the login shell has read what was sent to the agent" in sentences
    assert "case $- in *i*) ;; *) return;; esac" in sentences
    assert "Traceback" not in sentences
    # The next step is true.
    guard = "case $- in *i*) ;; *) return;; esac\n"
    host.path("/home/root/.bashrc").write_text(f"{guard}{line}\n")
    assert run(far, host).ran().code == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cat >/dev/null", "a start-up file of the login shell does not end, or has read what was sent"),
        ("cat", "a start-up file of the login shell there reads what was sent to the agent"),
    ],
)
def test_a_bashrc_that_reads_for_ever(far: FarLauncher, bed: Bed, line: str, said: str) -> None:
    [host] = bed.up(1)
    host.path("/home/root/.bashrc").write_text(f"{line}\n")
    sentences = refusal(run(far, host, "--connect-timeout", "15"))
    assert said in sentences
    assert "case $- in *i*) ;; *) return;; esac" in sentences
