"""What `tflaunch stacks` shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.evil import EVIL, harmless
from tflaunch.console.pen import Sheet
from tflaunch.console.stacks_page import stacks_lines
from tflaunch.documents.writer import to_json
from tflaunch.runs.stack_looks import TaskStacks, stacks_data

WAIT = ["/usr/lib/python3.11/threading.py", 629, "wait"]


def stack(*frames: list[Any], main: bool = True, count: int = 1) -> dict[str, Any]:
    return {"main": main, "frames": list(frames), "count": count}


def program(*stacks: dict[str, Any], pid: int = 7, threads: int = 1, **more: Any) -> dict[str, Any]:
    rows = [[pid + number, "python", "S", "futex_do_wait", 1.5] for number in range(threads)]
    return {
        **{"pid": pid, "name": "python", "threads": rows, "stacks": list(stacks) or None},
        **{"why_none": "", "age_s": 0.0, **more},
    }


def shown(*tasks: TaskStacks, all_threads: bool = False) -> list[str]:
    return [line.plain for line in stacks_lines(tasks, Sheet(), all_threads=all_threads)]


def test_tasks_at_the_same_place_are_shown_once_and_the_odd_one_by_itself() -> None:
    waits = stack(WAIT, ["mwms.py", 40, "train"])
    pool = stack(WAIT, ["mwms.py", 9, "reads"], main=False, count=4)
    stuck = stack(["mwms.py", 26, "batches"], ["mwms.py", 40, "train"])
    lines = shown(
        TaskStacks("worker/0", "a", (program(waits, pool, threads=40),)),
        TaskStacks("worker/1", "b", (program(stuck, pid=9, age_s=340.0),)),
        TaskStacks("worker/2", "c", (program(waits, pid=5),)),
    )
    assert lines == [
        "worker/0 on a, worker/2 on c are at the same place",
        "  → mwms.py:40 in train()",
        "    threading.py:629 in wait()",
        "    in the kernel: futex_do_wait",
        "  + 4 threads at mwms.py:9 in reads(), there in threading.py:629 in wait()",
        "  + 35 threads outside Python",
        "",
        "worker/1 on b",
        "  pid 9 python, asked 5m ago",
        "    mwms.py:40 in train()",
        "  → mwms.py:26 in batches()",
        "    in the kernel: futex_do_wait",
    ]


def test_all_threads_in_full() -> None:
    pool = stack(WAIT, ["mwms.py", 9, "reads"], main=False, count=2)
    lines = shown(TaskStacks("worker/0", "a", (program(stack(WAIT), pool, threads=3),)), all_threads=True)
    assert lines[-3:] == ["  2 threads:", "    → mwms.py:9 in reads()", "      threading.py:629 in wait()"]


@pytest.mark.parametrize("all_threads", [False, True])
def test_a_host_that_shows_a_thread_nowhere(all_threads: bool) -> None:
    nowhere = program(stack(WAIT), stack(main=False, count=2), threads=3)
    lines = shown(TaskStacks("worker/0", "a", (nowhere,)), all_threads=all_threads)
    assert lines[-1] == ("  2 threads:" if all_threads else "  + 2 threads at no place that its host tells")


def test_where_there_are_no_stacks_the_kernel_tells() -> None:
    lines = shown(TaskStacks("ps/0", "a", (program(why_none="no Python"),)), TaskStacks("ps/1", "a", ()))
    assert lines == [
        "ps/0 on a",
        "  pid 7 python",
        "  ✗ no stacks: no Python",
        "    its first thread (python) sleeps in futex_do_wait, 1.5 s of CPU",
        "",
        "ps/1 on a",
        "  no process of it is left",
    ]


def test_where_only_other_threads_have_told_their_stacks_it_says_why() -> None:
    told = program(stack(WAIT, main=False), why_none="its thread 7 (python) runs in native code")
    lines = shown(TaskStacks("ps/0", "a", (told,)))
    assert lines[2] == "  ✗ no stack of its first thread: its thread 7 (python) runs in native code"


def test_a_shell_around_the_program_is_left_out() -> None:
    shell = program(pid=3, why_none="no Python")
    lines = shown(TaskStacks("ps/0", "a", (shell, program(stack(["x.py", 1, "f"])))))
    assert lines[1:3] == ["  pid 7 python", "  → x.py:1 in f()"]


@pytest.mark.parametrize("all_threads", [True, False])
def test_no_stack_acts_on_the_terminal(all_threads: bool) -> None:
    frame = [EVIL, 2**62, EVIL]
    evil = program(stack(frame), stack(frame, main=False, count=2**62), why_none=EVIL)
    evil["threads"] = [[7, EVIL, EVIL, EVIL, 1e14]]
    evil["name"] = EVIL
    tasks = (
        TaskStacks("worker/0", EVIL, (evil,)),
        TaskStacks("worker/1", EVIL, ({**evil, "stacks": None},)),
        TaskStacks("worker/2", EVIL, ({**evil, "stacks": []},)),
    )
    for line in shown(*tasks, all_threads=all_threads):
        assert "\n" not in line
        harmless(line)
    harmless(to_json([stacks_data(each) for each in tasks]))
