"""The command line itself: help, version, schema, dry runs."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tflaunch
from tests.support import ROOT
from tests.support.launcher import TELL, TFLAUNCH, Launcher, told
from tests.support.patience import until
from tests.support.sshd import SshNetwork
from tests.support.terminal import Terminal

# What takes longer to import than all else does.
HEAVY = (
    "paramiko",
    "fabric",
    "tensorflow",
    "numpy",
    "pydantic",
    "yaml",
    "cryptography",
    "ClusterShell",
)
# A quarter of a second of them: loaded when a server has answered the dial.
SSH = {"fabric", "invoke", "paramiko", "unittest.mock"}
# What not every command that reaches hosts uses; the first, none of those with a plain list of hosts.
DOCUMENTS = ("tflaunch.inputs.yaml_document", "tflaunch.inputs.hostfile_model", "tflaunch.inputs.job_model")
PLANS = (
    "tflaunch.launch.launch",
    "tflaunch.planning.plan",
    "tflaunch.planning.inventory",
    "tflaunch.code.bundle",
    "tflaunch.survey.gpu_overview",
)
VISITS = (
    "tflaunch.runs.visits",
    "tflaunch.runs.run_states",
    "tflaunch.survey.survey",
    "tflaunch.survey.gpu_overview",
    "tflaunch.runs.fetch",
)


def imported(launcher: Launcher, *words: str | Path) -> set[str]:
    """What that command has imported at its end."""
    code = (
        "import json, sys\n"
        "from tflaunch.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print('imported:', json.dumps(list(sys.modules)))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=launcher.env(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(shown.stdout.rpartition("imported: ")[2]))


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("stop", "--help"), ("--version",)], ids=" ".join
)
def test_what_only_tells_imports_nothing_heavy(launcher: Launcher, words: tuple[str, ...]) -> None:
    assert imported(launcher, *words).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (("run", "gpu01", "trainer.py"), VISITS),
        (("ps", "gpu01"), PLANS),
        (("stop", "trainer-aaaaaa", "--hosts", "gpu01"), PLANS),
    ],
    ids=["run", "ps", "stop"],
)
def test_until_a_host_is_reached_nothing_is_imported_that_is_not_used(
    launcher: Launcher, words: tuple[str, ...], unneeded: tuple[str, ...]
) -> None:
    config = launcher.directory / "refused"
    config.write_text("Host *\n  HostName 127.0.0.1\n  Port 1\n")
    script = launcher.script("")
    found = imported(launcher, *(script if word == "trainer.py" else word for word in words), "-F", config)
    assert found & {*SSH, "asyncio", "ssl", "pydantic", *DOCUMENTS, *unneeded} == set()


def test_a_hostfile_of_names_alone_needs_no_models(launcher: Launcher, tmp_path: Path) -> None:
    config = tmp_path / "refused"
    config.write_text("Host *\n  HostName 127.0.0.1\n  Port 1\n")
    hostfile = tmp_path / "hosts.yaml"
    hostfile.write_text("hosts:\n  - gpu[01-02]\n  - gpu07\n")
    found = imported(launcher, "run", hostfile, launcher.script(""), "--workers", "2", "-F", config)
    assert "tflaunch.inputs.hostfile_yaml" in found
    assert found & {"pydantic", "statistics"} == set()


@pytest.mark.parametrize("verb", ["run", "gpus"])
def test_where_no_server_is_logged_in_to_no_ssh_library_is_imported(launcher: Launcher, verb: str) -> None:
    words = [launcher.script("print('done')"), "--workers=1"] if verb == "run" else []
    found = imported(launcher, verb, launcher.local(1), *words)
    assert "tflaunch.remote" in found
    assert found & SSH == set()
    assert not any(name.startswith("tflaunch.ends.tables") for name in found), "nothing has failed"


def test_version(launcher: Launcher) -> None:
    system, python = os.uname(), ".".join(map(str, sys.version_info[:3]))
    said = f"tflaunch {tflaunch.__version__}, Python {python}, {system.sysname} {system.release} {system.machine}"
    assert launcher.run("--version").ran().out == f"{said}\n"


def test_help_tells_the_verbs_and_the_exit_codes(launcher: Launcher) -> None:
    top = launcher.run("--help").ran().out
    for verb in ("run", "up", "sweep", "check", "ps", "status", "stop", "clean", "gpus", "schema"):
        assert verb in top
    run = " ".join(launcher.run("run", "--help").ran().out.split())
    for option in ("--ps", "--workers", "--dry-run", "--json", "--lease", "--accept-new"):
        assert option in run
    for shown in (top, run):
        assert "65 the job does not fit the hosts" in " ".join(shown.split())
    assert "ps tasks [one per 4 workers]" in run  # what stands in brackets is no markup


def test_the_help_has_colours_only_on_a_terminal_that_takes_them(launcher: Launcher) -> None:
    env = {
        name: value for name, value in launcher.env().items() if name not in ("COLUMNS", "NO_COLOR", "TERM")
    }
    plain = launcher.run("gpus", "--help", env={"COLUMNS": "60"}).ran().out
    assert "\x1b" not in plain
    for more, styled in (
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ):
        with Terminal([*TFLAUNCH, "gpus", "--help"], {**env, **more}, launcher.code, columns=60) as terminal:
            assert terminal.end() == 0
        assert ("\x1b[1mUsage:" in terminal.raw) == ("\x1b" in terminal.raw) == styled
        assert terminal.shown == plain  # as wide as the terminal


def test_a_reader_of_the_help_may_leave(launcher: Launcher) -> None:
    for words, reader in itertools.product((["run", "--help"], []), ("head -1", "true")):
        command = shlex.join([*TFLAUNCH, *words])
        done = subprocess.run(
            ["bash", "-c", f"{command} | {reader}; exit ${{PIPESTATUS[0]}}"],
            env=launcher.env(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        assert done.returncode == (0 if words else 2)


def test_schema_is_a_json_schema(launcher: Launcher) -> None:
    schema = json.loads(launcher.run("schema").ran().out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "proxy_jump" in json.dumps(schema)


def test_a_dry_run_starts_and_leaves_nothing(network: SshNetwork, launcher: Launcher, tmp_path: Path) -> None:
    hostfile = launcher.hostfile([network.add().name for _ in range(2)])
    done = launcher.run(
        *(
            "run",
            hostfile,
            launcher.script(TELL),
            "--ps=1",
            "--workers=2",
            f"--env=OUT={tmp_path}",
            "--dry-run",
        ),
        *("--", "--steps=5"),
    ).ran()
    for word in ("ps/0", "worker/0", "worker/1", "host1", "host2", "--steps=5"):
        assert word in done.out
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()
    # An agent that finds the directory of another host keeps its own modules there; no code is shipped.
    kept = {path.suffix for path in launcher.hosts.glob("tflaunch-*/code/*")}
    assert kept <= {".pyc", ".z"}
    assert launcher.records() == []
    assert told(tmp_path) == {}


@pytest.mark.parametrize("verb", ["run", "up", "sweep"])
def test_a_dry_run_as_data_is_one_document(launcher: Launcher, verb: str) -> None:
    script = launcher.script("import argparse")
    words = {
        "run": (script, "--ps=1", "--workers=1"),
        "up": ("--ps=1", "--workers=1"),
        "sweep": (script, "--grid=x=1,2"),
    }[verb]
    done = launcher.run(verb, launcher.local(2), *words, "--dry-run", "--json").ran()
    document = json.loads(done.out)  # nothing before it, nothing behind it
    assert document["event"] == "plan"
    assert isinstance(document["notes"], list)
    assert document["warnings"] == []
    assert (document["code"] is None) == (verb == "up")
    if verb == "sweep":
        assert [trial["args"] for trial in document["trials"]] == [
            ["trainer.py", "--x=1"],
            ["trainer.py", "--x=2"],
        ]
    else:
        assert [task["task"] for task in document["tasks"]] == ["ps/0", "worker/0"]
    wrong = launcher.run(verb, launcher.local(2), *words, "--exclude=nowhere", "--dry-run", "--json").ran(2)
    error = json.loads(wrong.out)
    assert (error["event"], error["exit_code"], error["exit_code_of"]) == ("error", 2, "tflaunch")


def test_the_2_of_a_program_is_told_from_that_of_a_wrong_command_line(launcher: Launcher) -> None:
    """argparse ends a program with 2, as tflaunch ends for a wrong option."""
    script = launcher.script("import argparse; argparse.ArgumentParser().parse_args()")
    words = ("run", launcher.local(1), script, "--no-flags", "--ps=0", "--workers=1")
    done = launcher.run(*words, "--json", "--", "--nope").ran(2)
    report = done.events[-1]
    assert (report["event"], report["exit_code"], report["exit_code_of"]) == ("report", 2, "worker/0")
    assert "exit code 2 (of worker/0)" in launcher.run(*words, "--", "--nope").ran(2).sentences
    for wrong in (["--nope"], ["--only=x/y/z"], ["--exclude=nowhere"]):
        told = launcher.run(*words, "--json", *wrong).ran(2).events[-1]
        assert (told["event"], told["exit_code_of"]) == ("error", "tflaunch")


def test_a_dry_run_as_data_is_enough_to_start_the_tasks_by_hand(launcher: Launcher, tmp_path: Path) -> None:
    script = launcher.script(TELL)
    out = tmp_path / "out"
    out.mkdir()
    run = (
        "run",
        launcher.local(2, setup=["export FROM_SETUP=yes"]),
        script,
        "--ps=0",
        "--workers=2",
        f"--env=OUT={out}",
    )
    events = launcher.run(*run, "--dry-run", "--json", "--", "two words").ran().events
    [plan] = [event for event in events if event["event"] == "plan"]
    assert told(out) == {}
    for task in plan["tasks"]:
        assert task["cwd"] is None  # where the code is
        subprocess.run(
            ["/bin/sh", "-c", "\n".join([*task["setup"], 'exec "$@"']), "sh", *task["argv"]],
            cwd=script.parent,
            env={**os.environ, **task["env"], "TFLAUNCH_HOST": task["host"], "TFLAUNCH_ATTEMPT": "0"},
            stdin=subprocess.DEVNULL,
            check=True,
        )
    by_hand = told(out)
    assert sorted(by_hand) == ["worker/0", "worker/1"]

    launcher.run(*run, "--", "two words").ran()
    launched = told(out)
    ports = [task["port"] for task in plan["tasks"]]
    assert len({*ports}) == 2
    for name, task in launched.items():
        other = by_hand[name]
        assert other.host == task.host
        assert other.env["FROM_SETUP"] == task.env["FROM_SETUP"] == "yes"
        names = {name for name in task.env if name.startswith(("TF_", "TFLAUNCH_", "CUDA_", "PYTHON"))}
        # PYTHONPATH begins with a directory of the run, for `tflaunch stacks`: by hand there is no run.
        assert names - {"TFLAUNCH_STATE", "TFLAUNCH_ATTEMPT", "PYTHONPATH"} <= {*other.env}
        # Everything but the ports, which each launch finds anew, is the same.
        assert [word.partition(b"=")[0] for word in other.argv] == [
            word.partition(b"=")[0] for word in task.argv
        ]
        assert other.argv[-1] == task.argv[-1] == b"two words"


def test_dry_run_and_run_place_alike(launcher: Launcher) -> None:
    run = (
        "run",
        launcher.local(3),
        launcher.script("pass"),
        "--ps=1",
        "--workers=4",
        "--json",
        "--ps-grace=0",
    )

    def placed(*more: str) -> dict[str, str]:
        events = launcher.run(*run, *more).ran().events
        [plan] = [event for event in events if event["event"] == "plan"]
        return {task["task"]: task["host"] for task in plan["tasks"]}

    assert placed("--dry-run") == placed()


def test_the_hosts_may_be_an_inline_list(network: SshNetwork, launcher: Launcher, tmp_path: Path) -> None:
    # No hostfile, so no run_dir: the agents' default place is used, and a dry run leaves nothing there.
    one, two = network.add().name, network.add().name
    done = launcher.run(
        "run", f"{one}:2,{two}", launcher.script("pass"), "--ps=0", "--dry-run", "--json"
    ).ran()
    [plan] = [event for event in done.events if event["event"] == "plan"]
    assert {task["host"] for task in plan["tasks"]} == {one, two}
    place = Path(f"/var/tmp/tflaunch-{os.getuid()}")
    until(lambda: not list(place.glob(f"{plan['run_id']}*")), "the agents to remove its directory")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["schema"], ["run", "--help"]])
def test_a_full_disk_behind_stdout_is_named(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tflaunch", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("words", [("gpus",), ("gpus", "--all-users"), ("ps",), ("check",)], ids=" ".join)
def test_a_document_names_the_host_that_did_not_answer_in_what_to_do_about_it(
    launcher: Launcher, words: tuple[str, ...]
) -> None:
    verb, *options = words
    done = launcher.run(verb, "nowhere.invalid", *options, "--json").ran(69)
    assert "check the spelling of nowhere.invalid" in done.out


def test_the_queries_of_the_reference_find_what_they_say(launcher: Launcher) -> None:
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    shown = subprocess.run(
        [sys.executable, "-c", "from generator import documents; print(documents.page())"],
        cwd=ROOT / "docs", capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    queries = re.findall(r"^    tflaunch (\w+) --json \| jq -r '(.*)'$", shown, re.MULTILINE)
    assert [verb for verb, _ in queries] == ["gpus", "ps", "check"]
    found = []
    for verb, query in queries:
        done = launcher.run(verb, f"{launcher.local(1)}", "--json")
        answer = subprocess.run(
            ["jq", "-r", query], input=done.out, capture_output=True, text=True, check=True
        )
        found.append(answer.stdout)
    assert re.fullmatch(r"\w+ 0\n", found[0])
    assert found[1] == ""
