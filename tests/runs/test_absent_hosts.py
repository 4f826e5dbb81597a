"""Hosts that are not there when a run begins, or begins anew: over real sshd, and where the network says no."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.lab import Gpus
from tests.support.launcher import Launcher
from tests.support.nvml import build
from tests.support.sshd import Sshd, SshNetwork, logins, make_key
from tests.support.terminal import Terminal

# Tells where it runs; with HOLD, it waits until the file of that name is there.
WHERE = """
    import os, time
    print(os.environ["TFLAUNCH_TASK"], "on", os.environ["TFLAUNCH_HOST"], flush=True)
    while "HOLD" in os.environ and not os.path.exists(os.environ["HOLD"]):
        time.sleep(0.05)
"""
GONE = "cannot be reached (port 22 refuses the connection)"


@pytest.fixture
def lab(network: SshNetwork) -> list[Sshd]:
    """Three hosts, of which the last has no sshd any more."""
    sshds = [network.add() for _ in range(3)]
    sshds[2].kill()
    return sshds


def hostfile(launcher: Launcher, sshds: list[Sshd], **more: object) -> Path:
    return launcher.hostfile([sshd.name for sshd in sshds], **more)


def places(out: str) -> list[str]:
    """`worker/0 on host1`, of each task."""
    return sorted(re.findall(r"^\S+ +│ (\S+ on \S+)$", out, re.MULTILINE))


def cause(sshd: Sshd) -> str:
    return f"{sshd.name} cannot be reached (port {sshd.port} refuses the connection)"


def test_what_fits_on_the_hosts_that_are_there_goes_on(launcher: Launcher, lab: list[Sshd]) -> None:
    hosts = hostfile(launcher, [lab[2], lab[0], lab[1]])
    done = launcher.run("run", hosts, launcher.script(WHERE), "--workers=2", "--ps=1").ran()
    assert f"! {cause(lab[2])}: going on without it" in done.err.splitlines()
    assert "connected to 2 hosts" in done.err
    assert places(done.out) == ["ps/0 on host1", "worker/0 on host1", "worker/1 on host2"]
    moved = "worker/0 is on host1; were host3 there, it might be on that: it finds no checkpoints of earlier runs that "
    assert moved in done.sentences

    why = f"port {lab[2].port} refuses the connection"
    [record] = launcher.records()
    about = json.loads((record / "run.json").read_text())
    assert about["plan"]["left_out"] == {"host3": why}
    assert [host["name"] for host in about["hostfile"]["hosts"]] == ["host1", "host2"]
    shown = launcher.run("status", record.name).ran()  # and does not ask that host
    assert f"! planned without host3; the reason then: {why}" in shown.out
    assert moved in " ".join(shown.out.split())
    assert json.loads(launcher.run("status", record.name, "--json").ran().out)["left_out"] == {"host3": why}


def test_the_plan_names_who_is_left_out(launcher: Launcher, lab: list[Sshd]) -> None:
    words = ("run", hostfile(launcher, lab), launcher.script(WHERE), "--dry-run", "--ps=0")
    why = f"port {lab[2].port} refuses the connection"
    assert f"\n! without host3: {why}\n" in launcher.run(*words, "--workers=2").ran().out
    [plan] = [each for each in launcher.run(*words, "--json").ran().events if each["event"] == "plan"]
    assert plan["left_out"] == {"host3": why}
    asks = launcher.run(*words).ran()
    asked = "a run would ask first (--yes answers yes): go on without, with 2 workers on 2 hosts?"
    assert f"{cause(lab[2])}: {asked}" in asks.sentences
    assert asks.sentences.count("would ask first") == 1
    assert "connected to 2 hosts" in asks.err


def test_a_number_of_workers_that_nobody_gave_is_not_made_smaller_unasked(
    launcher: Launcher, lab: list[Sshd]
) -> None:
    hosts, script = hostfile(launcher, lab), launcher.script(WHERE)
    done = launcher.run("run", hosts, script, "--ps=0").ran(69)
    assert "the number of workers was not given, and fewer train on another global batch" in done.sentences
    assert "to go on with 2 workers on 2 hosts: --workers 2 or --yes" in done.sentences
    assert launcher.records() == []

    two = ["worker/0 on host1", "worker/1 on host2"]
    for ways in (["--yes"], ["--workers=2"], ["--exclude=host3", "-y"], ["--worker-hosts=host[1-2]", "-y"]):
        assert places(launcher.run("run", hosts, script, "--ps=0", *ways).ran().out) == two, ways


def test_a_host_may_be_excluded_where_nothing_else_would_be_asked(
    launcher: Launcher, lab: list[Sshd]
) -> None:
    hosts, script = hostfile(launcher, [lab[0], lab[2]]), launcher.script(WHERE)
    done = launcher.run("run", hosts, script, "--ps=0").ran(69)
    assert "to go on with 1 worker on host1: --workers 1, --exclude host3 or --yes" in done.sentences
    launcher.run("run", hosts, script, "--ps=0", "--exclude=host3").ran()


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 69)], ids=["yes", "no"])
def test_on_a_terminal_it_is_asked(launcher: Launcher, lab: list[Sshd], typed: str, code: int) -> None:
    words = launcher.argv("run", hostfile(launcher, lab), launcher.script(WHERE), "--ps=0")
    with Terminal(words, launcher.env(), launcher.code) as terminal:
        terminal.wait_for("[y/N]")
        assert f"{cause(lab[2])}: go on without, with 2 workers on 2 hosts? [y/N]" in terminal.sentences
        terminal.type(typed)
        assert terminal.end() == code
        assert terminal.sentences.count("[y/N]") == 1
    assert ("going on without it" in terminal.sentences) == (not code)
    assert ("1 of 3 hosts could not be used" in terminal.sentences) == bool(code)


def test_what_does_not_fit_without_them_says_both(launcher: Launcher, lab: list[Sshd]) -> None:
    hosts = hostfile(launcher, lab, slots=1)
    done = launcher.run("run", hosts, launcher.script(WHERE), "--ps=0", "--workers=3").ran(69)
    assert f"host3 port {lab[2].port} refuses the connection" in done.sentences
    assert "without host3: need 3 slots (3 workers), 2 are given: host[1-2] 1." in done.sentences


def test_require_all_is_todays_rule(launcher: Launcher, lab: list[Sshd]) -> None:
    hosts, script = hostfile(launcher, lab), launcher.script(WHERE)
    for verb in (("run", hosts, script, "--workers=1"), ("sweep", hosts, script, "--grid=a=1")):
        assert "1 of 3 hosts could not be used" in launcher.run(*verb, "--require-all").ran(69).sentences


def test_hosts_that_options_leave_out_are_never_dialled(launcher: Launcher, network: SshNetwork) -> None:
    sshds = [network.add() for _ in range(3)]
    hosts, script = hostfile(launcher, sshds), launcher.script(WHERE)
    job = launcher.directory / "job.yaml"
    job.write_text(
        f"program: {script}\nroles: {{ps: {{count: 1, hosts: host1}}, worker: {{count: 1, hosts: 'host[1-2]'}}}}\n"
    )
    for words in (
        (script, "--workers=2", "--exclude=host3"),
        (script, "--yes", "--worker-hosts=host[1-2]", "--ps-hosts=host1"),
        (script, "--ps=0", "--workers=1", "--worker-hosts=host1", "--job-hosts=data=host2", "--job=data=1"),
        (job,),
    ):
        launcher.run("run", hosts, *words).ran()
    launcher.run("sweep", hosts, script, "--grid=a=1,2", "--exclude=host3", "--yes").ran()
    assert logins(sshds[0]) >= 5
    assert "Connection from" not in sshds[2].log()
    assert logins(sshds[2]) == 0


def test_a_changed_host_key_is_for_somebody_to_look_at(
    launcher: Launcher, lab: list[Sshd], network: SshNetwork, tmp_path: Path
) -> None:
    changed = network.add(known=False)
    kind, blob = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2]
    with network.known_hosts.open("a") as lines:
        lines.write(f"[{changed.address}]:{changed.port} {kind} {blob}\n")
    done = launcher.run(
        "run", hostfile(launcher, [*lab, changed]), launcher.script(WHERE), "--workers=1"
    ).ran(69)
    assert "2 of 4 hosts could not be used" in done.sentences
    assert "host4 the server's" in done.sentences


def test_a_slow_host_is_waited_for(launcher: Launcher, network: SshNetwork) -> None:
    one, two = network.add(), network.add()
    two.freeze()  # its kernel answers all the same
    words = ("run", hostfile(launcher, [one, two]), launcher.script(WHERE), "--ps=0", "--workers=2")
    late = launcher.run(*words, "--connect-timeout=6.5").ran(69)
    assert f"connected, but no SSH banner on port {two.port} within 6.5 s" in late.sentences
    with launcher.start(*words, "--json") as running:
        running.wait_for('"done": 1, "total": 2')
        two.thaw()
        assert running.done().ran().events[-1]["event"] == "report"


def test_spares_take_the_place_of_a_host_that_is_not_there(launcher: Launcher, lab: list[Sshd]) -> None:
    hosts = hostfile(launcher, lab, slots=1)
    more = ("--restarts=1", "--ps=0", "--worker-hosts=host[2-3]", "--spares=host1")
    script = launcher.script(WHERE)
    assert places(launcher.run("run", hosts, script, "--workers=1", *more).ran().out) == ["worker/0 on host2"]
    done = launcher.run("run", hosts, script, "--workers=2", *more, "--worker-hosts=host[1-3]").ran()
    assert f"{cause(lab[2])}: calling host1 of --spares" in done.sentences
    assert places(done.out) == ["worker/0 on host1", "worker/1 on host2"]

    alone = hostfile(launcher, [lab[2], lab[0]])
    done = launcher.run("run", alone, script, "--workers=1", "--restarts=1", "--ps=0", "--spares=host1").ran()
    assert places(done.out) == ["worker/0 on host1"]


def test_a_sweep_runs_on_the_hosts_that_are_there_and_goes_on_so(launcher: Launcher, lab: list[Sshd]) -> None:
    words = ("sweep", hostfile(launcher, lab), launcher.script(WHERE), "--name=s", "--yes")
    first = launcher.run(*words, "--grid=a=1,2").ran()
    assert f"{cause(lab[2])}: going on without it" in first.sentences
    [record] = launcher.records()
    about = json.loads((record / "run.json").read_text())
    assert [host["name"] for host in about["hostfile"]["hosts"]] == ["host1", "host2"]
    lab[0].kill()
    again = launcher.run(*words, "--grid=a=1,2,3").ran()
    assert (
        f"{cause(lab[0])}: trials of the tflaunch that was killed end there by themselves" in again.sentences
    )
    about = json.loads((record / "run.json").read_text())
    assert [host["name"] for host in about["hostfile"]["hosts"]] == ["host1", "host2"]  # where outputs lie


def test_up_goes_on_as_run_does(launcher: Launcher, lab: list[Sshd]) -> None:
    words = ("up", hostfile(launcher, lab), "--dry-run", "--ps=1", "--workers=1")
    assert "without host3" in launcher.run(*words).ran().out


@pytest.fixture
def gpus(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, network: SshNetwork, launcher: Launcher
) -> Iterator[Gpus]:
    """A lab with simulated GPUs."""
    yield Gpus(build(tmp_path_factory.mktemp("nvml")), tmp_path, network, launcher)


def test_who_waits_for_gpus_dials_absent_hosts_again(gpus: Gpus) -> None:
    gpus.add()
    two = gpus.add()
    gpus.let_end("waiter")
    with gpus.launcher.start(*gpus.words("holder", 1, "--include=host1")) as holder:
        holder.wait_for("has GPU")
        two.kill()
        never = gpus.launcher.run(*gpus.words("never", 2, "--wait")).ran(69)
        assert "without host2: need 2 GPUs (2 workers x 1), 0 are free" in never.sentences
        with gpus.launcher.start(*gpus.words("waiter", 1, "--wait")) as waiter:
            waiter.wait_for(
                f"host2 cannot be reached: port {two.port} refuses the connection; dialling it again"
            )
            two.start()
            waiter.wait_for("host2 can be reached")
            done = waiter.done().ran()
            assert "left_out" not in done.err
            assert "1 worker  on host2" in done.err
        gpus.let_end("holder")
        holder.done().ran()


def test_no_gpu_is_held_while_it_is_asked(gpus: Gpus) -> None:
    gpus.add(2)
    gpus.add().kill()
    gpus.let_end("first", "second")
    run, _, script, *rest = gpus.words("second", 0)
    words = [run, gpus.hostfile, script, *(each for each in rest if not str(each).startswith("--workers"))]
    launcher = gpus.launcher
    with Terminal(launcher.argv(*map(str, words)), launcher.env(), launcher.code) as terminal:
        terminal.wait_for("go on without, with 2 workers on host1? [y/N]")
        launcher.run(*gpus.words("first", 2, "--exclude=host2")).ran()
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown
    assert gpus.order == ["first"] * 2 + ["second"] * 2


def test_one_question_tells_who_is_absent_and_what_is_taken_and_when(gpus: Gpus) -> None:
    gpus.add(2)
    gpus.add(2)
    gpus.add().kill()
    gpus.let_end("second")
    run, _, script, *rest = gpus.words("second", 0)
    words = [run, gpus.hostfile, script, *(each for each in rest if not str(each).startswith("--workers"))]
    launcher = gpus.launcher
    with launcher.start(*gpus.words("first", 4, "--exclude=host3")) as first:
        first.wait_for("has GPU", 4)
        with Terminal(launcher.argv(*map(str, words), "--wait"), launcher.env(), launcher.code) as terminal:
            terminal.wait_for("host3 cannot be reached (port")
            most = "with up to 4 workers on 4 of 4 GPUs of 2 hosts once they are free"
            terminal.wait_for(f"go on without, {most}? [y/N]")
            terminal.type("y\n")
            terminal.wait_for("dialling it again while this run waits")
            gpus.let_end("first")
            first.done().ran()
            assert terminal.end() == 0, terminal.shown
            assert terminal.sentences.count("[y/N]") == 1


# A host whose agent is killed is lost.


def lose(launcher: Launcher, host: str, *words: str) -> tuple[str, str]:
    """(stderr, stdout) of a run on two hosts, of which one is lost as soon as it runs."""
    hold = launcher.directory / "hold"
    script = launcher.script(WHERE)
    with launcher.start(
        "run", launcher.local(2, slots=1), script, "--ps=0", "--restarts=1", f"--env=HOLD={hold}", *words
    ) as running:
        running.wait_for(" on local2")
        running.wait_for(" on local1")
        end_agent(launcher, host)
        running.wait_for("planning anew")
        hold.touch()
        done = running.done()
    return " ".join(done.err.split()), f"{done.code} {places(done.out)}"


def end_agent(launcher: Launcher, host: str) -> None:
    pids = launcher.agents(host).values()
    for each in launcher.leftovers():
        if each.pid in pids:
            each.kill()


def test_a_new_plan_asks_on_a_terminal_before_it_has_fewer_workers(launcher: Launcher) -> None:
    hold = launcher.directory / "hold"
    words = ("run", launcher.local(2, slots=1), launcher.script(WHERE), "--ps=0", "--restarts=1")
    with Terminal(launcher.argv(*words, f"--env=HOLD={hold}"), launcher.env(), launcher.code) as terminal:
        terminal.wait_for(" on local2")
        terminal.wait_for(" on local1")
        end_agent(launcher, "local2")
        terminal.wait_for("local2 is lost: go on without, with 1 worker on local1? [y/N]")
        hold.touch()
        terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown


def test_a_new_plan_has_as_many_workers_as_before_or_asks(launcher: Launcher) -> None:
    err, out = lose(launcher, "local2")
    assert "it cannot go on without local2: need 2 slots (2 workers), 1 is given: local1 1" in err
    assert "to go on with 1 worker on local1: --workers 1 or --yes" in err
    assert out.startswith("76 ")


def test_a_new_plan_has_fewer_workers_where_that_is_agreed_and_says_who_has_moved(launcher: Launcher) -> None:
    err, out = lose(launcher, "local1", "--yes")
    assert "worker/0 moves from local1 to local2: it finds no checkpoints that lie on local1 alone" in err
    assert out == "0 ['worker/0 on local1', 'worker/0 on local2', 'worker/1 on local2']"
    [record] = launcher.records()
    assert list(json.loads((record / "run.json").read_text())["plan"]["left_out"]) == ["local1"]


# On a bed.


def test_silence_is_given_up_when_the_others_are_up(bed: Bed, far: FarLauncher) -> None:
    one, silent, off = bed.up(3)
    bed.block(bed.launcher, silent, 22)
    bed.power_off(off)
    hosts, script = far.hostfile([one, silent, off, "nowhere.invalid"]), far.script(WHERE)
    done = far.run("run", hosts, script, "--ps=0", "--workers=1").ran()
    assert "! host2 cannot be reached (no answer on port 22 for 5 s): going on without it" in done.sentences
    assert "! host3 cannot be reached (there is no route to it): going on without it" in done.sentences
    assert "! nowhere.invalid cannot be reached (the name does not resolve): going on" in done.sentences
    checked = json.loads(far.run("check", hosts, "--no-tensorflow", "--json").ran(69).out)
    assert "no answer on port 22 for 5 s" in json.dumps(checked)
    all_silent = far.run(
        "run", far.hostfile([silent]), script, "--ps=0", "--workers=1", "--connect-timeout=6"
    )
    assert "no answer on port 22 within 6 s" in all_silent.ran(69).sentences
