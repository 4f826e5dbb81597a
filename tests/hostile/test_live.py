"""A host that has been broken into, beside an honest one, over real sshd: what it may do at most is to be lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hostile import relay
from tests.hostile.cases import Case, samples
from tests.hostile.mutations import Mutation
from tests.hostile.replay import Seen, breaches
from tests.support.evil import harmless
from tests.support.gpus_lab import Terminal
from tests.support.launcher import Done, Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork

# A worker of an asynchronous job: that on the honest host works until it is told to end, or until $OUT/go is there.
TRAINER = """\
import os, pathlib, signal, sys, time
out, task = pathlib.Path(os.environ["OUT"]), os.environ["TFLAUNCH_TASK"]
def ends(*_):
    (out / "orderly").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, ends)
pathlib.Path("made.txt").write_text(task)
print("hello from", task, flush=True)
(out / task.replace("/", "-")).touch()
while task == "worker/1" and not (out / "go").exists():
    time.sleep(0.02)
"""
RUN = ("--ps=0", "--workers=2", "--lease=5s", "--grace=5s")


class Bench:
    """A hostile host1, an honest host2, and the user."""

    def __init__(self, directory: Path, network: SshNetwork, launcher: Launcher) -> None:
        self.launcher = launcher
        self.out = directory / "out"
        self.out.mkdir()
        self.canary = directory / "canary"
        self._plan, self._samples = directory / "plan.json", directory / "samples.json"
        self._samples.write_text(json.dumps(samples()))
        self.lie("")
        bins = relay.install(directory / "bin")
        self.hostile = network.add(
            path=f"{bins}:/usr/local/bin:/usr/bin:/bin", env={relay.PLAN: str(self._plan)}
        )
        self.honest = network.add()
        self.hostfile = launcher.hostfile([self.hostile.name, self.honest.name])
        self.trainer = launcher.script(TRAINER)

    def lie(self, mutation: str) -> None:
        """What the hostile host does from now on."""
        self._plan.write_text(
            json.dumps({"mode": "mutate", "mutation": mutation, "samples": str(self._samples)})
        )

    def run(self, *words: str | Path) -> Done:
        """Any command of the user's; its promises are checked."""
        before = {str(path) for path in self.launcher.directory.glob("[!n]*/**/*")}
        with self.launcher.start(*words, env={"TFLAUNCH_CANARY": str(self.canary)}) as running:
            done = running.done()
        return self._kept(done, before)

    def _kept(self, done: Done, before: set[str]) -> Done:
        mutation = json.loads(self._plan.read_text())["mutation"]
        if mutation:
            mine = ("state/", "hosts/", "output/", "out/", "launcher-home/.cache", "code/got")
            now = {str(path) for path in self.launcher.directory.glob("[!n]*/**/*")} - before
            names = [name.removeprefix(f"{self.launcher.directory}/") for name in now]
            odd = [name for name in names if not name.startswith(mine) and name not in ("hosts", "state")]
            case = Case("run", "", Mutation.parse(mutation))
            out, err = (text.encode("utf-8", "surrogateescape") for text in (done.out, done.err))
            assert breaches(Seen(case, done.code, out, err, 0, 0, 0, tuple(odd), True)) == []
        assert not self.canary.exists()
        return done


@pytest.fixture
def bench(tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Bench:
    return Bench(tmp_path, network, launcher)


@dataclass(frozen=True)
class Lie:
    """What the hostile host says during a run, and how that ends."""

    mutation: str
    code: int
    sentence: str
    begun: bool = True  # the tasks were


LIES = (
    Lie("facts#0:lacks=module", 69, "lacks", begun=False),
    Lie("code#1:@frame=garbage", 69, "host1", begun=False),
    Lie("staged#0:@frame=garbage", 70, "host1", begun=False),
    Lie("started#0:task=other-task", 76, "which is not on that host"),
    Lie("exit#0:task=other-task", 76, "which is not on that host"),
    Lie("exit#0:code=huge", 76, "exit"),
    Lie("log#0:offset=minus", 76, "offset"),
    Lie("exit#0:@frame=head-limit", 76, "host1"),
)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.mutation)
def test_a_host_that_lies_is_lost_and_the_other_host_ends_in_order(bench: Bench, lie: Lie) -> None:
    bench.lie(lie.mutation)
    done = bench.run("run", bench.hostfile, bench.trainer, *RUN, f"--env=OUT={bench.out}")
    assert done.code == lie.code, done.err
    assert lie.sentence in done.sentences
    assert (bench.out / "orderly").exists() == (lie.begun and (bench.out / "worker-1").exists())
    bench.lie("")
    bench.launcher.wait_until_nothing_is_left()


