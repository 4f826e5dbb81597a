"""Programs that learn who they are in other words than TensorFlow's: placeholders, other flags, own programs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.launcher import TELL, Launcher, told
from tests.support.patience import PATIENCE_S
from tflaunch.protocol.errors import EXIT_USAGE

QUICK = ("--grace=2", "--ps-grace=0")

# Programs of TonY, LinkedIn's launcher for YARN, read these variables.
TONY = """
    import json, os
    cluster, job = json.loads(os.environ["CLUSTER_SPEC"]), os.environ["JOB_NAME"]
    print("I am", cluster[job][int(os.environ["TASK_INDEX"])], "of", sorted(cluster), flush=True)
    if job == "ps":
        import signal
        signal.pause()
"""

# As tensorpack's and other programs of parameter servers: one flag for job and index.
ONE_FLAG = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--workers", required=True)
    found = parser.parse_args()
    job, index = found.job.split(":")
    print("I am", job, int(index), "of", len(found.workers.split(",")), flush=True)
"""

# A parser that somebody wrote by hand: words apart, and no word may be empty.
BY_HAND = """
    import sys
    words, found = sys.argv[1:], {}
    while words:
        name = words.pop(0)
        if name not in ("--worker-hosts", "--ps-hosts", "--job-name", "--task-index", "--epochs"):
            sys.exit(f"what is {name}?")
        found[name] = words.pop(0) or sys.exit(f"{name} is empty")
    print("found", sorted(found.items()), flush=True)
"""

# A server that knows its own flags only, and opens its port as Python's do.
SERVER = """
    import argparse, http.server
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"served")

    http.server.HTTPServer(("", port), Answer).serve_forever()
"""
ASKS = """
    import os, sys, time, urllib.request
    while True:
        try:
            answer = urllib.request.urlopen(f"http://{os.environ['SERVER']}/").read()
        except OSError:
            time.sleep(0.1)
            continue
        print("argv", sys.argv[1:], "answer", answer.decode(), flush=True)
        break
"""


def test_a_program_of_tony(launcher: Launcher) -> None:
    words = ("--env=JOB_NAME={job}", "--env=TASK_INDEX={index}", "--env=CLUSTER_SPEC={cluster_json}")
    done = launcher.run(
        "run",
        launcher.local(1),
        launcher.script(TONY),
        "--ps=1",
        "--workers=2",
        "--no-flags",
        *words,
        *("--grace=2", f"--ps-grace={PATIENCE_S:g}"),  # the ps ends by itself, once it has said who it is
    ).ran()
    said = [line.split("│ ")[1] for line in done.out.splitlines()]
    assert len(said) == len(set(said)) == 3
    assert all(line.startswith("I am 127.0.0.1:") and line.endswith("of ['ps', 'worker']") for line in said)


def test_one_flag_for_job_and_index(launcher: Launcher) -> None:
    flags = ("--flag=task=job", "--flag=worker_hosts=workers", "--flag=ps_hosts=")
    done = launcher.run(
        "run", launcher.local(1), launcher.script(ONE_FLAG), "--ps=0", "--workers=2", *flags, *QUICK
    ).ran()
    assert sorted(done.out.splitlines()) == [
        "worker/0 │ I am worker 0 of 2",
        "worker/1 │ I am worker 1 of 2",
    ]


def test_a_parser_written_by_hand(launcher: Launcher) -> None:
    names = ("job_name", "task_index", "ps_hosts", "worker_hosts")
    flags = [f"--flag={name}={name.replace('_', '-')}" for name in names]
    job = launcher.code / "job.yaml"
    script = launcher.script(BY_HAND)
    args = ("--ps=0", "--workers=1", *QUICK)
    failed = launcher.run("run", launcher.local(1), script, *args, *flags, "--flag-style=words")
    assert "--ps-hosts is empty" in failed.out
    assert failed.code == 1
    renamed = ", ".join(f"{name}: {name.replace('_', '-')}" for name in names)
    job.write_text(
        f"program: {script.name}\nflags: {{{renamed}}}\nflag_style: words\nempty_flags: false\n"
        "args: [--epochs, '{world_size}']\nroles: {ps: 0, worker: 1}\n"
    )
    done = launcher.run("run", launcher.local(1), job, *QUICK).ran()
    assert "('--task-index', '0')" in done.out
    assert "('--epochs', '1')" in done.out
    assert "--ps-hosts" not in done.out


