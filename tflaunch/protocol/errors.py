"""Every error that a user can see, and the exit code that a script gets for it.

    TflaunchError                1   a defect of tflaunch itself, where nothing below fits
    ├── UsageError               2   a wrong command line: missing script, bad run id, --workers 0 --ps 0
    ├── DocumentError            2   a file of the user's; lists every problem at once, before any host is contacted
    │   ├── HostfileError        2   the hostfile
    │   ├── JobFileError         2   the job file
    │   └── EnvFileError         2   a file of variables, --env-file
    ├── PlanError               65   the job does not fit the hosts (EX_DATAERR)
    ├── NotGiven                75   the engine has not given the slots that were asked for
    ├── ConnectError            69   a host cannot be reached, or does not answer (EX_UNAVAILABLE)
    │   ├── WireClosed          69   the connection to an agent has ended
    │   ├── NoThreads           69   the launcher's machine lets the user start no more threads
    │   ├── Gone                69   the engine says that the slot is over
    │   └── Breach              69   a host has sent what no agent sends
    ├── ConnectErrors           69   the hosts that failed, each with its ConnectError
    ├── LaunchError             70   a host could not stage its tasks; nothing is left running
    │   └── DialError           70   hosts cannot reach each other at the ports of the tasks; nothing is left running
    ├── RecordError             73   the launcher's record of the run could not be written (EX_CANTCREAT)
    ├── CleanError              74   something could not be removed (EX_IOERR)
    ├── FetchError              74   some outputs could not be fetched; the files that came are whole
    └── StopError               76   something may still be alive: tflaunch could not check, or could not kill

A run that started ends with 0, with the code of the task that failed first (128 + n for signal n), with 76
when a host was lost, with 75 when an engine took its slots back (EX_TEMPFAIL), with 124 when it reached a time limit
(as timeout(1) has it), or with 130 after Ctrl-C (143 after SIGTERM, or `tflaunch stop` elsewhere).  One that succeeded
ends with 73 or 74 all the same if this machine could not keep its record, or did not get all outputs.  `exit_code_of`
in the last event of `--json` says whose the code is: argparse ends a task with 2, too.  The launcher's own codes lie
above 64, where training programs seldom are, so that a script can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tflaunch.text.safe import printable

EXIT_USAGE = 2
EXIT_PLAN = 65
EXIT_NO_METRIC = 66  # of a sweep none of whose trials printed the metric
EXIT_CONNECT = 69
EXIT_LAUNCH = 70
EXIT_RECORD = 73
EXIT_IO = 74
EXIT_RECLAIMED = 75
EXIT_UNCLEAN = 76
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130
EXIT_STOPPED = 143


class TflaunchError(Exception):
    """An error with a sentence for the user: `message` says where and what is wrong, `hint` what to do next.

    Both may quote a server, a host or a file: nothing in them acts on a terminal, wherever a program shows them.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = printable(message)
        self.hint = printable(hint)
        super().__init__(self.message)


class UsageError(TflaunchError):
    """The command line asks for something that cannot be done."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a file; `line` and `column` count from 1, 0 where there is no position."""

    where: str  # the file, or what takes its place: "<inline>", "slurm"
    line: int
    column: int
    message: str  # the wrong text, and what is accepted

    def __str__(self) -> str:
        position = f":{self.line}:{self.column}" if self.line else ""
        return f"{self.where}{position}: {self.message}"


class DocumentError(TflaunchError):
    """A file of the user's that cannot be used; `problems` holds all that were found."""

    exit_code = EXIT_USAGE

    def __init__(self, problems: list[Problem], hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint)
        self.problems = problems


class HostfileError(DocumentError):
    """A hostfile that cannot be used."""


class JobFileError(DocumentError):
    """A job file that cannot be used."""


class ConfigError(DocumentError):
    """A configuration file that cannot be used."""


class EnvFileError(DocumentError):
    """A file of variables that cannot be used; the messages hold none of its values, which may be secret."""


class PlanError(TflaunchError):
    """The job does not fit the hosts; the message says how much is wanted and how much is there."""

    exit_code = EXIT_PLAN


class NotGiven(TflaunchError):
    """The engine has not given the slots, as somebody has cancelled the request; another try may succeed."""

    exit_code = EXIT_RECLAIMED


