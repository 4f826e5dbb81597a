"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return `1 host`, `2 hosts`."""
    return f"{number} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    """Return the noun in the form that goes with the number."""
    return noun if number == 1 else f"{noun}s"
