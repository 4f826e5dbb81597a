"""Files of the user's that a program did not mean to take along: keys, links to them, a home directory; all that is
said of it before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.code import KEY, grow
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork
from tflaunch.protocol.errors import EXIT_USAGE

READ = """
import os, pathlib
import helper
for path in sorted(pathlib.Path().rglob("*")):
    print("HAS", path, "link" if path.is_symlink() else "")
"""


def contents(launcher: Launcher) -> dict[str, bytes]:
    """All files that came to the hosts, links not followed."""
    return {
        str(path): path.read_bytes()
        for path in launcher.hosts.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def has(text: str) -> set[str]:
    """The files and directories that the program saw, but for what Python itself has made there."""
    return {path for path in re.findall(r"HAS (\S+)", text) if "__pycache__" not in path}


def test_a_link_to_a_private_key_does_not_bring_the_key(launcher: Launcher, network: SshNetwork) -> None:
    host = network.add().name
    grow(launcher.home, {".ssh/id_test": KEY})
    script = launcher.script("print(open('config.json').read() if 0 else 'ran')")
    (script.parent / "config.json").symlink_to(launcher.home / ".ssh/id_test")
    (script.parent / "keys").symlink_to(launcher.home / ".ssh")
    done = launcher.run("run", launcher.hostfile([host]), script, "--ps=0").ran()
    assert not [name for name, content in contents(launcher).items() if b"c2VjcmV0" in content]
    [line] = [line for line in done.err.splitlines() if "--follow-links" in line]
    assert f"config.json -> {launcher.home}/.ssh/id_test, keys -> {launcher.home}/.ssh" in line
    done = launcher.run("run", launcher.hostfile([host]), script, "--ps=0", "--follow-links").ran()
    assert not [name for name, content in contents(launcher).items() if b"c2VjcmV0" in content]
    assert "secrets stay here: config.json (SSH keys), keys/ (SSH keys)" in done.sentences


@pytest.mark.parametrize("how", ["script", "module", "job file", "sweep"])
def test_a_trainer_in_the_home_directory_takes_along_what_it_imports_and_no_more(
    launcher: Launcher, how: str
) -> None:
    home = grow(
        launcher.home,
        {
            "trainer.py": READ,
            "helper.py": "import lib.deep",
            "lib/__init__.py": "",
            "lib/deep.py": "",
            "lib/other.py": "",
            "taxes.txt": "of my own",
            ".ssh/id_test": KEY,
            ".aws/credentials": KEY,
            ".netrc": KEY,
            "job.yaml": "program: trainer.py\nroles: {ps: 0, worker: 1}\n",
        },
    )
    hosts = str(launcher.local(1))
    words = {
        "script": ["run", hosts, "trainer.py", "--ps=0"],
        "module": ["run", hosts, "--ps=0", "-m", "trainer"],
        "job file": ["run", hosts, "job.yaml"],
        "sweep": ["sweep", hosts, "trainer.py", "--grid=a=1", "--name=tried"],
    }[how]
    verb, *rest = words
    done = launcher.run(verb, *rest, cwd=home).ran()
    shown = launcher.run("logs", "tried", "trial/0").out if how == "sweep" else done.out
    assert has(shown) - {"lib"} == {"trainer.py", "helper.py", "lib/__init__.py", "lib/deep.py"}
    assert not [
        name
        for name, content in contents(launcher).items()
        if b"c2VjcmV0" in content or b"of my own" in content
    ]
    assert f"trainer.py lies in {home}, your home directory, and is shipped with 3 files" in done.sentences
    assert f"--code-dir {home} ships all" in done.sentences
    if how == "script":
        done = launcher.run(verb, *rest, "--code-dir", home, cwd=home).ran()
        assert {"taxes.txt", "lib/other.py"} <= has(done.out)
        assert not {".ssh", ".aws", ".netrc"} & has(done.out)
        assert (
            "secrets stay here: .aws/ (keys of AWS), .netrc (passwords of other machines), .ssh/"
            in done.sentences
        )


def test_what_stays_here_is_told_by_a_dry_run(launcher: Launcher) -> None:
    script = launcher.script("print(1)")
    names = [f"conf/key{number:02}" for number in range(12)]
    grow(
        script.parent,
        {".env": "A=1", **dict.fromkeys(names, KEY), ".gitignore": "*.log\n", "a.log": ""},
    )
    grow(script.parent, {"__pycache__/a.pyc": "", "b.log": ""})
    (script.parent / "out").symlink_to("/nowhere")
    for verb, more in (("run", ["--ps=0"]), ("sweep", ["--grid=a=1"])):
        words: list[str | Path] = [launcher.local(1), script, *more, "--dry-run"]
        text = launcher.run(verb, *words).ran().sentences
        assert all(f"{name} (a private key)" in text for name in names)
        assert ".env (variables" in text
        assert "15 files" not in text
        assert f"to ship: 2 files, 14 B of {script.parent} (2 left out by .gitignore, 13 secrets)" in text
        assert f"links that lead out of {script.parent} are shipped as links: out -> /nowhere" in text
        [plan] = launcher.run(verb, *words, "--json").ran().events
        code = plan["code"]
        assert {secret["path"] for secret in code["secrets"]} == {".env", *names}
        assert (code["files"], code["ignored"], code["caches"], code["links"]) == (
            2,
            2,
            1,
            {"out": "/nowhere"},
        )
        assert launcher.run(verb, *words[:-1], "--dry-run", "--ship=nope").ran(EXIT_USAGE)
        brief = launcher.run(verb, *words, "--ship", ".env").ran().sentences
        assert ".env (variables" not in brief


@pytest.mark.parametrize("names", ["from dotenv import load_dotenv", "import helper", "open('.env')"])
def test_a_program_that_reads_dotenv_is_told_before_the_start(launcher: Launcher, names: str) -> None:
    script = launcher.script(f"if 0:\n    {names}\nprint('ran')")
    grow(script.parent, {".env": "A=1", "helper.py": "import dotenv" if "helper" in names else ""})
    hosts = launcher.local(1)
    where = "helper.py:1" if "helper" in names else "trainer.py:2"
    warning = f"{where} reads .env, and .env stays here; --env-file .env passes its variables"
    assert warning in launcher.run("run", hosts, script, "--ps=0").ran().sentences
    for more in ("--env-file=.env", "--ship=.env"):
        assert "reads .env" not in launcher.run("run", hosts, script, "--ps=0", more).ran().sentences
    other = launcher.script("print('ran')", name="other.py")  # beside one that does, whose module it is not
    assert "reads .env" not in launcher.run("run", hosts, other, "--ps=0").ran().sentences
    (script.parent / ".env").rename(launcher.directory / ".env")  # python-dotenv looks there, too
    assert (
        "reads .env, and ../.env stays here" in launcher.run("run", hosts, script, "--ps=0").ran().sentences
    )


def test_a_file_that_is_no_program_never_leaves(launcher: Launcher) -> None:
    hosts = launcher.local(1)
    for verb, more in (("run", []), ("sweep", ["--grid=a=1"])):
        done = launcher.run(verb, hosts, "/etc/passwd", *more).ran(EXIT_USAGE)
        assert "/etc/passwd: not a Python program" in done.sentences
    assert not [*launcher.hosts.rglob("passwd")]


def test_ship_where_nothing_is_shipped(launcher: Launcher) -> None:
    done = launcher.run("run", launcher.local(1), launcher.script("1"), "--no-sync", "--ship=x").ran(
        EXIT_USAGE
    )
    assert "--ship x: the code is on the hosts" in done.sentences


def test_a_sweep_gives_the_variables_of_a_file_and_its_best_command_names_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "my.env").write_text("TOKEN=s3cret\n")
    trainer = launcher.script("import os; print('loss=%d' % len(os.environ['TOKEN']))")
    file = f"--env-file={tmp_path / 'my.env'}"
    done = launcher.run(
        "sweep", launcher.local(1), trainer, "--grid=a=1", file, "--metric=loss=(.*)", "--json"
    ).ran()
    summary = done.events[-1]
    assert summary["best"]["metric"] == len("s3cret")
    assert f"--env-file {tmp_path / 'my.env'}" in " ".join(summary["run_best"])
    assert "s3cret" not in done.out + done.err
