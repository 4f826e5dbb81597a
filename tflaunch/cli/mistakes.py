"""Errors for what typer's parser refuses, and for verbs that tflaunch does not have."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tflaunch.cli.other_launchers import hosts_by_option, joined
from tflaunch.inputs.engine_words import names_hosts
from tflaunch.protocol.errors import UsageError

# A verb of other tools -> the verb or option of tflaunch that does the same.
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("list", "ls", "runs", "jobs", "queue", "squeue", "qstat", "history"), "ps"),
    **dict.fromkeys(
        ("kill", "cancel", "end", "abort", "terminate", "halt", "quit", "down", "scancel", "qdel"), "stop"
    ),
    **dict.fromkeys(("rm", "remove", "delete", "del", "prune", "purge", "gc", "cleanup"), "clean"),
    **dict.fromkeys(
        ("nodes", "hosts", "machines", "cards", "gpu", "devices", "sinfo", "nvidia-smi", "smi", "free"), "gpus"
    ),
    **dict.fromkeys(
        ("start", "launch", "exec", "execute", "submit", "sbatch", "srun", "qsub", "mpirun", "train", "job"), "run"
    ),
    **dict.fromkeys(("serve", "server", "servers", "cluster"), "up"),
    **dict.fromkeys(("log", "tail", "output", "cat"), "logs"),
    **dict.fromkeys(("watch", "follow", "view", "join", "reattach", "connect"), "attach"),
    **dict.fromkeys(("info", "show", "describe", "inspect", "stat"), "status"),
    **dict.fromkeys(("get", "download", "copy", "cp", "scp", "pull", "rsync", "results", "outputs"), "fetch"),
    **dict.fromkeys(("test", "verify", "doctor", "diagnose", "validate", "ping", "probe"), "check"),
    **dict.fromkeys(("search", "grid", "hpo", "trials", "hyperparameters"), "sweep"),
    **dict.fromkeys(("new", "create", "setup", "configure", "hostfile", "discover"), "init"),
    **dict.fromkeys(("board", "tb"), "tensorboard"),
    **dict.fromkeys(("resume", "continue"), "sweep --resume"),
    **dict.fromkeys(("restart", "again", "repeat", "retry", "redo"), "rerun"),
    **dict.fromkeys(("monitor", "htop", "dashboard"), "top"),
    **dict.fromkeys(("trace", "profiler", "perf"), "profile"),
    "version": "--version",
}  # fmt: skip
_ALIKE = 0.75  # how alike two words are, of 1, where one is taken for the other
_NEVER_GUESSED = ("clean", "stop")  # what they end or remove is gone


def unknown_verb(word: str, rest: Sequence[str], verbs: Sequence[str]) -> UsageError:
    """Return the error for a first word that is no verb, with the command that the user most likely meant."""
    if os.path.lexists(word) or re.search(r"\.(py|sh|ya?ml)$|[/,\[@]", word) or names_hosts(word):
        return UsageError(
            f"{word} is not a command of tflaunch, but something to run",
            shlex.join(["tflaunch", "run", word, *rest]),
        )
    folded = word.lower().replace("_", "-")
    alike = difflib.get_close_matches(folded, [*verbs, *INSTEAD], 1, _ALIKE)
    near = folded if folded in verbs or folded in INSTEAD else next(iter(alike), "")
    meant = INSTEAD.get(near, near)
    if not meant or (near != folded and meant in _NEVER_GUESSED):
        return UsageError(f"tflaunch has no command {word!r}", "tflaunch --help lists the commands")
    name = ["NAME"] if meant.endswith("--resume") and not rest else []
    return UsageError(
        f"tflaunch has no command {word!r}; "
        + (f"use {meant}" if near in INSTEAD and near == folded else f"did you mean {meant}?"),
        shlex.join(["tflaunch", *meant.split(), *name, *rest]),
    )


def as_usage_error(
    error: Any,
    words: Sequence[str] = (),
    verbs: Collection[str] = (),
    command_of: Callable[[str], Any] | None = None,
) -> UsageError:
    """Return an error of typer's parser as a UsageError; its class is typer's or click's, depending on the version.

    `words` are those of the command line, where an option may stand before its verb, whose command is `command_of` it.
    """
    ctx: Any = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "tflaunch"
    see = f"{path} --help lists all options"
    kind = type(error).__name__
    if kind == "NoSuchOption" and path == "tflaunch":
        verb = next((number for number, word in enumerate(words) if word in verbs), 0)
        if verb:
            behind = [words[verb], *words[:verb], *words[verb + 1 :]]
            params = command_of(words[verb]).params if command_of is not None else []
            known = [name for param in params for name in _names(param)]
            if known and error.option_name not in known:
                path = f"tflaunch {words[verb]}"
                if corrected := hosts_by_option(error.option_name, behind):
                    return UsageError(f"{path} has no option {error.option_name}", corrected)
                return no_such_option(error.option_name, known, f"{path} --help lists all options", path)
            return UsageError(
                f"{error.option_name} stands before {words[verb]}; options of a command stand behind it",
                shlex.join(["tflaunch", *behind]),
            )
        if error.option_name.lower() == "-v":
            return UsageError(f"tflaunch has no option {error.option_name}", "did you mean --version?")
    if kind == "NoSuchOption":
        own = "" if _has_hosts(ctx) else "--hosts" if "--hosts" in _options(ctx) else None
        corrected = hosts_by_option(error.option_name, words, own) if own is not None else ""
        if corrected:
            why = f"hosts are for {own}" if own else "HOSTS stand by themselves"
            return UsageError(f"{path} has no option {error.option_name}: {why}", corrected)
        return no_such_option(error.option_name, _options(ctx), see, path)
    if kind == "MissingParameter" and error.param is not None:
        if error.param.param_type_name != "option":
            return UsageError(f"{_name(error.param)} is missing", " ".join(ctx.get_usage().split()[1:]))
        return UsageError(f"{path}: {error.param.opts[0]} is missing", _explained(error.param) or see)
    if kind == "BadParameter" and error.param is not None:
        message = error.message.rstrip(".")
        return UsageError(f"{_name(error.param)}: {message}", _explained(error.param) or see)
    if kind == "BadOptionUsage":
        param = _param(ctx, error.option_name)
        if param is not None and "requires" in error.message:
            return UsageError(f"{error.option_name} has no value", _explained(param) or see)
        return UsageError(error.message.rstrip("."), see)
    if found := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", error.message, re.DOTALL):
        usage = " ".join(ctx.get_usage().split()[1:])
        program = found[1].split()[0]
        if re.search(r"\.(py|sh)$", program):
            hosts = str(ctx.params.get("hosts") or "hosts.yaml")
            return UsageError(
                f"{path} takes no program: {found[1]}", shlex.join(["tflaunch", "run", hosts, program])
            )
        hosts = str(ctx.params.get("hosts") or "")
        choose = next((each for each in ("--include", "--hosts") if each in _options(ctx)), "")
        if _has_hosts(ctx) and (corrected := joined(words, hosts, found[1], choose)):
            if os.path.isfile(hosts):  # noqa: PTH113  Path.is_file may raise
                return UsageError(f"{found[1]}: {choose} chooses hosts of {hosts}", corrected)
            return UsageError(f"{found[1]}: several hosts are one word, with commas between them", corrected)
        return UsageError(f"{path} has no place for: {found[1]}", usage)
    return UsageError(error.format_message().rstrip("."), see)


def no_such_option(name: str, known: Sequence[str], otherwise: str, path: str) -> UsageError:
    """Return the error for an option that the verb lacks: with options of similar names, else with `otherwise`."""
    near = (
        difflib.get_close_matches(name, known, 3, 0.85)
        or [each for each in known if each.startswith(f"{name}-")][:3]  # --gpus: --gpus-per-worker
        or difflib.get_close_matches(name, known, 3, 0.75)
    )
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    return UsageError(f"{path} has no option {name}", "\n".join(filter(None, (hint, otherwise * (not near)))))


def _has_hosts(ctx: Any) -> bool:
    """Whether the verb takes HOSTS as a word of its own."""
    return ctx is not None and any(
        param.name == "hosts" and param.param_type_name == "argument" for param in ctx.command.params
    )


def _options(ctx: Any) -> list[str]:
    if ctx is None:
        return []
    return [name for param in ctx.command.get_params(ctx) for name in _names(param) if name.startswith("--")]


def _names(param: Any) -> list[str]:
    return [*param.opts, *param.secondary_opts] if param.param_type_name == "option" else []


def _param(ctx: Any, name: str) -> Any:
    return next((each for each in ctx.command.get_params(ctx) if name in _names(each)), None)


def _name(param: Any) -> str:
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _explained(param: Any) -> str:
    """Return for example `--workers N: Number of worker tasks [one per free GPU, or host]`."""
    text = getattr(param, "help", None) or ""
    if not text:
        return ""
    if param.param_type_name != "option":
        return f"{_name(param)}: {text}"
    metavar = f" {param.metavar}" if param.metavar else ""
    return f"{_name(param)}{metavar}: {text}"
