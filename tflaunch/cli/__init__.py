"""The command line: one file per verb; heavy modules are imported inside the verbs."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

import tflaunch
from tflaunch.documents.writer import screen_streams
from tflaunch.protocol.errors import EXIT_INTERRUPTED, NoThreads, TflaunchError, UsageError

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# What typer's parser raises: a class of typer's or of click's, depending on the version of typer.
REFUSED: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_COMPLETE = "_TFLAUNCH_COMPLETE"
_COMMAND = "command:Verb"
# verb -> (its function, its class of command), each as module:name
VERBS = {
    "run": ("run:run", "trainer_command:RunCommand"),
    "rerun": ("rerun:rerun", "rerun:RerunCommand"),
    "tune": ("tune:tune", "tune:TuneCommand"),
    "up": ("up:up", _COMMAND),
    "sweep": ("sweep:sweep", "sweep:SweepCommand"),
    "attach": ("attach:attach", _COMMAND),
    "logs": ("attach:logs", _COMMAND),
    "fetch": ("fetch:fetch", _COMMAND),
    "tensorboard": ("tensorboard:tensorboard", _COMMAND),
    "detach": ("detach:detach", _COMMAND),
    "stop": ("stop:stop", _COMMAND),
    "init": ("init:init", _COMMAND),
    "gpus": ("gpus:gpus", "gpus:GpusCommand"),
    "check": ("check:check", _COMMAND),
    "ps": ("ps:ps", _COMMAND),
    "status": ("status:status", _COMMAND),
    "top": ("top:top", _COMMAND),
    "report": ("report:report", _COMMAND),
    "stacks": ("stacks:stacks", _COMMAND),
    "profile": ("profile:profile", _COMMAND),
    "clean": ("clean:clean", _COMMAND),
    "config": ("config:config", _COMMAND),
    "schema": ("schema:schema", _COMMAND),
    "help": ("help:help", _COMMAND),
}


def _print_version(wanted: bool) -> None:
    if wanted:
        version, system = ".".join(map(str, sys.version_info[:3])), os.uname()
        print(
            f"tflaunch {tflaunch.__version__}, Python {version}, {system.sysname} {system.release} {system.machine}"
        )
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of tflaunch, Python and the system.",
        ),
    ] = False,
) -> None:
    pass


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(f"tflaunch.cli.{module}"), attribute)


def application(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """Return the command line with these verbs; to declare all verbs takes longer than most verbs run."""
    from tflaunch.cli.command import Tflaunch

    app = typer.Typer(
        name="tflaunch",
        cls=Tflaunch,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # the help is tflaunch's own: tflaunch.console.help_page
    )
    app.callback()(_options)
    for verb in verbs:
        from tflaunch.cli.options import flatten

        function, command = map(_load, VERBS[verb])
        app.command(verb, cls=command)(flatten(function))
    return app


def main() -> int:
    """Run the `tflaunch` command; show every expected error as a sentence, and return the exit code."""
    screen_streams()
    try:
        code = _run()
    except TflaunchError as error:
        code = _show(error)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except RuntimeError as error:
        if not NoThreads.cause_of(error):
            raise
        print(f"tflaunch: {NoThreads().message}\n  → {NoThreads().hint}", file=sys.stderr)
        code = NoThreads.exit_code
    except OSError as error:
        if error.errno == errno.ENOENT and _directory_is_gone():
            hint = "cd to one that is there; `cd .` does it where another one has taken its place"
            code = _show(UsageError("the current directory is gone: it was removed", hint))
        elif error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        else:
            code = _unwritable(error)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if the shell closed it
                stream.flush()
    except OSError as error:
        code = code or (0 if error.errno == errno.EPIPE else _unwritable(error))
    return code


def _run() -> int:
    """Parse the command line and run the verb; return its exit code. Raises UsageError for what the parser refuses."""
    if _COMPLETE in os.environ:  # the shell asks at Tab; typer answers, and ends the process
        words = f"{os.environ.get('COMP_WORDS', '')} {os.environ.get('_TYPER_COMPLETE_ARGS', '')}".split()
        application([word for word in words if word in VERBS][:1])(prog_name="tflaunch")
    word = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if word not in VERBS and [word] == sys.argv[1:2]:
        from tflaunch.cli.mistakes import unknown_verb

        raise _as_accepted(unknown_verb(word, sys.argv[2:], list(VERBS)))
    if word in VERBS and sys.argv[1:] in (["--help", word], ["-h", word]):
        sys.argv[1:] = [word, "--help"]
    try:
        code = application([word] if word in VERBS else ())(prog_name="tflaunch", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else end.code is not None
    except REFUSED as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            from tflaunch.console.screen import reader_may_leave

            with reader_may_leave():
                print(error.message.rstrip("\n"), flush=True)
            return int(error.exit_code)
        from tflaunch.cli.mistakes import as_usage_error

        raise as_usage_error(error, sys.argv[1:], VERBS, _command) from None
    except typer.Abort:  # the input ended at a question
        print("tflaunch: no answer", file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0


def _directory_is_gone() -> bool:
    from pathlib import Path

    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _command(verb: str) -> Any:
    """Return the command of that verb, with its options."""
    from typer.main import get_command

    return get_command(application([verb])).commands[verb]  # type: ignore[attr-defined]


def _as_accepted(error: UsageError) -> UsageError:
    """Return the error with a command that `run` takes: `mpirun -np 2 t.py` has more to correct than its verb."""
    import shlex

    words = shlex.split(error.hint or "")
    if words[:2] == ["tflaunch", "run"]:
        try:
            _command("run").line_of("run", words[2:])
        except UsageError as more:
            if (more.hint or "").startswith("tflaunch "):
                return UsageError(f"{error.message}; {more.message}", more.hint)
    return error


def _show(error: TflaunchError) -> int:
    from tflaunch.console.opening import open_reporter

    words = sys.argv[1:]
    own = words[: words.index("--")] if "--" in words else words  # the rest is the trainer's
    reporter = open_reporter(json="--json" in own)
    reporter.error(error)
    reporter.close()
    return error.exit_code


def _unwritable(error: OSError) -> int:
    with contextlib.suppress(OSError):
        print(f"tflaunch: the output cannot be written: {error.strerror}", file=sys.stderr)
    return 1
