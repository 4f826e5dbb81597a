"""Outputs brought here: which ones, where to, whole or not at all, and never anything outside of the directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.directories import files
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork

# Writes what a trainer writes, and what a careless one does.
WRITE = """
    import os, pathlib, sys
    import helper
    here, task = pathlib.Path("checkpoints"), os.environ["TFLAUNCH_TASK"].replace("/", "-")
    here.mkdir()
    (here / f"part-{task}").write_text(task * 100_000)
    (here / "same").write_bytes(bytes(5_000_000))
    (here / "empty").write_text("")
    (here / "tool").write_text("#!/bin/sh")
    (here / "tool").chmod(0o700)
    pathlib.Path("own").mkdir()
    pathlib.Path("own/state").write_text(task)
    pathlib.Path("own/deep").mkdir()
    pathlib.Path("own/deep/alike").write_text("alike")
    pathlib.Path("out").symlink_to("/etc")
    pathlib.Path("passwd").symlink_to("/etc/passwd")
    os.mkfifo("pipe")
    pathlib.Path("config.py").write_text("# changed")
    sys.exit(int(sys.argv[-1]))
"""
COMES = {
    *(f"checkpoints/{name}" for name in ("part-worker-0", "part-worker-1", "same", "empty", "tool")),
    *(f"host{number}/own/{name}" for number in (1, 2) for name in ("state", "deep/alike")),
    "config.py",
}


def trainer(launcher: Launcher, text: str = WRITE) -> Path:
    launcher.script("", "helper.py")
    launcher.script("", "config.py")
    return launcher.script(text)


def test_what_the_tasks_wrote_comes_at_the_end_and_later(launcher: Launcher, network: SshNetwork) -> None:
    hosts = launcher.hostfile([network.add().name, network.add().name])
    words = (hosts, trainer(launcher), "--ps=0", "--workers=2", "--fetch=**", "--", "0")
    done = launcher.run("run", *words).ran()
    [record] = launcher.records()
    run = record.name
    directory = launcher.code / run
    assert files(directory) == COMES
    assert (directory / "checkpoints/part-worker-1").read_text() == "worker-1" * 100_000
    assert (directory / "host2/own/state").read_text() != (directory / "host1/own/state").read_text()
    assert not os.access(directory / "checkpoints/tool", os.X_OK)
    [original] = launcher.hosts.glob("tflaunch-*/*/host1/work/checkpoints/same")
    assert original.stat().st_mtime_ns == (directory / "checkpoints/same").stat().st_mtime_ns
    assert f"fetched 10 files, 6.3 MiB in {run}" in done.sentences
    assert "different on each host, so in a directory for each host: own" in done.sentences
    assert "left out: host1:out: a link, which is not followed" in done.sentences
    assert "left out: host1:pipe: a pipe" in done.sentences

    # Again, of the run that has ended: nothing is here that did not come, and what is here is not touched.
    assert "fetched 0 files, 0 B, 10 more there already" in launcher.run("fetch", run).ran().sentences
    (directory / "config.py").write_text("# my own!")
    os.utime(directory / "checkpoints/same")
    (directory / "checkpoints/tool").unlink()
    done = launcher.run("fetch", run).ran(74)
    assert (
        "kept here, though their content differs (1; --overwrite replaces them): config.py" in done.sentences
    )
    assert (directory / "config.py").read_text() == "# my own!"
    assert (directory / "checkpoints/tool").exists()
    [told] = [
        each
        for each in launcher.run("fetch", run, "--overwrite", "--json").ran().events
        if each["event"] == "fetched"
    ]
    assert (told["files"], told["same"], told["complete"]) == (1, 9, True)
    assert (directory / "config.py").read_text() == "# changed"
    assert files(directory) == COMES

    launcher.run("fetch", run, "--keep-mode").ran()
    assert os.access(directory / "checkpoints/tool", os.X_OK)

    # From a machine that has no record of it, and not all of it.
    elsewhere = {"TFLAUNCH_STATE": str(launcher.directory / "elsewhere")}
    to = launcher.directory / "to"
    words = ("fetch", run, "checkpoints/**", "!same", "--to", str(to), "-H", str(hosts))
    launcher.run(*words, env=elsewhere).ran()
    assert files(to) == {each for each in COMES if each.startswith("checkpoints")} - {"checkpoints/same"}
    done = launcher.run("fetch", run, "nowhere/**").ran(74)
    assert "nothing matches nowhere/**; there is: checkpoints, out, own, passwd, pipe" in done.sentences
    launcher.wait_until_nothing_is_left()


def test_a_run_that_fails_leaves_its_outputs_too(launcher: Launcher) -> None:
    words = (launcher.local(1), trainer(launcher), "--ps=0", "--workers=1", "--fetch=own", "--fetch=nothing")
    done = launcher.run("run", *words, "--fetch-to=here", "--", "3").ran(3)
    assert files(launcher.code / "here") == {"own/state", "own/deep/alike"}
    assert "nothing matches nothing" in done.sentences


def test_from_a_run_that_goes_on_and_after_ctrl_c(launcher: Launcher) -> None:
    text = """
        import pathlib, time
        pathlib.Path("checkpoint").write_text("first")
        with open("grows", "w") as file:
            while True:
                print("another line", file=file, flush=True)
                print("written", flush=True)
                time.sleep(0.001)
    """
    script = launcher.script(text)
    words = ("run", launcher.local(1), script, "--ps=0", "--workers=1", "--only=ps/0", "--fetch=checkpoint")
    with launcher.start(*words) as run:
        run.wait_for("training")
        grown = launcher.code / "now/grows"
        lines = [0]
        for _ in range(2):  # what has only grown is brought up to date
            until(lambda: launcher.run("fetch", run.run_id, "--to=now").code == 0, "outputs")
            assert set(grown.read_text().splitlines()) <= {"another line"}
            lines.append(grown.stat().st_size)
        assert lines == sorted(set(lines))
        assert (launcher.code / "now/checkpoint").read_text() == "first"
        run.interrupt()
        assert run.end() == 130
        assert (launcher.code / run.run_id / "checkpoint").read_text() == "first"


def test_the_end_says_what_was_written_and_fetch_says_that_it_is_nothing(launcher: Launcher) -> None:
    script = launcher.script("import sys\nif sys.argv[1:]:\n    open('model.keras', 'w').write('x' * 2048)\n")
    words = ("run", launcher.local(2), script, "--ps=0", "--workers=2", "--no-flags")
    done = launcher.run(*words).ran()
    assert "the tasks wrote" not in done.sentences
    run = launcher.records()[0].name
    done = launcher.run("fetch", run).ran()
    said = "the tasks have written no files in their working directories"
    assert f"nothing was fetched: {said}" in done.sentences
    assert not (launcher.code / run).exists()
    assert f"nothing matches *.keras; {said}" in launcher.run("fetch", run, "*.keras").ran(74).sentences

    done = launcher.run(*words, "--name=writes", "--", "now").ran()
    [run] = [each.name for each in launcher.records() if each.name.startswith("writes")]
    told = f"the tasks wrote model.keras on local[1-2] (2 files, 4.0 KiB); to copy them here: tflaunch fetch {run}"
    assert told in done.sentences
    # Where the hosts' own directory is used, nobody knows what the run wrote.
    own = launcher.local(1, workdir=str(launcher.code))
    assert (
        "the tasks wrote"
        not in launcher.run("run", own, script, "--ps=0", "--workers=1", "--no-flags", "--", "now")
        .ran()
        .sentences
    )
    launcher.wait_until_nothing_is_left()


def test_it_goes_on_where_it_stopped(launcher: Launcher, network: SshNetwork) -> None:
    size = 200 * 2**20
    sshd = network.add()
    text = f"""
        with open("large", "wb") as file:
            file.write(b"begin")
            file.truncate({size})
    """
    launcher.run("run", launcher.hostfile([sshd.name]), launcher.script(text), "--ps=0", "--workers=1").ran()
    run = launcher.records()[0].name
    directory = launcher.code / run

    def part() -> int:
        return sum(path.stat().st_size for path in directory.glob(".tflaunch-*.part"))

    with launcher.start("fetch", run) as fetching:
        until(part, "the first part of it")
        sshd.kill_sessions()
        fetching.wait_for("host1 is back")
        before = part()
        until(lambda: part() > before or files(directory) == {"large"}, "more of it")
        fetching.interrupt()
        assert fetching.end() in (130, 0)  # whole already, on a fast machine
    came = part()
    done = launcher.run("fetch", run, "--json").ran()
    if came:
        [first] = [each for each in done.events if each["event"] == "phase" and each["done"] == 0]
        assert float(first["note"].split()[0]) > came / 2**20  # it did not begin anew
    assert files(directory) == {"large"}
    with (directory / "large").open("rb") as file:
        assert file.read(5) == b"begin"
        assert file.seek(0, os.SEEK_END) == size


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fetch=../other"], "--fetch ../other: it leads out of the tasks' working directory"),
        (["--fetch=!x"], "!x: patterns with ! only take away"),
        (["--fetch=x", "--fetch-to=trainer.py"], "trainer.py is not a directory"),
        (["--fetch=x", "--detach"], "--detach --fetch x: this command does not stay to fetch it at the end"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_starts(
    words: list[str], sentence: str, launcher: Launcher
) -> None:
    done = launcher.run("run", launcher.local(1), launcher.script(""), *words).ran(2)
    assert sentence in done.sentences
    launcher.wait_until_no_run_is_kept()


def test_names_with_a_dot_come_where_a_pattern_names_the_dot(launcher: Launcher) -> None:
    text = """
        import pathlib
        for name in (".cache/a", ".cache/.deep/b", "results/c", "results/.d", ".git/hooks/e", ".e"):
            pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
            pathlib.Path(name).write_text(name)
    """
    words = ("run", launcher.local(1), launcher.script(text), "--ps=0", "--workers=1", "--fetch=**")
    done = launcher.run(*words).ran()
    run = launcher.records()[0].name
    assert files(launcher.code / run) == {"results/c"}
    line = "left out, for their names begin with a dot: .e, .cache, .cache/.deep, results/.d; a pattern that names"
    assert done.sentences.count(line) == 1
    assert "the dot fetches them: .e" in done.sentences
    done = launcher.run("fetch", run, "--to=more", "**", ".*", ".cache/.deep").ran()
    assert files(launcher.code / "more") == {"results/c", "results/.d", ".cache/a", ".cache/.deep/b", ".e"}
    assert "begin with a dot" not in done.sentences
    [told] = [
        event
        for event in launcher.run("fetch", run, "--to=json", "--json", "results/**").ran().events
        if event["event"] == "fetched"
    ]
    assert told["hidden"] == ["results/.d"]


def test_no_more_comes_than_is_allowed(launcher: Launcher) -> None:
    text = "for name in 'ab':\n    open(name, 'wb').write(bytes(600_000))\n"
    words = (
        "run",
        launcher.local(1),
        launcher.script(text),
        "--ps=0",
        "--workers=1",
        "--fetch=*",
        "--fetch-to=to",
    )
    done = launcher.run(*words, "--fetch-max=1MB").ran(74)
    assert "2 files, 1.1 MiB, are more than the limit of 977 KiB; nothing was written" in done.sentences
    assert not (launcher.code / "to").exists()
    run = launcher.records()[0].name
    launcher.run("fetch", run, "--to=to", "--max=1MB", "a").ran()
    launcher.run("fetch", run, "--to=to", "--max=1MB").ran()  # of what is here already nothing is to come
    assert files(launcher.code / "to") == {"a", "b"}
    assert "'much' is not an amount of data" in launcher.run("fetch", run, "--max=much").ran(2).sentences


def test_a_job_file_says_how_much_may_come_and_as_what(launcher: Launcher) -> None:
    launcher.script("import os\nos.close(os.open('tool', os.O_CREAT | os.O_WRONLY, 0o755))\n")
    job = launcher.code / "job.yaml"
    job.write_text(
        "program: trainer.py\nroles: {ps: 0, worker: 1}\n"
        "fetch: tool\nfetch_to: to\nfetch_max: 1MiB\nkeep_mode: true\n"
    )
    launcher.run("run", launcher.local(1), job).ran()
    assert os.access(launcher.code / "to/tool", os.X_OK)
    job.write_text("program: trainer.py\nfetch: tool\nfetch_max: much\n")
    done = launcher.run("run", launcher.local(1), job).ran(2)
    assert "job.yaml:3:12: fetch_max: 'much' is not an amount of data" in done.sentences


ENDLESS = "import time\nprint('it goes on', flush=True)\nwhile True:\n    time.sleep(0.1)\n"


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_run_whose_hosts_are_all_lost_ends_with_a_report(launcher: Launcher, verb: str) -> None:
    words = ("--ps=0", "--workers=1") if verb == "run" else ("--grid=a=1",)
    hosts, script = launcher.local(1), launcher.script(ENDLESS)
    with launcher.start(verb, hosts, script, *words, "--fetch=**") as running:
        running.wait_for("it goes on" if verb == "run" else "has started")
        os.kill(launcher.agents()["agent"], signal.SIGKILL)
        done = running.done().ran(76)
    assert "nothing is fetched, as no host is left; when they are back: tflaunch fetch" in done.sentences
    assert "local1 was lost" in done.sentences
    [record] = launcher.records()
    assert json.loads((record / "outcome.json").read_text())["exit_code"] == 76
    launcher.wait_until_nothing_is_left()


def test_a_file_that_has_just_come_is_not_replaced_by_another_name_of_it(tmp_path: Path) -> None:
    # Where a disk takes two names for one (`a` and `A`), as here one directory has two.
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounts a directory")
    for name in ("a", "A"):
        (tmp_path / "to" / name).mkdir(parents=True)
    if subprocess.run(["mount", "--bind", tmp_path / "to/a", tmp_path / "to/A"], check=False).returncode:
        pytest.skip("mounts a directory")
    try:
        text = """
            import pathlib
            for name in "aA":
                pathlib.Path(name).mkdir()
                pathlib.Path(name, "x").write_text(name * 1_000_000)
        """
        launcher = Launcher(tmp_path)
        words = ("run", launcher.local(1), launcher.script(text), "--ps=0", "--workers=1")
        launcher.run(*words).ran()
        run = launcher.records()[0].name
        done = launcher.run("fetch", run, "--overwrite", "--to", tmp_path / "to").ran(74)
        assert "on this disk it has the name of another file that has just come" in done.sentences
        launcher.close()
    finally:
        subprocess.run(["umount", tmp_path / "to/A"], check=True)
