"""Runs that go on and are slow, look by look: what is said of each, and that healthy runs hear no word."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest

from tests.unit.diagnosis.gpu_facts import gpu
from tests.unit.diagnosis.slow_runs import LOOK_S, WORKERS, Run, asynchronous, mirrored, one
from tflaunch.agent.tasks.look import PACES
from tflaunch.diagnosis.rule import Sentence
from tflaunch.lifecycle.watchdog import Watchdog

# ---- a straggler of an asynchronous run


def slowed(by: float = 0.3) -> Run:
    run = asynchronous()
    assert run.on(90) == []
    run.speed("worker/1", 500_000 * by)
    return run


def test_a_worker_that_is_slower_than_the_others() -> None:
    run = slowed()
    text = one(run.on(90))
    assert text.startswith("worker/1 on host3 has been 3.3x slower than the other workers for 60 s, ")
    assert run.on(300) == []
    assert run.watchdog.holds()[0] == [text]


def test_that_it_is_as_fast_again_is_said_once() -> None:
    run = slowed()
    run.on(90)
    run.speed("worker/1", 500_000)
    assert one(run.on(150)) == "worker/1 on host3 is as fast as the other workers again"
    assert run.on(300) == []


def test_its_sentences_are_marked_until_they_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = slowed(), list[Sentence]()
    rule = run.watchdog.rules["slowness"]
    ask = rule.sentences

    def noted(now: float, explained: AbstractSet[str]) -> list[Sentence]:
        said.extend(found := list(ask(now, explained)))
        return found

    monkeypatch.setattr(rule, "sentences", noted)
    run.on(90)
    run.speed("worker/1", 500_000)
    run.on(150)
    assert [(each.slows, each.over) for each in said] == [(True, False), (False, True)]


@pytest.mark.parametrize(("by", "said"), [(0.65, 1), (0.75, 0)])
def test_how_much_slower_it_must_be(by: float, said: int) -> None:
    assert len(slowed(by).on(90)) == said


@pytest.mark.parametrize(("by", "said"), [(0.45, 1), (0.6, 0)])
def test_of_two_workers_the_ratio_must_be_clear(by: float, said: int) -> None:
    run = asynchronous("worker/0", "worker/1")
    run.on(60)
    run.speed("worker/1", 500_000 * by)
    assert len(run.on(90)) == said


def test_the_user_sets_the_thresholds() -> None:
    run = asynchronous(thresholds={"slow_ratio": 0.2})
    run.speed("worker/1", 150_000)
    assert run.on(200) == []


def test_a_crowded_host() -> None:
    run = slowed()
    run.waiting["worker/1"], run.cores["worker/1"] = 0.9, 0.3
    run.machines["host3"] = {
        "swapped": 0,
        "others": [[77, "stress", 1.9], [78, "bash", 0.2]],
    }
    text = one(run.on(90))
    assert "its threads wait 3.0 s for a processor for each second that they run (the others' 0.0 s)" in text
    assert text.endswith(
        "and programs that are not the run's use 2.1 cores of host3 (pid 77 stress); end them, or give the task another"
        " host"
    )


# ---- hosts whose tasks all lack processors


BURNS = [[77, "stress", 1.9]]


def pressed(
    run: Run,
    seconds: float,
    cpu: float = 0.9,
    own: float | None = None,
    *,
    others: Any = BURNS,
    host_cores: int = 4,
) -> list[str]:
    """Hosts of all workers on which programs wait for a processor in that share of the time."""
    said, shares = [], {"pressure": cpu, **({} if own is None else {"own_pressure": own})}
    for _ in range(int(seconds / LOOK_S)):
        for host in ("host2", "host3", "host4"):
            before = run.machines.get(host, {})
            waited = {
                name: {"cpu": before.get(name, {"cpu": 0})["cpu"] + int(share * LOOK_S * 1000)}
                for name, share in shares.items()
            }
            run.machines[host] = {"swapped": 0, "cores": host_cores, "others": others, **waited}
        said += run.on(LOOK_S)
    return said


def full(cores: float = 1.0, waiting: float = 1.1) -> Run:
    """All workers want more than they get."""
    run = asynchronous()
    for task in WORKERS:
        run.cores[task], run.waiting[task] = cores, waiting
    return run


def test_hosts_that_others_crowd_are_told_though_no_worker_is_slower_than_the_others() -> None:
    run = full()
    said = pressed(run, 150)
    assert [text.split(":")[0] for text in said] == [
        f"host{number} has too few processors for worker/{number - 2} on host{number}" for number in (2, 3, 4)
    ]
    assert said[0] == (
        "host2 has too few processors for worker/0 on host2: programs have waited for one in 90% of the last 90 s, and"
        " its threads 1.1 s for each second that they run; programs that are not the run's use 1.9 cores of host2 (pid"
        " 77 stress); end them, or give the task another host"
    )
    assert pressed(run, 300) == [], "once"
    for task in WORKERS:
        run.waiting[task] = 0.0
    assert pressed(run, 240, cpu=0.0, others=[]) == [
        f"host{number} has processors for worker/{number - 2} on host{number} again" for number in (2, 3, 4)
    ]


def test_a_quota_that_holds_all_of_them() -> None:
    run = full()
    for task in WORKERS:
        run.held[task], run.facts[task] = 0.6, {"cores": 1.0}
    said = pressed(run, 150, cpu=0.0, own=0.95, others=[])
    assert len(said) == 3
    assert "the quota of its cgroup, 1 cores, stops it in 60% of the time; raise its limit" in said[0]


@pytest.mark.parametrize(
    ("cores", "waiting", "pressure"),
    [
        (4.0, 9.0, {"others": []}),  # more threads than cores, all its own
        (4.0, 9.0, {"others": [[77, "node_exporter", 0.6]]}),  # ... beside one that uses little
        # ... beside a job that has the other cores
        (4.0, 9.0, {"own": 0.95, "others": [[77, "gromacs", 40.0]], "host_cores": 64}),
        (1.0, 0.3, {}),  # others compute, and it waits little
        (0.2, 0.3, {}),  # it hardly runs
        (1.0, 1.1, {"cpu": 0.3}),  # now and then
        (1.0, 1.1, {"own": 0.1}),  # they wait in their cgroup, and ours do not
        (1.0, 1.1, {"cpu": 0.0}),  # a kernel that does not tell
    ],
)
def test_who_wants_all_processors_and_has_them_is_well(
    cores: float, waiting: float, pressure: dict[str, Any]
) -> None:
    assert pressed(full(cores, waiting), 300, **pressure) == []


def test_a_burst_of_others_is_no_crowd() -> None:
    run = full()
    assert pressed(run, 60) == []
    assert pressed(run, 60, cpu=0.1) == []


def test_of_a_straggler_on_such_a_host_its_sentence_is_enough() -> None:
    run = full(1.0, 0.1)
    run.waiting["worker/1"] = 2.5
    run.speed("worker/1", 150_000)
    assert "worker/1 on host3 has been 3.3x slower" in (text := one(pressed(run, 300)))
    assert "and programs that are not the run's use 1.9 cores of host3" in text


def test_of_a_crowded_host_it_is_not_said_again_that_its_worker_is_slow() -> None:
    run = full()
    assert len(pressed(run, 150)) == 3
    run.speed("worker/1", 150_000)
    assert pressed(run, 150) == []


def test_a_ps_that_others_crowd_is_told_once() -> None:
    run = Run(
        "ps/0", "worker/0", "worker/1", hosts={"worker/0": "host2", "worker/1": "host2", "ps/0": "host2"}
    )
    run.link(*(("ps/0", each) for each in WORKERS[:2]), *((each, "ps/0") for each in WORKERS[:2]))
    run.cores["ps/0"], run.waiting["ps/0"] = 0.05, 2.5
    assert "ps/0 on host2 holds up the workers" in one(pressed(run, 300))


def test_hosts_that_are_all_as_crowded_are_not_the_reason() -> None:
    run = slowed()
    for task in WORKERS:
        run.waiting[task] = 0.9
    assert "for a processor" not in one(run.on(90))


def test_a_worker_that_hardly_runs_on_a_machine_that_is_full() -> None:
    run = slowed()
    run.cores["worker/1"], run.waiting["worker/1"], run.in_disk["worker/1"] = 0.01, 0.15, 0.5
    for task in ("worker/0", "worker/2"):
        run.cores[task], run.waiting[task] = 0.06, 0.3
    assert "it waits for a disk of host3" in one(run.on(90))


def test_a_quota_that_holds_it() -> None:
    run = slowed()
    run.held["worker/1"], run.facts["worker/1"] = 0.8, {"cores": 0.25}
    text = one(run.on(90))
    assert "the quota of its cgroup, 0.25 cores, stops it in 80% of the time; raise its limit" in text


def test_a_slow_link() -> None:
    run = slowed()
    for each in run.of("worker/1"):
        each.full["worker/1"] = 0.8
    assert "wait to be sent in" in one(run.on(90))


def test_a_slow_disk() -> None:
    run = slowed()
    run.in_disk["worker/1"] = 0.5
    assert "it waits for a disk of host3 (state D) in 50% of the looks" in one(run.on(90))


def test_a_slow_disk_that_another_thread_waits_for() -> None:
    run, said = slowed(), []
    for number in range(18):
        run.disk["worker/1"] = (number * 5_000_000, 2)
        said += run.on(LOOK_S)
    assert "it waits for a disk of host3 (state D) in " in (text := one(said))
    assert "% of the looks, which moves " in text
    assert "KiB/s for it" in text


def test_a_worker_that_waits_for_its_input() -> None:
    run = slowed()
    run.cores["worker/1"] = 0.1
    text = one(run.on(90))
    assert "it uses 0.1 cores, the others 0.5: does it wait for its input? `tflaunch stacks`" in text


def test_a_worker_that_works_as_much_for_less() -> None:
    assert "has it more work in each step" in one(slowed().on(90))


# ---- workers that do not move bytes all the time are not slow


def test_a_chief_that_saves_now_and_then() -> None:
    run = asynchronous()
    for _ in range(6):
        assert run.on(40) == []
        run.speed("worker/0", 0)
        assert run.on(20) == []
        run.speed("worker/0", 500_000)


@pytest.mark.parametrize("seconds", [30, 70, 200])
def test_a_chief_that_evaluates(seconds: float) -> None:
    run = asynchronous()
    run.on(90)
    run.speed("worker/0", 0)
    run.cores["worker/0"] = 1.0
    assert run.on(seconds) == []
    run.speed("worker/0", 500_000)
    assert run.on(120) == []


def test_workers_that_end_early_and_leave_one() -> None:
    run = asynchronous()
    run.on(60)
    run.end("worker/1")
    run.on(30)
    run.end("worker/2")
    assert run.on(200) == []


def test_a_worker_that_comes_later_or_compiles() -> None:
    run = asynchronous()
    run.speed("worker/2", 0)
    run.cores["worker/2"] = 3.0
    run.on(100)
    run.speed("worker/2", 500_000)
    assert run.on(120) == []


def test_other_jobs_may_move_what_they_want() -> None:
    names = ("chief/0", "worker/0", "worker/1", "evaluator/0")
    run = Run("ps/0", *names).link(*((name, "ps/0") for name in names))
    run.speed("chief/0", 20_000)
    run.speed("evaluator/0", 10_000)
    assert run.on(300) == []


def test_two_kinds_of_workers_of_which_none_is_the_exception() -> None:
    run = asynchronous(*WORKERS, "worker/3")
    run.speed("worker/2", 100_000)
    run.speed("worker/3", 100_000)
    run.speed("worker/1", 90_000)
    assert run.on(200) == []


def test_servers_that_run_no_program_are_not_compared() -> None:
    run = asynchronous(serves=True)
    run.speed("worker/1", 50_000)
    assert run.on(200) == []


def test_agents_of_an_older_version_do_not_tell_enough_for_a_reason() -> None:
    run = slowed()
    look = run._look

    def older(task: str) -> dict[str, Any]:
        new = ("paces", "least_rtts", "waited_s", "held_s", "cores", "memory", "step")
        return {name: value for name, value in look(task).items() if name not in new}

    run._look = older  # type: ignore[method-assign]
    assert one(run.on(150)).startswith("worker/1 on host3 has been 3.3x slower")


# ---- the one that the others wait for


def test_the_worker_that_holds_up_an_all_reduce() -> None:
    run = mirrored()
    run.between("worker/2", "worker/1").unanswered = 0.8
    text = one(run.on(90))
    assert text.startswith("worker/1 on host2 holds up the others: in ")
    assert "x faster: " in text
    run.between("worker/2", "worker/1").unanswered = 0.0
    assert one(run.on(150)) == "worker/1 on host2 holds up the others no more"


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_an_all_reduce_of_equals(share: float) -> None:
    run = mirrored()
    for each in run.links:
        each.unanswered = share
    assert run.on(300) == []


def test_an_all_reduce_of_equals_of_which_one_is_seen_to_work_a_little_more_often() -> None:
    run = mirrored()
    for each in run.links:
        each.unanswered = 0.24
    run.between("worker/2", "worker/1").unanswered = 0.55
    assert run.on(300) == []


def test_a_ring_in_which_all_wait_alike_for_the_network() -> None:
    run = mirrored()
    for each in run.links:
        each.unanswered = 0.8
    assert run.on(300) == []


def test_an_evaluation_for_which_the_others_wait() -> None:
    run = mirrored()
    run.on(60)
    for each in run.links:
        each.bytes_s = 1000.0
    run.between("worker/2", "worker/1").unanswered = 1.0
    run.cores["worker/1"] = 1.0
    assert run.on(85) == []
    for each in run.links:
        each.bytes_s, each.unanswered = 500_000.0, 0.0
    assert run.on(120) == []


def test_workers_of_a_ps_have_no_step_in_common() -> None:
    run = asynchronous()
    run.between("ps/0", "worker/1").unanswered = 0.8
    assert run.on(200) == []


# ---- a ps


def test_a_ps_that_is_bound_by_its_cores() -> None:
    run = asynchronous()
    run.cores["ps/0"] = 3.9
    text = one(run.on(90))
    assert text.startswith("ps/0 on host1 holds up the workers by its processors: ")
    assert "by its processors: it has used 3.9 of its 4 cores for 60 s; more ps share that (--ps=2)" in text
    run.cores["ps/0"] = 1.0
    assert one(run.on(150)) == "ps/0 on host1 holds up the workers no more"


def test_a_ps_whose_quota_holds_it() -> None:
    run = asynchronous()
    run.cores["ps/0"], run.held["ps/0"] = 0.05, 0.9
    text = one(run.on(90))
    assert "it has used 0.05 cores for 60 s, and the quota of its cgroup stops it in 90% of the time" in text


def test_a_ps_whose_threads_wait_for_a_processor() -> None:
    run = asynchronous()
    run.cores["ps/0"], run.waiting["ps/0"] = 0.05, 2.5
    assert "it has used 0.05 cores for 60 s, and 2.5 of its threads have waited for one" in one(run.on(90))


def test_a_ps_beside_other_programs() -> None:
    run = asynchronous()
    run.cores["ps/0"], run.waiting["ps/0"] = 0.05, 2.5
    run.machines["host1"] = {"swapped": 0, "others": [[77, "stress", 1.9]]}
    assert one(run.on(90)).endswith(
        "2.5 of its threads have waited for one; programs that are not the run's use 1.9 cores of host1 (pid 77"
        " stress); end them, or give the task another host"
    )


@pytest.mark.parametrize("end", ["ps/0", "worker/1"])
def test_a_ps_behind_a_slow_link(end: str) -> None:
    run = asynchronous()
    for each in run.links:
        for task in each.full if end == "ps/0" else ():
            each.full[task] = 0.7 if task == "ps/0" else 0.0
        for task in each.full if end != "ps/0" else ():
            each.full[task] = 0.0 if task == "ps/0" else 0.7
    text = one(run.on(90))
    assert "by its network: 2.9 MiB/s go in and out, and more than 64 KiB wait to be sent" in text


def behind_long_queues(rtt_ms: float, least_rtt_ms: float, *workers: str) -> Run:
    run = asynchronous(*workers)
    for each in run.links:
        each.full["ps/0"], each.rtt_ms, each.least_rtt_ms = 1.0, rtt_ms, least_rtt_ms
    return run


@pytest.mark.parametrize(
    ("rtt_ms", "least_ms", "said"), [(170.0, 100.0, 0), (450.0, 100.0, 1), (0.5, 0.1, 1), (170.0, 0.0, 1)]
)
def test_what_is_long_on_its_way_does_not_wait(rtt_ms: float, least_ms: float, said: int) -> None:
    """The last: a kernel before 4.6 does not tell the shortest round trip."""
    assert len(behind_long_queues(rtt_ms, least_ms).on(90)) == said


MANY = tuple(f"worker/{number}" for number in range(100))


@pytest.mark.parametrize(("rtt_ms", "least_ms", "said"), [(55.0, 50.0, 0), (450.0, 100.0, 1), (55.0, 0.0, 1)])
def test_of_many_connections_the_first_alone_tell_their_shortest_round_trip(
    rtt_ms: float, least_ms: float, said: int
) -> None:
    run = behind_long_queues(rtt_ms, least_ms, *MANY)
    assert len(run.of("ps/0")) > PACES
    found = []
    for _ in range(18):
        found += run.on(LOOK_S)
        run.links = run.links[30:] + run.links[:30]  # others are the first
    assert len(found) == said


def test_a_connection_that_tells_of_its_segments_again_has_not_sent_all_of_them_since() -> None:
    run = asynchronous(*MANY)
    for each in run.links:
        each.resent = each.segments = 1e9
    for _ in range(30):
        assert run.on(LOOK_S) == []
        run.links = run.links[30:] + run.links[:30]


@pytest.mark.parametrize(("rtt_ms", "least_ms"), [(55.0, 50.0), (450.0, 100.0)])
def test_where_an_agent_of_an_older_version_tells_no_shortest_round_trip_the_queue_alone_counts(
    rtt_ms: float, least_ms: float
) -> None:
    run = behind_long_queues(rtt_ms, least_ms)
    look = run._look
    run._look = lambda task: {  # type: ignore[method-assign]
        name: value for name, value in look(task).items() if name != "least_rtts"
    }
    assert "by its network" in one(run.on(90))


def test_a_link_that_was_full_for_longer_than_the_kernel_remembers() -> None:
    run = behind_long_queues(60.0, 0.1)
    one(run.on(90))
    for each in run.links:
        each.least_rtt_ms = 55.0
    assert run.on(300) == []


def test_a_ps_that_computes_much_and_has_cores_left() -> None:
    run = asynchronous()
    run.cores["ps/0"], run.waiting["ps/0"] = 3.0, 0.5
    assert run.on(200) == []


def test_a_ps_on_a_host_that_is_as_crowded_as_those_of_the_workers() -> None:
    run = asynchronous()
    for task in run.living:
        run.cores[task], run.waiting[task] = 0.05, 2.5
    assert run.on(200) == []


@pytest.mark.parametrize(
    ("worker", "ps", "said"),
    [((0.06, 0.8), 1.91, 0), ((0.5, 1.2), 1.6, 0), ((0.9, 0.8), 1.1, 0), ((0.9, 0.8), 1.3, 1)],
)
def test_a_ps_that_waits_for_a_processor_as_the_workers_do(
    worker: tuple[float, float], ps: float, said: int
) -> None:
    """The first as in a synchronous run on a machine with two cores, of which 40 other programs want both."""
    run = asynchronous()
    for task in WORKERS:
        run.cores[task], run.waiting[task] = worker
    run.cores["ps/0"], run.waiting["ps/0"] = 0.063, ps
    run.machines["host1"] = {"swapped": 0, "others": [[77, "stress", 1.9]]}
    assert len(run.on(200)) == said


def test_a_ps_that_waits_for_its_workers() -> None:
    run = asynchronous()
    run.cores["ps/0"] = 3.9
    for each in run.links:
        if each.caller == "ps/0":
            each.unanswered = 0.8
    assert run.on(200) == []


def test_a_ps_that_has_most_of_the_variables() -> None:
    run = Run("ps/0", "ps/1", "ps/2", "worker/0", "worker/1")
    for ps in ("ps/0", "ps/1", "ps/2"):
        run.link(("worker/0", ps), ("worker/1", ps))
    for each in run.of("ps/1"):
        each.bytes_s = 5_000_000.0
    run.cores["ps/1"] = 4.0
    text = one(run.on(90))
    assert "it moves 10.0x as much as the other ps: divide its largest variable" in text


def test_a_ps_without_variables() -> None:
    run = Run("ps/0", "ps/1", "worker/0").link(("worker/0", "ps/0"), ("worker/0", "ps/1"))
    run.speed("ps/1", 0)
    run.speed("ps/0", 500_000)
    assert run.on(200) == []


# ---- hosts


def starving(waits: float, every: int = 1) -> list[str]:
    """Of a worker that moves nothing any more, and waits so long for each second; told at each look of `every`."""
    run = asynchronous()
    assert run.on(90) == []
    run.speed("worker/1", 0)
    run.cores["worker/1"] = 0.004
    run.machines["host3"] = {"swapped": 0, "others": [[77, "stress", 1.9]]}
    said = []
    for look in range(36):
        run.waiting["worker/1"] = 0.0 if look % every else waits * every
        said += run.on(LOOK_S)
    run.speed("worker/1", 500_000)
    run.cores["worker/1"], run.waiting["worker/1"] = 0.5, 0.02
    return said + run.on(150)


@pytest.mark.parametrize("every", [1, 4])
def test_a_worker_that_gets_no_processor_does_not_stand_still(every: int) -> None:
    """Of the threads of a large program a look asks a quarter."""
    text, over = starving(0.98, every)
    assert text.startswith(
        "host3 has too few processors for worker/1 on host3: it had one for 0.2 s in 60 s, and its threads waited 59 s;"
    )
    assert text.endswith(
        " programs that are not the run's use 1.9 cores of host3 (pid 77 stress); end them, or give the task another"
        " host"
    )
    assert over == "host3 has processors for worker/1 on host3 again"


def test_a_worker_that_stands_still_on_a_crowded_host() -> None:
    """What wakes in it now and then waits, too: 0.1 to 0.3 s as recorded with 25 other programs on 2 cores."""
    text, over = starving(0.3)
    assert "worker/1 on host3 has done nothing for 120 s while its peers go on" in text
    assert over == "worker/1 on host3 goes on"


def test_who_trains_is_not_told_to_be_crowded() -> None:
    run = asynchronous()
    for task in run.living:
        run.cores[task], run.waiting[task] = 0.02, 0.98
    assert run.on(200) == []


@pytest.mark.parametrize("waiting", [0.02, 0.7], ids=["threads do not count as waiting", "they do"])
def test_a_rank_that_hangs_while_its_threads_spin(waiting: float) -> None:
    """It uses processors, and wants more than there are: that is no reason why it moves nothing."""
    run = asynchronous()
    assert run.on(90) == []
    run.speed("worker/1", 0)
    run.cores["worker/1"], run.waiting["worker/1"] = 0.04, waiting
    assert "worker/1 on host3 has done nothing for 120 s while its peers go on" in one(run.on(200))


def test_a_quota_under_which_a_worker_hardly_runs() -> None:
    """Also where the kernel has no PSI."""
    run = asynchronous()
    assert run.on(90) == []
    run.speed("worker/1", 0)
    run.cores["worker/1"], run.waiting["worker/1"], run.held["worker/1"] = 0.02, 0.98, 0.9
    run.facts["worker/1"] = {"cores": 0.02}
    text = one(run.on(300))
    assert text == (
        "host3 has too few processors for worker/1 on host3: it had one for 1.2 s in 60 s, and its threads waited 59 s;"
        " the quota of its cgroup, 0.02 cores, stops it in 90% of the time; raise its limit (Slurm: --cpus-per-task;"
        " Kubernetes: limits.cpu; docker: --cpus)"
    )


def test_a_crowded_host_that_gets_worse_is_told_once_and_is_not_over() -> None:
    run = full()
    assert len(pressed(run, 150)) == 3
    run.speed("worker/1", 0)
    run.cores["worker/1"], run.waiting["worker/1"] = 0.004, 0.98
    assert pressed(run, 300) == []
    run.cores["worker/1"], run.waiting["worker/1"] = 0.5, 0.02
    run.speed("worker/1", 500_000)
    assert pressed(run, 240, cpu=0.0, others=[])[0] == "host2 has processors for worker/0 on host2 again"


def test_each_host_on_which_tasks_hardly_run_is_told_and_is_over() -> None:
    run = asynchronous()
    assert run.on(90) == []
    for task, host in (("worker/1", "host3"), ("worker/2", "host4")):
        run.speed(task, 0)
        run.cores[task], run.waiting[task] = 0.004, 0.98
        assert one(run.on(150)).startswith(
            f"{host} has too few processors for {task} on {host}: it had one for"
        )
    run.speed("worker/1", 500_000)
    run.cores["worker/1"], run.waiting["worker/1"] = 0.5, 0.02
    assert one(run.on(150)) == "host3 has processors for worker/1 on host3 again"


def test_that_one_host_swaps_hides_no_other_on_which_a_task_hardly_runs() -> None:
    run = asynchronous()
    for task in ("worker/1", "worker/2"):
        run.speed(task, 0)
        run.cores[task], run.waiting[task] = 0.004, 0.98
    said = swap(run, 30e6, 1 << 30)
    assert sorted(text.split(" for ")[0] for text in said) == [
        "host3 has moved 29 MiB/s to and from its swap",
        "host4 has too few processors",
    ]


def test_tasks_of_one_host_that_hardly_run_are_one_sentence() -> None:
    run = Run("ps/0", *WORKERS, hosts={"worker/1": "host3", "worker/2": "host3"})
    run.link(*(("ps/0", name) for name in WORKERS), *((name, "ps/0") for name in WORKERS))
    for task in ("worker/1", "worker/2"):
        run.speed(task, 0)
        run.cores[task], run.waiting[task] = 0.004, 0.98
    assert one(run.on(150)) == (
        "host3 has too few processors for worker/1, worker/2: they had one for 0.5 s in 60 s, and their threads waited"
        " 118 s; put fewer tasks there, or give them another host"
    )


def test_a_start_on_a_crowded_machine() -> None:
    said = replay("crowded_start")
    assert [text.split("; ")[0] for text in said] == [
        "host3 has too few processors for ps/0 on host3: it had one for 0.4 s in 60 s, and its threads waited 55 s",
        "host2 has too few processors for worker/1 on host2: it had one for 0.5 s in 60 s, and its threads waited 60 s",
    ]


@pytest.mark.parametrize(("share", "said"), [(0.08, 1), (0.03, 0)])
def test_packets_that_are_sent_again(share: float, said: int) -> None:
    run = asynchronous()
    for each in run.of("worker/1"):
        each.again = share
    told = run.on(90)
    assert len(told) == said
    if said:
        assert told[0].startswith(
            "8% of the packets of worker/1 on host3 are lost on the way, and sent again"
        )


def test_a_burst_of_lost_packets_is_over_soon() -> None:
    run = asynchronous()
    run.on(60)
    for each in run.of("worker/1"):
        each.again = 0.3
    assert run.on(15) == []
    for each in run.of("worker/1"):
        each.again = 0.0
    assert run.on(120) == []


def swap(run: Run, rate: float, swapped: int) -> list[str]:
    run.facts["worker/1"] = {"memory": [3 << 30, swapped], "cores": 4.0}
    said = []
    for _ in range(20):
        before = run.machines.get("host3", {"swapped": 0})
        run.machines["host3"] = {"swapped": int(before["swapped"] + rate * LOOK_S)}
        said += run.on(LOOK_S)
    return said


def test_a_host_that_swaps() -> None:
    text = one(swap(asynchronous(), 30e6, 1 << 30))
    assert text.startswith(
        "host3 has moved 29 MiB/s to and from its swap for 60 s, and worker/1 on host3 has"
    )
    assert "1.0 GiB there beside 3.0 GiB in memory" in text


@pytest.mark.parametrize(("rate", "swapped"), [(1e4, 1 << 30), (30e6, 0), (0.0, 1 << 30)])
def test_a_host_that_has_swapped_or_whose_other_programs_do(rate: float, swapped: int) -> None:
    assert swap(asynchronous(), rate, swapped) == []


def held_gpu(slowed_by: Sequence[str], heat: Callable[[int], int | None]) -> list[str]:
    run = asynchronous(gpus={"worker/1": ["GPU-1"]})
    said = []
    for number in range(30):
        run.gpus = {"GPU-1": gpu(slowed_by=list(slowed_by), heat_ms=heat(number))}
        said += run.on(LOOK_S)
    return said


def test_a_gpu_that_heat_holds_down() -> None:
    text = one(held_gpu(["sw_thermal"], lambda number: 2500 * number))
    assert text.startswith("the GPU of worker/1 on host3 is held below its clocks in 50% of the last ")
    assert "it is too hot" in text


def test_a_gpu_that_a_brake_holds_down() -> None:
    text = one(held_gpu(["power_brake"], lambda _: None))
    assert "(power_brake): the power supply's brake slows it" in text


@pytest.mark.parametrize("reasons", [[], ["power_cap"]])
def test_gpus_under_full_load_are_at_their_power_cap(reasons: list[str]) -> None:
    assert held_gpu(reasons, lambda _: 0) == []


def test_heat_for_a_moment_at_each_look_is_little() -> None:
    assert held_gpu(["sw_thermal"], lambda number: 100 * number) == []


# ---- the run itself


def test_a_run_that_has_become_slower() -> None:
    run = asynchronous()
    for name in WORKERS:
        run.steps_s[name] = 16.0
    assert run.on(400) == []
    for name in WORKERS:
        run.steps_s[name] = 8.0
    text = one(run.on(240))
    assert text.startswith("the run has become 1.9x slower: 8.")
    assert " steps/s in the last 2 minutes, 16 before; " in text
    for name in WORKERS:
        run.steps_s[name] = 16.0
    assert one(run.on(240)) == "the run is as fast as before"


def test_a_run_that_is_slow_for_a_minute_or_steps_seldom() -> None:
    run = asynchronous()
    for name in WORKERS:
        run.steps_s[name] = 16.0
    run.on(400)
    for name in WORKERS:
        run.steps_s[name] = 8.0
    run.on(50)
    for name in WORKERS:
        run.steps_s[name] = 16.0
    assert run.on(300) == []
    for name in WORKERS:
        run.steps_s[name] = 0.05
    assert run.on(300) == []


# ---- real runs, recorded with tests/diagnosis/recorder.py and TensorFlow 2.21


def replay(name: str, **limits: float) -> list[str]:
    watchdog: Watchdog | None = None
    said: list[str] = []
    for line in (Path(__file__).parent / "recorded" / f"{name}.jsonl").read_text("utf-8").splitlines():
        now, what, *rest = json.loads(line)
        if watchdog is None:
            assert what == "watchdog"
            rest[0]["settings"]["thresholds"] = limits
            watchdog = Watchdog(**rest[0])
            watchdog.begin(now)
        else:
            watchdog.said(*rest, now)
        watchdog.questions([], now)
        said += [each.text for each in watchdog.sentences(now)]
    return said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slow_input_async", "worker/1 on host2 has been 5.8x slower than the other workers for 60 s, "),
        ("slow_work_mirrored", "worker/1 on host2 holds up the others: in 75% of the looks "),
        ("slow_ps_network", "ps/0 on host3 holds up the workers by its network: 6.7 MiB/s go in and out"),
        ("slow_link_async", "worker/1 on host2 has been 7.7x slower than the other workers for 60 s, "),
        ("slow_ps_quota", "ps/0 on host3 holds up the workers by its processors: it has used 0.04 cores"),
        ("slow_lossy", "8% of the packets of worker/1 on host2 are lost on the way, and sent again"),
    ],
)
def test_a_recorded_run(name: str, words: str) -> None:
    assert one(replay(name)).startswith(words)


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [("well_far", 3.0, 0), ("well_far", 1.0, 1), ("slow_ps_network", 3.0, 1), ("slow_ps_network", 1e6, 0)],
)
def test_a_long_way_and_a_slow_link(name: str, limit: float, said: int) -> None:
    """Round trips of a link of 20 Mbit/s: 3,000 times the shortest; of hosts that are 50 ms apart: 1.0 to 1.7 times."""
    assert len(replay(name, queued_rtt=limit)) == said


# ---- what a run remembers


def test_what_was_told_is_handed_on() -> None:
    run = slowed()
    text = one(run.on(90))
    old = run.watchdog
    run.watchdog = Watchdog(run.places, {}, {}, run.settings)
    run.watchdog.begin(run.now)
    run.watchdog.resume(json.loads(json.dumps(old.memory())))
    assert run.watchdog.holds()[0] == [text]
    assert run.on(200) == []
    run.speed("worker/1", 500_000)
    assert one(run.on(150)) == "worker/1 on host3 is as fast as the other workers again"


def test_the_memory_of_an_older_version_has_no_slowness() -> None:
    run = slowed()
    memory = json.loads(json.dumps(run.watchdog.memory()))
    del memory["rules"]["slowness"]
    fresh = Watchdog(run.places, {}, {}, {})
    fresh.begin(run.now)
    fresh.resume(memory)
