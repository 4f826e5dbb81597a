"""The last line of the terminal while the tasks run."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.screen import PS0, W0, W1, Reader, plain, terminal
from tflaunch.console.footer import Footer
from tflaunch.console.opening import open_reporter
from tflaunch.console.pen import Pen
from tflaunch.documents.writer import Stream
from tflaunch.protocol.events import TaskStarted


@pytest.fixture
def make_footer() -> Iterator[Callable[[int], Footer]]:
    with contextlib.ExitStack() as opened:

        def make(columns: int) -> Footer:
            ours, theirs = terminal(columns=columns)
            opened.callback(os.close, ours)
            opened.callback(theirs.close)
            return Footer(Pen(Stream(theirs)))

        yield make


def text(footer: Footer, now: float) -> str:
    line = footer.line(now)
    assert line is not None
    return line.plain


def test_it_says_how_long_how_many_and_what_was_printed_last(make_footer: Callable[[int], Footer]) -> None:
    footer = make_footer(100)
    assert footer.line(0.0) is None
    footer.begin(3, 100.0)
    footer.started(PS0)
    footer.started(W0)
    assert text(footer, 107.9)[2:] == "7 s  2 of 3 tasks up  no output yet"
    footer.output(W0, "step 7 loss 0.5\nsaved\n", 110.0)
    footer.exited(PS0)
    assert (
        text(footer, 185.0)[2:]
        == "1 min 25 s  1 of 3 tasks up  output 1 min 15 s ago  worker/0: step 7, loss 0.5"
    )
    footer.output(W1, "nothing of that kind\n", 186.0)
    assert text(footer, 186.0).endswith("worker/0: step 7, loss 0.5")
    footer.end()
    assert footer.line(200.0) is None


def test_of_a_run_that_went_on_before_it_was_watched_it_says_since_when(
    make_footer: Callable[[int], Footer],
) -> None:
    footer = make_footer(100)
    for task in (PS0, W0, W1):
        footer.started(task)
    footer.output(W0, "step 7 loss 0.5\n", 1000.0)  # an hour old, but it has come just now
    footer.join(3, 900.0, 940.0)
    assert text(footer, 1000.0)[2:] == (
        "1 min 40 s  3 of 3 tasks up  output 1 min 0 s ago  worker/0: step 7, loss 0.5"
    )
    footer.output(W0, "step 8\n", 1001.0)
    assert "output 0 s ago  worker/0: step 8" in text(footer, 1001.0)


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("worker/1 step   402  loss 0.4422  accuracy 0.770", "step 402, loss 0.4422"),
        ("Epoch 3/10", "epoch 3/10"),
        ("step 1,402 loss 0.5", "step 1402, loss 0.5"),
        ("step 1_402/10_000", "step 1402/10000"),
        ("step 1, loss 0.5", "step 1, loss 0.5"),
        ("step 7/10x", "step 7"),
        ("step 7x, epoch 3", "epoch 3"),
        ("step 1,000_x", ""),
        ("123/500 \x1b[1m━━━\x1b[0m 2s 3ms/step - accuracy: 0.91 - loss: 0.30124519", "loss 0.301245"),
        ("global_step = 1200, loss = 1.2e-05", "step 1200, loss 1.2e-05"),
        ("{'step': 7, 'loss': nan}", "step 7, loss nan"),
        ("INFO:tensorflow:loss = 2.3025851, step = 100 (1.2 sec)", "step 100, loss 2.30259"),
        ("val_loss: 0.3", ""),
        ("stepping stones 12, losses 3", ""),
        ("loss: \u0131nf, loss \u0130nf", ""),
        ("step " + "9" * 400 + " loss " + "1" * 400, ""),
    ],
)
def test_the_last_step_and_loss_are_found(
    make_footer: Callable[[int], Footer], line: str, progress: str
) -> None:
    footer = make_footer(130)
    footer.begin(1, 0.0)
    footer.output(W0, line + "\n", 0.0)
    assert text(footer, 0.0).partition("output 0 s ago")[2].strip() == (
        f"worker/0: {progress}" if progress else ""
    )


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_it_fits_the_terminal(make_footer: Callable[[int], Footer], columns: int) -> None:
    footer = make_footer(columns)
    footer.begin(1000, 0.0)
    footer.output(W0, "step 123456 loss 0.123456\n", 0.0)
    assert len(text(footer, 5000.0)) < columns


def test_output_that_is_not_shown_counts_too() -> None:
    ours, theirs = terminal(columns=80)
    reporter = open_reporter(stdout=theirs, stderr=theirs, quiet=True)
    reporter.joined(1, 100.0, 50.0)
    seen, deadline = "", time.monotonic() + 60
    for text in ("output 5", "output 0 s ago"):
        while text not in seen:
            assert time.monotonic() < deadline, seen
            seen += os.read(ours, 65536).decode()
        reporter.log(W0, "gpu01", 0, b"step 1\n")
    reader = Reader(ours)
    reporter.close()
    theirs.close()
    assert not any("worker/0" in line for line in plain(seen + reader.text()))


def test_it_stays_below_the_lines_and_moves() -> None:
    ours, theirs = terminal(columns=80)
    reporter = open_reporter(stdout=theirs, stderr=theirs)
    reporter.phase("training", 0, 2)
    reporter.started(TaskStarted(W0, "gpu01"))
    reporter.log(W0, "gpu01", 0, b"step 1 loss 0.9\n")
    seen, frames = "", set[str]()
    deadline = time.monotonic() + 60
    while len(frames) < 3:
        assert time.monotonic() < deadline, seen
        seen += os.read(ours, 65536).decode()
        frames = set(re.findall(r"(\S)\x1b\[0m \x1b\[2m\d+ s  1 of 2 tasks up", seen))
    reader = Reader(ours)
    reporter.log(W0, "gpu01", 16, b"step 2 loss 0.8\n")
    reporter.close()
    theirs.close()
    lines = plain(seen + reader.text())
    assert lines == ["training 2 tasks", "worker/0 │ step 1 loss 0.9", "worker/0 │ step 2 loss 0.8"]
