"""Runs that queue for GPUs: over real sshd, on real agents, the GPUs simulated in C."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import pytest

from tests.support.lab import Gpus
from tests.support.launcher import Launcher, Running
from tests.support.patience import until


def start(gpus: Gpus, name: str, workers: int, *more: str) -> Running:
    return gpus.launcher.start(*gpus.words(name, workers, *more))


def queued(gpus: Gpus, name: str, workers: int, *more: str) -> Running:
    """A run that waits: it has its place in the queue, and has said so."""
    running = start(gpus, name, workers, "--wait", *more)
    running.wait_for(" in line")
    return running


def test_waiting_runs_are_served_in_turn(gpus: Gpus) -> None:
    gpus.add()
    gpus.add()
    gpus.let_end("first", "second", "third")
    with start(gpus, "holder", 2) as holder, contextlib.ExitStack() as waiters:
        holder.wait_for("has GPU", 2)
        first = waiters.enter_context(queued(gpus, "first", 2))
        second = waiters.enter_context(queued(gpus, "second", 2))
        third = waiters.enter_context(start(gpus, "third", 1, "--wait", "--json"))
        third.wait_for('"place": 3')
        gpus.let_end("holder")
        for each in (holder, first, second, third):
            each.done().ran()
    assert gpus.order == ["holder"] * 2 + ["first"] * 2 + ["second"] * 2 + ["third"]
    held = rf"host1:0 host2:0 \S+'s run {holder.run_id} since \d\d:\d\d"
    assert re.search(rf"^  waiting: 0 of 2 GPUs free; 1st in line; {held}$", first.err, re.MULTILINE)
    assert re.search(rf"2nd in line, behind \S+'s run {first.run_id}; {held}$", second.err, re.MULTILINE)
    waited = [event for event in third.done().events if event["event"] == "waiting"]
    assert (waited[0]["place"], waited[0]["free"], waited[0]["needed"]) == (3, 0, 1)
    behind = [each.partition(" ")[2] for each in waited[0]["behind"]]
    assert behind == [f"run {first.run_id}", f"run {second.run_id}"]
    assert [each[0] for each in waited[0]["held"]] == ["host1:0 host2:0"]
    assert gpus.tickets == []


def test_small_jobs_do_not_overtake_a_large_one(gpus: Gpus) -> None:
    for _ in range(3):
        gpus.add()
    two = ("--include=host[1-2]",)
    gpus.let_end("large", "small", "other", "refused")
    with start(gpus, "one", 1, "--include=host1") as one, start(gpus, "two", 1, "--include=host2") as other:
        one.wait_for("has GPU-10")
        other.wait_for("has GPU-20")
        with queued(gpus, "large", 2, *two) as large, queued(gpus, "small", 1, "--include=host1") as small:
            gpus.let_end("one")
            one.done().ran()
            large.wait_for("1 of 2 GPUs free")
            # The GPU of host1 is free, and nobody takes it away from who has waited longer.
            refused = gpus.launcher.run(*gpus.words("refused", 1, "--include=host1")).ran(65)
            assert re.search(r"promised to \S+'s run \S+, which waits since \d\d:\d\d", refused.sentences)
            assert "Or queue for the GPUs: --wait" in refused.sentences
            shown = gpus.launcher.run("gpus", gpus.hostfile, "-F", gpus.network.config).ran().out
            assert re.search(r"◌ promised .* run trainer-\S+ waits for it$", shown, re.MULTILINE), shown
            assert re.search(r"^1\. \S+'s run trainer-\S+ has waited \d+s for 2 GPUs$", shown, re.MULTILINE)
            assert re.search(r"^○ 1 free .*◌ 1 promised .*of 3 on 3 hosts", shown, re.MULTILINE), shown
            # Whoever wants none of these GPUs is not held up.
            gpus.launcher.run(*gpus.words("other", 1, "--include=host3")).ran()
            assert "small" not in gpus.order
            gpus.let_end("two")
            for each in (large, small, other):
                each.done().ran()
    assert gpus.order[2:] == ["other", "large", "large", "small"]


@pytest.mark.parametrize("everything", [False, True], ids=["its launcher", "and its agents"])
def test_who_is_killed_while_waiting_loses_its_place(gpus: Gpus, everything: bool) -> None:
    gpus.add()
    gpus.let_end("second")
    with start(gpus, "holder", 1) as holder:
        holder.wait_for("has GPU")
        with queued(gpus, "first", 1) as first:
            run = re.match(r"[0-9.]+-(trainer-\w+)-host1", gpus.tickets[0])
            assert run
            with queued(gpus, "second", 1) as second:
                second.wait_for("2nd in line")
                first.signal(signal.SIGKILL)
                for process in gpus.launcher.leftovers(run[1]) if everything else ():
                    process.kill()
                second.wait_for("1st in line")
                until(lambda: len(gpus.tickets) == 1, "the dead ticket's end")
                gpus.let_end("holder")
                second.done().ran()
    assert gpus.order == ["holder", "second"]


def test_a_wait_that_runs_out_and_one_that_would_be_in_vain(gpus: Gpus) -> None:
    gpus.add()
    with start(gpus, "holder", 1) as holder:
        holder.wait_for("has GPU")
        late = gpus.launcher.run(*gpus.words("late", 1, "--wait", "1s")).ran(65)
        assert "need 1 GPU (1 worker x 1), 0 are free" in late.sentences
        assert re.search(r"waited \d.* s: 1st in line; host1:0 ", late.sentences)
        assert "Wait longer, or for ever: --wait alone." in late.sentences
        vain = gpus.launcher.run(*gpus.words("vain", 2, "--wait")).ran(65)
        assert "with every GPU free: need 2 GPUs" in vain.sentences
        hasty = gpus.launcher.run(*gpus.words("hasty", 1)).ran(65)
        assert "Or queue for the GPUs: --wait, --wait 2h." in hasty.sentences
        assert "--wait" not in gpus.launcher.run(*gpus.words("vain", 2)).ran(65).sentences
        gpus.let_end("holder")
        holder.done().ran()
    assert gpus.order == ["holder"]
    assert gpus.tickets == []


@pytest.mark.parametrize("how", ["Ctrl-C", "tflaunch stop"])
def test_a_wait_can_be_ended(gpus: Gpus, how: str) -> None:
    gpus.add()
    gpus.add()
    with start(gpus, "holder", 2) as holder:
        holder.wait_for("has GPU", 2)
        with queued(gpus, "waiter", 1) as waiter:
            run = re.match(r"[0-9.]+-(trainer-\w+)-host1", gpus.tickets[0])
            assert run
            if how == "Ctrl-C":
                waiter.interrupt()
            else:
                gpus.launcher.run("stop", run[1], "--hosts", gpus.hostfile).ran()
            done = waiter.done()
            assert done.code == (130 if how == "Ctrl-C" else 143)
            assert "nothing was started, nothing is left" in done.sentences
            until(lambda: not gpus.launcher.leftovers(run[1]), "the end of its agents")
        assert gpus.tickets == []
        gpus.let_end("holder")
        holder.done().ran()
    until(lambda: run[1] not in {path.parent.name for path in gpus.launcher.run_directories()}, "its end")


def test_a_host_that_is_lost_does_not_end_the_wait(gpus: Gpus) -> None:
    gpus.add()
    second = gpus.add()
    gpus.let_end("waiter")
    with start(gpus, "holder", 1, "--include=host1") as holder:
        holder.wait_for("has GPU")
        with queued(gpus, "waiter", 2) as waiter:
            before = {name.partition("-")[0] for name in gpus.tickets}
            assert len(before) == 1, "one `since` on all hosts"
            second.kill()
            waiter.wait_for("host2 is lost")
            waiter.wait_for("host2 cannot be asked")
            second.start()
            waiter.wait_for("host2 is back")
            until(lambda: len(gpus.tickets) == 2, "its place on both hosts")
            assert {name.partition("-")[0] for name in gpus.tickets} == before
            gpus.let_end("holder")
            waiter.done().ran()
        holder.done().ran()
    assert gpus.order == ["holder", "waiter", "waiter"]


def test_a_run_begins_without_a_host_that_it_does_not_need(gpus: Gpus) -> None:
    gpus.add()
    second = gpus.add()
    gpus.let_end("waiter")
    with start(gpus, "holder", 2, "--lease=5") as holder:
        holder.wait_for("has GPU", 2)
        with queued(gpus, "waiter", 1) as waiter:
            # The holder's wire to host2 is cut, too: that run ends with what it has lost.
            second.kill()
            waiter.wait_for("host2 is lost")
            gpus.let_end("holder")
            done = waiter.done().ran()
            assert "host2 is lost: the run begins without it" in done.sentences
            assert "has GPU-10" in done.out
        second.start()
        holder.done()
    until(lambda: gpus.tickets == [], "no ticket to be left")


def test_runs_without_a_number_of_workers_wait_for_one_gpu(gpus: Gpus) -> None:
    gpus.add(2)
    gpus.let_end("greedy")
    words = [word for word in gpus.words("greedy", 0) if word != "--workers=0"]
    with start(gpus, "holder", 2) as holder:
        holder.wait_for("has GPU", 2)
        with gpus.launcher.start(*words, "--wait") as greedy:
            greedy.wait_for("0 of 1 GPUs free; 1st in line")
            gpus.let_end("holder")
            greedy.done().ran()
        holder.done().ran()
    assert gpus.order[2:] in (["greedy"], ["greedy", "greedy"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--wait", "10x"), "'10x' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        (("--wait=soon",), "'soon' is not a time"),
        (("--wait", "--dry-run"), "a dry run starts nothing, and waits for nothing"),
    ],
    ids=" ".join,
)
def test_bad_usage_contacts_nobody(launcher: Launcher, words: tuple[str, ...], said: str) -> None:
    hostfile = launcher.hostfile(["nowhere.invalid"])
    done = launcher.run("run", hostfile, launcher.script(""), *words).ran(2)
    assert said in done.sentences


def test_a_wait_option_of_the_trainer_is_its_own(launcher: Launcher, tmp_path: Path) -> None:
    script = launcher.script("import sys\nprint('told', sys.argv[-2:])\n")
    done = launcher.run("run", launcher.local(1), script, "--wait", "--ps=0", "--", "--wait", "--x").ran()
    assert "told ['--wait', '--x']" in done.out
