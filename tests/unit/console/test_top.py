"""`top`: what is drawn of a run that is looked at, and what the keys do, without a terminal."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tflaunch.console.pen import ASCII, UNICODE, WARN, Marks
from tflaunch.console.run_top.drawing import TopDrawing
from tflaunch.console.run_top.row_columns import Columns
from tflaunch.console.run_top.table_rows import SORTS, PastLooks, Row, task_rows
from tflaunch.console.run_top.view import TopView
from tflaunch.console.safe_text import Text
from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.runs.looking import SeenHost, SeenRun, SeenTask
from tflaunch.runs.run_states import HostShare, RunState
from tflaunch.runs.samples import HOST_NAMES, NAMES

NOW = 1_764_500_000.0
HOSTS = {"ps/0": "gpu01", "worker/0": "gpu01", "worker/1": "gpu02", "worker/2": "gpu02"}
RUN = RunState(
    "mnist-4f2a9c", tuple(HostShare(host, "alive") for host in ("gpu01", "gpu02")), started=NOW - 90
)
STEPS_S = {"worker/0": 10.0, "worker/1": 2.0, "worker/2": 9.0}
EVIL = "\x1b[2J<b>"


def look(number: int, **changed: SeenTask) -> SeenRun:
    """Look number so and so, five seconds after the one before: worker/1 is slow, and writes what it likes."""
    at = 5.0 * number
    tasks = {}
    for name, host in HOSTS.items():
        values = dict.fromkeys(NAMES) | {"cores": 1.5, "sent": 2e6, "received": 1e6, "quiet_s": 0.5}
        if name in STEPS_S:
            values |= {
                "step": round(STEPS_S[name] * at),
                "loss": 0.25,
                "gpu": 95.0 if name != "worker/1" else 10.0,
                "sm": 63.0,
                "tensor": 21.4,
                "dram": 40.0,
            }
        tasks[name] = SeenTask(name, host, "running", "", values, f"{EVIL} step {at}", at + 1)
    tasks |= {name.replace("_", "/"): task for name, task in changed.items()}
    hosts = {
        "gpu01": SeenHost(0.0),
        "gpu02": SeenHost(3.5, dict(zip(HOST_NAMES, (100.0, 100.0, 99.7), strict=True)), at + 1),
    }
    return SeenRun(RUN, at, NOW + at, tuple(tasks.values()), hosts, {})


class Shown:
    """A view that has had some looks, as its screen shows it."""

    def __init__(self, columns: int = 80, rows: int = 24, looks: int = 5, marks: Marks = UNICODE) -> None:
        self.view, self.size = TopView(), (columns, rows)
        self._drawing = TopDrawing(self.view, 5.0, marks)
        for number in range(looks):
            self.view.take(look(number))

    def press(self, *keys: str) -> bool:
        return [self.view.press(key, key if len(key) == 1 else None) for key in keys][-1]

    @property
    def styled(self) -> list[Text]:
        return self._drawing.screen(*self.size)

    @property
    def lines(self) -> list[str]:
        return [line.plain.rstrip() for line in self.styled]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def names(self) -> list[str]:
        """The rows of the list, from the top."""
        return [line[1:].split()[0] for line in self.lines if re.match(r"[> ](ps|worker|gpu)", line)]


@pytest.mark.parametrize("columns", [20, 40, 80, 130, 240])
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_each_page_fits_each_window_and_acts_on_no_terminal(columns: int, marks: Marks) -> None:
    shown = Shown(columns, 12, marks=marks)
    for keys in ((), ("tab",), ("enter",), ("question_mark",)):
        if keys:
            shown.press(*keys)
        lines = shown.lines
        assert len(lines) == 12
        assert all(len(line) <= columns for line in lines), lines
        assert "\x1b" not in shown.text
    if marks is ASCII:
        assert shown.text.isascii()


def test_a_task_has_its_numbers_and_their_graphs() -> None:
    shown = Shown(130)
    assert "mnist-4f2a9c" in shown.lines[0] and "4/4 tasks run for 1m" in shown.lines[0]
    (worker,) = [line for line in shown.lines if "worker/1" in line]
    assert re.search(r"worker/1 gpu02 +█{5}  1\.50 +█{5} +2\.9M .*10% +63/21/40 +40 +2 +0\.25 ", worker), (
        worker
    )
    assert "<b> step 20.0" in worker, "its log, harmless"
    assert "4 tasks · 6.00 cores · 11M/s · GPUs 67%" in shown.text
    narrow = Shown(80)
    assert re.search(r"worker/1 gpu02 .*1\.50.* 2\.9M .* 10% +40 +2$", narrow.text, re.MULTILINE), narrow.text


def test_hosts_have_what_their_tasks_use_together_and_what_others_use() -> None:
    shown = Shown(130)
    shown.press("tab")
    assert shown.names == ["gpu01", "gpu02"]
    (host,) = [line for line in shown.lines if "gpu02" in line]
    waits = r"63/21/40 +100/100/100 +3\.5"
    assert re.search(rf"gpu02 .*█ +3\.00 .*5\.7M .* 52% +{waits} +worker/1, worker/2", host), host
    (host,) = [line for line in shown.lines if "gpu01" in line]
    assert re.search(r"63/21/40 +- +0 +ps/0, worker/0", host), host
    narrow = Shown(80)
    narrow.press("tab")
    (host,) = [line for line in narrow.lines if "gpu02" in line]
    assert re.search(r"gpu02 .*█ +3\.00 .*5\.7M .* 52% +100/100/100 +3\.5 +worker/1, worker/2", host), host


def test_a_host_alone_has_the_graphs_of_its_waits() -> None:
    shown = Shown(80, 90)
    shown.press("tab", "down", "enter")
    for title, value in (("a processor", "100%"), ("memory", "100%"), ("a disk", "100%")):
        assert f"percent of the time in which programs waited for {title}: {value}" in shown.text
    assert "tensor cores: percent of the time in which they computed: 21%" in shown.text
    shown.press("left")
    assert "programs waited" not in shown.text, "its kernel does not tell"


def test_a_host_that_is_down_has_no_number_of_now() -> None:
    shown = Shown(130)
    shown.view.take(dataclasses.replace(look(9), down={"gpu02": "no route to host"}))
    shown.press("tab")
    (host,) = [line for line in shown.lines if line[1:].startswith("gpu02")]
    assert "unreachable  no route to host" in host and "100/100" not in host, host
    assert "2 hosts · 3.00 cores · 5.7M/s" in shown.text
    shown.press("tab")
    assert "4 tasks · 3.00 cores · 5.7M/s" in shown.text


def test_only_the_name_of_a_row_is_bold() -> None:
    shown = Shown(130)
    for _ in ("tasks", "hosts"):
        for line in shown.styled[2:4]:
            bold = "".join(
                line.plain[part.start : part.end] for part in line.spans if "bold" in str(part.style)
            )
            assert "bold" not in str(line.style)
            assert bold.lstrip("> ").split() == [line.plain[1:].split()[0]]
        shown.press("tab")


@pytest.mark.parametrize(("more", "marked"), [(-0.1, False), (0.0, True)])
def test_a_host_is_marked_as_short_of_memory_where_the_rule_warns_of_it(more: float, marked: bool) -> None:
    least = 100 * Thresholds().memory_share + more
    waits = dict(zip(HOST_NAMES, (100.0, least, 100.0), strict=True))
    row = Row("gpu01", "gpu01", "running", now=waits)
    line = Columns(130, UNICODE, [row], of_hosts=True).row(row, selected=False)
    (at,) = [match.span() for match in re.finditer(rf"(?<=/){least:.0f}(?=/)", line.plain)]
    found = [(part.start, part.end) for part in line.spans if part.style == WARN]
    assert found == [at] * marked


def test_they_are_sorted_and_filtered() -> None:
    shown = Shown()
    assert shown.names == list(HOSTS)
    shown.press("r")
    assert shown.names == list(HOSTS)[::-1]
    shown.press(*["s"] * (len(SORTS) - 1))
    assert "slowest first" in shown.lines[0]
    assert shown.names == ["worker/1", "worker/2", "worker/0", "ps/0"]
    shown.press("/", *"gpu01")
    assert shown.names == ["worker/0", "ps/0"]
    assert "filter: gpu01_" in shown.text
    shown.press("enter", "down", "enter")
    assert "ps/0 on gpu01  running" in shown.text
    shown.press("escape", "escape")
    assert len(shown.names) == 4
    shown.press("/", *"nobody")
    assert "nothing fits 'nobody'" in shown.text
    assert not Shown().press("q")
    assert shown.press("q"), "it is a letter of the filter"


def test_one_task_alone_has_larger_graphs() -> None:
    shown = Shown()
    shown.press("down", "down", "enter")
    assert shown.lines[1].startswith("worker/1 on gpu02  running  step 40  2 steps/s  loss 0.25")
    assert "cores: 1.50   1.50 to 1.50 in 25s" in shown.text
    shown.press("right")
    assert "worker/2 on gpu02" in shown.lines[1]


def test_a_screen_that_is_paused_stands_still() -> None:
    shown = Shown()
    shown.press("space")
    before = shown.lines[1:]
    shown.view.take(look(9))
    assert shown.lines[1:] == before and "paused" in shown.lines[0]
    shown.press("space")
    assert re.search(r"worker/1 .* 90 ", shown.text)


def test_ends_lost_hosts_and_what_the_watchdog_says_are_shown() -> None:
    shown = Shown(looks=2)
    ended = look(2, worker_1=SeenTask("worker/1", "gpu02", "exited", "exit code 3", says="ValueError"))
    shown.view.take(
        dataclasses.replace(ended, down={"gpu01": "no route"}, said=((NOW, "worker/1 is 5x slower"),))
    )
    assert "1/4" not in shown.lines[0] and "3/4 tasks" in shown.lines[0]
    assert "worker/1 is 5x slower" in shown.lines[1] and "gpu01 is out of reach: no route" in shown.lines[2]
    (exited,) = [line for line in shown.lines if line.startswith(" worker/1")]
    assert "exit code 3  ValueError" in exited
    assert len(re.findall("gpu01 +unreachable", shown.text)) == 2
    shown.view.take(dataclasses.replace(ended, ended="failed (exit code 3)"))
    assert "failed (exit code 3)" in shown.lines[0]


def test_a_task_that_was_started_again_counts_its_steps_anew() -> None:
    past = PastLooks()
    for number, step in enumerate([100, 200, 0, 30]):
        seen = look(number)
        tasks = [
            dataclasses.replace(task, values={**(task.values or {}), "step": float(step)})
            for task in seen.tasks
            if task.task == "worker/0"
        ]
        past.take(tasks, {})
        past.take(tasks, {})  # a look that is told twice counts once
    assert past.steps_s("worker/0") == 6.0
    assert len(past.past("worker/0")["cores"]) == 4
    assert task_rows(look(3), past)[0].steps_s is None, "a ps"
