"""Lines made of the bytes of a log."""

from __future__ import annotations

import re

import pytest

from tflaunch.text.lines import LineAssembler
from tflaunch.text.safe import printable

TEXT = "first ü line\n\nbar 1%\rbar 50%\rbar 100%\nlast € 🎉\r\n\x1b[31mred\x1b[0m\xa0 no end".encode()
LINES = "first ü line\n\nbar 100%\nlast € 🎉\nred\xa0 no end\n"


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
def test_lines_are_the_same_however_the_bytes_are_cut(cut: int) -> None:
    assembler = LineAssembler()
    assert assembler.feed(TEXT[:cut]) + assembler.feed(TEXT[cut:]) + assembler.end() == LINES


def test_lines_are_the_same_byte_by_byte() -> None:
    assembler = LineAssembler()
    lines = "".join(assembler.feed(bytes([byte])) for byte in TEXT)
    assert lines + assembler.end() == LINES


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\xffb\n", ["a\\xffb"]),
        (b"cut \xe2\x82", ["cut \\xe2\\x82"]),
        (b"\xe2\x82\nnext\n", ["\\xe2\\x82", "next"]),
        (b"nul \x00 bell \x07 tab \t.\n", ["nul \\x00 bell  tab \t."]),
        (b"\x1b]0;my title\x07\x1b[2J\x1b[10;10Hhome\x1b[K\n", ["home"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", ["link"]),
        (b"unended \x1b]0;title\n", ["unended 0;title"]),
        (b"\x1b(Bcharset \x1bcreset\x1b\n", ["charset reset"]),
        ("\x9b31mC1 \x90dcs\x9c.\n".encode(), ["C1 ."]),
        ("evil\u202etxt.exe\n".encode(), ["evil\\u202etxt.exe"]),
        (b"spin -\b\\\b|\b/\bdone\n", ["spin done"]),
        (b"1/2 [=>.]\b\b\b\b\b\b\b\b\b\r2/2 [===]\n", ["2/2 [===]"]),
        (b"10%\r     \r\x1b[K\n", ["10%"]),
        (b"\r\n\r\n", ["", ""]),
        (b"", []),
    ],
)
def test_what_a_line_looks_like(data: bytes, lines: list[str]) -> None:
    assembler = LineAssembler()
    assert assembler.feed(data) + assembler.end() == "".join(f"{line}\n" for line in lines)


def test_colours_stay_when_they_may_and_never_leak_into_the_next_line() -> None:
    assembler = LineAssembler(colour=True)
    assert assembler.feed(b"\x1b[1;31mred\x1b[2K\nplain\n") == "\x1b[1;31mred\x1b[0m\nplain\n"


def test_raw_lines_keep_their_control_sequences() -> None:
    assembler = LineAssembler(raw=True)
    assert assembler.feed(b"\x1b[2J\x00\xff\r\n") == "\x1b[2J\x00\\xff\n"


def test_an_endless_line_costs_no_memory_and_is_cut_with_a_number() -> None:
    assembler = LineAssembler(max_line=100)
    for _ in range(1024):
        assert assembler.feed(b"x" * 1024) == ""
        assert len(assembler._held) <= 100
    line = assembler.feed(b"\nnext")
    assert line == "x" * 100 + f" ... {1024 * 1024 - 100:,} more characters, see the log file\n"
    assert assembler.end() == "next\n"


def test_a_long_line_in_the_middle_of_a_chunk_is_cut_too() -> None:
    assembler = LineAssembler(max_line=10)
    lines = assembler.feed(b"a\n" + b"y" * 12 + b"\nb\n")
    assert lines == "a\nyyyyyyyyyy ... 2 more characters, see the log file\nb\n"


def test_a_progress_bar_gives_its_present_state_once_and_no_line_twice() -> None:
    assembler = LineAssembler()
    for step in range(10_000):
        assert assembler.feed(f"\rstep {step}".encode()) == ""
    assert assembler.rewriting
    assert assembler.progress() == "step 9999"
    assert not assembler.rewriting
    assert assembler.progress() is None
    assert assembler.feed(b"\nafter\n") == "after\n"  # step 9999 was shown already


def test_a_line_that_is_merely_slow_is_no_progress_bar() -> None:
    assembler = LineAssembler()
    assembler.feed(b"loading ...")
    assert assembler.progress() is None
    assert assembler.feed(b" done\n") == "loading ... done\n"


def test_hostile_bytes_never_leave_anything_that_acts() -> None:
    every = bytes(range(256)) * 3 + "".join(map(chr, range(0x80, 0xA0))).encode()
    for escape in (b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b[?1049h", b"\xc2\x9b2J"):
        for line in [printable((escape + every).decode("utf-8", "replace"))]:
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", line)
