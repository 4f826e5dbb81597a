"""`from tflaunch import api`: programs that start, watch and end runs, each in a Python of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.lab import Gpus
from tests.support.launcher import Launcher
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import SshNetwork

PAGE = ROOT / "docs/python.md"
TRAINER = """\
import os, pathlib, sys, time
pathlib.Path("result.txt").write_text(os.environ["TFLAUNCH_TASK"])
print("args", *sys.argv[1:], os.environ.get("WORD"), flush=True)
while "wait" in sys.argv:
    time.sleep(0.05)
sys.exit(3 if "fail" in sys.argv else 0)
"""


class Program:
    """A program of a user's, which imports tflaunch, in the directory of the trainer."""

    def __init__(self, launcher: Launcher, hostfile: Path) -> None:
        self.launcher = launcher
        self._hostfile = hostfile
        launcher.script(TRAINER)

    def start(self, text: str) -> subprocess.Popen[str]:
        """Its text follows lines that know `api`, `HOSTS` and `OPTIONS`, which every call of `run` needs here."""
        config = self.launcher.argv("run")[-2:]
        options: dict[str, Any] = {"ps": 0, "flags": False, "yes": True, "grace": 1}
        if config[0] == "-F":
            options["ssh_config"] = str(config[1])
        head = f"from tflaunch import api\nHOSTS = {str(self._hostfile)!r}\nOPTIONS = {options!r}\n"
        return subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(text)],
            cwd=self.launcher.code,
            env=self.launcher.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, text: str) -> str:
        """What it prints; it must succeed, and write nothing to stderr."""
        with self.start(text) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, "")
        return out


@pytest.fixture
def program(launcher: Launcher, network: SshNetwork) -> Program:
    return Program(launcher, launcher.hostfile([network.add().name for _ in range(2)]))


def test_a_run_gives_its_events_and_its_outcome_and_brings_its_files(program: Program) -> None:
    said = program.run("""
        import json
        more = {"env": {"WORD": "x=y"}, **OPTIONS}
        with api.run(HOSTS, "trainer.py", args=["--epochs", "two words"], workers=2, **more) as run:
            assert run.running
            events = list(run)
        outcome = run.wait()
        assert list(run) == []
        fetched = run.fetch("*.txt", to="results")
        print(json.dumps({
            "events": events, "status": outcome.status, "code": run.exit_code, "id": run.id, "running": run.running,
            "log": run.log("worker/1"), "complete": fetched.complete, "apart": fetched.apart,
        }))
        try:
            run.log("worker/7")
        except api.TflaunchError as error:
            assert error.message == "worker/7: the run has no such task", error
            assert error.hint == "it has worker/0, worker/1", error
        """)
    told = json.loads(said)
    kinds = [event["event"] for event in told["events"]]
    assert [kinds[0], kinds[-1]] == ["code", "report"]
    logs = sorted((event["task"], event["line"]) for event in told["events"] if event["event"] == "log")
    line = "args --epochs two words x=y"
    assert logs == [("worker/0", line), ("worker/1", line)]
    assert (told["status"], told["code"], told["running"]) == ("succeeded", 0, False)
    assert (told["log"], told["complete"], told["apart"]) == (line + "\n", True, ["result.txt"])
    assert len(list((program.launcher.code / "results").rglob("result.txt"))) == 2
    [record] = program.launcher.records()
    command = json.loads((record / "run.json").read_text())["command"]
    assert command[:2] == ["tflaunch", "run"]
    assert "--workers=2" in command
    assert not [word for word in command if "x=y" in word], "no values of variables"
    program.launcher.wait_until_nothing_is_left()


def test_nobody_needs_to_read_the_events(launcher: Launcher) -> None:
    launcher.script("for line in range(50_000):\n    print('line', line)\n", "much.py")
    said = Program(launcher, launcher.local(1)).run("""
        run = api.run(HOSTS, "much.py", workers=1, **OPTIONS)
        print(run.wait().status, len(run.log("worker/0").splitlines()), list(run))
        """)
    assert said == "succeeded 50000 []\n"


