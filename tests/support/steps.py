"""Counts the steps that a regular expression takes: `re` itself tells nothing of its work.

It walks the pattern that `re` has parsed as `re` does, trying one way after the other, and counts each character that
it compares.  `re` skips some of these by tricks, never more than a constant share.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as sre
    from re import _parser as parser
else:
    import sre_constants as sre
    import sre_parse as parser


class TooMany(Exception):
    """The pattern takes more steps than it may."""


class Steps:
    """How a pattern works on one text."""

    def __init__(self, pattern: str | bytes, flags: int, text: str, most: float) -> None:
        self._text = text
        self._most = most
        self._flags = flags | parser.parse(pattern, flags).state.flags
        self._tree = list(parser.parse(pattern, flags))
        self._groups: dict[int, tuple[int, int]] = {}
        self.count = 0

    def match(self, start: int = 0, whole: bool = False) -> int | None:
        """Where the match at `start` ends; None where there is none."""
        ends = self._sequence(self._tree, 0, start)
        return next((end for end in ends if not whole or end == len(self._text)), None)

    def find_all(self) -> int:
        """Find all matches, as `sub` and `finditer` do; returns how many there are."""
        at = found = 0
        while at <= len(self._text):
            end = self.match(at)
            found += end is not None
            at = at + 1 if end is None or end == at else end
        return found

    def _step(self) -> None:
        self.count += 1
        if self.count > self._most:
            raise TooMany

    def _sequence(self, items: list[Any], number: int, at: int) -> Iterator[int]:
        # Single characters need no way back: they go in this loop, not in a call each.
        while number < len(items):
            single = self._single(items[number], at)
            if single is None:
                break
            if not single:
                return
            at, number = at + 1, number + 1
        if number == len(items):
            yield at
            return
        for end in self._item(items[number], at):
            yield from self._sequence(items, number + 1, end)

    def _single(self, item: Any, at: int) -> bool | None:
        """Whether the character at `at` is one that this item takes; None: the item is not about one character."""
        code, argument = item
        if code not in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return None
        self._step()
        if at >= len(self._text):
            return False
        character = self._text[at]
        if code is sre.ANY:
            return bool(self._flags & re.DOTALL) or character != "\n"
        if code is sre.IN:
            return self._in(argument, character)
        return self._same(character, argument) == (code is sre.LITERAL)

    def _same(self, character: str, code: int) -> bool:
        if self._flags & re.IGNORECASE:
            return character.lower() == chr(code).lower()
        return ord(character) == code

    def _in(self, parts: list[Any], character: str) -> bool:
        negated = parts[0][0] is sre.NEGATE
        return any(self._is(part, character) for part in parts[negated:]) != negated

    def _is(self, part: Any, character: str) -> bool:
        code, argument = part
        if code is sre.LITERAL:
            return self._same(character, argument)
        if code is sre.RANGE:
            both = (
                {character, character.lower(), character.upper()}
                if self._flags & re.IGNORECASE
                else {character}
            )
            return any(argument[0] <= ord(each) <= argument[1] for each in both if len(each) == 1)
        kinds = {
            sre.CATEGORY_DIGIT: character.isdigit(),
            sre.CATEGORY_SPACE: character.isspace(),
            sre.CATEGORY_WORD: character.isalnum() or character == "_",
        }
        opposite = {
            sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
            sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
            sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
        }
        return not kinds[opposite[argument]] if argument in opposite else kinds[argument]

    def _item(self, item: Any, at: int) -> Iterator[int]:
        code, argument = item
        self._step()
        if code is sre.SUBPATTERN:
            group, _, _, inner = argument
            for end in self._sequence(list(inner), 0, at):
                if group is not None:
                    self._groups[group] = (at, end)
                yield end
        elif code is sre.BRANCH:
            for branch in argument[1]:
                yield from self._sequence(list(branch), 0, at)
        elif code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            yield from self._repeat(argument, at, greedy=code is sre.MAX_REPEAT)
        elif code is sre.AT:
            if self._at(argument, at):
                yield at
        elif code in (sre.ASSERT, sre.ASSERT_NOT):
            if self._assert(*argument, at) == (code is sre.ASSERT):
                yield at
        elif code is sre.GROUPREF:
            start, end = self._groups[argument]
            if self._text.startswith(self._text[start:end], at):
                yield at + end - start
        else:
            raise NotImplementedError(str(code))

    def _repeat(self, argument: Any, at: int, *, greedy: bool) -> Iterator[int]:
        least, most, inner = argument
        items = list(inner)
        if len(items) == 1 and items[0][0] in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            end = at
            while end - at < most and self._single(items[0], end):
                end += 1
            ends = range(at + least, end + 1)
            for each in reversed(ends) if greedy else ends:
                self._step()
                yield each
            return
        # The ways so far, each with the ends that are still to be tried: no recursion, texts are long.
        ways = [self._sequence(items, 0, at)] if most else []
        places = [at]
        if not greedy and least == 0:
            yield at
        while ways:
            end = next(ways[-1], None)
            if end is None or end == places[-1]:
                ways.pop()
                if greedy and len(ways) >= least:
                    yield places[-1]
                places.pop()
                continue
            places.append(end)
            if len(ways) < most:
                if not greedy and len(ways) >= least:
                    yield end
                ways.append(self._sequence(items, 0, end))
            else:
                yield end
                places.pop()
        if greedy and not most:
            yield at

    def _at(self, code: Any, at: int) -> bool:
        text = self._text
        lines = bool(self._flags & re.MULTILINE)
        if code in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return at == 0 or (lines and code is sre.AT_BEGINNING and text[at - 1] == "\n")
        if code is sre.AT_END_STRING:
            return at == len(text)
        if code is sre.AT_END:
            return at == len(text) or text[at:] == "\n" or (lines and text[at] == "\n")
        before = at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_")
        after = at < len(text) and (text[at].isalnum() or text[at] == "_")
        return (before != after) == (code is sre.AT_BOUNDARY)

    def _assert(self, direction: int, inner: Any, at: int) -> bool:
        if direction > 0:
            return next(self._sequence(list(inner), 0, at), None) is not None
        low, high = inner.getwidth()
        return any(
            end == at
            for width in range(low, min(high, at) + 1)
            for end in self._sequence(list(inner), 0, at - width)
        )


def steps(pattern: str, text: str, *, flags: int = 0, most: float = float("inf"), search: bool = True) -> int:
    """How many steps that pattern takes to find all its matches in that text, or to match it; raises TooMany."""
    counter = Steps(pattern, flags, text, most)
    if search:
        counter.find_all()
    else:
        counter.match()
    return counter.count
