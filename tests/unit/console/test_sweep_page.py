"""What people see of a sweep, in terminals of several widths."""

from __future__ import annotations

import dataclasses
import math
import re
import time

import pytest
from rich.cells import cell_len

from tflaunch.console.graph import sparkline
from tflaunch.console.pen import ASCII, UNICODE, Marks, Sheet
from tflaunch.console.sweep_page import last_line, progress_lines, summary_lines
from tflaunch.console.text_table import Table
from tflaunch.console.trial_values import in_room, of_parameter, rounded
from tflaunch.sweeps.controller import Summary, SweepProgress, TrialRow
from tflaunch.sweeps.results import Metric, Result
from tflaunch.sweeps.trials import Trial

LOSS = Metric("val_loss", key="val_loss")


def result(number: int, status: str = "succeeded", why: str = "", metric: float | None = 0.5) -> Result:
    return Result(
        **{
            "trial": number,
            "params": {"lr": 0.1},
            "metric": metric,
            "status": status,
            "exit_code": int(status == "failed"),
        },  # type: ignore[arg-type]
        **{"signal": None, "host": "gpu-host-1", "gpus": ("0",), "seconds": 2.0, "attempts": 1},  # type: ignore[arg-type]
        **{"ended": 0.0, "log": "l", "why": why},  # type: ignore[arg-type]
    )


def progress() -> SweepProgress:
    curve = tuple(1 / (1 + number) for number in range(100))
    rows = tuple(
        TrialRow(
            Trial(number, {"learning_rate": "0.00123", "layers": "4"}),
            "gpu-host-1:0",
            time.monotonic(),
            0.123456,
            curve,
        )
        for number in (7, 123)
    )
    return SweepProgress(200, 12, 1, 180, 2, rows, result(3), 3.0, 4, curve)


@pytest.mark.parametrize("columns", [60, 80, 130])
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_the_live_table_fits_and_shows_how_the_metric_goes(columns: int, marks: Marks) -> None:
    lines = progress_lines(progress(), "lab-abcdef", LOSS, Sheet(columns, marks), 20)
    texts = [line.plain for line in lines]
    assert len(texts) == 5
    assert all(cell_len(text) <= columns for text in texts), texts
    assert "4 stopped early" in texts[0]
    assert texts[2].startswith(f"best so far 1 {marks.blocks[-1]}")
    assert texts[2].endswith(" 0.01")
    for text, name in zip(texts[3:], ("trial/7", "trial/123"), strict=True):
        assert name in text
        if columns > 60:
            assert marks.blocks[-1] in text, "the sparkline"
            assert marks.blocks[0] * 2 in text
        assert "0.123456" in text
        found = re.search(r" (\S+)=0\.0012(?:3|) (\S+)=4 ", text)
        assert found, text
        assert found[1].startswith("le") and found[2].startswith("la"), "some of each name"


SEAT = "ip-10-20-30-40.eu-central-1.compute.internal"


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_a_long_seat_gives_way_to_numbers(columns: int, marks: Marks) -> None:
    params = {"learning_rate": "0.00012345", "learning_decay": "0.9999", "units": "512"}
    rows = tuple(
        TrialRow(Trial(number, params), f"{SEAT}:{number}", time.monotonic(), 0.123456, (1.0, 0.5))
        for number in range(2)
    )
    shown = dataclasses.replace(progress(), running=rows)
    lines = [line.plain for line in progress_lines(shown, "lab-abcdef", LOSS, Sheet(columns, marks), 20)]
    assert all(len(line) <= columns for line in lines), lines
    for number, line in enumerate(lines[3:]):
        names, values = zip(*(each.split("=") for each in line.split() if "=" in each), strict=True)
        whole = [("0.00012", "0.00012345"), ("0.9999",), ("512",)]
        assert all(value in each for value, each in zip(values, whole, strict=False)), line
        assert len(values) == 3 or f"=0.9999 {marks.more} " in line, "of what has no room, that there is more"
        assert len({*names}) == len(names) and all(name.strip(marks.more) for name in names), line
        assert line.split()[1].endswith(f":{number}"), "which GPU"