def test_a_failure_is_an_outcome_and_an_exit_code(launcher: Launcher) -> None:
    said = Program(launcher, launcher.local(1)).run("""
        run = api.run(HOSTS, "trainer.py", args=["fail"], workers=1, **OPTIONS)
        outcome = run.wait()
        print(outcome.status, outcome.first_failure.code, run.exit_code)
        """)
    assert said == "failed 3 3\n"


@pytest.mark.parametrize("how", ["run.stop()", "run.stop(kill=True)", "raise KeyboardInterrupt"])
def test_stop_ends_it_and_so_does_the_end_of_the_block(program: Program, how: str) -> None:
    said = program.run(f"""
        try:
            with api.run(HOSTS, "trainer.py", args=["wait"], workers=2, **OPTIONS) as run:
                for event in run:
                    if event["event"] == "log":
                        {how}
        except KeyboardInterrupt:
            pass
        print(run.wait().status, run.exit_code)
        """)
    assert said == "interrupted 143\n"
    program.launcher.wait_until_nothing_is_left()


def test_a_stop_before_the_tasks_start_leaves_nothing(program: Program, network: SshNetwork) -> None:
    network.sshds[1].freeze()
    said = program.run("""
        run = api.run(HOSTS, "trainer.py", workers=2, **OPTIONS)
        try:
            run.wait(0.5)
        except TimeoutError as error:
            assert str(error) == f"{run.id} still runs after 0.5 s"
        run.stop()
        try:
            run.wait()
        except api.StoppedEarly as error:
            print(error.message == f"{run.id} was stopped before its tasks were started", run.exit_code)
        """)
    assert said == "True 143\n"
    program.launcher.wait_until_nothing_is_left()


def test_a_run_ends_with_its_program(program: Program) -> None:
    said = program.run("""
        run = api.run(HOSTS, "trainer.py", args=["wait"], workers=2, **OPTIONS)
        next(event for event in run if event["event"] == "log")
        print(run.id)
        """)
    [record] = program.launcher.records()
    assert said == f"{record.name}\n"
    assert json.loads((record / "outcome.json").read_text())["exit_code"] == 143
    program.launcher.wait_until_nothing_is_left()


def test_a_run_that_is_handed_over_is_told(program: Program) -> None:
    said = program.run(f"""
        import subprocess
        detach = {[str(word) for word in program.launcher.argv("detach")]!r}
        with api.run(HOSTS, "trainer.py", args=["wait"], workers=2, **OPTIONS) as run:
            for event in run:
                if event["event"] == "log":
                    subprocess.run([*detach, run.id], check=True, capture_output=True)
                    break
            kinds = [event["event"] for event in run]
            try:
                run.wait()
            except api.HandedOver as error:
                print(error.message == f"{{run.id}} goes on without this program: it was handed over to its hosts")
        print(kinds[-1], run.exit_code)
        """)
    [record] = program.launcher.records()
    program.launcher.run("stop", record.name).ran()
    assert said == "True\ndetached 0\n"
    program.launcher.wait_until_nothing_is_left()


def test_a_program_hands_its_run_over_and_another_one_finds_and_ends_it(program: Program) -> None:
    said = program.run("""
        with api.run(HOSTS, "trainer.py", args=["wait"], workers=2, **OPTIONS) as run:
            run.detach()
            try:
                run.wait()
            except api.HandedOver:
                print(run.id, run.running)
        """)
    [record] = program.launcher.records()
    assert said == f"{record.name} False\n"
    said = program.run("""
        config = OPTIONS["ssh_config"]
        [found] = api.runs(HOSTS, ssh_config=config).runs
        [same] = api.runs(ssh_config=config).runs
        print(found.run_id == same.run_id, found.alive, found.detached, [task.task for task in found.tasks])
        ends = api.stop(found.run_id, grace_s=1, ssh_config=config)
        print([(end.found, end.survivors) for end in ends.values()])
        print(len(api.runs(HOSTS, ssh_config=config).runs))
        [ended] = api.runs(HOSTS, everything=True, ssh_config=config).runs
        print(ended.alive)
        api.stop(found.run_id, ssh_config=config)  # to repeat it does no harm
        for run, hosts in (("nothing-1", HOSTS), ("not an id", None)):
            try:
                api.stop(run, hosts, ssh_config=config)
            except api.TflaunchError as error:
                print(error.exit_code, error.message)
        """)
    lines = said.splitlines()
    assert lines[:4] == [
        "True True True ['worker/0', 'worker/1']",
        "[(True, ()), (True, ())]",
        "0",
        "False",
    ]
    assert [line[:2] for line in lines[4:]] == ["2 ", "2 "]
    program.launcher.wait_until_nothing_is_left()


