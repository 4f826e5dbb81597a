"""The dial check before a run; firewalls between hosts are in test_firewalls."""

from __future__ import annotations

import json

from tests.support.launcher import TELL, Launcher


def test_an_address_that_does_not_resolve_ends_the_launch_before_anything_starts(launcher: Launcher) -> None:
    out = launcher.directory / "out"
    out.mkdir()
    hosts = [{"name": f"local{number}", "address": f"node{number}.invalid"} for number in (1, 2)]
    hostfile = launcher.hostfile(hosts, connection="local")
    words = ("run", hostfile, launcher.script(TELL), "--ps=1", "--workers=1", f"--env=OUT={out}")
    done = launcher.run(*words, "--grace=2", "--ps-grace=0.2").ran(70)
    assert "2 hosts do not reach every peer" in done.sentences
    assert "nothing was started" in done.sentences
    assert "cannot reach ps/0 at node" in done.sentences
    assert "does not resolve there" in done.sentences
    assert list(out.iterdir()) == []
    launcher.wait_until_no_run_is_kept()
    assert launcher.records() == []

    told = launcher.run(*words, "--json").ran(70).events[-1]
    assert told["event"] == "failures"
    assert sorted(host for row in told["rows"] for host in row["hosts"]) == ["local1", "local2"]
    assert "--no-dial-check" in told["hint"]

    done = launcher.run(*words, "--no-dial-check", "--grace=2", "--ps-grace=3").ran()
    assert len([*out.iterdir()]) == 2
    [record] = launcher.records()
    assert json.loads((record / "outcome.json").read_text())["status"] == "succeeded"


def test_where_no_task_calls_another_no_network_is_tested(launcher: Launcher) -> None:
    hostfile = launcher.hostfile(["local1"], connection="local")
    words = ("run", hostfile, launcher.script("pass"), "--ps=0", "--workers=1")
    done = launcher.run(*words).ran()
    assert "prepared 1 host" in done.err
    assert "network" not in done.err


def test_hosts_that_reach_each_other_pass(launcher: Launcher) -> None:
    out = launcher.directory / "out"
    out.mkdir()
    # A spelling of 127.0.0.1 that does not look like loopback.
    hosts = [{"name": "local1", "address": "127.1"}, {"name": "local2", "address": "127.1"}]
    done = launcher.run(
        *("run", launcher.hostfile(hosts, connection="local"), launcher.script(TELL)),
        *("--ps=1", "--workers=1", f"--env=OUT={out}", "--json", "--grace=2", "--ps-grace=0.2"),
    ).ran()
    phases = [event["name"] for event in done.events if event["event"] == "phase"]
    assert phases.index("dialling") > phases.index("staging")
    assert len([*out.iterdir()]) == 2
