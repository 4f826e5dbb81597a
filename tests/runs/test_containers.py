"""Tasks in containers of a real podman, or docker where its daemon answers; skipped, with the reason, where none works.

The image holds nothing but directories and links: the programs in it are this machine's own `/usr`, mounted.
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.launcher import Launcher
from tests.support.numa import why_no_policies
from tests.support.patience import until
from tflaunch.agent.host import container

IMAGE = "localhost/tflaunch-test:1"
# Where root lacks CAP_SYS_RESOURCE the default limits cannot be set, and crun wants cgroups of one version.
MODEST = """\
[containers]
default_ulimits = ["nproc=1024:1024", "nofile=4096:4096"]
[engine]
runtime = "runc"
"""


# Writes down what it finds, joins the port that is held for it, and does what the test wants.
TRAINER = """\
import json, os, signal, socket, subprocess, sys, time
cluster = json.loads(os.environ["TF_CONFIG"])
mine = cluster["cluster"][cluster["task"]["type"]][cluster["task"]["index"]]
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
listener.bind(("::", int(mine.rpartition(":")[2])))
listener.listen()
open("written", "w").close()
print("process", os.getpid(), "of", os.getuid(), "in", os.getcwd(), "with", repr(os.environ.get("SECRET")), flush=True)
print("set up:", os.environ.get("SET_UP"), "home:", os.environ.get("HOME"), "saw:", os.listdir("/seen"), flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine that works here, with a store of its own."""

    kind: str
    env: Mapping[str, str]

    def run(self, *words: str) -> str:
        """What `podman WORDS` or `docker WORDS` prints."""
        done = subprocess.run(
            [self.kind, *words], env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        """Those that there are, ended ones too."""
        return self.run("ps", "--all", "--quiet", "--filter", "ancestor=" + IMAGE).split()


def _image() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("usr", "sbin", "etc", "tmp", "proc", "sys", "dev", "seen"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, "usr/" + name
            tar.addfile(entry)
    return packed.getvalue()


def _engine(kind: str, directory: Path) -> Engine | str:
    """It, or why it does not work here."""
    if not shutil.which(kind):
        return f"there is no {kind} here"
    if not os.path.islink("/bin"):  # noqa: PTH114
        return "the image of the tests wants /bin to be in /usr"
    storage = directory / "storage.conf"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n'
    )
    (directory / "modest.conf").write_text(MODEST)
    own = {"CONTAINERS_STORAGE_CONF": str(storage)} if kind == "podman" else {}
    why = ""
    for more in ({}, {"CONTAINERS_CONF": str(directory / "modest.conf")}) if kind == "podman" else ({},):
        env = {**os.environ, **own, **more}
        for words in (
            ["import", "-", IMAGE],
            ["run", "--rm", "--init", "--network=host", "--volume=/usr:/usr:ro", IMAGE, "/bin/true"],
        ):
            done = subprocess.run([kind, *words], input=_image(), env=env, capture_output=True, check=False)
            if done.returncode:
                why = f"{kind} {words[0]}: {done.stderr.decode().strip()}"
                break
        else:
            return Engine(kind, {**own, **more})
    return why


@pytest.fixture(scope="module", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that works, with the image."""
    found = _engine(request.param, tmp_path_factory.mktemp(request.param))
    if isinstance(found, str):
        pytest.skip(found)
    yield found
    assert found.containers() == []
    found.run("rmi", IMAGE)


def hostfile(launcher: Launcher, count: int = 1, **defaults: object) -> Path:
    """Hosts that are this machine, their tasks in containers."""
    return launcher.local(count, container=IMAGE, mounts=["/usr:/usr:ro"], **defaults)


def test_a_shell_script_runs_in_a_container_and_what_its_python_cannot_read_starts_in_none(
    launcher: Launcher, engine: Engine
) -> None:
    script = launcher.script('#!/bin/sh -e\necho "runs $2"\n', name="train.sh")
    words = ("--ps=0", "--workers=1")
    done = launcher.run("run", hostfile(launcher), script, *words, env=engine.env).ran()
    assert re.search("worker/0 │ runs --worker_hosts=", done.out)
    broken = launcher.script("def f(:\n    pass\n")
    failed = launcher.run("run", hostfile(launcher, 2), broken, "--ps=0", "--workers=2", env=engine.env)
    assert failed.code == 70
    assert failed.sentences.count("trainer.py:1:7: SyntaxError") == 1


@pytest.mark.skipif(os.sched_getaffinity(0) < {0, 1}, reason="CPUs 0 and 1 are not there")
def test_tasks_in_containers_are_bound(launcher: Launcher, engine: Engine, tmp_path: Path) -> None:
    """Also by a runtime that gives each container all cores, as runc does from 1.2 on."""
    env = dict(engine.env)
    if engine.kind == "podman":
        runtime = engine.run("info", "--format", "{{.Host.OCIRuntime.Path}}").strip()
        (tmp_path / "frees").write_text(f'#!/bin/sh\nexec taskset -c 0,1 {runtime} "$@"\n')
        (tmp_path / "frees").chmod(0o755)
        conf = MODEST.replace(
            'runtime = "runc"', f'runtime = "frees"\n[engine.runtimes]\nfrees = ["{tmp_path}/frees"]'
        )
        (tmp_path / "frees.conf").write_text(conf)
        env["CONTAINERS_CONF"] = str(tmp_path / "frees.conf")
    script = launcher.script(
        "import os; print('cores', sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)"
    )
    words = ("--ps=0", "--workers=2", "--bind=cores", "--container-engine", engine.kind)
    done = launcher.run("run", hostfile(launcher), script, *words, env=env).ran()
    assert sorted(re.findall(r"(worker/\d) │ cores (.*)", done.out)) == [
        ("worker/0", "[0] 1"),
        ("worker/1", "[1] 1"),
    ]


def test_numactl_is_that_of_the_image(launcher: Launcher, engine: Engine) -> None:
    """Which docker would forbid by its own rules for system calls."""
    if why := why_no_policies():
        pytest.skip(why)
    script = launcher.script(
        "import subprocess; print(subprocess.check_output(['numactl', '--show'], text=True))"
    )
    words = ("--ps=0", "--workers=1", "--memory-policy=interleave", "--container-engine", engine.kind)
    assert (
        "policy: interleave"
        in launcher.run("run", hostfile(launcher), script, *words, env=engine.env).ran().out
    )


def test_a_task_in_a_container_is_like_any_other(launcher: Launcher, engine: Engine, tmp_path: Path) -> None:
    """It joins its port, runs as the user, in the shipped code; its variables are nowhere but in itself."""
    (tmp_path / "seen" / "it").mkdir(parents=True)
    script = launcher.script(TRAINER + "print(engine_knows())\n")
    knows = """\
def engine_knows():
    words = [open(f"/proc/{each}/cmdline").read() for each in os.listdir("/proc") if each.isdigit()]
    return f"told: {any('two' in each for each in words)}"
"""
    script.write_text(knows + script.read_text())
    hosts = hostfile(launcher, 2, setup=["export SET_UP=by-the-setup", "echo in the setup", "test -d /seen"])
    done = launcher.run(
        "run", hosts, script, "--ps", "0", "--workers", "2", "--container-engine", engine.kind,
        "--mount", f"{tmp_path}/seen:/seen:ro", "--env", "SECRET=one\ntwo", "--env", "HOME=/nowhere", env=engine.env,
    ).ran()  # fmt: skip
    for task, host in (("worker/0", "local1"), ("worker/1", "local2")):
        (work,) = launcher.hosts.glob(f"tflaunch-*/*/{host}/work")
        lines = [line.partition("│ ")[2] for line in done.out.splitlines() if line.startswith(task)]
        assert lines[0] == "in the setup"
        assert lines[1].endswith(rf"of {os.getuid()} in {work} with 'one\ntwo'")
        assert lines[2:] == ["set up: by-the-setup home: /nowhere saw: ['it']", "told: False"]
        assert (work / "written").stat().st_uid == os.getuid()
    launcher.run("check", hosts, "--no-tensorflow", "--container-engine", engine.kind, env=engine.env).ran()
    assert engine.containers() == []


def test_a_trial_in_a_container_has_the_code_in_a_directory_of_its_own(
    launcher: Launcher, engine: Engine
) -> None:
    """Two of them one after the other on one host; nothing is left of either."""
    (launcher.code / "data.txt").write_text("shipped")
    script = launcher.script(
        "import os, sys; open('mine', 'x').close()\n"
        "print(sys.argv[1:], open('data.txt').read(), os.environ['SET_UP'], os.path.exists('/seen'), os.getcwd())"
    )
    hosts = hostfile(launcher, setup="export SET_UP=yes")
    words = ["--grid", "x=1,2", "--container-engine", engine.kind]
    launcher.run("sweep", hosts, script, *words, env=engine.env).ran()
    (record,) = launcher.records()
    for number in (0, 1):
        (own,) = launcher.hosts.glob(f"tflaunch-*/*/local1/own/trial-{number}")
        said = (record / "logs" / f"trial-{number}.log").read_text()
        assert said == f"['--x={number + 1}'] shipped yes True {own}\n"
        assert (own / "mine").exists()
    assert engine.containers() == []


def test_ctrl_c_reaches_what_ignores_it(launcher: Launcher, engine: Engine) -> None:
    """TERM, the grace, KILL; what it has started in there, in a session of its own, ends as well."""
    script = launcher.script(
        TRAINER
        + """
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
child = subprocess.Popen(["/bin/sleep", "300"], start_new_session=True, env={})
print("ready", flush=True)
while True: time.sleep(300)
"""
    )
    words = ["--ps", "0", "--workers", "1", "--grace", "1", "--container-engine", engine.kind]
    with launcher.start("run", hostfile(launcher), script, *words, env=engine.env) as running:
        running.wait_for("ready")
        assert len(engine.containers()) == 1
        running.interrupt()
        running.wait_for("heard")
        assert running.end() == 130, running.err
    assert engine.containers() == []
    assert "still alive" not in running.err


def test_it_starts_again(launcher: Launcher, engine: Engine) -> None:
    """A task that is killed from outside starts again in a container of its own."""
    script = launcher.script(
        TRAINER
        + """
attempt = os.environ["TFLAUNCH_ATTEMPT"]
print("attempt", attempt, flush=True)
while attempt == "0": time.sleep(300)
"""
    )
    words = ["--ps", "0", "--workers", "1", "--restarts", "1", "--container-engine", engine.kind]
    with launcher.start("run", hostfile(launcher), script, *words, env=engine.env) as running:
        running.wait_for("attempt 0")
        inside = container.inside(running.run_id, "local1", "worker/0")
        assert len(inside) >= 2  # the container's process 1, and the program
        os.kill(inside[-1].pid, signal.SIGKILL)
        running.wait_for("attempt 1")
        done = running.done().ran()
    assert "137" in done.err or "SIGKILL" in done.err
    assert engine.containers() == []


def test_stop_removes_what_outlived_its_agent(launcher: Launcher, engine: Engine) -> None:
    """Agent, guard and launcher are killed at once: nobody but the engine knows of the container."""
    script = launcher.script(TRAINER + "print('ready', flush=True)\ntime.sleep(300)\n")
    words = ["--ps", "0", "--workers", "1", "--container-engine", engine.kind]
    with launcher.start("run", hostfile(launcher), script, *words, env=engine.env) as running:
        running.wait_for("ready")
        run = running.run_id
        agents = launcher.agents()
        for pid in (running.process.pid, agents["guard"], agents["agent"]):
            os.kill(pid, signal.SIGKILL)
    assert len(engine.containers()) == 1
    stopped = launcher.run("stop", run, env=engine.env)
    assert engine.containers() == [], stopped.err
    until(lambda: not container.inside(run, "local1", "worker/0"), "the container's processes to be gone")


def test_an_image_that_cannot_be_had(launcher: Launcher, engine: Engine) -> None:
    """Its hosts are one row, and nothing was started."""
    script = launcher.script("print()")
    words = ["--ps", "0", "--container", "localhost:1/none", "--container-engine", engine.kind]
    wrong = launcher.run("run", launcher.local(2), script, *words, env=engine.env).ran(70)
    assert "the image localhost:1/none cannot be fetched" in wrong.sentences
    assert f"try it there: {engine.kind} pull localhost:1/none" in wrong.sentences
    launcher.wait_until_no_run_is_kept()


def test_a_program_that_the_image_lacks(launcher: Launcher, engine: Engine) -> None:
    script = launcher.script("print()")
    words = ["--ps", "0", "--container-engine", engine.kind]
    wrong = launcher.run("run", hostfile(launcher, python="python9"), script, *words, env=engine.env).ran(70)
    assert "no program python9 in this image" in wrong.sentences


@pytest.mark.parametrize(
    ("engine", "said"), [("no-such-engine", "no no-such-engine on this host"), ("false", "false --version:")]
)
def test_no_engine(launcher: Launcher, engine: str, said: str) -> None:
    script = launcher.script("print()")
    words = ["--ps", "0", "--container", "x", "--container-engine", engine]
    assert said in launcher.run("run", launcher.local(1), script, *words).ran(70).sentences


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mount", "/data"], "--mount /data without a container"),
        (["--container", "x", "--mount", "data:/data"], "--mount data:/data: it is not SOURCE[:TARGET[:ro]]"),
        (
            ["--container", "x", "--requirements", "r.txt"],
            "tasks run in the container x, which has its own packages",
        ),
    ],
)
def test_what_makes_no_sense(launcher: Launcher, words: list[str], said: str) -> None:
    script = launcher.script("print()")
    assert said in launcher.run("run", launcher.local(1), script, *words).ran(2).sentences


