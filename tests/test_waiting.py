"""Runs that queue for cards: over real sshd, on real agents, the cards simulated in C."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import pytest

from tests.lab import Cards
from tests.launcher import Launcher, Running, until
from tests.nvml import build
from tests.sshd import SshNetwork
from tflaunch.launch.watcher import Turn


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the simulated NVML library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Cards:
    """A lab without hosts."""
    return Cards(library, tmp_path, network, launcher)


def start(cards: Cards, name: str, workers: int, *more: str) -> Running:
    return cards.launcher.start(*cards.words(name, workers, *more))


def queued(cards: Cards, name: str, workers: int, *more: str) -> Running:
    """A run that waits: it has its place in the queue, and has said so."""
    running = start(cards, name, workers, "--wait", *more)
    running.wait_for(" in line")
    return running


def test_waiting_runs_are_served_in_turn(cards: Cards) -> None:
    cards.add()
    cards.add()
    cards.let_end("first", "second", "third")
    with start(cards, "holder", 2) as holder, contextlib.ExitStack() as waiters:
        holder.wait_for("has GPU", 2)
        first = waiters.enter_context(queued(cards, "first", 2))
        second = waiters.enter_context(queued(cards, "second", 2))
        third = waiters.enter_context(start(cards, "third", 1, "--wait", "--json"))
        third.wait_for('"place": 3')
        cards.let_end("holder")
        for each in (holder, first, second, third):
            each.done().ran()
    assert cards.order == ["holder"] * 2 + ["first"] * 2 + ["second"] * 2 + ["third"]
    held = rf"host1:0 host2:0 \S+'s run {holder.run_id} since \d\d:\d\d"
    assert re.search(rf"^  waiting: 0 of 2 GPUs are free; 1st in line; {held}$", first.err, re.MULTILINE)
    assert re.search(rf"2nd in line, behind \S+'s run {first.run_id}; {held}$", second.err, re.MULTILINE)
    waited = [event for event in third.done().events if event["event"] == "waiting"]
    assert (waited[0]["place"], waited[0]["free"], waited[0]["needed"]) == (3, 0, 1)
    behind = [each.partition(" ")[2] for each in waited[0]["behind"]]
    assert behind == [f"run {first.run_id}", f"run {second.run_id}"]
    assert [each[0] for each in waited[0]["held"]] == ["host1:0 host2:0"]
    assert cards.tickets == []


def test_small_jobs_do_not_overtake_a_large_one(cards: Cards) -> None:
    for _ in range(3):
        cards.add()
    two = ("--include=host[1-2]",)
    cards.let_end("large", "small", "other", "refused")
    with start(cards, "one", 1, "--include=host1") as one, start(cards, "two", 1, "--include=host2") as other:
        one.wait_for("has GPU-10")
        other.wait_for("has GPU-20")
        with queued(cards, "large", 2, *two) as large, queued(cards, "small", 1, "--include=host1") as small:
            cards.let_end("one")
            one.done().ran()
            large.wait_for("1 of 2 GPUs are free")
            # The card of host1 is free, and nobody takes it away from who has waited longer.
            refused = cards.launcher.run(*cards.words("refused", 1, "--include=host1")).ran(65)
            assert re.search(r"promised to \S+'s run \S+, which waits since \d\d:\d\d", refused.sentences)
            assert "Or queue for the cards: --wait" in refused.sentences
            shown = cards.launcher.run("gpus", cards.hostfile, "-F", cards.network.config).ran().out
            assert re.search(r"◌ promised .* run trainer-\S+ waits for it$", shown, re.MULTILINE), shown
            assert re.search(r"^1\. \S+'s run trainer-\S+ has waited \d+s for 2 GPUs$", shown, re.MULTILINE)
            assert re.search(r"^○ 1 free .*◌ 1 promised .*of 3 on 3 hosts", shown, re.MULTILINE), shown
            # Whoever wants none of these cards is not held up.
            cards.launcher.run(*cards.words("other", 1, "--include=host3")).ran()
            assert "small" not in cards.order
            cards.let_end("two")
            for each in (large, small, other):
                each.done().ran()
    assert cards.order[2:] == ["other", "large", "large", "small"]


@pytest.mark.parametrize("everything", [False, True], ids=["its launcher", "and its agents"])
def test_who_is_killed_while_waiting_loses_its_place(cards: Cards, everything: bool) -> None:
    cards.add()
    cards.let_end("second")
    with start(cards, "holder", 1) as holder:
        holder.wait_for("has GPU")
        with queued(cards, "first", 1) as first:
            run = re.match(r"[0-9.]+-(trainer-\w+)-host1", cards.tickets[0])
            assert run
            with queued(cards, "second", 1) as second:
                second.wait_for("2nd in line")
                first.signal(signal.SIGKILL)
                for process in cards.launcher.leftovers(run[1]) if everything else ():
                    process.kill()
                second.wait_for("1st in line")
                until(lambda: len(cards.tickets) == 1, "the dead ticket's end")
                cards.let_end("holder")
                second.done().ran()
    assert cards.order == ["holder", "second"]


def test_a_wait_that_runs_out_and_one_that_would_be_in_vain(cards: Cards) -> None:
    cards.add()
    with start(cards, "holder", 1) as holder:
        holder.wait_for("has GPU")
        late = cards.launcher.run(*cards.words("late", 1, "--wait", "1s")).ran(65)
        assert "need 1 GPU (1 worker x 1), 0 are free" in late.sentences
        assert re.search(r"waited \d.* s: 1st in line; host1:0 ", late.sentences)
        assert "Wait longer, or for ever: --wait alone." in late.sentences
        vain = cards.launcher.run(*cards.words("vain", 2, "--wait")).ran(65)
        assert "with every card free: need 2 GPUs" in vain.sentences
        hasty = cards.launcher.run(*cards.words("hasty", 1)).ran(65)
        assert "Or queue for the cards: --wait, --wait 2h." in hasty.sentences
        assert "--wait" not in cards.launcher.run(*cards.words("vain", 2)).ran(65).sentences
        cards.let_end("holder")
        holder.done().ran()
    assert cards.order == ["holder"]
    assert cards.tickets == []


@pytest.mark.parametrize("how", ["Ctrl-C", "tflaunch stop"])
def test_a_wait_can_be_ended(cards: Cards, how: str) -> None:
    cards.add()
    cards.add()
    with start(cards, "holder", 2) as holder:
        holder.wait_for("has GPU", 2)
        with queued(cards, "waiter", 1) as waiter:
            run = re.match(r"[0-9.]+-(trainer-\w+)-host1", cards.tickets[0])
            assert run
            if how == "Ctrl-C":
                waiter.interrupt()
            else:
                cards.launcher.run("stop", run[1], "--hosts", cards.hostfile).ran()
            done = waiter.done()
            assert done.code == (130 if how == "Ctrl-C" else 143)
            assert "nothing was started, nothing is left" in done.sentences
            until(lambda: not cards.launcher.leftovers(run[1]), "the end of its agents")
        assert cards.tickets == []
        cards.let_end("holder")
        holder.done().ran()
    assert not [path for path in cards.launcher.run_directories() if path.parent.name == run[1]]


def test_a_host_that_is_lost_does_not_end_the_wait(cards: Cards) -> None:
    cards.add()
    second = cards.add()
    cards.let_end("waiter")
    with start(cards, "holder", 1, "--include=host1") as holder:
        holder.wait_for("has GPU")
        with queued(cards, "waiter", 2) as waiter:
            before = {name.partition("-")[0] for name in cards.tickets}
            assert len(before) == 1, "one `since` on all hosts"
            second.kill()
            waiter.wait_for("host2 is lost")
            waiter.wait_for("host2 cannot be asked")
            second.start()
            waiter.wait_for("host2 is back")
            until(lambda: len(cards.tickets) == 2, "its place on both hosts")
            assert {name.partition("-")[0] for name in cards.tickets} == before
            cards.let_end("holder")
            waiter.done().ran()
        holder.done().ran()
    assert cards.order == ["holder", "waiter", "waiter"]


def test_a_run_begins_without_a_host_that_it_does_not_need(cards: Cards) -> None:
    cards.add()
    second = cards.add()
    cards.let_end("waiter")
    with start(cards, "holder", 2, "--lease=5") as holder:
        holder.wait_for("has GPU", 2)
        with queued(cards, "waiter", 1) as waiter:
            # The holder's wire to host2 is cut, too: that run ends with what it has lost.
            second.kill()
            waiter.wait_for("host2 is lost")
            cards.let_end("holder")
            done = waiter.done().ran()
            assert "host2 is lost: the run begins without it" in done.sentences
            assert "has GPU-10" in done.out
        second.start()
        holder.done()
    until(lambda: cards.tickets == [], "no ticket to be left")


def test_runs_without_a_number_of_workers_wait_for_one_card(cards: Cards) -> None:
    cards.add(2)
    cards.let_end("greedy")
    words = [word for word in cards.words("greedy", 0) if word != "--workers=0"]
    with start(cards, "holder", 2) as holder:
        holder.wait_for("has GPU", 2)
        with cards.launcher.start(*words, "--wait") as greedy:
            greedy.wait_for("0 of 1 GPUs are free; 1st in line")
            cards.let_end("holder")
            greedy.done().ran()
        holder.done().ran()
    assert cards.order[2:] in (["greedy"], ["greedy", "greedy"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--wait", "10x"), "'10x' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        (("--wait=soon",), "'soon' is not a time"),
        (("--wait", "--dry-run"), "what starts nothing waits for nothing"),
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


def test_a_turn_in_words() -> None:
    assert str(Turn(1, (), 0, 2, ())) == "1st in line"
    turn = Turn(
        3, ("ada's run a", "bob's run b"), 1, 4, (("g1:0,2 g2:1", "eve's run e since 10:32"),), ("g3", "g4")
    )
    assert str(turn) == (
        "3rd in line, behind ada's run a, bob's run b; g1:0,2 g2:1 eve's run e since 10:32; g[3-4] cannot be asked"
    )
    places = [str(Turn(place, (), 0, 1, ())).split()[0] for place in (2, 4, 11, 12, 13, 21, 22, 101, 111)]
    assert places == ["2nd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th"]