def test_a_run_that_is_over_or_never_started_cannot_be_handed_over(launcher: Launcher) -> None:
    said = Program(launcher, launcher.local(1)).run("""
        run = api.run(HOSTS, "trainer.py", workers=1, **OPTIONS)
        run.wait()
        try:
            run.detach()
        except api.TflaunchError as error:
            print(error.message == f"{run.id} is over")
        run = api.run(HOSTS, "trainer.py", workers=1, **{**OPTIONS, "min_gpu_memory": "999TiB", "gpus_per_worker": 1})
        try:
            run.detach()
        except api.TflaunchError as error:
            print(error.exit_code == run.exit_code != 0)
        """)
    assert said == "True\nTrue\n"


def test_a_program_follows_the_run_of_another_one(program: Program) -> None:
    program.run("""
        run = api.run(HOSTS, "trainer.py", args=["wait"], workers=2, **OPTIONS)
        run.detach()
        """)
    [record] = program.launcher.records()
    said = program.run("""
        config = OPTIONS["ssh_config"]
        with api.attach(ssh_config=config) as run:
            seen = [next(event for event in run if event["event"] == "log")["line"]]
        try:
            run.wait()
        except api.NotFollowed as error:
            print(error.exit_code, run.running, len(api.runs(HOSTS, ssh_config=config).runs))
        api.attach(hosts=HOSTS, ssh_config=config).close()
        run = api.attach(run.id, HOSTS, ssh_config=config)
        next(event for event in run if event["event"] == "log")
        fetched = run.fetch("*.txt", to="results")
        print(seen, fetched.complete, api.fetch(run.id, "*.csv", to="more", ssh_config=config).unmatched)
        api.attach(hosts=HOSTS, ssh_config=config).stop(grace_s=1)
        kinds = [event["event"] for event in run]
        print(run.id, run.wait().status, run.exit_code, kinds[-1], run)
        try:
            api.attach("nothing-1")
        except api.TflaunchError as error:
            print(error.exit_code)
        """)
    assert said.splitlines() == [
        "0 False 1",
        "['args wait None'] True ['*.csv']",
        f"{record.name} interrupted 143 report <Attached {record.name}: exit code 143>",
        "2",
    ]
    program.launcher.wait_until_nothing_is_left()


def test_a_fork_of_the_program_does_not_wait_for_the_run(launcher: Launcher) -> None:
    said = Program(launcher, launcher.local(1)).run("""
        import os, sys
        from tflaunch.api import running
        running.EXIT_S = 1e6
        run = api.run(HOSTS, "trainer.py", args=["wait"], workers=1, **OPTIONS)
        next(event for event in run if event["event"] == "log")
        child = os.fork()
        if not child:
            sys.exit(0)
        print(os.waitpid(child, 0)[1], run.running, flush=True)
        run.stop()
        print(run.wait().status)
        """)
    assert said == "0 True\ninterrupted\n"


def test_the_programs_own_signals_are_left_alone(launcher: Launcher) -> None:
    said = Program(launcher, launcher.local(1)).run("""
        import signal
        def mine(*_): print("mine")
        signal.signal(signal.SIGINT, mine)
        run = api.run(HOSTS, "trainer.py", args=["wait"], workers=1, **OPTIONS)
        next(event for event in run if event["event"] == "log")
        signal.raise_signal(signal.SIGINT)
        print(run.running, signal.getsignal(signal.SIGINT) is mine)
        """)
    assert said == "mine\nTrue True\n"


