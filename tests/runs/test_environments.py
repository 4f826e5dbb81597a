"""What the tasks' Python finds: environments of the hostfile, and requirements that hosts install, here offline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.launcher import Launcher, alive
from tests.support.patience import until
from tests.support.terminal import Terminal
from tests.support.wheels import made, requirements

SAY = 'import os, sys, tiny; print(tiny.value, "of", os.path.realpath(sys.prefix), os.environ.get("VIRTUAL_ENV"))'


def test_hosts_install_requirements_once(launcher: Launcher, wheels: Path) -> None:
    """Two hosts on one disk make one environment; it is there the next time; what is installed is on PATH."""
    (launcher.code / "constraints.txt").write_text("tiny<2\n")
    path = requirements(launcher.code, wheels, "-c constraints.txt", "tiny")
    script = launcher.script(SAY)
    words = ["--ps", "0", "--workers", "2", "--requirements", path]
    first = launcher.run("run", launcher.local(2), script, *words).ran()
    assert "installed the environment on 2 hosts" in first.err
    (parent,) = launcher.hosts.iterdir()
    (environment_path,) = made(parent)
    for name in ("worker/0", "worker/1"):
        assert f"{name} │ 1.0 of {environment_path} {environment_path}" in first.out
    before = (environment_path / "pyvenv.cfg").stat()
    (launcher.code / "constraints.txt").write_text("# only a comment\n\ntiny<2\n")
    launcher.run("run", launcher.local(1), script, *words[:3], "1", *words[4:]).ran()
    assert (environment_path / "pyvenv.cfg").stat() == before, "made anew"
    other = Path(path).with_name("other-name.txt")
    other.write_text(Path(path).read_text())
    launcher.run("run", launcher.local(1), script, *words[:3], "1", "--requirements", other).ran()
    assert made(parent) == [environment_path], "the same content under another name"
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
    launcher.wait_until_no_run_is_kept()


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


def test_a_terminal_shows_the_last_line_of_the_installer(launcher: Launcher, wheels: Path) -> None:
    path, go = requirements(launcher.code, wheels, "tiny"), launcher.directory / "go"
    setup = f"echo Downloading things >&2; until test -e {go}; do sleep 0.1; done"
    hosts = launcher.hostfile(
        [{"name": "here", "connection": "local", "run_dir": str(launcher.hosts), "setup": setup}]
    )
    words = ("run", hosts, launcher.script(SAY), "--ps=0", "--workers=1", f"--requirements={path}")
    with Terminal(launcher.argv(*map(str, words)), launcher.env(), launcher.code) as terminal:
        terminal.wait_for("here: Downloading things")
        assert "installing" in terminal.sentences
        go.touch()
        assert terminal.end() == 0
    assert "installed the environment on 1 host" in terminal.sentences


def test_trials_and_bare_servers_are_in_it_too(launcher: Launcher, wheels: Path) -> None:
    """A trial that is tried again as well; a server in it finds no TensorFlow, which it lacks."""
    path = requirements(launcher.code, wheels, "tiny")
    script = launcher.script(SAY + "\nsys.exit(os.environ['TFLAUNCH_ATTEMPT'] == '0')")
    words = ["--grid", "x=1,2", "--retries", "1", "--requirements", path, "--name", "lab"]
    swept = launcher.run("sweep", launcher.local(1), script, *words).ran()
    assert "installed the environment on 1 host" in swept.err
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


def test_tasks_on_this_machine_run_by_the_active_environment(launcher: Launcher, tmp_path: Path) -> None:
    """Not by tflaunch's own, which pipx has made for it alone; and the plan names the interpreter."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    words = (
        "run",
        launcher.local(1),
        launcher.script("import sys; print(sys.prefix)"),
        "--ps=0",
        "--workers=1",
    )
    done = launcher.run(*words, env={"VIRTUAL_ENV": str(venv)}).ran()
    assert f"worker/0 │ {venv}" in done.out
    assert f"Python on local1: {venv}/bin/python3 (the active environment)" in done.sentences
    done = launcher.run(*words, env={"VIRTUAL_ENV": "", "CONDA_PREFIX": str(venv)}).ran()
    assert f"worker/0 │ {venv}" in done.out
    named = launcher.hostfile(["a"], "named.yaml", connection="local", python=sys.executable)
    done = launcher.run(words[0], named, *words[2:], env={"VIRTUAL_ENV": str(venv)}).ran()
    assert f"worker/0 │ {sys.prefix}" in done.out
    assert "Python on" not in done.sentences


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
            # What people write in a terminal, where a shell has the function `conda`, or in a script that makes it.
            {"name": "s", "python": "python3", "setup": f"export FROM_SETUP=set\nconda activate {conda}"},
            {
                "name": "f",
                "python": "python3",
                "setup": ["conda() { FROM_HOOK=$*; export FROM_HOOK; }", f"conda activate {conda}"],
            },
        ],
        connection="local",
    )
    done = launcher.run("run", hosts, script, "--ps", "0", "--workers", "4").ran()
    assert f"worker/2 │ {conda}/bin/python3 set in {conda}" in done.out
    assert f"activate {conda}" in done.out
    assert f"worker/0 │ {venv}/bin/python3 None" in done.out
    assert f"worker/1 │ {conda}/bin/python3 set in {conda}" in done.out
    for key, said in (
        ("venv", "venv: there is no /no/such/bin/activate"),
        ("conda", "no environment at /no/such"),
        ("setup", "no environment at /no/such"),
    ):
        hosts = launcher.local(1, **{key: "conda activate /no/such" if key == "setup" else "/no/such"})
        assert said in launcher.run("run", hosts, script, "--ps", "0").ran(70).sentences
        assert said in launcher.run("sweep", hosts, script, "--grid", "x=1").ran(70).sentences


def test_hadoop_is_set_up_as_the_documentation_says(launcher: Launcher, tmp_path: Path) -> None:
    """The lines of docs/environments.md, with a `hadoop` that answers; credentials come by --env NAME alone."""
    page = (ROOT / "docs" / "environments.md").read_text()
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
