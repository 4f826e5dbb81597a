"""Optuna in a sweep, by its ask and tell: which trial comes next (TPE), which ones stop early (ASHA, Hyperband).

Its study lies beside the results, in the record of the sweep, or in the storage that the user names: one that goes on
finds it there.  A trial of the sweep is one of the study, or several where it is tried again.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tflaunch.protocol.errors import RecordError, TflaunchError, UsageError
from tflaunch.runs.hidden_values import safe_url
from tflaunch.sweeps.results import Metric, Result
from tflaunch.sweeps.trials import Axis, Params, Trial, identity
from tflaunch.text.extras import beside_tflaunch

if TYPE_CHECKING:
    from pathlib import Path

    import optuna

    from tflaunch.sweeps.results import Results

JOURNAL = "optuna.log"  # in the record
REPEATED = 20  # so many proposals that are known already: then one is drawn at random
SEEDS = 2**32  # numpy's seeds are below
_NUMBER = "tflaunch trial"  # an attribute of the study's trials
_METRIC = "tflaunch metric"  # an attribute of the study
_HINT = beside_tflaunch("optuna", "tune")


@dataclass(frozen=True)
class OptunaSearch:
    """What the user asked of Optuna."""

    sampler: str = ""  # "tpe"; "": the trials are known
    pruner: str = ""  # "asha", "hyperband"; "": none
    axes: Sequence[tuple[str, Axis]] = ()  # of the sampler
    trials: int = 0  # ... and how many it is asked for
    storage: str = ""  # a URL; "": in the record

    def check(self) -> None:
        """Raise UsageError where there is no Optuna here."""
        try:
            import optuna  # noqa: F401
        except ImportError as error:
            option = f"--sampler {self.sampler}" if self.sampler else f"--pruner {self.pruner}"
            raise UsageError(f"{option} needs Optuna, and there is none here: {error}", _HINT) from None


class OptunaStudy:
    """The study of one sweep.

    Where its storage fails, the sweep goes on without it: it proposes no more trials, and stops none.
    """

    def __init__(
        self, search: OptunaSearch, results: Results, metric: Metric, seed: int, warn: Callable[[str], None]
    ) -> None:
        """Open the study of the sweep on record, or begin one; raises UsageError for a storage that cannot be used.

        warn: is told, once, if the storage fails later.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._search, self._results, self._metric = search, results, metric
        self._open: dict[int, optuna.Trial] = {}  # trial -> that of the study, while it runs
        self._reported: dict[int, int] = {}
        self._warn = warn
        self._failed = False
        self._distributions = {name: _distribution(axis) for name, axis in search.axes}
        self._dice = optuna.samplers.RandomSampler(seed=seed % SEEDS)
        self.left = max(0, search.trials - len(results.known)) if search.sampler else 0
        try:
            self._study = self._opened((seed + len(results.known)) % SEEDS)
            self._check_metric()
            self._take_over()
        except TflaunchError:
            raise
        except Exception as error:  # each storage has errors of its own
            hint = "a URL of Optuna's: sqlite:///study.db"
            if not search.storage:
                path = shlex.quote(str(results.record.path / JOURNAL))
                hint = (
                    "without that file the study begins anew, with the results of the sweep: "
                    f"mv {path} {path}.damaged"
                )
            raise UsageError(self._said(error), hint) from None

    def _said(self, error: Exception) -> str:
        """What the storage says, in one line, without its password."""
        url = self._search.storage
        cause = error.__cause__ or error  # which says more than Optuna's own sentence
        text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        if not url:
            return f"the study in the record: {text}"
        return f"--storage {safe_url(url)}: {text.replace(url, safe_url(url))}"

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Inside, an error of the storage, or of the record, is the study's end, and not the sweep's."""
        try:
            yield
        except Exception as error:  # each storage has errors of its own
            self._failed, self.left = True, 0
            search, name = self._search, self._results.record.run_id
            no_more = ["proposes no more trials"] * bool(search.sampler) + ["stops none"] * bool(
                search.pruner
            )
            if isinstance(error, TflaunchError):  # of the record, wherever the study is
                said, once = (
                    error.message,
                    "that is mended",
                )  # its hint is for new runs: this one has its place
            else:
                said, once = self._said(error), "the storage answers"
            again = f"; once {once}, tflaunch sweep --resume {name} goes on with it" if self.missing else ""
            self._warn(f"{said}. Optuna {' and '.join(no_more)}{again}")

    @property
    def missing(self) -> int:
        """How many trials it has not proposed because its storage, or the record, has failed."""
        asked = self._search.trials if self._failed and self._search.sampler else 0
        return max(0, asked - len(self._results.known))

    def _opened(self, seed: int) -> optuna.Study:
        import optuna

        search, pruners = self._search, optuna.pruners
        sampler = optuna.samplers.TPESampler(seed=seed) if search.sampler else self._dice
        pruner = {
            "asha": pruners.SuccessiveHalvingPruner,
            "hyperband": pruners.HyperbandPruner,
            "": pruners.NopPruner,
        }[search.pruner]()
        return optuna.create_study(
            storage=search.storage or _journal(self._results),
            sampler=sampler,
            pruner=pruner,
            study_name=self._results.record.run_id,
            direction="maximize" if self._metric.maximize else "minimize",
            load_if_exists=True,
        )

    def _check_metric(self) -> None:
        """Raise UsageError where the study is of another metric, or goes the other way: its values would mislead."""
        metric, was = self._metric, self._study.user_attrs.get(_METRIC, self._metric.name)
        ways = {True: "maximizes", False: "minimizes"}
        maximizes = self._study.direction.name == "MAXIMIZE"
        if (was, maximizes) != (metric.name, metric.maximize):
            raise UsageError(
                f"the study of {self._study.study_name} {ways[maximizes]} {was},"
                f" and this command {ways[metric.maximize]} {metric.name}",
                "say the same of the metric as before, or begin a new sweep",
            )
        self._study.set_user_attr(_METRIC, metric.name)

    def _take_over(self) -> None:
        """Tell the study the results that it does not know: it came later, or its storage failed meanwhile."""
        import optuna

        trials = self._study.get_trials(deepcopy=False, states=[_state("COMPLETE")])
        told = {trial.user_attrs.get(_NUMBER) for trial in trials}
        for number, result in sorted(self._results.last.items()):
            if number in told or result.status != "succeeded" or result.metric is None:
                continue
            values = self._values(self._results.known[number])
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=values,
                    distributions={name: self._distributions[name] for name in values},
                    value=result.metric,
                    user_attrs={_NUMBER: number},
                )
            )

    def _values(self, params: Params) -> dict[str, Any]:
        """The values of these parameters as the study has them; those that it knows nothing of are left out."""
        return {name: axis.read(params[name]) for name, axis in self._search.axes if name in params}

    def ask(self) -> Trial | None:
        """The next trial, which no trial before it is equal to; None once there are no more."""
        with self._surviving():
            return self._asked()
        return None

    def _asked(self) -> Trial | None:
        known = {identity(params) for params in self._results.known}
        if not self.left or len(known) >= math.prod(axis.size for _, axis in self._search.axes):
            self.left = 0
            return None
        tries = 0
        while True:
            tries += 1
            asked = self._study.ask(self._distributions) if tries <= REPEATED else self._drawn()
            params = {name: axis.written(asked.params[name]) for name, axis in self._search.axes}
            if identity(params) not in known:
                break
            self._study.tell(asked, state=_state("FAIL"))
        self.left -= 1
        trial = Trial(len(self._results.known), params)
        try:
            self._results.keep_trials([*self._results.known, params], self._results.seed, self._results.about)
        except RecordError:
            with contextlib.suppress(Exception):  # of the two, the record's error is to be told
                self._study.tell(asked, state=_state("FAIL"))
            raise
        self._open[trial.number] = asked
        with self._surviving():  # it is on record, and runs also without the study
            asked.set_user_attr(_NUMBER, trial.number)
        return trial

    def _drawn(self) -> optuna.Trial:
        """A trial drawn evenly: what is likely to be good has been tried."""
        sampler, self._study.sampler = self._study.sampler, self._dice
        try:
            return self._study.ask(self._distributions)
        finally:
            self._study.sampler = sampler

    def begins(self, trial: Trial) -> None:
        """An attempt of this trial begins: the first, or another one, whose reports count anew."""
        if not self._failed:
            with self._surviving():
                self._begins(trial)

    def _begins(self, trial: Trial) -> None:
        if trial.number in self._reported:
            with contextlib.suppress(ValueError):  # it has been told
                self._study.tell(self._open[trial.number], state=_state("FAIL"))
            del self._open[trial.number]
        self._reported[trial.number] = 0
        if trial.number in self._open:
            return
        values = self._values(trial.params)
        attributes = {_NUMBER: trial.number, **({} if values else {"params": dict(trial.params)})}
        self._study.enqueue_trial(values, user_attrs=attributes)
        self._open[trial.number] = self._study.ask({name: self._distributions[name] for name in values})

    def verdict(self, number: int, report: int, value: float) -> str:
        """Take the value of a report, counted from 1; why the trial is to be stopped for it, as a predicate, or ""."""
        if self._failed or not self._search.pruner or report <= self._reported.get(number, report):
            return ""
        self._reported[number] = report
        trial, is_bad = self._open[number], False
        with self._surviving():
            trial.report(value, report)
            is_bad = trial.should_prune()
        if not is_bad:
            return ""
        rule = {"asha": "ASHA", "hyperband": "Hyperband"}[self._search.pruner]
        return f"its {self._metric.name} {value:.6g} at report {report} is too bad to go on, by {rule}"

    def ended(self, result: Result) -> None:
        """Tell the study how a trial has ended."""
        trial = self._open.pop(result.trial, None)
        self._reported.pop(result.trial, None)
        if trial is None or self._failed:
            return
        with self._surviving():
            if result.status == "succeeded" and result.metric is not None:
                self._study.tell(trial, result.metric)
            else:
                self._study.tell(trial, state=_state("PRUNED" if result.status == "stopped" else "FAIL"))


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _journal(results: Results) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = results.record.path / JOURNAL
    path.touch(0o600)
    _end_with_a_line(path)
    path.with_name(f"{path.name}.lock").unlink(
        missing_ok=True
    )  # Optuna would wait 30 s for who has been killed
    return JournalStorage(JournalFileBackend(str(path)))


def _end_with_a_line(path: Path) -> None:
    """Cut off the end of a journal that a loss of power has torn; the record's lock keeps other writers away.

    Optuna syncs after each entry and passes over a last one without its end, but writes the next one behind it, and
    can read neither from then on.
    """
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.choices:
        return CategoricalDistribution(tuple(axis.choices))
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)
