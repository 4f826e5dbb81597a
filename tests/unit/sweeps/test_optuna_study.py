"""Optuna's study of a sweep: what it proposes, which trials it stops, what it is told, and that it is found again."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tflaunch.hosts import Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.outcome import HostLost
from tflaunch.runs.record import Record
from tflaunch.sweeps import controller
from tflaunch.sweeps.first_seats import Seating
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.optuna_study import JOURNAL, OptunaSearch, OptunaStudy
from tflaunch.sweeps.results import TRIALS, Metric, Result, Results
from tflaunch.sweeps.trials import Trial, axes_of, plain
from tflaunch.sweeps.whole_sweep import _to_resume

LOSS = Metric.parse("loss", maximize=False)
AXES = ("x=-10.0..10.0", "layers=1..4", "optimizer=adam,sgd")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Results]:
    """Those of a new sweep."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plan = ClusterPlan("lr-abcdef", ())
    record = Record.create(
        "lr-abcdef", plan=plan, hostfile=Hostfile("here", ()), command=("tflaunch", "sweep")
    )
    yield Results(record)
    record.close()


def search(trials: int, specs: tuple[str, ...] = AXES, **more: str) -> OptunaSearch:
    return OptunaSearch(**{"sampler": "tpe", **more}, axes=tuple(axes_of(specs).items()), trials=trials)  # type: ignore[arg-type]


def ended(trial: Trial, metric: float | None, status: str = "succeeded") -> Result:
    return Result(
        trial.number,
        plain(trial.params),
        metric,
        status,  # type: ignore[arg-type]
        *(0, None, "host1", (), 1.0, 1, 0.0, ""),
    )


def trials(results: Results, storage: str = "") -> list[optuna.trial.FrozenTrial]:
    opened = storage or optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(results.record.path / JOURNAL))
    )
    study = optuna.load_study(study_name=results.record.run_id, storage=opened)
    return list(study.get_trials())


def states(results: Results, storage: str = "") -> list[str]:
    return [trial.state.name for trial in trials(results, storage)]


def test_it_proposes_what_the_results_suggest_and_goes_on(results: Results) -> None:
    study = OptunaStudy(search(40), results, LOSS, 7, print)
    values = []
    for number in range(30):
        trial = study.ask()
        assert trial is not None
        assert (trial.number, trial.params) == (number, results.known[number])
        values.append(float(trial.params["x"]))
        assert -10 <= values[-1] <= 10
        assert int(trial.params["layers"]) in range(1, 5)
        study.begins(trial)
        result = ended(trial, (values[-1] - 3) ** 2)
        results.add(result)
        study.ended(result)
    far = [abs(value - 3) for value in values]
    assert sum(far[10:]) / 20 < sum(far[:10]) / 10  # it has learned where the best are
    assert states(results) == ["COMPLETE"] * 30
    again = OptunaStudy(search(40), Results(results.record), LOSS, 7, print)
    assert again.left == 10
    trial = again.ask()
    assert trial is not None
    assert trial.number == 30


def test_no_two_trials_are_equal_and_a_small_space_ends(results: Results) -> None:
    study = OptunaStudy(search(6, ("layers=1..2", "optimizer=adam,sgd")), results, LOSS, 7, print)
    while (trial := study.ask()) is not None:
        study.begins(trial)
        study.ended(ended(trial, 1.0))
    assert len({tuple(sorted(each.items())) for each in results.known}) == len(results.known) == 4
    assert study.left == 0


@pytest.mark.parametrize("pruner", ["asha", "hyperband"])
def test_bad_trials_are_stopped(results: Results, pruner: str) -> None:
    study = OptunaStudy(OptunaSearch("", pruner), results, LOSS, 7, print)
    results.known = [{"x": str(number)} for number in range(24)]
    stopped = []
    for number, params in enumerate(results.known):
        trial, why = Trial(number, params), ""
        study.begins(trial)
        for report in range(1, 28):
            why = why or study.verdict(number, report, 1.0 + number)
        stopped += [number] if why else []
        study.ended(ended(trial, None if why else 1.0 + number, "stopped" if why else "succeeded"))
    assert 0 not in stopped
    assert len(stopped) > 12
    named = {"asha": "ASHA", "hyperband": "Hyperband"}[pruner]
    study.begins(Trial(24, {"x": "99"}))
    said = [study.verdict(24, report, 99.0) for report in range(1, 28)]
    assert (
        f"its loss 99 at report {1 + said.index(next(filter(None, said)))} is too bad to go on, by {named}"
        in said
    )
    assert states(results).count("PRUNED") == len(stopped)


