"""From looks to samples: rates between two looks, which bytes are among tasks of the run, what the log says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflaunch.protocol.errors import RecordError
from tflaunch.runs.samples import SAMPLES, read_samples
from tflaunch.runs.sampling import Sampling

PLACES = {
    "ps/0": ["gpu01", "gpu01.lab", 2222],
    "worker/0": ["gpu02", "10.0.0.2", None],
}
WATCHED = {
    "places": PLACES,
    "names": {"gpu01.lab": ["10.0.0.1"]},
    "settings": {"gpus": {"worker/0": ["GPU-a", "GPU-b"]}},
}


def look(cpu_s: float, flows: list[list[Any]] | None = None, **more: Any) -> dict[str, Any]:
    """A look as agent/tasks/look.py makes it, as far as it is read here."""
    made = {"listens": None, "cpu_s": cpu_s, "io": 0, "quiet_s": 1.0, "log_bytes": 0, "says": "", "signs": {}}
    return {**made, "flows": flows, **more}


def flow(address: str, port: int, own: int, sent: int, received: int) -> list[Any]:
    return [address, port, own, sent, received, 0, 0, 0.1]


class Play:
    """A Sampling, its clock, and what it has refused."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.refused: list[RecordError] = []
        self.sampling = Sampling(directory / SAMPLES, WATCHED, self.refused.append, clocks=(50.0, 1000.0))

    def looked(self, at: float, gpus: dict[str, Any] | None = None, **tasks: dict[str, Any]) -> None:
        named = {name.replace("_", "/"): each for name, each in tasks.items()}
        self.sampling.looked("gpu02", {"tasks": named, **({"gpus": gpus} if gpus else {})}, 50.0 + at)

    def values(self, task: str, column: str) -> list[float]:
        self.sampling.close()
        found = read_samples(self.directory / SAMPLES)
        assert found is not None
        assert found.began == 1000.0
        return [value for _, value in found.series(task, column)]

    def firsts(self) -> dict[str, dict[str, float]]:
        found = read_samples(self.directory / SAMPLES)
        assert found is not None
        return found.firsts


def test_rates_are_of_what_came_between_two_looks(tmp_path: Path) -> None:
    play = Play(tmp_path)
    to_ps, to_store = flow("10.0.0.1", 2222, 40000, 1000, 500), flow("10.9.9.9", 443, 40001, 7, 9)
    play.looked(1.0, worker_0=look(10.0, [to_ps, to_store], io=100))
    assert not play.values("worker/0", "cores"), "one look has no rate"
    more = flow("10.0.0.1", 2222, 40000, 5000, 2500), flow("10.9.9.9", 443, 40001, 7, 1009)
    fresh = flow("10.0.0.1", 2222, 40005, 400, 0)
    play.looked(5.0, worker_0=look(14.0, [*more, fresh], io=900))
    assert play.values("worker/0", "cores") == [1.0]
    assert play.values("worker/0", "sent") == [(4000 + 400) / 4]
    assert play.values("worker/0", "received") == [(2000 + 1000) / 4]
    assert play.values("worker/0", "peers") == [(4000 + 2000 + 400) / 4]
    assert play.values("worker/0", "files") == [200.0]
    assert play.values("worker/0", "gpu") == []


def test_the_bytes_of_who_is_dialled_are_those_at_its_port(tmp_path: Path) -> None:
    play = Play(tmp_path)
    for at, sent in ((1.0, 0), (3.0, 600)):
        mine, elsewhere = flow("10.0.0.7", 40000, 2222, sent, 0), flow("10.0.0.8", 40000, 50000, 2 * sent, 0)
        play.looked(at, ps_0=look(0.0, [mine, elsewhere], listens=True))
    assert play.values("ps/0", "peers") == [300.0]
    assert play.values("ps/0", "sent") == [900.0]


