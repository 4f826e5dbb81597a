"""The configuration of tflaunch: the machine's file, /etc/tflaunch/config.toml, and the user's, which wins over it.

tflaunch.inputs.config_model lists the keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.inputs.ownership import planted
from tflaunch.protocol.errors import ConfigError, Problem

if TYPE_CHECKING:  # pydantic, YAML and the models are heavy, and most machines have no configuration
    from pydantic import BaseModel

    from tflaunch.inputs.yaml_document import Tree

FILE = "config.toml"
ETC = "TFLAUNCH_ETC"  # the directory of the machine's file: tests have one of their own
_LIMITS = ("max_gpus_per_user",)  # of two files the smaller one counts


@dataclass(frozen=True)
class Setting:
    """A value with the place that it comes from; `table` is the verb, "" at the top."""

    table: str
    key: str
    value: Any
    written: Any  # as the file has it
    file: str
    line: int
    of_machine: bool

    @property
    def name(self) -> str:
        """`run.grace`, `banner`."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def place(self) -> str:
        """`/etc/tflaunch/config.toml:3`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Defaults:
    """What one file says about the options of one verb, as its command line has them."""

    options: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # the command line adds to them
    keys: Mapping[str, str] = field(default_factory=dict)  # of the file, by the names of the options


@dataclass(frozen=True)
class ConfigFile:
    """One file, checked."""

    path: Path
    settings: tuple[Setting, ...]
    defaults: Mapping[str, Defaults]  # by verb; "": for each verb that has the option


@dataclass(frozen=True)
class Config:
    """The files that there are, the machine's first, and what counts of them."""

    files: tuple[ConfigFile, ...] = ()

    def settings(self) -> list[Setting]:
        """What counts: of each key the user's value, or the machine's; of a limit the smaller one."""
        found: dict[tuple[str, str], Setting] = {}
        for setting in (setting for file in self.files for setting in file.settings):
            before = found.get((setting.table, setting.key))
            if before is None or setting.key not in _LIMITS or setting.value < before.value:
                found[setting.table, setting.key] = setting
        return list(found.values())

    def get(self, key: str) -> Setting | None:
        """The setting of a key at the top, or None."""
        return next((each for each in self.settings() if (each.table, each.key) == ("", key)), None)

    def overridden(self) -> list[Setting]:
        """What the user's file, or a smaller limit, leaves without effect."""
        counts = self.settings()
        return [each for file in self.files for each in file.settings if each not in counts]


def paths(environ: Mapping[str, str] = os.environ) -> tuple[Path, Path]:
    """The machine's file and the user's, whether they are there or not."""
    return Path(environ.get(ETC) or "/etc/tflaunch") / FILE, users_directory(environ) / FILE


def users_directory(environ: Mapping[str, str]) -> Path:
    """The directory `tflaunch` in `$XDG_CONFIG_HOME` or `~/.config`."""
    config = environ.get("XDG_CONFIG_HOME", "")
    if not Path(config).is_absolute():  # as the XDG specification asks
        config = str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(config) / "tflaunch"


def load(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the files that are there; raises ConfigError with all that is wrong with both."""
    machines, users = paths(environ)
    files = []
    problems: list[Problem] = []
    hints: list[str] = []
    for path in dict.fromkeys((machines, users)):
        try:
            if file := _load(path, of_machine=path == machines):
                files.append(file)
        except ConfigError as error:
            problems += error.problems
            hints += [error.hint] if error.hint else []
    if problems:
        raise ConfigError(problems, "; ".join(dict.fromkeys(hints)))
    return Config(tuple(files))


def _load(path: Path, *, of_machine: bool) -> ConfigFile | None:
    try:
        if not path.is_file():
            return None
        reason = planted(path)
    except OSError:  # this user may not look there
        return None
    if reason:
        raise ConfigError(
            [Problem(str(path), 0, 0, f"is not read: {reason}")],
            "tflaunch reads it unasked, so only you and root may write there: chown, chmod go-w",
        )
    from tflaunch.inputs import config_model, toml_document
    from tflaunch.inputs.documents import read_file
    from tflaunch.inputs.options.in_files import OF_VERB
    from tflaunch.inputs.yaml_document import Form, Tree, validate

    tree = Tree(str(path))
    try:
        text = read_file(path, str(path), ConfigError)
    except OSError as error:
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error.strerror}")]) from None
    data, parsed = toml_document.read(text, tree)
    if tree.problems:
        raise ConfigError(tree.problems)
    tables = [name for name in OF_VERB if name in data]
    keys = {name: config_model.keys_of(name) for name in tables}
    form = Form(
        config_model.model(tables),
        keys={"": [*config_model.keys_of(""), *OF_VERB], **keys},
        elsewhere=_elsewhere(),
    )
    document = validate(data, tree, form)
    if config_model.MACHINES_ONLY in data and not of_machine:
        key = config_model.MACHINES_ONLY
        tree.report(tree.keys[key,], f"{key} counts only in {paths()[0]} of the host, where agents read it")
    if tree.problems:
        raise ConfigError(sorted(map(_in_toml, tree.problems), key=lambda each: (each.line, each.column)))
    assert document is not None  # noqa: S101 - else there were problems
    return _file(path, document, parsed, tree, of_machine=of_machine)


def _elsewhere() -> dict[str, str]:
    """A key of a verb's table that stands at the top -> where it belongs."""
    from tflaunch.inputs.options.in_files import OF_VERB, of_table

    return {
        option.key: f"it is an option of `{name}`: put it under [{name}]"
        for name in reversed(list(OF_VERB))
        for option in of_table(name)
    }


def _in_toml(problem: Problem) -> Problem:
    """That problem without YAML's part in it."""
    message = problem.message.replace("is a boolean to YAML", "is a boolean")
    return Problem(problem.where, problem.line, problem.column, message)


def _file(
    path: Path, document: BaseModel, data: Mapping[str, Any], tree: Tree, *, of_machine: bool
) -> ConfigFile:
    from tflaunch.inputs.options.in_files import OF_VERB, of_table, values_of

    settings: list[Setting] = []  # `data` is the file as Python's parser has it
    for key, value in data.items():
        table = key if key in OF_VERB else ""
        for name in value if table else [key]:
            loc = (table, name) if table else (name,)
            model = getattr(document, table) if table else document
            written = value[name] if table else value
            line = tree.keys[loc].start_mark.line + 1
            settings.append(Setting(table, name, getattr(model, name), written, str(path), line, of_machine))
    directory = path.absolute().parent
    defaults = {}
    for name in ("", *OF_VERB):
        model = getattr(document, name, None) if name else document
        if model is not None:
            said = {key: getattr(model, key) for key in model.model_fields_set}
            defaults[name] = Defaults(*values_of(of_table(name), said, directory))
    return ConfigFile(path, tuple(settings), defaults)


def value_text(setting: Setting) -> str:
    """The value in short, as the file has it; of variables, which may be secrets, only the names."""
    written = setting.written
    if isinstance(written, Mapping):
        named = (key if setting.key == "env" else f"{key}={value}" for key, value in written.items())
        return " ".join(named)
    if isinstance(written, list):
        return " ".join(map(str, written))
    return str(written).lower() if isinstance(written, bool) else " / ".join(str(written).strip().split("\n"))
