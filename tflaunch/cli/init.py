"""`tflaunch init`: writes a hostfile of the hosts that the user names, with what it finds on them."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli.output_file import OutputFile
from tflaunch.cli.reporting import Patient, reporting
from tflaunch.cli.verb_connections import connected
from tflaunch.inputs.engine_words import BATCH_JOBS, names_hosts
from tflaunch.inputs.missing_files import no_such_file
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import ConnectionOptions
from tflaunch.inputs.options.of_others import InitAnswerOptions
from tflaunch.protocol.errors import ConnectError, ConnectErrors, RecordError, UsageError
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Host, Hostfile
    from tflaunch.remote import Connector
    from tflaunch.survey.check_answers import HostAnswer
    from tflaunch.survey.hostfile_text import HostEntry

STDOUT = Path("-")
SHOWN_EACH = 24  # with more hosts, only the file says what each one has


def init(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST",
            help="Names as ssh knows them: gpu01, ada@gpu02; 'gpu[01-04]'; 'gpu*' of those in ~/.ssh/config "
            "[all of those; asks which]",
            show_default=False,
        ),
    ] = None,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write this hostfile; - prints it.")
    ] = Path("hosts.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    answer: InitAnswerOptions,
    connection: Annotated[ConnectionOptions, Part(default={"connect_timeout": 15.0})],
) -> None:
    """Make a hostfile: connect to the hosts, all at once, and write down what they have.

    A comment beside each host says which GPUs, cores, memory, Python and TensorFlow it has.  A host that cannot be
    reached is written as a comment, with the reason.  Nothing is installed on the hosts or left there.
    """
    from tflaunch.survey.hostfile_text import hostfile_text

    with reporting("stopped; nothing is written") as show:
        file = _checked(output, force)
        hostfile = _wanted(names or [], connection)
        with connected(hostfile.hosts, connection, show.reporter) as connector:
            visited = _visit(hostfile, connector, show.reporter, answer.timeout, connection.connect_timeout)
            found = _found(visited, connector)
        failures = {each.host.name: each.error for each in visited if each.error is not None}
        if len(failures) == len(visited):
            show.reporter.warn(f"{_name(output)} is not written: it would have no host")
            raise ConnectErrors(failures, len(visited))
        text = hostfile_text(found, time.strftime("%Y-%m-%d"))
        if file is None:
            sys.stdout.write(text)
        else:
            _write(file, text, force)
        _tell(found, failures, output, show.reporter)
        if file is not None:
            _tell_next(output, connection.ssh_config, show.reporter)
        if failures:
            show.exit_code = ConnectErrors.exit_code


def _name(output: Path) -> str:
    """Return the name of the hostfile for messages."""
    return "the hostfile" if output == STDOUT else str(output)


def _checked(output: Path, force: bool) -> OutputFile | None:
    """The file, None for stdout; raises UsageError now, not when all hosts have answered, if it cannot be written."""
    if output == STDOUT:
        return None
    file = OutputFile(output, "-o")
    if file.replaces and not force:
        raise UsageError(f"{output} is there already", "-o FILE writes another, --force overwrites it")
    return file


# --- which hosts -----------------------------------------------------------------------------------------


def _wanted(names: Sequence[str], connection: ConnectionOptions) -> Hostfile:
    """Return the hosts that the user names or chooses; raises UsageError, HostfileError."""
    from tflaunch import hosts

    ssh_config = connection.ssh_config
    if ssh_config is not None and not ssh_config.is_file():
        raise no_such_file("--ssh-config", ssh_config)
    listed = [] if names else [host.name for host in _chosen(ssh_config).hosts]
    for name in names:
        if names_hosts(name):
            raise UsageError(
                f"{name} needs no hostfile",
                f"{'inside a job: ' if name in BATCH_JOBS else ''}tflaunch run {name} trainer.py",
            )
        if "/" in name.partition("[")[0] or (
            Path(name).is_file() and name.endswith((".yaml", ".yml", ".txt"))
        ):
            raise UsageError(
                f"{name} is a file, and no host",
                "name the hosts themselves: tflaunch init 'gpu[01-04]' storage",
            )
        if "*" in name or "?" in name:
            known = _of_ssh_config(ssh_config)
            listed += [host.name for host in hosts.match(name, known)]
        else:
            listed.append(name)
    return hosts.listed(",".join(dict.fromkeys(listed)), connection=connection.connection)


def _of_ssh_config(ssh_config: Path | None) -> Hostfile:
    """Return the hosts that ssh_config names without patterns; raises UsageError where there are none."""
    from tflaunch.hosts import Host, Hostfile
    from tflaunch.ssh.config_lines import host_names

    path = ssh_config or Path("~/.ssh/config")
    try:
        names = host_names(path.expanduser())
    except ConnectError as error:
        raise UsageError(error.message, error.hint) from None
    if not names:
        raise UsageError(
            f"no host is named, and {path} names none", "say which: tflaunch init 'gpu[01-04]' storage"
        )
    return Hostfile(str(path), tuple(Host(name, ssh_host=name) for name in names))


def _chosen(ssh_config: Path | None) -> Hostfile:
    """Ask which hosts of ssh_config to take; raises UsageError where there is no terminal to ask on."""
    from tflaunch.hosts import Hostfile, fold, match
    from tflaunch.text.safe import one_line

    known = _of_ssh_config(ssh_config)
    names = fold(host.name for host in known.hosts)
    many = counted(len(known.hosts), "host")
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"no host is named; {known.source} names {many}: {names}",
            shlex.join(["tflaunch", "init", *_words(names)]),
        )
    sys.stderr.write(one_line(f"{known.source} names {many}: {names}") + "\n")
    while True:
        sys.stderr.write("which of them? names or patterns: gpu[01-04],big, or gpu*!gpu03; Enter: all\n> ")
        sys.stderr.flush()
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise
        if not answer:
            raise UsageError("no host is chosen", "say which: tflaunch init 'gpu[01-04]'")
        try:
            pattern = ",".join(answer.replace(",", " ").split()).replace(",!", "!")
            return Hostfile(known.source, tuple(match(pattern, known))) if pattern else known
        except UsageError as error:
            sys.stderr.write(one_line(f"{error.message}. {error.hint}") + "\n")


def _words(names: str) -> list[str]:
    """Split a list of host names at its commas, not at those in brackets."""
    from tflaunch.inputs.hostnames import split

    return [part for _, part, _ in split(names)]


# --- what is there ---------------------------------------------------------------------------------------


def _visit(
    hostfile: Hostfile, connector: Connector, reporter: Reporter, timeout_s: float, connect_s: float
) -> tuple[HostAnswer, ...]:
    """Ask every host, as `tflaunch check --no-tensorflow` does; nothing is left there."""
    from tflaunch.protocol.job import JobSpec
    from tflaunch.sessions.group import Stopped
    from tflaunch.survey.check_run import CheckRun, Extent

    patient = Patient(reporter, json=False)
    check_run = CheckRun(
        hostfile,
        connector,
        patient.phase,
        timeout_s=timeout_s,
        connect_s=connect_s,
        job=JobSpec(()),
        extent=Extent(tensorflow=False, calls=False),
    )
    try:
        with check_run.interrupts():
            return check_run.run().hosts
    except Stopped as stopped:
        for host, why in stopped.unconfirmed.items():
            reporter.warn(f"{host}: a process of this command may still be alive: {why}")
        raise
    finally:
        patient.settle()


def _found(visited: Sequence[HostAnswer], connector: Connector) -> list[HostEntry]:
    """Return what the hostfile says of each host, or why it cannot be used."""
    from tflaunch.survey.hostfile_text import HostEntry

    found: list[HostEntry] = []
    first: dict[tuple[str, str], Host] = {}
    for each in visited:
        if each.error is not None or each.facts is None:
            error = each.error or ConnectError("it gave no answer")
            hint = f" ({error.hint_for(each.host.name)})" if error.hint else ""
            found.append(HostEntry(each.host, why_not=f"cannot be reached: {error.message}{hint}"))
            continue
        # A run refuses one machine under two names: see tflaunch.launch.roll_call.
        machine = (connector.host_key(each.host), each.facts.boot_id)
        same = first.setdefault(machine, each.host) if all(machine) else each.host
        if same is not each.host:
            found.append(HostEntry(each.host, why_not=f"is the same machine as {same.name}"))
        else:
            found.append(_described(each))
    return found


def _described(each: HostAnswer) -> HostEntry:
    """Return what the hostfile says of a host that has answered."""
    from tflaunch.survey.gpu_overview import short_name
    from tflaunch.survey.hostfile_text import HostEntry
    from tflaunch.text.numbers import amount

    facts = each.facts
    assert facts is not None  # noqa: S101 - the caller has checked
    trouble = each.lost or each.refused
    note = f"its python3 was not asked: {trouble.message}" if trouble is not None else facts.gpu_note
    if trouble is None and not each.report and each.task is not None:
        note = "its python3 does not work" + (f": {each.task.lines[-1]}" if each.task.lines else "")
    return HostEntry(
        each.host,
        gpus=tuple(short_name(gpu.name) or "an unknown GPU" for gpu in facts.gpus),
        cores=facts.cores,
        memory=amount(facts.memory_bytes),
        python=each.versions.get("Python", ""),
        tensorflow=each.versions.get("TensorFlow", ""),
        note=note,
    )


# --- the file --------------------------------------------------------------------------------------------


def _write(file: OutputFile, text: str, force: bool) -> None:
    try:
        file.write(text, new=not force)
    except OSError as error:
        raise RecordError(
            f"{file.path} cannot be written: {error.strerror}", "-o - prints it instead"
        ) from None


def _tell(
    found: Sequence[HostEntry], failures: Mapping[str, ConnectError], output: Path, reporter: Reporter
) -> None:
    """Show what was found and written."""
    from tflaunch.hosts import fold
    from tflaunch.survey.hostfile_text import comment

    there = [each for each in found if not each.why_not]
    if len(there) <= SHOWN_EACH:
        width = max(len(each.host.name) for each in there)
        for each in there:
            reporter.note(f"{each.host.name:{width}}  {comment(each.described)}")
        reporter.settle()  # else the warnings below would come first
    for each in found:
        if each.why_not and each.host.name not in failures:
            reporter.warn(f"{each.host.name} {each.why_not}, and is a comment in {_name(output)}")
    if lacking := [each.host.name for each in there if not each.tensorflow]:
        which = "no host" if len(lacking) == len(there) else fold(lacking)
        has = "has" if which == "no host" else "have no" if len(lacking) > 1 else "has no"
        reporter.warn(
            f"{which} {has} TensorFlow for python3: write the Python that has it as `python:`, or `venv:`, `conda:`"
        )
    if failures:
        reporter.failures(ConnectErrors(failures, len(found)))
    if output == STDOUT:
        return
    gpus = sum(len(each.gpus) for each in there)
    reporter.note(f"{output} is written: {counted(len(there), 'host')}, {counted(gpus, 'GPU')}")


def _tell_next(output: Path, ssh_config: Path | None, reporter: Reporter) -> None:
    """Show the next commands, and warn if the file cannot be the default hostfile."""
    from tflaunch.inputs.ownership import planted

    default = output.absolute() == Path.cwd() / "hosts.yaml"
    try:
        reason = planted(output.absolute()) if default else ""
    except OSError:
        reason = ""
    if reason:
        reporter.warn(
            f"it does not count as the default hostfile: {reason}; name it, or move it: "
            "~/.config/tflaunch/hosts.yaml"
        )
    named = "" if default and not reason else f" {shlex.quote(str(output))}"
    if ssh_config is not None:  # a hostfile cannot name an ssh_config
        named += f" -F {shlex.quote(str(ssh_config))}"
    reporter.note(f"next: tflaunch check{named}, then tflaunch run{named} trainer.py")
