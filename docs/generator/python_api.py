"""The page of the Python API: from what `tflaunch.api` exports, its docstrings and its type hints."""

from __future__ import annotations

import inspect
import re
from typing import Any

from generator.markdown import code, described, prose, table
from generator.verbs import every
from tflaunch import api

_ABOUT = """\
# tflaunch.api

[Runs from Python](../python.md) begins with examples. A name with a leading underscore may change at any time.
"""
_OURS = (
    "run", "make_plan", "load_hosts", "gpus", "runs", "attach", "stop", "fetch", "Run", "Attached",
    "StoppedEarly", "HandedOver", "NotFollowed", "ConnectErrors", "StopError", "TflaunchError",
)  # fmt: skip
_PATHS = re.compile(r"\b(?:tflaunch(?:\.\w+)*|os|pathlib|collections\.abc|typing_extensions)\.(?=[A-Z])")


def page() -> str:
    """Return the page."""
    parts = [_ABOUT]
    for name in _OURS:
        parts += _described(name, getattr(api, name))
    parts += ["## Keywords\n", "Of `run` and `make_plan`: the options of `tflaunch run`.\n", _keywords()]
    rows = [
        [
            code(name),
            code(_PATHS.sub("", getattr(api, name).__module__) + "." + name),
            _first(getattr(api, name)),
        ]
        for name in api.__all__
        if name not in (*_OURS, "Event", "Keywords")
    ]
    parts += ["## Types of what they take and return\n", table(["name", "defined in", "is"], rows)]
    return "\n".join(parts)


def _described(name: str, thing: Any) -> list[str]:
    if not inspect.isclass(thing):
        return [f"## {name}\n", _block(name, thing), _text(thing)]
    parts = [f"## {name}\n", _text(thing)]
    kinds = [kind for kind in reversed(thing.__mro__) if kind.__module__.startswith("tflaunch.")]
    for each, member in {name: member for kind in kinds for name, member in vars(kind).items()}.items():
        function = member.fget if isinstance(member, property) else member
        if not each.startswith("_") and inspect.isfunction(function):
            parts += [f"### {name}.{each}\n"]
            parts += [] if isinstance(member, property) else [_block(each, function)]
            parts += [_text(function)]
    return parts


def _block(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.name != "self"]
    # Annotations are texts here, in quotes.
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", _PATHS.sub("", str(signature.replace(parameters=own))))
    return f"```python\n{name}{text}\n```\n"


def _text(thing: Any) -> str:
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")
    return "".join(f"{prose(' '.join(each.split()))}\n\n" for each in paragraphs)


def _first(thing: Any) -> str:
    if inspect.getmodule(thing) is None or not getattr(thing, "__doc__", None):
        return ""
    return prose((inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " "))


def _keywords() -> str:
    run = next(verb for verb in every() if verb.name == "run")
    helps = {
        option.removeprefix("--").replace("-", "_"): text
        for section in run.options
        for names, text in section.rows
        for option in re.findall(r"--[a-z][\w-]*", names)
    }
    rows = [
        [code(name), code(getattr(hint, "__forward_arg__", str(hint))), described(helps[name])]
        for name, hint in api.Keywords.__annotations__.items()
    ]
    return table(["keyword", "type", "means"], rows)