def test_what_is_wrong_is_an_error_with_the_words_of_the_command_line(launcher: Launcher) -> None:
    said = Program(launcher, launcher.local(1)).run("""
        def refused(**options):
            try:
                api.run(HOSTS, options.pop("program", "trainer.py"), **{**OPTIONS, **options})
            except api.TflaunchError as error:
                print(error.exit_code, error.message, "|", error.hint)
        refused(worker=2)
        refused(workers="many")
        refused(detach=True)
        refused(args="--epochs 3")
        refused(env={"TF_CONFIG": "{}"})
        refused(program="nothing.py")
        try:
            api.load_hosts("missing.yaml")
        except api.TflaunchError as error:
            print(error.exit_code, error.message)
        """)
    lines = said.splitlines()
    assert lines[0] == "2 worker=: there is no such option | did you mean workers=?"
    assert lines[1].startswith("2 --workers: 'many' is not a whole number | ")
    assert lines[2].startswith(
        "2 detach=: there is no such option | start the run, then hand it over: run.detach()"
    )
    assert lines[3].startswith("2 args='--epochs 3': one string | a list of words")
    assert lines[4].startswith("2 --env TF_CONFIG: TF_CONFIG is what tflaunch sets for every task | ")
    assert lines[5].startswith("2 ")
    assert "nothing.py" in lines[5]
    assert lines[6].startswith("2 ")
    assert len(lines) == 7


def test_a_plan_starts_nothing_and_gpus_tells_what_is_free(
    gpus: Gpus, network: SshNetwork, launcher: Launcher
) -> None:
    gpus.add(2)
    gpus.add(1)
    program = Program(launcher, gpus.hostfile)
    said = program.run("""
        plan = api.make_plan(HOSTS, "trainer.py", **{**OPTIONS, "ps": 1, "flags": True})
        print([(str(task.id), task.host, len(task.gpus)) for task in plan.tasks])
        overview = api.gpus(HOSTS, ssh_config=OPTIONS["ssh_config"])
        print([(each.names, each.free, each.total) for each in overview.machines], overview.unreachable)
        print([host.name for host in api.load_hosts(["gpu[01-02]", "cpu"]).hosts])
        """)
    plan, cards, names = said.splitlines()
    assert plan == (
        "[('ps/0', 'host2', 0), ('worker/0', 'host1', 1), ('worker/1', 'host2', 1), ('worker/2', 'host1', 1)]"
    )
    assert cards == "[(('host1',), 2, 2), (('host2',), 1, 1)] {}"
    assert names == "['gpu01', 'gpu02', 'cpu']"
    until(lambda: launcher.leftovers() == [], "nothing on the hosts")
    assert launcher.records() == []


def test_the_programs_of_the_page_do_what_it_says(launcher: Launcher) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    run, look, others, follow = blocks
    program = Program(launcher, launcher.local(1))
    shutil.copy(launcher.local(1), launcher.code / "hosts.yaml")
    run_id, status, code = program.run(run).splitlines()[-1].split()
    assert (status, code) == ("succeeded", "0")
    assert [record.name for record in launcher.records()] == [run_id]
    tasks, gpus = program.run("from tflaunch import api\n" + look).splitlines()
    assert re.fullmatch(r"\[\('ps/0', '\w+', \(\)\), \('worker/0', .*", tasks)
    assert "gpu01" in gpus
    started = (
        "run_of_another = api.run(HOSTS, 'trainer.py', args=['wait'], workers=1, **OPTIONS)\n"
        "next(event for event in run_of_another if event['event'] == 'log')\n"
    )
    stop = others.replace('"trainer-k3f9x2"', "run_of_another.id")
    said = program.run(f"{started}{stop}\nprint(run_of_another.wait().status)\n")
    assert re.fullmatch(r"trainer-\w+ True \[\('worker/0', '\w+', 'running'\)\]\ninterrupted\n", said)
    followed = follow.replace('"trainer-k3f9x2"', "run_of_another.id").replace(
        '        if event["event"] == "log":',
        '        if event["event"] == "log":\n            run_of_another.stop()',
    )
    assert program.run(started + followed) == "worker/0 args wait None\ninterrupted\n"
