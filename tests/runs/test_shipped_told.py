"""What a run ships is told, with how much of it and what stays here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.code import grow
from tests.support.fetched import bring, named
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork


def test_a_run_tells_what_it_ships_and_does_not_ship_what_it_fetched(launcher: Launcher) -> None:
    text = """
        import os, pathlib, sys
        print("HAS", sorted(os.listdir()))
        pathlib.Path("checkpoints").mkdir(exist_ok=True)
        pathlib.Path("checkpoints/a").write_text("1")
        pathlib.Path("metrics.csv").write_text("2")
    """
    script, hosts = launcher.script(text), launcher.local(2)
    grow(launcher.code, {".env": "A=1", "a.log": "", ".gitignore": "*.log\n", "data/x": ""})
    (launcher.code / "elsewhere").symlink_to(launcher.home)
    grow(launcher.home, {"there": ""})
    words = ("run", hosts, script, "--ps=0", "--workers=2", "--no-flags", "--fetch=**")
    done = launcher.run(*words).ran()
    first = launcher.records()[0].name
    own = {".gitignore", "data", "elsewhere", "trainer.py"}
    assert f"HAS {sorted(own)}" in done.out
    about = f"of {launcher.code} (1 left out by .gitignore, 1 secret"
    [line] = [line for line in done.err.splitlines() if about in line]
    assert line.startswith("✓ shipped 3 files, ")
    assert line.endswith("1 secret)")
    assert "--env-file .env gives the tasks its variables" in done.sentences
    assert f"shipped as links: elsewhere -> {launcher.home}" in done.sentences
    assert (launcher.code / first / "elsewhere").exists() is False
    assert "left out: local1:elsewhere: a link" in done.sentences

    done = launcher.run(*words, "--fetch-to=.").ran()
    assert f"HAS {sorted(own)}" in done.out
    assert "1 secret, 1 fetched): already there" in done.sentences
    assert (
        f"fetched before, so not shipped: {first}/; --ship {first} ships that one all the same"
        in done.sentences
    )
    assert named(launcher.code) == {"checkpoints/", "metrics.csv"}

    events = launcher.run(*words[:-1], "--ship=checkpoints", "--json").ran().events
    [code] = [event for event in events if event["event"] == "code"]
    assert set(code["fetched"]) == {f"{first}/", "metrics.csv"}
    [shipped] = [event for event in events if event["event"] == "shipped"]
    assert (shipped["digest"], shipped["files"]) == (code["digest"], 4)
    assert shipped["sent"] == {"local1": [1, 1], "local2": [1, 1]}
    assert any(f"HAS {sorted({*own, 'checkpoints'})}" in event.get("line", "") for event in events)

    # A sweep's outputs are no code either.
    sweep = ("sweep", hosts, script, "--grid=a=1,2", "--fetch=**", "--name=tried")
    assert "3 files, " in launcher.run(*sweep).ran().sentences
    [tried] = launcher.code.glob("tried-*")
    assert named(tried) == set()
    done = launcher.run(*words[:-1]).ran()
    assert f"HAS {sorted(own)}" in done.out
    assert "4 fetched): already there" in done.sentences


def test_a_file_of_the_user_s_is_not_replaced_since_the_hosts_begins_alike(
    launcher: Launcher, network: SshNetwork
) -> None:
    script = launcher.script("import pathlib\npathlib.Path('pkg.py').write_text('evil')\n")
    mine = grow(launcher.directory / "to", {"pkg.py": ""}) / "pkg.py"  # empty, as many an __init__.py
    words = ("run", launcher.hostfile([network.add().name]), script, "--ps=0", "--fetch=*.py")
    done = launcher.run(*words, f"--fetch-to={mine.parent}").ran(74)
    assert mine.read_text() == ""
    assert "kept here, though their content differs (1; --overwrite replaces them): pkg.py" in done.sentences
    launcher.run(*words, f"--fetch-to={mine.parent}", "--overwrite").ran()
    assert (mine.read_text(), named(mine.parent)) == ("evil", {"pkg.py"})


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_all_files_are_listed_each_with_its_size_or_why_it_stays(launcher: Launcher, verb: str) -> None:
    script = launcher.script("")
    grow(
        launcher.code, {".env": "A=1", "a.log": "", ".gitignore": "*.log\n", "x/y": "1" * 3000, "p\x1bq": ""}
    )
    bring(launcher.code / "old", "a")
    os.mkfifo(launcher.code / "pipe")
    more = ("--ps=0",) if verb == "run" else ("--grid=a=1",)
    words = (verb, launcher.local(1), script, *more, "--dry-run", "--show-files")
    rows = [" ".join(line.split()) for line in launcher.run(*words).ran().out.splitlines()]
    assert rows[0].startswith("to ship: 4 files, ")
    assert "\x1b" not in "".join(rows)
    at = rows.index("left out:")
    assert {"6 B .gitignore", "2.9 KiB x/y", "x/", "0 B trainer.py"} <= set(rows[1:at])
    assert {
        ".env a secret: variables, mostly passwords and tokens",
        "a.log .gitignore:1: *.log",
        "old/ it was fetched from hosts",
        "pipe neither a file nor a directory",
    } <= set(rows[at:])
    [plan] = launcher.run(*words, "--json").ran().events
    code = plan["code"]
    assert {"path": "x/y", "kind": "file", "bytes": 3000, "goal": None} in code["shipped"]
    assert {"path": "a.log", "kind": "ignored", "why": ".gitignore:1: *.log"} in code["left"]
    assert "add --dry-run" in launcher.run(*words[:-2], "--show-files").ran(2).sentences


def test_more_than_100_mib_is_shipped_where_that_is_asked_for(launcher: Launcher) -> None:
    script = launcher.script("import os\nprint('LARGE', os.stat('large').st_size)\n")
    with (launcher.code / "large").open("wb") as large:
        large.truncate(101 << 20)
    words = ("run", launcher.local(1), script, "--ps=0")
    done = launcher.run(*words).ran(2)
    assert "101.0 MiB to ship, 100.0 MiB is the limit" in done.sentences
    assert "--max-code SIZE ships more" in done.sentences
    assert f"LARGE {101 << 20}" in launcher.run(*words, "--max-code=102MiB").ran().out
    job = (
        grow(launcher.code, {"job.yaml": "program: trainer.py\nroles: {ps: 0}\nmax_code: 90MiB\n"})
        / "job.yaml"
    )
    assert "90.0 MiB is the limit" in launcher.run("run", launcher.local(1), job).ran(2).sentences
    sweep = ("sweep", launcher.local(1), script, "--grid=a=1", "--dry-run")
    assert "100.0 MiB is the limit" in launcher.run(*sweep).ran(2).sentences
    launcher.run(*sweep, "--max-code=1GiB").ran()
    done = launcher.run(*words, "--max-code=much").ran(2)
    assert "'much' is not an amount of data for --max-code" in done.sentences


def test_hosts_with_a_workdir_are_shipped_nothing_and_that_is_said(
    launcher: Launcher, tmp_path: Path
) -> None:
    script = launcher.script("import os; print('IN', os.getcwd())")
    hosts = launcher.hostfile([{"name": "local1", "connection": "local", "workdir": str(launcher.code)}])
    words = ("run", hosts, script.name, "--ps=0")
    done = launcher.run(*words).ran()
    said = f"no code is shipped to local1, where it is in {launcher.code} (`workdir:` in {hosts})"
    assert said in done.sentences
    assert "shipped 1 file" not in done.sentences
    assert f"IN {launcher.code}" in done.out
    assert "no code is shipped" not in launcher.run(*words, "--no-sync").ran().sentences
    files = launcher.run(*words, "--dry-run", "--show-files").ran(2)
    assert "--show-files: the code is on the hosts, nothing is shipped" in files.sentences
