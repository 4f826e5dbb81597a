"""Words behind `--`, for the program, that look like tflaunch's own options."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.code.program import Program
from tflaunch.code.program_reading import Reading, texts
from tflaunch.inputs.options.declared import Group
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.text.numbers import agreeing


def misplaced(args: Sequence[str], program: Program, found: Reading) -> str:
    """The sentence about options of `run` among the program's arguments where its text names none of them; "" else.

    A program in another language, or one with parts that cannot be read here, may know any word.
    """
    if not any(word.startswith("--") for word in args) or not program.file.endswith(".py") or found.hidden:
        return ""
    named = _ours(args)
    if not named:
        return ""
    spelt = {name.replace("-", each) for name in named for each in "-_"}
    if any(name in text for text in texts(program) for name in spelt):
        return ""
    count = len(named)
    stand, them = agreeing(count, "stands", "stand"), agreeing(count, "it", "them")
    return (
        f"{' '.join(named.values())} {stand} behind --, so {found.name} gets {them}; to tell tflaunch, write {them} "
        "before --"
    )


def _ours(args: Sequence[str]) -> dict[str, str]:
    """Options of `run` among these words: the name without dashes -> as it is written, with its value."""
    options = {each.shown: each for each in Group(RunOptions).options if not each.declared.is_argument}
    named: dict[str, str] = {}
    for word, after in zip(args, [*args[1:], "-"], strict=True):
        name, equals, _ = word.partition("=")
        option = options.get(name)
        if option is not None:
            valued = option.kind is not bool and not equals and not after.startswith("-")
            named[name.removeprefix("--")] = f"{word} {after}" if valued else word
    return named