def test_the_stacks_of_a_task_in_a_container(launcher: Launcher, engine: Engine) -> None:
    script = launcher.script(
        TRAINER + "def batches():\n    time.sleep(300)\nprint('ready', flush=True)\nbatches()\n"
    )
    words = ["--ps", "0", "--workers", "1", "--container-engine", engine.kind]
    with launcher.start("run", hostfile(launcher), script, *words, env=engine.env) as running:
        running.wait_for("ready")
        shown = launcher.run("stacks", env=engine.env).ran().out
        assert re.search(r"→ trainer\.py:\d+ in batches\(\)", shown), shown
        running.interrupt()
        assert running.end() == 130, running.err


def test_a_guard_that_removes_the_container_of_a_killed_agent_was_not_killed(
    launcher: Launcher, engine: Engine
) -> None:
    script = launcher.script(TRAINER + "print('ready', flush=True)\ntime.sleep(300)\n")
    words = ["--ps", "0", "--workers", "1", "--container-engine", engine.kind]
    with launcher.start("run", hostfile(launcher), script, *words, env=engine.env) as running:
        running.wait_for("ready")
        os.kill(launcher.agents()["agent"], signal.SIGKILL)
        done = running.done().ran(76)
    assert engine.containers() == []
    assert "agent and guard were killed" not in done.sentences
    assert "nothing is left running" in done.sentences