def test_a_role_with_a_program_of_its_own(launcher: Launcher) -> None:
    launcher.script(SERVER, "server.py")
    script = launcher.script(ASKS)
    own = ("--job=files=1", "--job-program=files=" + str(launcher.code / "server.py"))
    words = (
        "--job-args=files=--port={port}",
        "--env=SERVER={files_hosts}",
        "--ps=0",
        "--workers=1",
        "--no-flags",
    )
    done = launcher.run("run", launcher.local(1), script, *own, *words, *QUICK, "--", "--shard={index}").ran()
    assert "worker/0 │ argv ['--shard={index}'] answer served" in done.out
    plan = (
        launcher.run("run", launcher.local(1), script, *own, *words, "--dry-run", "--", "--epochs=3")
        .ran()
        .out
    )
    assert "files/0 runs, in the shipped code:" in plan
    assert "server.py --port=2" in plan
    assert "trainer.py --epochs=3" in plan
    assert "worker/0 gets SERVER=127.0.0.1:2" in plan


def test_a_program_that_is_not_shipped(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("")
    launcher.script("", "ignored.py")
    (launcher.code / ".gitignore").write_text("ignored.py\n")
    for name, message in (
        (tmp_path / "elsewhere.py", "is not in"),
        (launcher.code / "ignored.py", "add --ship"),
    ):
        words = ("--job=files=1", f"--job-program=files={name}", "--dry-run")
        failed = launcher.run("run", launcher.local(1), launcher.script(ASKS), *words)
        assert failed.code == EXIT_USAGE
        assert message in failed.err


def test_a_wrong_placeholder_is_told_before_anything_is_contacted(launcher: Launcher) -> None:
    words = ("run", launcher.local(1), launcher.script(ASKS), "--env=A={prot}")
    failed = launcher.run(*words)
    assert failed.code == EXIT_USAGE
    assert "--env A: there is no placeholder {prot}" in failed.err
    assert "did you mean {port}? for {prot} itself, write {{prot}}" in failed.sentences
    assert "connected" not in failed.err
    hostfile = launcher.hostfile(["here"], connection="local", env={"A": "{prot}"})
    failed = launcher.run("run", hostfile, launcher.script(ASKS))
    assert failed.code == EXIT_USAGE
    assert "which is no placeholder; did you mean {port}?" in failed.sentences


def test_setup_knows_which_task_it_is_for(launcher: Launcher, out: Path) -> None:
    setup = ['export SEEN="$TFLAUNCH_TASK $TF_CONFIG $OWN"']
    hostfile = launcher.hostfile(["here"], connection="local", setup=setup, env={"OWN": "{job}:{port}"})
    script = launcher.script(TELL)
    launcher.run("run", hostfile, script, "--ps=0", "--workers=2", f"--env=OUT={out}", *QUICK).ran()
    for name, task in told(out).items():
        seen, config, own = task.env["SEEN"].split(" ")
        assert seen == name
        assert json.loads(config) == json.loads(task.env["TF_CONFIG"])
        index = int(name.partition("/")[2])
        assert own == "worker:" + json.loads(config)["cluster"]["worker"][index].rpartition(":")[2]


def test_values_that_were_not_written_for_tflaunch_stay(launcher: Launcher, out: Path) -> None:
    (launcher.code / "settings").parent.mkdir(parents=True, exist_ok=True)
    settings = launcher.directory / "settings.env"
    settings.write_text("FILE={prot}\n")
    words = ("--env=OUT=" + str(out), "--env=HERE", f"--env-file={settings}", '--env=JSON={"a":{"b":1}}')
    script = launcher.script(TELL)
    launcher.run(
        "run",
        launcher.local(1),
        script,
        "--ps=0",
        "--workers=1",
        *words,
        *QUICK,
        env=launcher.env(HERE="{index}"),
    ).ran()
    env = told(out)["worker/0"].env
    assert [env[name] for name in ("HERE", "FILE", "JSON")] == ["{index}", "{prot}", '{"a":{"b":1}}']
