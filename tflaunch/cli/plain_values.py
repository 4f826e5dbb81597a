"""Values of options as typer would make them, without pydantic: to load it takes longer than to parse all else.

typer makes an adapter of pydantic for every option of a verb at every start, though most options are not given.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

_NOT_PLAIN = object()
# Settings of typer that ask more of a value than its type does.
_OF_NUMBERS = {"clamp": (None, False)}
_OF_PATHS = {
    "exists": (None, False),
    "file_okay": (True,),
    "dir_okay": (True,),
    "writable": (None, False),
    "readable": (True,),
    "resolve_path": (None, False),
    "allow_dash": (None, False),
    "path_type": (None,),
}


def without_pydantic(params: list[Any]) -> list[Any]:
    """Have these parameters of a command make plain values without typer's adapters; returns the same parameters.

    A typer that makes its values in another way never asks for what is set here.
    """
    for param in params:
        if getattr(param, "_runtime_param", param) is None:
            param._runtime_param = PlainValues()
    return params


class PlainValues:
    """Stands in the place of the adapter that typer makes when a parameter is first used."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return what typer would make of the value; raises what typer raises."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = plain(value, param.type_descriptor.annotation, param.type_descriptor.parameter_info)
        if found is not _NOT_PLAIN:
            return found
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def plain(value: Any, hint: Any, said: Any) -> Any:
    """Return the value of that type, whose settings are `said`; _NOT_PLAIN where that takes more, as for an error."""
    if get_origin(hint) is list and isinstance(value, (list, tuple)):
        found = [plain(each, get_args(hint)[0], said) for each in value]
        return _NOT_PLAIN if _NOT_PLAIN in found else found
    if said.parser is not None:
        return said.parser(value)
    if isinstance(value, (str, bool, Enum)) and type(value) is hint:
        return value
    if hint is int and (type(value) is int or (isinstance(value, str) and _is_number(value))):
        number = int(value)
        least, most = (number if each is None else each for each in (said.min, said.max))
        return number if _has(said, _OF_NUMBERS) and least <= number <= most else _NOT_PLAIN
    # One that is there and cannot be read is refused.
    if hint is Path and isinstance(value, (str, Path)) and _has(said, _OF_PATHS):
        return Path(value) if os.access(value, os.R_OK) or not os.path.lexists(value) else _NOT_PLAIN
    return _NOT_PLAIN


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _has(said: Any, usual: dict[str, tuple[Any, ...]]) -> bool:
    return all(getattr(said, name, values[0]) in values for name, values in usual.items())
