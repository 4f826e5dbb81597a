"""What `tflaunch ps` and `tflaunch status` show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.support.ps import NOW
from tflaunch.console.pen import Sheet
from tflaunch.console.runs_page import Column, run_lines, status_lines, table
from tflaunch.console.safe_text import Text
from tflaunch.console.screen import Screen
from tflaunch.runs.listing import Listing
from tflaunch.runs.run_states import HostShare, RunState, TaskState


def example(count: int = 2) -> RunState:
    tasks = [
        TaskState(
            *("ps/0", "gpu01", "running"),
            pid=4711,
            since=NOW - 7300,
            port=21873,
            log_bytes=120,
            output=NOW - 3000,
        ),
        *(
            TaskState(
                *(f"worker/{number}", f"gpu{number:02}", "running"),
                attempts=2,
                pid=123456 + number,
                since=NOW - 90,
                port=21874,
                gpus=("GPU-a", "GPU-b"),
                gpu_labels=("0", "1"),
                log_bytes=3 << 30,
                output=NOW - 2,
                before=({"attempt": 0, "code": None, "signal": 9, "signal_name": "SIGKILL", "seconds": 5.0},),
            )
            for number in range(1, count)
        ),
        TaskState(
            "worker/99", "gpu02", "exited", code=3, seconds=12.0, ended=NOW - 50, tail="\x1b[31mboom\x07\n"
        ),
        TaskState("worker/98", "gpu03", "unknown"),
        TaskState("worker/97", "gpu02", "exited", code=0, stopped=True, seconds=700.0, ended=NOW - 40),
    ]
    shares = (
        HostShare("gpu01", "alive", "/var/tmp/tflaunch-1000/trainer-k3f9x2/gpu01", 41),
        HostShare(
            "gpu02", "strays", "/var/tmp/tflaunch-1000/trainer-k3f9x2/gpu02", 42, ("pid 9 python (S)",)
        ),
        HostShare("gpu03", "unreachable"),
    )
    command = ("/home/ada/.venv/bin/tflaunch", "run", "hosts.yaml", "trainer.py", "--", "two words")
    return RunState("trainer-k3f9x2", shares, tuple(tasks), "ada", NOW - 7400, None, "ada@laptop", command)


def shown(run: RunState, columns: int | None) -> str:
    screen = Screen()
    screen.columns = columns
    lines = [*run_lines(Listing((run,), 0, {}), screen, NOW), *status_lines(run, "held by it", screen, NOW)]
    return "\n".join(line.plain for line in lines)


def test_one_task_that_has_ended_is_one_task() -> None:
    [first, *_] = example().tasks
    over = dataclasses.replace(first, state="exited", code=0)
    run = dataclasses.replace(
        example(), tasks=(over,), shares=(HostShare("gpu01", "ended", "/var/tmp/x"),), ended=NOW
    )
    assert "  1 task, started" in shown(run, None)


def test_what_is_shown_in_a_pipe_is_whole() -> None:
    page = shown(example(), None)
    assert "tflaunch run hosts.yaml trainer.py -- 'two words'" in page
    assert "trainer-k3f9x2  ● running    2/5  gpu[01-03]     2  2h ago" in " ".join(page.split("\n"))
    assert "worker/99 on gpu02 exited with code 3 after 12 s; its last lines:\n  │ boom" in page
    for word in (
        "4711",
        "21873",
        "0,1",
        "3.0 GiB",
        "2s ago",
        "● running",
        "✗ exit code 3",
        "? unknown",
        "· stopped",
    ):
        assert word in page, page
    assert "gpu02: the agent is dead, but these live on: pid 9 python (S)" in page
    assert "gpu03  cannot be reached" in page
    assert "worker/1   gpu01        1  ✗ SIGKILL     5s  worker-1.log" in page
    assert page.index("exited with code 3") < page.index("worker/1 ")


def test_what_holds_of_a_run_that_lives() -> None:
    held = {"age_s": 190.0, "sentences": ["worker/0 waits\n!"], "blind": ["GPUs: MIG"]}
    page = shown(dataclasses.replace(example(), holds=held), None)
    assert "! worker/0 waits\\n!\n" in page
    assert "  tflaunch cannot see GPUs: MIG\n  this has been so for 3m" in page
    narrow = shown(dataclasses.replace(example(), holds={**held, "sentences": ["moves no byte " * 9]}), 60)
    assert "\n! moves no byte moves" in narrow
    assert "\n  moves no byte moves" in narrow  # on below its first word
    ended = dataclasses.replace(example(), holds=held, shares=(HostShare("gpu01", "ended"),))
    assert "cannot see" not in shown(ended, None)
    assert "unchanged" not in shown(example(), None)


def test_the_list_says_which_runs_need_no_launcher() -> None:
    alive = dataclasses.replace(example(), detached=True)
    ended = dataclasses.replace(alive, shares=(HostShare("gpu01", "ended"),))
    for run, state in ((example(), "● running  "), (alive, "● running, detached  "), (ended, "✗ failed  ")):
        [_, row, *_] = run_lines(Listing((run,), 0, {}), Screen(), NOW)
        assert state in row.plain


def test_a_run_that_is_over_shows_what_ended_and_how_long_it_took() -> None:
    ended = dataclasses.replace(example(), shares=(HostShare("gpu01", "ended"),), ended=NOW - 200)
    assert " took 2 h 0 min\n" in shown(ended, None)
    heading, row = run_lines(Listing((ended,), 0, {}), Sheet(None), NOW)
    assert heading.plain.split() == ["run", "state", "tasks", "hosts", "GPUs", "started", "took", "command"]
    assert "2/5  gpu01" in row.plain
    assert "2h ago   2 h 0 min  run hosts.yaml trainer.py -- 'two words'" in row.plain
    assert "took" not in run_lines(Listing((example(),), 0, {}), Sheet(None), NOW)[0].plain


def test_where_there_is_little_room_the_command_goes_first_and_the_age_stays() -> None:
    def heading(columns: int) -> list[str]:
        return run_lines(Listing((example(),), 0, {}), Sheet(columns), NOW)[0].plain.split()

    assert heading(50) == ["run", "state", "tasks", "started"]
    assert heading(60) == ["run", "state", "tasks", "hosts", "GPUs", "started"]
    assert heading(90)[-1] == "command"


def test_sentences_break_between_words_only() -> None:
    trouble = "gpu02: the agent is dead, but these live on: pid 9 python (S); to end them: tflaunch stop trainer-k3f9x2"
    command = "ada@laptop: tflaunch run hosts.yaml trainer.py -- 'two words'"
    for columns in (40, 60):
        page = shown(example(), columns)
        words = {word for line in page.splitlines() for word in line.split()}
        assert {*trouble.split(), *command.split()} <= words


def test_a_newline_in_an_argument_stays_in_its_row() -> None:
    run = dataclasses.replace(example(), command=("tflaunch", "run", "t.py", "--", "a\nb\x1b[31mc"))
    lines = run_lines(Listing((run,), 0, {}), Sheet(None), NOW)
    assert [line.plain.count("\n") for line in lines] == [0] * len(lines)
    assert lines[1].plain.endswith("  run t.py -- 'a\\nbc'")


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_tables_are_not_wider_than_the_terminal(columns: int) -> None:
    page = shown(example(12), columns)
    rows = [
        line
        for line in page.splitlines()
        if line.startswith(("ps/", "worker/", "task ", "run ", "restarted")) or "12/15" in line
    ]
    assert len(rows) > 14
    assert max(map(len, rows)) <= columns
    for word in ("● running", "✗ exit code 3", "gpu01", "1m"):
        assert word in page


def test_thousands_of_runs_that_a_host_tells_of_are_shown_at_once() -> None:
    class Counted(list[Text]):
        looks = 0

        def __iter__(self) -> Iterator[Text]:
            Counted.looks += 1
            return super().__iter__()

    lines = table(
        [Column("run", Counted(map(Text, map(str, range(100))))), Column("b", [Text("x")] * 100)], 80, "~"
    )
    assert len(lines) == 101
    assert Counted.looks < 5  # not one for each row
