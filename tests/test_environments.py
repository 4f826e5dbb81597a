"""What the tasks' Python finds: environments of the hostfile, and requirements that hosts install, here offline."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tflaunch.agent.tasks import environment

from tests.agent_over_pipes import Channel, Host, descriptors, staged, task
from tests.launcher import Launcher, alive, until
from tflaunch.agent import processes
from tflaunch.hosts import Host as Entry
from tflaunch.planning import environments
from tflaunch.planning.environments import read, to_prepare
from tflaunch.protocol import wire
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import JobSpec, Requirements

SAY = 'import os, sys, tiny; print(tiny.value, "of", os.path.realpath(sys.prefix), os.environ.get("VIRTUAL_ENV"))'


def wheel(directory: Path, name: str, version: str, source: str) -> Path:
    """A package of one module, as an index would have it."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{name}.py", source)
        packed.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What there is instead of an index: `tiny` in two versions."""
    directory = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        wheel(directory, "tiny", version, f"value = {version!r}\n")
    return directory


def requirements(directory: Path, wheels: Path, *lines: str) -> Path:
    """A requirements.txt that needs no network."""
    path = directory / "requirements.txt"
    path.write_text("\n".join(["--no-index", f"--find-links {wheels}  # no index", *lines, ""]))
    return path


def made(parent: Path) -> list[Path]:
    """The environments that are whole, and nothing else may be there but their locks."""
    found = sorted(path.parent for path in parent.glob(".environments/*/made.json"))
    assert sorted((parent / ".environments").iterdir()) == sorted(
        [*found, *(path.with_name(path.name + ".lock") for path in found)]
    )
    return found


# --- as a user sees it


def test_hosts_install_requirements_once(launcher: Launcher, wheels: Path) -> None:
    """Two hosts on one disk make one environment; it is there the next time; what is installed is on PATH."""
    (launcher.code / "constraints.txt").write_text("tiny<2\n")
    path = requirements(launcher.code, wheels, "-c constraints.txt", "tiny")
    script = launcher.script(SAY)
    words = ["--ps", "0", "--workers", "2", "--requirements", path]
    first = launcher.run("run", launcher.local(2), script, *words).ran()
    assert "installed 2/2" in first.err
    (parent,) = launcher.hosts.iterdir()
    (environment_path,) = made(parent)
    for name in ("worker/0", "worker/1"):
        assert f"{name} │ 1.0 of {environment_path} {environment_path}" in first.out
    before = (environment_path / "pyvenv.cfg").stat()
    (launcher.code / "constraints.txt").write_text("# only a comment\n\ntiny<2\n")
    launcher.run("run", launcher.local(1), script, *words[:3], "1", *words[4:]).ran()
    assert (environment_path / "pyvenv.cfg").stat() == before, "made anew"
    checked = launcher.run("check", launcher.local(1), "--no-tensorflow", "--json", *words[4:]).ran()
    (there,) = json.loads(checked.out)["hosts"]
    assert there["task"]["report"]["executable"].startswith(f"{environment_path}/")


def test_what_cannot_be_installed_is_told_in_the_installers_words(launcher: Launcher, wheels: Path) -> None:
    """Of both hosts in one row; and nothing half is left."""
    path = requirements(launcher.code, wheels, "tiny==3.0")
    script = launcher.script(SAY)
    wrong = launcher.run(
        "run", launcher.local(2), script, "--ps", "0", "--workers", "2", "--requirements", path
    )
    assert "No matching distribution found for tiny==3.0" in wrong.ran(70).sentences
    assert "correct requirements.txt" in wrong.sentences
    (parent,) = launcher.hosts.iterdir()
    assert not list(parent.glob(".environments/*/*"))
    assert launcher.run_directories() == []


def test_ctrl_c_while_it_installs_leaves_nothing_half(
    launcher: Launcher, wheels: Path, tmp_path: Path
) -> None:
    """The installer and all that it has started ends with the launcher."""
    pid = tmp_path / "pid"
    python = tmp_path / "python"  # a Python whose installer never ends
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *venv*) mkdir -p "$(eval echo \\$$#)/bin"; echo $$ > {pid}.new; mv {pid}.new {pid}; '
        f'sleep 300;; *) exec {sys.executable} "$@";; esac\n'
    )
    python.chmod(0o755)
    path = requirements(launcher.code, wheels, "tiny")
    hosts = launcher.local(1, python=str(python))
    with launcher.start("run", hosts, launcher.script(SAY), "--ps", "0", "--requirements", path) as running:
        until(pid.exists, "the installer")
        running.interrupt()
        assert running.end() == 130
    assert "nothing is left" in running.err
    (parent,) = launcher.hosts.iterdir()
    until(lambda: not alive(int(pid.read_text())), "the installer to be gone")
    assert not [path for path in (parent / ".environments").iterdir() if path.suffix != ".lock"]
    launcher.wait_until_nothing_is_left()


def test_trials_and_bare_servers_are_in_it_too(launcher: Launcher, wheels: Path) -> None:
    """A trial that is tried again as well; a server in it finds no TensorFlow, which it lacks."""
    path = requirements(launcher.code, wheels, "tiny")
    script = launcher.script(SAY + "\nsys.exit(os.environ['TFLAUNCH_ATTEMPT'] == '0')")
    words = ["--grid", "x=1,2", "--retries", "1", "--requirements", path, "--name", "lab"]
    swept = launcher.run("sweep", launcher.local(1), script, *words).ran()
    assert "installed 1/1" in swept.err
    (parent,) = launcher.hosts.iterdir()
    (environment_path,) = made(parent)
    logs = [log for record in launcher.records() for log in sorted((record / "logs").glob("trial-*.log"))]
    told = {log.name: log.read_text() for log in logs}
    assert told == dict.fromkeys(
        ["trial-0.log", "trial-0.1.log", "trial-1.log", "trial-1.1.log"],
        f"2.0 of {environment_path} {environment_path}\n",
    )
    up = launcher.run(
        "up", launcher.local(1), "--ps=0", "--workers=1", "--restarts=0", "--requirements", path
    )
    assert f"{environment_path}/bin/python3: No module named tensorflow" in up.ran(1).sentences


def test_venv_and_conda_of_the_hostfile(launcher: Launcher, tmp_path: Path) -> None:
    """Activated after the setup, by their own hooks; one that is not there is told."""
    venv, conda = tmp_path / "ve nv", tmp_path / "conda"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (conda / "conda-meta").mkdir(parents=True)
    hooks = conda / "etc" / "conda" / "activate.d"
    hooks.mkdir(parents=True)
    (hooks / "gdal.sh").write_text('export FROM_HOOK="$FROM_SETUP in $CONDA_PREFIX"\n')
    (conda / "bin").mkdir()
    (conda / "bin" / "python3").symlink_to(sys.executable)
    script = launcher.script("import os, sys; print(sys.executable, os.environ.get('FROM_HOOK'))")
    hosts = launcher.hostfile(
        [
            {"name": "v", "venv": str(venv)},
            {"name": "c", "conda": str(conda), "setup": "export FROM_SETUP=set"},
        ],
        connection="local",
    )
    done = launcher.run("run", hosts, script, "--ps", "0", "--workers", "2").ran()
    assert f"worker/0 │ {venv}/bin/python3 None" in done.out
    assert f"worker/1 │ {conda}/bin/python3 set in {conda}" in done.out
    for key, said in (
        ("venv", "venv: there is no /no/such/bin/activate"),
        ("conda", "no environment at /no/such"),
    ):
        hosts = launcher.local(1, **{key: "/no/such"})
        assert said in launcher.run("run", hosts, script, "--ps", "0").ran(70).sentences
        assert said in launcher.run("sweep", hosts, script, "--grid", "x=1").ran(70).sentences


def test_hadoop_is_set_up_as_the_documentation_says(launcher: Launcher, tmp_path: Path) -> None:
    """The lines of docs/environments.md, with a `hadoop` that answers; credentials come by --env NAME alone."""
    page = (Path(__file__).parents[1] / "docs" / "environments.md").read_text()
    recipe = page.partition("```yaml\n")[2].partition("```")[0]
    home = tmp_path / "hadoop"
    (home / "bin").mkdir(parents=True)
    hadoop = home / "bin" / "hadoop"
    hadoop.write_text(
        '#!/bin/sh\n[ "$*" = "classpath --glob" ] && echo "/etc/hadoop:/jars/a.jar:/jars/b.jar"\n'
    )
    hadoop.chmod(0o755)
    import yaml

    settings = yaml.safe_load(recipe)["defaults"]
    settings["setup"] = [line.replace("/opt/hadoop", str(home)) for line in settings["setup"]]
    script = launcher.script(
        "import os\nfor name in ('HADOOP_HDFS_HOME', 'CLASSPATH', 'LD_LIBRARY_PATH', 'KEY', 'OTHER'):\n"
        "    print(name, os.environ.get(name))\n"
    )
    done = launcher.run(
        "run", launcher.local(1, **settings), script, "--ps", "0", "--env", "KEY",
        env={"KEY": "from the launcher", "JAVA_HOME": "/java", "LD_LIBRARY_PATH": ""},
    ).ran()  # fmt: skip
    lines = [line.partition("│ ")[2] for line in done.out.splitlines()]
    assert lines[0] == f"HADOOP_HDFS_HOME {home}"
    assert lines[1] == "CLASSPATH /etc/hadoop:/jars/a.jar:/jars/b.jar"
    assert "/jre/lib/amd64/server" in lines[2] or "/lib/server" in lines[2]
    assert lines[3:] == ["KEY from the launcher", "OTHER None"]


# --- on one host


def prepare(channel: Channel, wanted: Requirements, **more: object) -> Channel:
    """Ask for it."""
    fields = to_prepare(Entry("here", python=sys.executable), JobSpec((), requirements=wanted), [])
    channel.send("prepare", **{**fields, **more})
    return channel


def prepared(channel: Channel) -> wire.Message:
    """What came of it: an installer takes its time on a busy machine."""
    while message := channel.next(120.0):
        if message.type in ("prepared", "failed"):
            return message
    raise AssertionError(channel.last_words())


def waits_for(agent: int, lock: str) -> bool:
    """Whether a child of that process has this file open."""
    for process in processes.descendants(agent, processes.every()):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            if lock in descriptors(process.pid).values():
                return True
    return False


def simple(wheels: Path, *lines: str, **more: object) -> Requirements:
    text = f"--no-index\n--find-links {wheels}\n" + "".join(f"{line}\n" for line in lines)
    return Requirements("pip", "r.txt", {"r.txt": text}, **more)  # type: ignore[arg-type]


@pytest.fixture
def second(tmp_path: Path, host: Host) -> Iterator[Host]:
    """Another run on the same machine."""
    other = Host(tmp_path)
    other.run += "-second"
    yield other
    other.close()


def test_two_runs_that_want_the_same_make_it_once(host: Host, second: Host, wheels: Path) -> None:
    """The one waits for the other's; and it stays as long as a run uses it, then as long as `clean` says."""
    channels = [host.start(), second.start()]
    for channel in channels:
        prepare(channel, simple(wheels, "tiny==1.0"))
    assert sorted(prepared(channel)["made"] for channel in channels) == [False, True]
    (path,) = made(host.parent)
    aged = os.open(path.parent, os.O_RDONLY)  # as systemd-tmpfiles does, to remove what nobody has touched
    with pytest.raises(BlockingIOError):
        fcntl.flock(aged, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(aged)
    staged(channels[0], task("sleep", "600"))
    (planned,) = json.loads((host.directory / "plan.json").read_text())["tasks"]
    assert str(path) in "".join(planned["setup"]), "TensorBoard is started by what is written there"
    old = 30 * 86400
    os.utime(path / "made.json", (1, 1))
    visit = host.open("visit", run="", host="")
    clean = {"runs": [], "code_older_s": old, "dry_run": False, "answer": "cleaned"}
    assert visit.ask("clean", **clean)["environments"]["files"] == 0  # type: ignore[arg-type]
    assert visit.ask("measure", answer="usage")["environment_bytes"] > 10_000
    for channel in channels:
        channel.ask("end", grace_s=0.0, answer="swept")
        channel.leave()
        assert channel.wait_end() == 0
    lock = Path(f"{path}.lock")
    until(
        lambda: not any(str(lock) in set(descriptors(p).values()) for p in host._watched if alive(p)),
        "agents",
    )
    os.utime(path / "made.json")
    assert visit.ask("clean", **clean)["environments"]["files"] == 0  # type: ignore[arg-type]
    os.utime(path / "made.json", (1, 1))
    cleaned = visit.ask("clean", **clean)["environments"]  # type: ignore[arg-type]
    assert cleaned["files"] == 1
    assert cleaned["bytes"] > 10_000
    assert list((host.parent / ".environments").iterdir()) == []


def test_what_was_killed_half_way_is_made_anew(host: Host, wheels: Path) -> None:
    """An environment without its last file is nobody's."""
    channel = prepare(host.start(), simple(wheels, "tiny==2.0"))
    prepared(channel)
    channel.ask("end", grace_s=0.0, answer="swept")
    (path,) = made(host.parent)
    (path / "made.json").unlink()
    shutil.rmtree(path / "lib")
    host.run += "-again"
    assert prepared(prepare(host.start(), simple(wheels, "tiny==2.0")))["made"] is True
    assert made(host.parent) == [path]
    assert list(path.glob("lib/*/site-packages/tiny.py"))


def test_the_agent_does_not_wait_for_who_makes_it_anew(host: Host, wheels: Path) -> None:
    """What it has found may be taken away before it holds it: then it waits aside."""
    channel = prepare(host.start(), simple(wheels, "tiny==1.0"))
    prepared(channel)
    (path,) = made(host.parent)
    channel.ask("end", grace_s=0.0, answer="swept")
    channel.leave()
    assert channel.wait_end() == 0
    host.run += "-again"
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    with Path(f"{path}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepare(channel, simple(wheels, "tiny==1.0"))
        until(lambda: waits_for(agent, lock.name), "the process that prepares")
        os.kill(agent, signal.SIGSTOP)
        fcntl.flock(lock, fcntl.LOCK_UN)
        until(lambda: not waits_for(agent, lock.name), "it to have found the environment")
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.kill(agent, signal.SIGCONT)
        until(lambda: waits_for(agent, lock.name), "the next one")
        channel.ask("clock", sent=1.0, answer="clock")
    assert prepared(channel)["made"] is False
    assert str(path) + ".lock" in descriptors(agent).values()


def test_system_site_packages_are_those_of_the_interpreter_itself(
    host: Host, wheels: Path, tmp_path: Path
) -> None:
    """Also where that is of a virtual environment, whose packages venv alone would not show."""
    outer = tmp_path / "outer"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", outer], check=True)
    (tmp_path / "editable").mkdir()
    (tmp_path / "editable" / "heavy.py").write_text("value = 'heavy'\n")
    (next(outer.glob("lib/*/site-packages")) / "of-pip.pth").write_text(f"{tmp_path / 'editable'}\n")
    wanted = simple(wheels, "tiny", system_site=True)
    assert prepared(prepare(host.start(), wanted, python=str(outer / "bin" / "python")))["made"] is True
    (path,) = made(host.parent)
    words = [path / "bin" / "python", "-c", "import heavy, tiny; print(heavy.value, tiny.value)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "heavy 2.0\n"


UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(UV is None, reason="there is no uv here")
@pytest.mark.parametrize("kind", ["project", "lock"])
def test_projects_need_uv(host: Host, wheels: Path, tmp_path: Path, kind: str) -> None:
    """pyproject.toml, and uv.lock beside it; a host without uv says so."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = ["tiny==1.0"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n'
    )
    assert UV is not None
    if kind == "lock":
        env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run([UV, "lock", "--quiet", "--offline"], cwd=project, env=env, check=True)
    wanted = read(project / "pyproject.toml")
    assert (wanted.kind, wanted.name) == (kind, {"lock": "uv.lock", "project": "pyproject.toml"}[kind])
    without = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    failed = prepared(prepare(host.start(), wanted, env=without))
    assert failed["reason"] == f"{wanted.name} needs uv, and there is no uv on this host"
    host.run += "-again"
    path = {"PATH": f"{Path(UV).parent}:/usr/bin:/bin", "UV_CACHE_DIR": str(tmp_path / "cache")}
    assert prepared(prepare(host.start(), wanted, env=path))["made"] is True
    (path_made,) = made(host.parent)
    assert list(path_made.glob("lib/*/site-packages/tiny.py"))


# --- what is read on the launcher's machine


def test_included_files_go_along_and_comments_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    top = tmp_path / "requirements.txt"
    top.write_text(
        "# all\ntensorflow==2.18 \\\n   ; python_version > '3'  # why\n-r sub/more.txt\n--hash-less\n"
    )
    (tmp_path / "sub" / "more.txt").write_text("--requirement=../requirements.txt\n-cpins.txt\nnumpy\n")
    (tmp_path / "sub" / "pins.txt").write_text("numpy<3\n")
    found = read(top)
    assert found.files == {
        "requirements.txt": "tensorflow==2.18    ; python_version > '3'\n-r 1-more.txt\n--hash-less\n",
        "1-more.txt": "--requirement requirements.txt\n-c 2-pins.txt\nnumpy\n",
        "2-pins.txt": "numpy<3\n",
    }
    before = found.digest
    top.write_text(top.read_text().replace("# all", "# everything"))
    assert read(top).digest == before
    (tmp_path / "sub" / "pins.txt").write_text("numpy<2\n")
    assert read(top).digest != before
    json.dumps(to_prepare(Entry("here"), JobSpec((), requirements=found), []))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n-e ../mine\n", ":2: ../mine is on this machine"),
        ("--editable=.\n", ":1: . is on this machine"),
        ("./mine.whl\n", ":1: ./mine.whl is on this machine"),
        ("wheels/mine-1-py3-none-any.whl\n", "is on this machine"),
        ("mine @ file:../mine\n", "is on this machine"),
        ("--find-links wheels\n", ":1: wheels is on this machine"),
        ("-r nowhere.txt\n", ":1: -r nowhere.txt: there is no such file"),
    ],
)
def test_what_only_this_machine_has_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(UsageError) as raised:
        read(tmp_path / "r.txt")
    assert said in raised.value.message


@pytest.mark.parametrize(
    "line",
    ["-e git+https://x.org/a.git#egg=a", "a @ https://x.org/a.whl", "https://x.org/a.whl", "/nfs/a-1.whl", "-f /nfs/w",
     "--extra-index-url https://x.org/simple", "a[b]>=1,<2", "a @ file:///nfs/a.whl"],
)  # fmt: skip
def test_what_hosts_may_have_is_left_as_it_is(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line + "\n")
    assert read(tmp_path / "r.txt").files == {"r.txt": line + "\n"}


def test_projects_with_local_parts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.uv.sources]\nmine = { path = "../mine" }\n')
    with pytest.raises(UsageError, match=r"pyproject.toml:2: \.\./mine is on this machine"):
        read(tmp_path / "pyproject.toml")
    sources = ['virtual = "."', 'editable = "../m"']
    (tmp_path / "uv.lock").write_text("".join(f"[[package]]\nsource = {{ {each} }}\n" for each in sources))
    with pytest.raises(UsageError, match=r"uv.lock:4: \.\./m is on this machine"):
        read(tmp_path / "uv.lock")
    with pytest.raises(UsageError, match="there is no such file"):
        read(tmp_path / "none.txt")


def test_setup_of_a_host_is_its_own_first() -> None:
    from tflaunch.hosts import Host as HostOfFile

    assert environments.setup(HostOfFile(name="a", setup=("one",))) == ("one",)
    first, conda, venv = environments.setup(
        HostOfFile(name="a", setup=("one",), venv="~/my venv", conda="tf")
    )
    assert first == "one"
    assert conda.endswith("tflaunch_conda tf")
    assert venv.endswith(". \"$HOME\"'/my venv'/bin/activate")
    assert environment.activation("/a b").startswith("export VIRTUAL_ENV='/a b';")