def test_what_a_host_forges_of_another_hosts_tasks_stops_no_asynchronous_job_that_restarts(
    bench: Bench,
) -> None:
    bench.lie("exit#0:task=other-task")
    words = (
        "run",
        bench.hostfile,
        bench.trainer,
        *RUN,
        f"--env=OUT={bench.out}",
        "--restarts=1",
        "--restart=task",
    )
    with bench.launcher.start(*words) as running:
        running.wait_for("which is not on that host")
        until((bench.out / "worker-1").exists, "the honest worker")
        running.interrupt()
        running.end()
    assert "worker/1 on host1" not in running.err
    bench.lie("")


# verb, lie, how it ends
QUESTIONS = (
    ("ps", "runs#0:runs>0>about>hosts=escapes-list", (0, 69)),
    ("ps", "runs#0:runs>0>run=traversal", (0, 69)),
    ("status", "runs#0:runs>0>tasks>0=null", (0, 69)),
    ("logs", "log#0:@body=escapes", (0, 69, 76)),
    ("fetch", "found#0:files>0>0=git", (69, 74)),
    ("fetch", "piece#0:size=huge", (69, 74)),
    ("gpus", "facts#0:hostname=escapes", (0, 69)),
    ("gpus", "facts#1:@frame=deep", (69,)),
)


def test_no_answer_of_a_host_harms_who_asks(bench: Bench) -> None:
    (bench.out / "go").touch()
    bench.run("run", bench.hostfile, bench.trainer, *RUN, f"--env=OUT={bench.out}").ran()
    [record] = bench.launcher.records()
    words: dict[str, tuple[str | Path, ...]] = {
        "ps": ("-a", "--hosts", bench.hostfile),
        "status": (record.name,),
        "logs": (record.name,),
        "fetch": (record.name, "*.txt", "--to=got"),
        "gpus": ("-F", bench.launcher._network.config, bench.hostfile),  # type: ignore[union-attr]
    }
    for verb, lie, codes in QUESTIONS:
        bench.lie(lie)
        done = bench.run(verb, *words[verb])
        assert done.code in codes, f"{verb} {lie}: {done.code}\n{done.err}"
    assert not list(bench.launcher.code.rglob("post-checkout"))


# lie, what the watch shows of that host
WATCHED = (
    ("facts#0:gpu_note=escapes", r"^.host1 .*fake"),
    ("facts#0:hostname=escapes", r"^.host1 +no NVIDIA driver"),
    ("facts#2:gpu_note=escapes", r"^.host1 .*fake"),
    ("facts#1:@frame=deep", r"^.host1 +✗ "),
    ("facts#0:clock=true", r"^.host1 +✗ it breaks the protocol"),
)


def test_a_watch_shows_what_a_host_says_and_does_nothing_of_it(bench: Bench) -> None:
    words = ("gpus", "-F", bench.launcher._network.config, bench.hostfile, "--watch", "--interval=0.3")  # type: ignore[union-attr]
    for lie, shown in WATCHED:
        bench.lie(lie)
        screen = Terminal([*bench.launcher.argv(*words)], bench.launcher.env(), columns=110)
        try:
            screen.shows(shown)
            screen.shows("^.host2 +no NVIDIA driver")
            screen.type("\r")
            screen.shows("^q quit  Esc back")
            screen.type("q")
            assert screen.end() == 0, lie
        finally:
            screen.process.kill()
            screen.end()
        harmless(b"".join(screen._parts).decode(), own=True)
        assert not bench.canary.exists()
    bench.lie("")
    bench.launcher.wait_until_nothing_is_left()


def test_a_host_that_breaks_the_protocol_once_the_work_is_done_is_not_asked_again(bench: Bench) -> None:
    bench.lie("found#0:last=one")
    (bench.out / "go").touch()
    words = (*RUN, f"--env=OUT={bench.out}", "--fetch=made.txt", "--fetch-to=got")
    done = bench.run("run", bench.hostfile, bench.trainer, *words)
    assert done.code == 74, done.err
    assert "in a message of the type found, last is not a flag" in done.sentences
    assert "is back" not in done.err, done.err
    assert [each.read_text() for each in (bench.launcher.code / "got").rglob("made.txt")] == ["worker/1"]
    bench.lie("")
    bench.launcher.wait_until_nothing_is_left()
