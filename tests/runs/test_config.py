"""The configuration of the machine and of the user, as real commands obey it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.support.gpus_lab import Terminal
from tests.support.launcher import Launcher

SAY = 'import os; print("has", os.environ.get("A"), os.environ.get("B"), os.environ.get("C"))'


class Files:
    """The two files of a launcher's machine."""

    def __init__(self, launcher: Launcher) -> None:
        self.machines = launcher.directory / "etc" / "config.toml"
        self.users = launcher.home / ".config" / "tflaunch" / "config.toml"
        self.env = {"TFLAUNCH_ETC": str(self.machines.parent)}

    def write(self, machines: str = "", users: str = "") -> None:
        for path, text in ((self.machines, machines), (self.users, users)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))


@pytest.fixture
def files(launcher: Launcher) -> Files:
    """Both of them, not written yet."""
    return Files(launcher)


def test_the_order_from_the_command_line_to_the_machines_file(launcher: Launcher, files: Files) -> None:
    """Each of these sets another one of the settings."""
    files.write(
        f"""\
        run_dir = "{launcher.directory}/unused"
        ports = "23000-23099"
        [run]
        grace = "11s"
        ps_grace = "12s"
        timeout = "13m"
        lease = "14s"
        env = {{ A = "machine", B = "machine" }}
        """,
        """\
        [run]
        ps_grace = "22s"
        timeout = "23m"
        lease = "24s"
        env = { A = "user", B = "user", C = "user" }
        """,
    )
    launcher.script(SAY)
    job = launcher.code / "job.yaml"
    job.write_text(
        "program: trainer.py\nroles: {ps: 0, worker: 1}\ntimeout: 33m\nlease: 34s\nenv: {B: job}\n"
    )
    hosts = launcher.local(1)
    words = ("run", hosts, job, "--lease=44s", "-e", "C=line")
    done = launcher.run(*words, "--json", env=files.env).ran()
    (plan,) = [event for event in done.events if event["event"] == "plan"]
    assert plan["choices"][1:] == [
        f"{files.machines} says: grace 11s (line 4)",
        f"{files.users} says: ps_grace 22s (line 2), env A B C (line 5)",
    ]
    (endpoint,) = plan["cluster"]["worker"]
    assert 23000 <= int(endpoint.rpartition(":")[2]) <= 23099
    assert launcher.run_directories(), "the hostfile's run_dir wins"
    assert not (launcher.directory / "unused").exists()
    assert [event["line"] for event in done.events if event["event"] == "log"] == ["has user job line"]


def test_the_default_hostfile_comes_from_the_configuration(launcher: Launcher, files: Files) -> None:
    """The user's before ~/.config/tflaunch/hosts.yaml, the machine's after it."""
    script = launcher.script("print(1)")
    for name, count in (("of-machine", 1), ("of-user", 2), ("own", 3)):
        launcher.hostfile([f"{name}-[1-{count}]"], f"{name}.yaml", connection="local")
    own = files.users.parent / "hosts.yaml"
    files.write(f'hosts = "{launcher.directory}/of-machine.yaml"')

    def hosts() -> str:
        done = launcher.run("run", script, "--ps=0", "--workers=1", "--dry-run", env=files.env).ran()
        return next(line.strip() for line in done.err.splitlines() if "hosts: " in line)

    assert hosts() == f"hosts: {launcher.directory}/of-machine.yaml ({files.machines}:1): 1 host"
    own.write_text((launcher.directory / "own.yaml").read_text())
    assert hosts() == f"hosts: {own} (none was named): 3 hosts"
    (files.users.parent / "of-user.yaml").write_text((launcher.directory / "of-user.yaml").read_text())
    files.write(users='# relative to this file\nhosts = "of-user.yaml"')
    assert hosts() == f"hosts: {files.users.parent}/of-user.yaml ({files.users}:2): 2 hosts"


@pytest.mark.usefixtures("started_anew")  # of this verb no other test does
def test_config_shows_each_value_with_its_place(launcher: Launcher, files: Files) -> None:
    none = launcher.run("config", env=files.env).ran()
    assert f"{files.machines}: there is no such file" in none.out
    assert f"{files.users}: there is no such file" in none.out
    files.write(
        'banner = "hello"\n[run]\ngrace = "30s"\nenv = {TOKEN = "secret"}\n', '[run]\ngrace = "20s"\n'
    )
    shown = launcher.run("config", env=files.env).ran()
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["run.grace", "20s", f"{files.users}:2"] in rows
    assert ["run.env", "TOKEN", f"{files.machines}:4"] in rows
    assert f"{files.machines}:3: run.grace 30s: {files.users}:2 wins" in shown.out
    assert "secret" not in shown.out
    document = json.loads(launcher.run("config", "--json", env=files.env).ran().out)
    assert document["settings"][1] == {
        "key": "run.grace",
        "value": "20s",
        "file": str(files.users),
        "line": 2,
    }


def test_a_mistake_ends_every_command_but_those_that_help_to_mend_it(
    launcher: Launcher, files: Files
) -> None:
    files.write("[rnu]\n", '[run]\ngrcae = "1s"\n')
    for words in (("config",), ("ps", launcher.local(1)), ("run", launcher.local(1), launcher.script("1"))):
        done = launcher.run(*words, env=files.env).ran(2)
        assert "2 problems in the configuration; nothing was contacted" in done.sentences
        assert f"{files.machines}:1:1: unknown key 'rnu'; did you mean 'run'?" in done.sentences
        assert f"{files.users}:2:1: unknown key 'grcae'; did you mean 'grace'?" in done.sentences
    launcher.run("schema", "config", env=files.env).ran()
    launcher.run("run", "--help", env=files.env).ran()


def test_the_banner_is_for_terminals_and_harmless(launcher: Launcher, files: Files) -> None:
    files.write('banner = """\nMaintenance on \\u001b[2JFriday\nAsk ops."""\n')
    piped = launcher.run("ps", launcher.local(1), env=files.env).ran()
    assert "Maintenance" not in piped.err + piped.out
    terminal = Terminal(launcher.argv("ps", launcher.local(1)), launcher.env(**files.env))
    assert terminal.end() == 0
    assert terminal.text.count("Maintenance on Friday\r\nAsk ops.\r\n") == 1, "the sequence is left out"
    assert terminal.text.index("Maintenance") < terminal.text.index("no run is alive")
    quiet = Terminal(launcher.argv("ps", launcher.local(1), "--json"), launcher.env(**files.env))
    assert quiet.end() == 0
    assert "Maintenance" not in quiet.text


def test_a_directory_that_others_may_write_is_refused(
    launcher: Launcher, files: Files, tmp_path: Path
) -> None:
    files.write('banner = "x"')
    files.machines.parent.chmod(0o777)
    done = launcher.run("ps", launcher.local(1), env=files.env).ran(2)
    assert (
        f"{files.machines}: is not read: its directory {files.machines.parent} may be written"
        in done.sentences
    )
