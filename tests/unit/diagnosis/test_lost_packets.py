"""Packets that are lost in mid-run: sentences from looks and dials as agents tell them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tflaunch.diagnosis.lost_packets import LostPackets
from tflaunch.diagnosis.rule import Place, Sentence, Watched
from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.protocol.dialling import NARROW, NO_ROUTE, SILENT, STRANGER
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit

LOOK_S = Thresholds.look_s
PLACES = {
    "ps/0": Place("host1", "10.77.0.1", 22000),
    "worker/0": Place("host2", "10.77.0.2", 22000),
    "worker/1": Place("host3", "host3.cluster", 22000),
    "evaluator/0": Place("host1", "10.77.0.1", None),
}
NAMES = {"host3.cluster": ["10.77.0.3"]}
ADDRESS = {"host1": "10.77.0.1", "host2": "10.77.0.2", "host3": "10.77.0.3"}
SILENTLY = [SILENT, ""]
# As on the bed, 5 s apart: a worker whose cable to its ps was cut, with gradients on the way.
CUT = [(4, 183_224), (5, 183_224), (6, 183_224), (6, 183_224), (7, 183_224)]


class Run:
    """A run whose agents are asked every LOOK_S; `flows` are the connections of each task."""

    def __init__(self) -> None:
        self.rule = LostPackets(Watched(PLACES, NAMES))
        self.now = 1000.0
        self.flows: dict[str, dict[str, list[Any]]] = {task: {} for task in PLACES}
        self.cores = dict.fromkeys(PLACES, 0.9)
        self.cpu_s = dict.fromkeys(PLACES, 3.0)
        self.dials: list[tuple[str, str]] = []
        self.answers: dict[
            tuple[str, str], Any
        ] = {}  # (host that dials, address) -> result; None: no answer comes
        for worker, port in (("worker/0", 41000), ("worker/1", 41001)):
            self.flow(worker, "host1", 22000, port)
            self.flow("ps/0", PLACES[worker].host, port, 22000)

    def flow(
        self, task: str, host: str, port: int, own_port: int, *, retransmits: int = 0, queued: int = 0
    ) -> None:
        """A connection of a task; one without trouble makes progress at each look."""
        before = self.flows[task].get(
            f"{host}:{port}", [ADDRESS[host], port, own_port, 1000, 1000, 0, 0, 0.2]
        )
        acked = before[3] + (0 if retransmits else 5000)
        self.flows[task][f"{host}:{port}"] = [
            *(ADDRESS[host], port, own_port, acked, before[4], queued, retransmits, 0.2)
        ]

    def stuck(self, retransmits: int = 4, queued: int = 183_224) -> None:
        """What worker/1 sends to the ps is not acknowledged."""
        self.flow("worker/1", "host1", 22000, 41001, retransmits=retransmits, queued=queued)

    def look(self, times: int = 1) -> list[Sentence]:
        said: list[Sentence] = []
        for _ in range(times):
            self.now += LOOK_S
            for task, place in PLACES.items():
                self.cpu_s[task] += self.cores[task] * LOOK_S
                for each in self.flows[task].values():
                    each[3] += 0 if each[6] else 5000
                look = {"cpu_s": self.cpu_s[task], "flows": list(self.flows[task].values())}
                self.rule.looked(place.host, {"tasks": {task: json.loads(json.dumps(look))}}, self.now)
            for host, type, fields in self.rule.questions(self.now):
                assert type == "dial"
                assert fields["load"] is True
                assert fields["key"] == ""
                addresses = [target[0] for target in fields["targets"]]
                self.dials += [(host, address) for address in addresses]
                results = [self.answers.get((host, address), 0.3) for address in addresses]
                if None not in results:
                    self.rule.answered(host, "dialled", {"results": results}, self.now + 1)
            said += self.rule.sentences(self.now + 2, set())
        return said

    def exit(self, task: str, code: int = 1) -> str:
        """It ends; returns why it may have failed."""
        ended = TaskExit(TaskId.parse(task), PLACES[task].host, code, None, 9.0, b"")
        why = self.rule.why_ended(ended, self.now)
        self.rule.exited(ended, self.now)
        return why


@pytest.fixture
def run() -> Run:
    made = Run()
    assert made.look(3) == []
    return made


def both(run: Run, there: Any, back: Any) -> None:
    """What the dials between host3 and host1 come to."""
    run.answers = {("host3", "10.77.0.1"): there, ("host1", "host3.cluster"): back}


def test_a_link_that_is_cut_is_told_once_and_again_when_it_is_back(run: Run) -> None:
    both(run, SILENTLY, SILENTLY)
    told = []
    for retransmits, queued in CUT:
        run.stuck(retransmits, queued)
        told += run.look()
    assert told == [
        Sentence(
            "packets between worker/1 on host3 and ps/0 on host1 have been lost for 12 s: a new connection is silently"
            " dropped, too; `ping 10.77.0.1` on host3; look at the cable, the switch and the firewalls between them",
            False,
        )
    ]
    assert run.dials == [("host3", "10.77.0.1"), ("host1", "host3.cluster")]
    assert list(run.rule.holds()) == [told[0].text]
    assert run.rule.explains(run.now) == ["ps/0", "worker/1"]
    run.cores["worker/0"] = 0.003  # synchronous: it waits for worker/1
    run.look(2)
    assert run.rule.explains(run.now) == ["ps/0", "worker/0", "worker/1"]
    run.stuck(0, 0)
    [over] = run.look()
    assert over.over
    assert over.text.startswith("packets between worker/1 on host3 and ps/0 on host1 arrive again, after ")
    assert run.rule.explains(run.now) == list(run.rule.holds()) == []
    assert run.look(10) == []


def test_both_ends_that_see_it_make_one_sentence(run: Run) -> None:
    both(run, SILENTLY, SILENTLY)
    run.stuck()
    run.flow("ps/0", "host3", 41001, 22000, retransmits=5, queued=9000)
    [told] = run.look(4)
    assert "worker/1 on host3" in told.text
    assert run.look(20) == []


@pytest.mark.parametrize(
    ("there", "back", "words"),
    [
        (
            SILENTLY,
            0.3,
            "a new connection from host3 is silently dropped, too, one from host1 works; `ping 10.77.0.1` on host3",
        ),
        (
            0.3,
            SILENTLY,
            "a new connection from host1 is silently dropped, too, one from host3 works; `ping host3.cluster` on host1",
        ),
        (
            [NARROW, "1400"],
            [STRANGER, "it hangs up"],
            "a new connection from host3 opens, but packets of more than 1400 bytes get lost, one from host1 works; "
            "`ping -M do -s 1372 10.77.0.1` on host3 tries 1400 bytes; give both hosts the MTU",
        ),
        (
            [NARROW, ""],
            [NARROW, ""],
            "a new connection opens, but large packets get lost; give both hosts the MTU",
        ),
        (
            [NO_ROUTE, ""],
            SILENTLY,
            "a new connection fails, too: no route (another network, or a firewall that",
        ),
    ],
)
def test_what_the_dials_show_is_told(run: Run, there: Any, back: Any, words: str) -> None:
    both(run, there, back)
    run.stuck()
    [told] = run.look(3)
    assert f"have been lost for 12 s: {words}" in told.text


def test_a_host_that_cannot_be_asked_does_not_keep_the_other_from_telling(run: Run) -> None:
    both(run, SILENTLY, None)
    run.stuck()
    assert run.look(5) == []
    [told] = run.look(10)
    assert "a new connection from host3 is silently dropped, too; `ping" in told.text


def test_a_network_that_is_back_is_given_time_for_the_next_try(run: Run) -> None:
    run.stuck(6)
    assert run.look(8) == []  # the dials work, and the kernel has not tried again since
    run.stuck(0, 0)
    assert run.look(3) == []


def test_a_connection_that_something_has_forgotten(run: Run) -> None:
    run.stuck(6)
    assert run.look(5) == []
    run.stuck(7)
    [told] = run.look()
    assert (
        "though a new connection works: a firewall or NAT between them may have forgotten the old one"
        in told.text
    )


@pytest.mark.parametrize(
    ("retransmits", "queued"),
    [(1, 40_000), (3, 120_000), (0, 4_000_000), (9, 0)],  # 3 % loss, 300 ms, a slow link; all acknowledged
)
def test_lossy_and_slow_networks_are_healthy(run: Run, retransmits: int, queued: int) -> None:
    run.stuck(retransmits, queued)
    assert run.look(30) == []
    assert run.dials == []


def test_one_look_is_no_proof_and_progress_begins_anew(run: Run) -> None:
    for _ in range(5):
        run.stuck(4)
        run.flows["worker/1"]["host1:22000"][3] += 1448  # one of the tries got through
        assert run.look() == []
    assert run.dials == []


def test_connections_within_a_host_and_out_of_the_run_do_not_count(run: Run) -> None:
    run.flows["worker/1"] = {"far": ["192.0.2.7", 443, 41002, 10, 10, 9000, 8, 40.0]}
    run.flows["ps/0"] = {"near": ["10.77.0.1", 22001, 41003, 10, 10, 9000, 8, 0.1]}
    assert run.look(5) == []
    assert run.dials == []


def test_a_host_that_hides_its_connections(run: Run) -> None:
    assert list(run.rule.blind()) == []
    for flows in (None, ...):
        look = {"cpu_s": 3.0, **({} if flows is ... else {"flows": flows})}
        run.rule.looked("host3", {"tasks": {"worker/1": look}}, run.now)
    assert run.rule.sentences(run.now, set()) == []
    assert list(run.rule.blind()) == [
        "whether packets of worker/1 are lost: the kernel there does not show their connections"
    ]
    run.look()
    assert list(run.rule.blind()) == []


def test_names_that_were_not_looked_up() -> None:
    rule = LostPackets(Watched(PLACES))
    assert list(rule.blind()) == [
        "whether packets to host3 are lost: names stand for their addresses, and only the dial check looks names up"
    ]


def test_tasks_that_end_take_their_connections_along(run: Run) -> None:
    both(run, SILENTLY, SILENTLY)
    run.stuck()
    assert run.look(3)
    run.flows["worker/1"] = {}
    run.exit("worker/1")
    assert run.look(2) == []
    assert list(run.rule.holds()) == []


def test_a_connection_that_was_given_up_ends_it_once_a_new_one_works(run: Run) -> None:
    both(run, SILENTLY, SILENTLY)
    run.stuck()
    assert len(run.look(3)) == 1
    del run.flows["worker/1"]["host1:22000"]
    assert run.look(8) == []
    assert len(list(run.rule.holds())) == 1
    run.answers = {}
    [over] = run.look(20)
    assert over.over


def test_whoever_goes_on_knows_what_was_told(run: Run) -> None:
    both(run, SILENTLY, SILENTLY)
    run.stuck()
    [told] = run.look(3)
    memory = json.loads(json.dumps(run.rule.memory()))
    run.rule = LostPackets(Watched(PLACES, NAMES))
    run.rule.resume(memory)
    assert list(run.rule.holds()) == [told.text]
    assert run.look(5) == []
    run.stuck(0, 0)
    [over] = run.look()
    assert over.over
    for wrong in (None, {"ways": []}, {"ways": [["a", "b", 1.0, [["no/7", ""]], ""]], "ended": []}):
        with pytest.raises(ValueError, match=r"."):
            run.rule.resume(wrong)


def test_a_task_that_fails_after_the_loss_may_have_failed_for_it(run: Run) -> None:
    lost = "packets between worker/1 on host3 and ps/0 on host1 were lost for 10 s"
    both(run, SILENTLY, SILENTLY)
    run.stuck()
    run.look(3)
    run.flows["worker/1"] = {}
    assert run.exit("worker/1") == f"worker/1 on host3 may have failed for this: {lost}".replace("10", "15")
    run.look(10)
    assert run.exit("worker/0") == f"worker/0 on host2 may have failed for this: {lost}".replace("10", "15")
    run.look(30)
    assert run.exit("ps/0") == ""


def test_a_task_that_fails_before_the_dials_are_done(run: Run) -> None:
    run.stuck()
    run.look()
    assert run.exit("ps/0") == ""
    assert run.exit("worker/1") == (
        "worker/1 on host3 may have failed for this: packets between host3 and host1 were not acknowledged for 5 s"
    )