def test_a_task_that_was_started_again_has_no_rate_below_zero(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.looked(1.0, worker_0=look(90.0, [flow("10.0.0.1", 2222, 40000, 10**9, 10**9)], io=10**9))
    play.looked(3.0, worker_0=look(2.0, [flow("10.0.0.1", 2222, 40000, 10, 0)], io=5))
    for column in ("cores", "sent", "received", "peers", "files"):
        assert play.values("worker/0", column) == [0.0], column


def test_what_a_host_hides_is_not_known(tmp_path: Path) -> None:
    play = Play(tmp_path)
    for at in (1.0, 3.0):
        bare = look(at, None, io=None)
        del bare["signs"]  # an older agent sends none
        play.looked(at, worker_0=bare)
    assert play.values("worker/0", "sent") == play.values("worker/0", "files") == []
    assert play.values("worker/0", "cores") == [1.0]


def test_a_bin_has_the_mean_of_its_looks(tmp_path: Path) -> None:
    play = Play(tmp_path)
    for at, cpu_s, quiet_s in ((0.0, 0.0, 0.0), (1.0, 1.0, 9.0), (2.0, 4.0, 2.0), (6.0, 8.0, 1.0)):
        play.looked(at, worker_0=look(cpu_s, quiet_s=quiet_s))
    assert play.values("worker/0", "cores") == [2.0, 1.0]
    assert play.values("worker/0", "quiet_s") == [9.0, 1.0]


def test_step_and_loss_are_read_in_the_log(tmp_path: Path) -> None:
    play = Play(tmp_path)
    lines = ("epoch 2/10", "epoch 2 step 120 loss 0.5", "reading the next file", "nothing")
    for at, says in enumerate(lines):
        signs = {"loss": [3, "step 140, loss: 0.25", 1.0]} if at == 2 else {}
        play.looked(10.0 * at, worker_0=look(0.0, says=says, signs=signs))
    assert play.values("worker/0", "step") == [120, 140]
    assert play.values("worker/0", "loss") == [0.5, 0.25]


def test_the_gpus_of_a_task_count_together(tmp_path: Path) -> None:
    play = Play(tmp_path)
    gpus = {
        "GPU-a": {"use": 80, "power_w": 300.0, "memory_bytes": 5, "gpm": [60.0, 20.0, 33.3]},
        "GPU-b": {"use": 40, "power_w": None, "memory_bytes": 7, "gpm": [40.0, 0.0, 33.3]},
        "GPU-of-another": {"use": 100, "power_w": 999.0, "memory_bytes": 99},
    }
    for at in (1.0, 3.0):
        play.looked(at, gpus, worker_0=look(0.0), ps_0=look(0.0))
    assert play.values("worker/0", "gpu") == [60.0]
    assert play.values("worker/0", "watts") == [300.0]
    assert play.values("worker/0", "gpu_bytes") == [12.0]
    assert play.values("ps/0", "gpu") == []
    for column, value in (("sm", 50.0), ("tensor", 10.0), ("dram", 33.3)):
        assert play.values("worker/0", column) == [value]
        assert play.values("ps/0", column) == []


def test_a_gpu_that_has_no_gpm_has_the_rest(tmp_path: Path) -> None:
    play = Play(tmp_path)
    gpus = {"GPU-a": {"use": 80, "power_w": 300.0, "memory_bytes": 5, "gpm": None}}
    for at in (1.0, 3.0):
        play.looked(at, gpus, worker_0=look(0.0))
    assert play.values("worker/0", "gpu") == [80.0]
    assert play.values("worker/0", "sm") == []


def pressures(tmp_path: Path, *machines: dict[str, Any] | None) -> list[tuple[int, dict[str, Any]]]:
    """What is kept of a host that says this of itself, every five seconds."""
    play = Play(tmp_path)
    for number, machine in enumerate(machines):
        play.sampling.looked(
            "gpu02", {"tasks": {}, **({"machine": machine} if machine else {})}, 51.0 + 5 * number
        )
    play.sampling.close()
    found = read_samples(tmp_path / SAMPLES)
    assert found is not None
    return found.host_bins


def counted(cpu: int, memory: int, io: int) -> dict[str, int]:
    return {"cpu": cpu, "memory": memory, "io": io}


def test_how_long_the_programs_of_a_host_waited(tmp_path: Path) -> None:
    looks = [counted(7000, 100, 90), counted(9500, 100, 91), counted(20000, 0, 6000)]
    found = pressures(tmp_path, *({"swapped": 0, "pressure": each} for each in looks))
    assert found == [(1, {"gpu02": [50, 0, 0]}), (2, {"gpu02": [100, 0, 100]})]


def test_the_pressure_in_its_own_cgroup_is_what_its_tasks_feel(tmp_path: Path) -> None:
    both = [{"pressure": counted(ms, ms, ms), "own_pressure": counted(0, ms // 10, 0)} for ms in (0, 5000)]
    assert pressures(tmp_path, *both) == [(1, {"gpu02": [0, 10, 0]})]


def test_a_kernel_without_psi_has_no_rows(tmp_path: Path) -> None:
    bare = {"swapped": 0, "pressure": {}, "own_pressure": {}}
    assert pressures(tmp_path, None, bare, {"swapped": 0}, bare) == []


def test_each_pressure_is_that_of_its_own_cgroup_where_that_tells_of_it(tmp_path: Path) -> None:
    looks = [{"pressure": counted(ms, ms, ms), "own_pressure": {"cpu": ms // 10}} for ms in (0, 5000)]
    assert pressures(tmp_path, *looks) == [(1, {"gpu02": [10, 100, 100]})]


def test_a_pressure_that_is_not_told_is_missing_alone(tmp_path: Path) -> None:
    looks = [{"pressure": {"cpu": ms, "io": 2 * ms}} for ms in (0, 1000)]
    assert pressures(tmp_path, *looks) == [(1, {"gpu02": [20, None, 40]})]


def test_the_waits_of_other_programs_are_not_compared(tmp_path: Path) -> None:
    """The host has waited long before; tasks in containers are not in the agent's cgroup."""
    looks: list[dict[str, Any]] = [{"pressure": counted(90_000 + ms, ms, 0)} for ms in range(0, 5000, 500)]
    for each in looks[3:6]:
        each["own_pressure"] = {"cpu": 3}
    found = pressures(tmp_path, *looks)
    assert [rows["gpu02"] for _, rows in found] == [
        [10, 10, 0],
        [10, 10, 0],
        [None, 10, 0],
        [0, 10, 0],
        [0, 10, 0],
        [None, 10, 0],
        *[[10, 10, 0]] * 3,
    ]


def test_what_a_task_does_for_the_first_time_is_noted(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.looked(1.0, ps_0=look(0.0, []), worker_0=look(0.0, []))
    busy = look(0.0, [flow("10.0.0.7", 40000, 2222, 1, 0)], listens=True, log_bytes=3)
    for at in (4.0, 8.0):
        play.looked(at, ps_0=busy, stranger_0=busy)
    assert play.firsts() == {"ps/0": dict.fromkeys(("printed", "listens", "peers"), 4.0)}


def test_a_disk_that_refuses_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    play = Play(tmp_path / "nowhere")
    play.looked(1.0, worker_0=look(0.0))
    play.looked(9.0, worker_0=look(0.0))
    play.sampling.close()
    assert len(play.refused) == 1
