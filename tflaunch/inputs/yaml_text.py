"""Texts and numbers in YAML documents, checked in words of their own, without the models for which pydantic is loaded.

tflaunch.inputs.yaml_values says in which form they arrive.
"""

from __future__ import annotations

import re


def text_of(value: object, accepted: str, *, free: bool = True) -> str:
    """One line of text as written; `free`: any text will do, so a boolean only needs quotes."""
    if isinstance(value, bool) and free:
        raise ValueError("is a boolean to YAML, and text is wanted; put it in quotes")
    if value is None:
        raise ValueError(f"has no value; write {accepted}, or leave it out")
    if not isinstance(value, str):
        raise ValueError(f"is not {accepted}")
    if value != "" and not value.isprintable():
        raise ValueError("holds a line break or a control character")
    return value


def whole(value: object, low: int, high: int | None = None) -> int:
    accepted = (
        f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"
    )
    text = text_of(value, accepted, free=False)
    if re.fullmatch(r"0[0-9]+", text):
        raise ValueError(f"begins with 0, which YAML reads as octal; write {accepted} without it")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= (int(text) if high is None else high):
        raise ValueError(f"is not {accepted}")
    return int(text)


class Unacceptable(ValueError):
    """A phrase about one item of the list, or the mapping, that is the value."""

    def __init__(self, phrase: str, index: int | str) -> None:
        super().__init__(phrase)
        self.index = index
