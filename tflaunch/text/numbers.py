"""Numbers with their nouns and verbs, and numbers of bytes, as they are shown."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return `1 host`, `2 hosts`, `2 ps`."""
    return f"{number} {plural(noun, number)}"


def plural(noun: str, number: int) -> str:
    """Return the noun in the form that goes with the number."""
    if number == 1 or noun == "ps":
        return noun
    return noun + ("es" if noun.endswith("s") else "s")


def agreeing(number: int, one: str, more: str) -> str:
    """Return the word, a verb mostly, that goes with the number."""
    return one if number == 1 else more


def amount(size: float) -> str:
    """`12.1 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} EiB"