class ConnectError(TflaunchError):
    """One host could not be reached, or does not answer as an agent.

    The report shows hosts with equal `message` and `hint` in one row.  So neither of them names the host; in `hint`,
    `{host}` stands for its name.

    `absent`: no TCP connection came about, for there is no such name, no route, no sshd, or no answer.  A run may go on
    without such a host; any other failure needs the user's attention.

    `again`: another try may succeed soon: the connection stood and broke, or the host refuses it, as it does while its
    sshd starts.
    """

    exit_code = EXIT_CONNECT

    def __init__(self, message: str, hint: str = "", *, absent: bool = False, again: bool = False) -> None:
        super().__init__(message, hint)
        self.absent = absent
        self.again = again

    def hint_for(self, host: str) -> str:
        """Return the hint with the name of that host."""
        return self.hint.replace("{host}", host)

    def data_for(self, host: str) -> dict[str, str]:
        """Return it as JSON has it, for that host."""
        return {"message": self.message, "hint": self.hint_for(host)}


class WireClosed(ConnectError):
    """The connection to an agent has ended: nothing can be sent any more."""


class Breach(ConnectError):
    """A host breaks the protocol: no agent of this version sends `what` came from there.  It is not dialled again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"it breaks the protocol between tflaunch and its agents: {what}",
            "if no other version of tflaunch started that run, an intruder may control {host}: look at it before you "
            "use it again",
        )


class Gone(ConnectError):
    """The engine says that this slot is over.  It is not dialled again.

    `swept`: the engine has killed all that was there.  `in_order`: the slot holder has ended by itself, as it does when
    nothing runs there any more; then `code` is its exit status, which is the run's, where the engine knows it.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        swept: bool = False,
        in_order: bool = False,
        code: int | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.may_run_on = not (swept or in_order)  # what was there
        self.swept = swept
        self.in_order = in_order
        self.code = code


class NoThreads(ConnectError):
    """The system lets this user start no more threads or processes on the launcher's own machine."""

    def __init__(self) -> None:
        super().__init__(
            "this machine, on which tflaunch was called, lets you start no more threads",
            "end some of your programs here, or have the limit raised: ulimit -u, or TasksMax of systemd",
        )

    @staticmethod
    def cause_of(error: BaseException) -> bool:
        """Whether `error` says that no thread can be started: Python has no exception of its own for it."""
        return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


class ConnectErrors(TflaunchError):
    """The hosts that failed, each with its own ConnectError."""

    exit_code = EXIT_CONNECT

    def __init__(self, failures: Mapping[str, ConnectError], total: int, hint: str = "") -> None:
        super().__init__(f"{len(failures)} of {total} hosts could not be used", hint)
        self.failures = dict(failures)
        self.total = total
        if any(isinstance(error, Gone) for error in failures.values()):
            self.exit_code = EXIT_RECLAIMED

    @property
    def again(self) -> bool:
        """Whether another try may succeed soon: connections broke, and no host that is there failed otherwise."""
        errors = [error for error in self.failures.values() if not error.absent]
        return bool(errors) and all(error.again for error in errors)


class LaunchError(TflaunchError):
    """A host could not stage its tasks; `failures` maps host to reason.

    Nothing is left running, except maybe on the hosts of `unconfirmed`: host -> why it did not confirm the end.  With
    such hosts the exit code is that of StopError.
    `again`: only connections broke, and no task was started: another try may succeed.
    `reclaimed`: an engine has taken slots back meanwhile.
    """

    exit_code = EXIT_LAUNCH

    def __init__(
        self,
        failures: Mapping[str, str],
        hint: str = "",
        unconfirmed: Mapping[str, str] | None = None,
        *,
        again: bool = False,
        reclaimed: bool = False,
    ) -> None:
        super().__init__("\n".join(f"{host}: {reason}" for host, reason in failures.items()), hint)
        self.failures = {host: printable(reason) for host, reason in failures.items()}
        self.unconfirmed = {host: printable(reason) for host, reason in (unconfirmed or {}).items()}
        self.again = again
        if reclaimed:
            self.exit_code = EXIT_RECLAIMED
        if self.unconfirmed:
            self.exit_code = EXIT_UNCLEAN


class DialError(LaunchError):
    """Hosts cannot reach the ports of tasks on other hosts; `failures` maps a host to what it cannot reach."""


class RecordError(TflaunchError):
    """The launcher's record of the run could not be written."""

    exit_code = EXIT_RECORD


class CleanError(TflaunchError):
    """Something could not be removed."""

    exit_code = EXIT_IO


class FetchError(TflaunchError):
    """Some outputs could not be fetched."""

    exit_code = EXIT_IO


class StopError(TflaunchError):
    """Something of a run may still be alive on a host."""

    exit_code = EXIT_UNCLEAN
    may_go_on = False  # the run itself may go on, as it should