def test_a_trial_that_is_tried_again_reports_anew(results: Results) -> None:
    study = OptunaStudy(search(5, pruner="asha"), results, LOSS, 7, print)
    trial = study.ask()
    assert trial is not None
    study.begins(trial)
    study.verdict(trial.number, 1, 5.0)
    study.begins(trial)
    study.verdict(trial.number, 1, 4.0)
    study.ended(ended(trial, 4.0))
    assert states(results) == ["FAIL", "COMPLETE"]
    failed = study.ask()
    assert failed is not None
    study.begins(failed)
    study.ended(ended(failed, None, "failed"))
    assert states(results) == ["FAIL", "COMPLETE", "FAIL"]


class Screen:
    """Shows nothing of a sweep."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def test_late_lines_of_an_earlier_attempt_are_not_reported_as_those_of_the_next(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "TrialRequests", lambda *_: lambda trial, _: {"id": str(trial.task)})
    run = SimpleNamespace(grace_s=1.0, gpus=SimpleNamespace(share=False))
    request: Any = SimpleNamespace(
        run=run, per_gpu=1, retries=1, timeout_s=0.0, keep_going=False, stop_below=None, metric=LOSS
    )
    study = OptunaStudy(search(1, pruner="asha"), results, LOSS, 7, print)
    trial = study.ask()
    assert trial is not None
    work = controller.Work(request, results, [trial], [trial], 0.0, study)
    nothing: Any = Screen()
    sweep = controller.SweepController(work, nothing, nothing, Seating((Seat("a"), Seat("b")), {}))
    sweep.step(sweep.next_event(0.0), 0.0)
    sweep.read(trial.task, 0, 0, b"loss: 1\n")
    sweep.step(HostLost("a", "gone"), 1.0)
    assert sweep.state.running[0].number == 1
    late = b"loss: 1\nloss: 2\nloss: 3\n"
    sweep.read(trial.task, 0, 0, late)
    sweep.read(trial.task, 1, 0, b"loss: 7\n")
    assert [each.intermediate_values for each in trials(results)] == [{1: 1.0}, {1: 7.0}]
    assert results.record.logs.path(trial.task).read_bytes() == late


def test_it_learns_from_a_sweep_that_was_begun_without_it(results: Results, tmp_path: Path) -> None:
    results.known = [
        {"x": "1.5", "layers": "2", "optimizer": "sgd"},
        {"x": "2", "layers": "9", "optimizer": "sgd"},
    ]
    for number, params in enumerate(results.known):
        results.last[number] = ended(Trial(number, params), 0.5)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    assert OptunaStudy(search(5, storage=url), results, LOSS, 7, print).left == 3
    assert OptunaStudy(search(5, storage=url), results, LOSS, 7, print).left == 3  # and is told once
    assert states(results, url) == ["COMPLETE", "COMPLETE"]
    study = optuna.load_study(study_name=results.record.run_id, storage=url)
    assert study.best_trial.state is TrialState.COMPLETE
    assert [trial.params["layers"] for trial in study.get_trials()] == [2, 4]


@pytest.mark.parametrize("call", ["ask", "begins", "verdict", "ended"])
def test_a_storage_that_fails_ends_the_study_and_not_the_sweep(
    results: Results, tmp_path: Path, call: str
) -> None:
    path = tmp_path / "study.db"
    url = f"sqlite:///{path}?timeout=0.01"
    told: list[str] = []
    study = OptunaStudy(search(9, pruner="asha", storage=url), results, LOSS, 7, told.append)
    first, second = study.ask(), study.ask()
    assert first is not None
    assert second is not None
    study.begins(first)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        if call == "ask":
            assert study.ask() is None
        elif call == "begins":
            study.begins(first)
        elif call == "verdict":
            assert study.verdict(first.number, 1, 1.0) == ""
        else:
            study.ended(ended(first, 1.0))
        assert (study.left, study.missing) == (0, 7)
    # It does nothing more, though the storage answers again.
    study.begins(second)
    assert study.verdict(second.number, 1, 1.0) == ""
    study.ended(ended(second, 1.0))
    assert study.ask() is None
    assert len(results.known) == 2
    assert told == [
        f"--storage {url}: (sqlite3.OperationalError) database is locked. Optuna proposes no more trials and stops "
        "none; once the storage answers, tflaunch sweep --resume lr-abcdef goes on with it"
    ]


@pytest.mark.parametrize("storage", ["", "study.db"])
def test_a_record_that_takes_no_more_trials_ends_the_study_and_not_the_sweep(
    results: Results, tmp_path: Path, storage: str
) -> None:
    told: list[str] = []
    url = storage and f"sqlite:///{tmp_path / storage}"
    study = OptunaStudy(search(9, storage=url), results, LOSS, 7, told.append)
    first = study.ask()
    assert first is not None
    (results.record.path / TRIALS).unlink()
    (results.record.path / TRIALS).mkdir()  # nothing can be written there
    assert study.ask() is None
    assert (study.left, study.missing, len(results.known)) == (0, 8, 1), "the second trial will not run"
    study.ended(ended(first, 1.0))
    (text,) = told
    assert text.startswith("cannot write the record "), "wherever the study is, that is not what failed"
    assert "Optuna proposes no more trials; once that is mended, tflaunch sweep --resume " in text
    assert states(results, url) == ["RUNNING", "FAIL"], "nobody runs the second one"
    (results.record.path / TRIALS).rmdir()
    again = OptunaStudy(search(9, storage=url), results, LOSS, 7, told.append)
    second = again.ask()
    assert second is not None
    results.last[second.number] = ended(second, 1.0)
    again.ended(results.last[second.number])
    assert states(results, url) == ["RUNNING", "FAIL", "COMPLETE"]


def test_what_a_storage_has_missed_is_told_to_it_later(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    url = f"sqlite:///{path}?timeout=0.01"
    told: list[str] = []
    study = OptunaStudy(search(9, storage=url), results, LOSS, 7, told.append)
    trial = study.ask()
    assert trial is not None
    study.begins(trial)
    results.last[trial.number] = ended(trial, 1.0)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        study.ended(results.last[trial.number])
    assert len(told) == 1
    assert states(results, url) == ["RUNNING"]
    OptunaStudy(search(9, storage=url), results, LOSS, 7, print)
    assert states(results, url) == ["RUNNING", "COMPLETE"]


def test_a_storage_that_cannot_be_used_is_named_without_its_password(results: Results) -> None:
    with pytest.raises(UsageError) as told:
        OptunaStudy(search(5, storage="mysql+none://ada:hunter22@db.lab/optuna"), results, LOSS, 7, print)
    assert told.value.message.startswith("--storage mysql+none://ada:***@db.lab/optuna: ")
    assert "hunter22" not in told.value.message


@pytest.mark.parametrize("words", [("--storage", "mysql://u:***@h/db"), ("--storage=mysql://u:***@h/db",)])
def test_the_command_that_goes_on_names_a_storage_whose_password_no_record_has(
    words: tuple[str, ...],
) -> None:
    before = ("tflaunch", "sweep", "h", "t.py", "--env", "A=***", *words, "--storage", "sqlite:///a.db")
    said = shlex.split(_to_resume(before, "lr-abcdef"))
    assert said == ["tflaunch", "sweep", "--env", "A", *words, "--resume", "lr-abcdef"]


def test_without_optuna_the_option_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="--sampler tpe needs Optuna") as told:
        search(5).check()
    assert "pipx inject tflaunch optuna" in (told.value.hint or "")
    with pytest.raises(UsageError, match="--pruner asha needs Optuna"):
        OptunaSearch("", "asha").check()


@pytest.mark.parametrize(("text", "maximize"), [("loss", True), ("accuracy", False)])
def test_a_study_of_another_metric_is_not_gone_on_with(results: Results, text: str, maximize: bool) -> None:
    OptunaStudy(search(4), results, LOSS, 7, print)
    with pytest.raises(UsageError, match="minimizes loss, and this command"):
        OptunaStudy(search(4), results, Metric.parse(text, maximize=maximize), 7, print)
    assert OptunaStudy(search(4), results, LOSS, 7, print).left == 4


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_number_is_a_seed(results: Results, seed: int) -> None:
    assert OptunaStudy(search(4), results, LOSS, seed, print).ask() is not None


def begun(results: Results, trials: int) -> Path:
    """The journal of a study with so many trials, all of them told."""
    study = OptunaStudy(search(9), results, LOSS, 7, print)
    for _ in range(trials):
        trial = study.ask()
        assert trial is not None
        study.begins(trial)
        results.add(ended(trial, 1.0))
        study.ended(results.last[trial.number])
    return results.record.path / JOURNAL


@pytest.mark.parametrize("torn", [b'{"op_code":6,"trial', b"\0" * 40])
def test_a_journal_that_a_loss_of_power_has_torn_goes_on(results: Results, torn: bytes) -> None:
    journal = begun(results, 2)
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    (journal.parent / f"{JOURNAL}.lock").symlink_to(journal)  # of who was killed while it wrote
    again = Results(results.record)
    assert begun(again, 1).read_bytes().startswith(whole)
    assert states(results) == ["COMPLETE"] * 3, "also where it was read once more"


def test_a_journal_that_is_damaged_is_named_with_the_next_step(results: Results) -> None:
    journal = begun(results, 2)
    first, _, rest = journal.read_bytes().partition(b"\n")
    journal.write_bytes(first[:-9] + b"\n" + rest)
    with pytest.raises(UsageError) as told:
        OptunaStudy(search(9), Results(results.record), LOSS, 7, print)
    assert told.value.message.startswith("the study in the record: ")
    command = told.value.hint.partition(": ")[2]
    assert shlex.split(command) == ["mv", str(journal), f"{journal}.damaged"]
    journal.rename(f"{journal}.damaged")
    assert OptunaStudy(search(9), Results(results.record), LOSS, 7, print).left == 7
    assert states(results) == ["COMPLETE"] * 2, "it knows the results of the sweep"