def test_a_sparkline_goes_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8, UNICODE.blocks) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0], 8, UNICODE.blocks) == "▅▅"
    assert sparkline([0.0, 0.004, 0.002], 8, UNICODE.blocks, (0.0, 0.1)) == "▁▁▁"
    assert sparkline([1.0, 2.0], 8, UNICODE.blocks, (0.0, 0.1)) == "▅█"
    assert sparkline([], 8, UNICODE.blocks) == sparkline([1.0], 0, UNICODE.blocks) == ""
    assert sparkline([-1.7e308, 1.7e308, 0.0], 8, UNICODE.blocks) == "▁█▅"
    assert len(sparkline([math.sin(each) for each in range(1000)], 12, UNICODE.blocks)) == 12
    assert sparkline([0.0, 5e-324], 8, UNICODE.blocks) in ("▁█", "▁▁")


def summary() -> Summary:
    why = "exited with code 1: ImportError: no"
    failed = [result(number, "failed", why, None) for number in (2, 3, 4)]
    stopped = result(5, "stopped", "its best val_loss 3 at report 2 is worse than 1, the median of 5 trials")
    results = (result(0), result(1), *failed, stopped)
    return Summary("lab-abcdef", results, results[:2], 9, LOSS, "path", (), "")


@pytest.mark.parametrize("columns", [60, 80, 130, None])
def test_equal_failures_are_one_line_and_what_was_stopped_is_told(columns: int | None) -> None:
    texts = [line.plain for line in summary_lines(summary(), Sheet(columns), 24)]
    assert all(columns is None or cell_len(text) <= columns for text in texts)
    assert [text.split()[0] for text in texts] == ["val_loss", "0.5", "0.5", "stopped", "failed"]
    assert "(+2 al" in texts[-1]
    assert "why it was" in texts[0]


LONG = {
    "learning_rate_of_the_generator": 8.8441e-06,
    "weight_decay_of_the_discriminator": 0.0017331,
    "optimizer": "adam_with_weight_decay",
    "number_of_layers": 35,
}


def of_long_names(metric: str) -> Summary:
    """Of two trials, one of which failed, with LONG."""
    why = "exited with code 1: ValueError: these values are too large for the network of this program"
    results = tuple(
        dataclasses.replace(each, params=LONG) for each in (result(0), result(1, "failed", why, None))
    )
    named = Metric(metric, key=metric)
    return dataclasses.replace(summary(), results=results, best=results[:1], metric=named)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (None, ("8.8441e-06", "0.0017331", "35")),
        (130, ("8.8441e-06", "0.0017331", "35")),
        (80, ("8.8e-06", "0.0017", "35")),
    ],
)
def test_numbers_are_rounded_and_never_cut(columns: int | None, shown: tuple[str, ...]) -> None:
    heading, *rows = [
        line.plain for line in summary_lines(of_long_names("val_loss_of_the_head"), Sheet(columns), 24)
    ]
    assert all(columns is None or cell_len(text) <= columns for text in (heading, *rows))
    assert len(rows) == 2
    for row in rows:
        assert set(shown) <= set(row.split()), row
        assert "ValueError" in row or row.startswith(" " * rows[0].index("0.5") + "0.5"), row


@pytest.mark.parametrize("columns", [60, 80, 90, 100, 130])
def test_why_a_trial_failed_begins_with_its_error_where_there_is_little_room(columns: int) -> None:
    params = {"learning_rate": 0.0017331, "weight_decay": 12.345678, "beta": 0.99, "layers": 4, "units": 512}
    why = "exited with code 1: ValueError: these values are too large for the network of this program"
    bad = dataclasses.replace(result(1, "failed", why, None), params=params)
    lines = summary_lines(dataclasses.replace(summary(), results=(bad,), best=()), Sheet(columns), 24)
    assert "  ValueError: these" in lines[1].plain, lines[1].plain
    wide = summary_lines(dataclasses.replace(summary(), results=(bad,), best=()), Sheet(200), 24)
    assert why in wide[1].plain


