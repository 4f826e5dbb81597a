"""Which trials a sweep has, and how a program is told; what its log says of them."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tflaunch.hosts import Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.outcome import TaskExit
from tflaunch.runs.record import Record
from tflaunch.sweeps.results import TRIALS, Metric, MetricReading, Results, no_metric, result
from tflaunch.sweeps.trials import Trial, arguments, draw, grid, numbered, plain, read


def test_a_grid_has_all_combinations_and_the_last_one_varies_fastest() -> None:
    assert grid(["lr=0.10,1e-2", "act=relu,tanh"]) == [
        {"lr": "0.10", "act": "relu"},
        {"lr": "0.10", "act": "tanh"},
        {"lr": "1e-2", "act": "relu"},
        {"lr": "1e-2", "act": "tanh"},
    ]


def test_what_is_drawn_is_within_its_range_and_the_same_for_a_seed() -> None:
    specs = ["lr=0.0001..0.1:log", "layers=1..4", "momentum=-1..1.0", "opt=adam,sgd"]
    trials = draw(specs, 200, seed=7)
    assert trials == draw(specs, 200, seed=7) != draw(specs, 200, seed=8)
    assert len({tuple(each.items()) for each in trials}) == 200
    rates = [float(each["lr"]) for each in trials]
    assert all(0.0001 <= rate <= 0.1 for rate in rates)
    assert 60 < sum(rate < math.sqrt(0.0001 * 0.1) for rate in rates) < 140  # even in its logarithm
    assert {each["layers"] for each in trials} == {"1", "2", "3", "4"}
    assert (
        min(float(each["momentum"]) for each in trials) < 0 < max(float(each["momentum"]) for each in trials)
    )
    assert {each["opt"] for each in trials} == {"adam", "sgd"}


@pytest.mark.parametrize(
    ("specs", "count", "message"),
    [
        (["layers=1..4"], 5, "there are only 4 different trials"),
        (["lr=0..1:log"], 5, "begins above 0"),
        (["lr=1..0.1"], 5, "1 is not less than 0.1"),
        (["lr=1..x"], 5, "not a range"),
        (["lr=1..2", "lr=1..2"], 5, "lr is there twice"),
        (["lr"], 5, "not NAME=VALUES"),
        (["lr=a,,b"], 5, "a value is empty"),
        (["lr=1..2"], 0, "from 1 to 10,000"),
        (["n=1.." + "9" * 5000], 5, "n: its range is too wide"),
        (["lr=-1e308..1e308"], 5, "lr: its range is too wide"),
    ],
)
def test_what_cannot_be_drawn(specs: list[str], count: int, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        draw(specs, count, seed=0)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["lr="], "a value is empty"),
        (["lr=1,2,1"], "1 is there twice"),
        (["9=1"], "not NAME=VALUES"),
        (["a=" + ",".join(map(str, range(200))), "b=" + ",".join(map(str, range(200)))], "40,000 trials"),
    ],
)
def test_what_is_no_grid(specs: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        grid(specs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.yaml", "- {lr: 0.1, bn: true}\n- {lr: 1e-3, note: a b, left: null}\n"),
        ("t.json", '[{"lr": 0.1, "bn": true}, {"lr": "1e-3", "note": "a b"}]'),
        ("t.jsonl", '{"lr": 0.1, "bn": true}\n\n{"lr": "1e-3", "note": "a b"}\n'),
    ],
)
def test_trials_of_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read(tmp_path / name) == [{"lr": "0.1", "bn": "true"}, {"lr": "1e-3", "note": "a b"}]


def test_trials_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('\ufefflr,note\n0.1,"a, b"\n0.2,\n')
    assert read(tmp_path / "t.csv") == [{"lr": "0.1", "note": "a, b"}, {"lr": "0.2", "note": ""}]


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\n", "\r\n", "\r"])
def test_a_value_keeps_what_looks_like_the_end_of_a_line(tmp_path: Path, inside: str) -> None:
    value = f"one{inside}two"
    (tmp_path / "t.csv").write_text(f'prompt,lr\r\n"{value}",1\r\n', newline="")
    assert read(tmp_path / "t.csv") == [{"prompt": value, "lr": "1"}]
    if inside in "\u2028\u2029\x85":  # the others must be escaped in JSON
        (tmp_path / "t.jsonl").write_text(f'{{"prompt": "{value}"}}\r\n{{"lr": 1}}\r\n', newline="")
        assert read(tmp_path / "t.jsonl") == [{"prompt": value}, {"lr": "1"}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "", "neither .yaml"),
        ("t.yaml", "lr: 1", "not a list"),
        ("t.yaml", "- [1]", "trial 0: not a mapping"),
        ("t.yaml", "- {lr: [1, 2]}", "lr is neither a number nor text"),
        ("t.yaml", "- {lr: 1}\n- {lr: 1}", "trial 1: the same as"),
        ("t.yaml", "- {l r: 1}", "'l r' is no name"),
        ("t.yaml", "[", "t.yaml: while parsing"),
        ("t.yaml", "[]", "0 trials"),
        ("t.jsonl", "{}\n{", "t.jsonl:2: "),
        ("t.csv", "lr,bn\n1\n", "t.csv:2: the number of fields differs"),
        ("t.csv", "lr\n1,2\n", "t.csv:2: the number of fields differs"),
        ("t.csv", 'lr,s\n1,"a\u2028b\nc"\n1\n', "t.csv:4: the number of fields differs"),
        ("t.csv", "lr,bn,lr\n1,2,3\n", "t.csv:1: lr is there twice"),
        ("t.jsonl", '{"s": "a\u2028b"}\n{', "t.jsonl:2: "),
        ("t.jsonl", "\r\n{}\r\n{", "t.jsonl:3: "),
        ("t.json", '[{"n": ' + "9" * 5000 + "}]", "t.json: "),
        ("gone.csv", None, "there is no such file in"),
    ],
)
def test_files_that_hold_no_trials(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, newline="")
    with pytest.raises(UsageError, match=re.escape(message)):
        read(tmp_path / name)


def test_values_follow_as_flags_or_stand_where_the_template_has_them() -> None:
    trial = Trial(7, {"lr": "0.10", "layers": "2"})
    assert arguments(["--steps=5"], trial) == ("--steps=5", "--lr=0.10", "--layers=2")
    assert arguments(["{lr}x{lr}", '{"a": {}}', "out-{trial}"], trial) == (
        *("0.10x0.10", '{"a": {}}', "out-7"),
        "--layers=2",
    )
    assert plain({"lr": "0.10", "n": "3", "bn": "true", "x": "1e999", "s": "007"}) == {
        **{"lr": 0.1, "n": 3, "bn": True, "x": "1e999", "s": "007"},
    }


def test_trials_keep_their_numbers() -> None:
    everything, chosen = numbered([{"a": "1"}, {"a": "2"}], [{"a": "3"}, {"a": "2"}])
    assert everything == [{"a": "1"}, {"a": "2"}, {"a": "3"}]
    assert [(trial.number, trial.params) for trial in chosen] == [(1, {"a": "2"}), (2, {"a": "3"})]


@pytest.mark.parametrize(
    ("metric", "log", "value"),
    [
        (r"loss: ([\d.]+)", b"loss: 0.5 loss: 0.4\nloss: 0.3\nno", 0.3),
        (r"loss: (\S+)", b"loss: 0.5\nloss: nan\nloss: x\n", 0.5),
        (r"loss: (\S+)", b"loss: 0.5\nloss: 0.25", 0.25),  # no newline at the end
        (r"loss: (\S+)", b"\rloss: 1\rloss: \x1b[1m0.125\x1b[0m\n", 0.125),
        ("loss", b'{"loss": 2}\n{"loss": "3", "x": 1}\n{"lossy": 9}\n{"loss": 4', 3.0),
        ("loss", b'{"loss": NaN}\n["loss"]\n{"loss": true}\nlossy: 3\nval_loss 3\nloss x\n', None),
        ("loss", b"step 10 loss 0.1358\nstep 20 loss 0.1\ndone\n", 0.1),
        ("loss", b"5/5 - accuracy: 0.9 - loss: 0.30 - val_loss: 0.5\n", 0.3),
        ("loss", b"loss: 3, 0.5,0.9\nloss: 1,234.5\nloss: -0,31\n", 3.0),
        ("loss", b"loss=1.5 val-loss=2 train/loss=3\n", 1.5),
        ("loss", b"{'loss': 0.25, 'step': 3}\nLoss: nan\n", 0.25),
        ("val_loss", b"loss: 0.30 - val_loss: 5.0e-1 - \n", 0.5),
        ("accuracy", b"accuracy: 93.5%\n", 93.5),
        ("train/loss", b"train/loss .5\nloss 4\n", 0.5),
        ("val loss", b'  {"val loss": -1e-3}\n', -0.001),
    ],
)
def test_the_last_value_in_a_log_counts(metric: str, log: bytes, value: float | None) -> None:
    whole, pieces = (MetricReading(Metric.parse(metric, maximize=False)) for _ in range(2))
    whole.feed(0, log)
    for at in range(0, len(log), 3):
        pieces.feed(max(0, at - 1), log[max(0, at - 1) : at + 3])  # as after a connection that was lost
    for reading in (whole, pieces):
        reading.end()
        assert (reading.received, reading.value) == (len(log), value)


@pytest.mark.parametrize(
    ("text", "message"), [("loss: [", "unterminated"), ("a(b)(c)", "2 groups"), ("loss:.*", "0 groups")]
)
def test_what_is_no_metric(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Metric.parse(text, maximize=False)


def test_what_a_log_has_instead_of_the_metric() -> None:
    metric = Metric.parse("val_loss", maximize=False)
    reading = MetricReading(metric)
    line = b'{"epoch": 1, "loss": 0.5, "name": "a", "ok": true, "x\\u001b": 1}\n{broken\n[1]\n'
    reading.feed(0, line)
    assert no_metric(metric, reading.keys) == (
        "lines have numbers for: epoch, loss",
        "--metric loss --resume",
    )
    assert no_metric(metric, ()) == (
        "log: no line has a number for val_loss",
        "--metric 'val_loss: (\\S+)' --resume",
    )
    reading = MetricReading(metric)
    reading.feed(0, b"step 10 loss 0.1358\nvalidation loss 3\ntook 3.5 s\n")
    what, todo = no_metric(metric, reading.keys)
    assert what == "lines have numbers for: step, loss, took"
    assert Metric.parse(todo.split()[1], maximize=False).find("step 10 loss 0.1358") == 0.1358
    many = MetricReading(metric)
    many.feed(0, json.dumps({f"k{number}": number for number in range(1000)}).encode() + b"\n")
    assert len(many.keys) == 20


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plan, command = ClusterPlan("lr-abcdef", ()), ("tflaunch", "sweep")
    made = Record.create("lr-abcdef", plan=plan, hostfile=Hostfile("here", ()), command=command)
    with contextlib.closing(made):
        yield made


def test_a_sweep_of_another_tflaunch_is_not_read(record: Record) -> None:
    record.write(TRIALS, {"format": 2, "trials": [], "seed": 7})
    with pytest.raises(RecordError, match=r"sweep\.json has format 2, this tflaunch reads 1"):
        Results(record)


@pytest.mark.parametrize("told", [{}, {"trials": [7], "seed": 7}, {"trials": [], "seed": 7, "about": 7}])
def test_a_sweep_that_is_damaged_is_an_error_not_a_crash(record: Record, told: dict[str, object]) -> None:
    record.write(TRIALS, {"format": 1, **told})
    with pytest.raises(RecordError, match="cannot read the record"):
        Results(record)


def test_a_line_that_was_cut_off_is_no_result_and_who_only_reads_leaves_it_as_it_is(record: Record) -> None:
    """A report reads while the sweep writes: a newline of its own would be in the middle of a line."""
    written = Results(record)
    written.keep_trials([{"lr": "1"}, {"lr": "2"}, {"lr": "3"}], 7, {})
    ended = [
        result(each, TaskExit(each.task, "host1", 0, None, 1.0), MetricReading(None), (), Path("log"))
        for each in (Trial(number, params) for number, params in enumerate(written.known))
    ]
    for each in ended[:2]:
        written.add(each)
    whole = written.path.read_bytes()
    written.path.write_bytes(whole[:-20])
    goes_on = Results(record)
    assert written.path.read_bytes() == whole[:-20]
    assert list(goes_on.last) == [0]
    goes_on.add(ended[2])
    assert list(Results(record).last) == [0, 2]
    assert written.path.read_bytes().count(b"\n") == 3