def test_parameters_without_room_are_named() -> None:
    many = {f"p{number}": number * 1.2345678 for number in range(14)}
    results = (dataclasses.replace(result(0), params=many),)
    table = summary_lines(dataclasses.replace(summary(), results=results, best=results), Sheet(60), 24)
    *rows, note = [line.plain for line in table]
    kept = [name for name in many if name in rows[0].split()]
    assert kept == list(many)[: len(kept)]
    assert 5 < len(kept) < 14
    assert note == f"no room here for {', '.join(list(many)[len(kept) :])}"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (None, "rate_of_learning=1.23456e-05 opt=adam_with_weight_decay n=20000"),
        (61, "rate_of_learn…=1.23456e-05 opt=adam_with_weight_decay n=20000"),
        (46, "ra…=1.2e-05 opt=adam_with_weight_decay n=20000"),
        (35, "ra…=1.23e-05 opt=adam_wi… n=20000"),
    ],
)
def test_names_give_way_to_values(room: int | None, text: str) -> None:
    params = {"rate_of_learning": "1.23456e-05", "opt": "adam_with_weight_decay", "n": "20000"}
    assert in_room([params], room, "…") == [text]
    assert in_room([{}], room, "…") == [""]


@pytest.mark.parametrize("more", ["…", "..."])
@pytest.mark.parametrize("names", [("learning_rate", "units"), ("learning_rate", "learning_decay")])
def test_a_name_in_little_room_is_still_one_of_its_own(names: tuple[str, str], more: str) -> None:
    params = [dict(zip(names, values, strict=True)) for values in (("0.1", "32"), ("0.25", "64"))]
    for room in range(len("..=0.25 ..=64") + 2 * len(more), 40):
        texts = in_room(params, room, more)
        assert all(len(text) <= room for text in texts), texts
        shown = [[each.partition("=")[0] for each in text.split()] for text in texts]
        assert shown[0] == shown[1], "the same in each row"
        assert len({*shown[0]}) == 2 and all(name.strip(".…") for name in shown[0]), texts
        columns = [of_parameter(name, ["0.1"], number, None) for number, name in enumerate(names)]
    for width in range(12, 40):
        first, second = Table(columns, width, more).heading().plain.split()
        assert first != second and first.strip(".…") and second.strip(".…"), (first, second)


def test_parameters_without_room_have_a_mark_and_no_number_is_cut() -> None:
    params = [{"learning_rate": "0.00012345", "beta2": "0.9999"}, {"beta2": "0.5"}]
    assert in_room(params, 15, "…") == ["le…=0.00012 …", "…"]
    assert in_room(params, 5, "…") == ["…", "…"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (("0.9999", "0.99995"), ("0.9999", "0.99995")),
        (("0.99899", "1"), ("0.999", "1")),
        (("123.456", "0.001234"), ("123.5", "0.0012")),
        (("0.123456", "0.123999", "0.5"), ("0.123", "0.124", "0.5")),
        (("1.10", "1.1"), ("1.10", "1.1")),
        (("100000.0", "1.234567e-05"), ("1e+05", "1.2e-05")),
        (("nan", "inf", "adam", "", "-20000"), ("nan", "inf", "adam", "", "-20000")),
    ],
)
def test_a_rounded_number_is_no_other_one(values: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert tuple(rounded(values, 2)) == shown
    assert rounded(values, None) == [*values]


def test_a_parameter_may_have_the_name_of_another_column() -> None:
    params = {"learning_rate": 0.1234, "weight_decay": 0.5678, "beta": 0.99, "time": 12.5, "host": 7.25}
    results = (dataclasses.replace(result(0), params=params),)
    table = summary_lines(dataclasses.replace(summary(), results=results, best=results), Sheet(36), 24)
    *rows, note = [line.plain for line in table]
    assert note == "no room here for time, host", rows


def test_the_last_line_counts() -> None:
    line = last_line(summary(), UNICODE).plain
    assert line == "! lab-abcdef  2 of 9 trials succeeded · 1 stopped early · 3 failed · 3 not run"
    good = dataclasses.replace(summary(), results=(result(0),), best=(result(0),), total=1)
    assert last_line(good, UNICODE).plain == "✓ lab-abcdef  1 of 1 trial succeeded"
