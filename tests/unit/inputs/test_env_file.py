"""Files of variables: read as python-dotenv reads them, every mistake with its line, no value shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.inputs.env_file import read
from tflaunch.protocol.errors import EXIT_USAGE, EnvFileError

TEXT = r"""
# a comment
PLAIN=value
export EXPORTED=yes
SPACED = with spaces  # and a comment
EMPTY=
EMPTY_TOO=""
HASH=a#b
SINGLE='it is $HOME #1'
DOUBLE="two words # no comment" # one
ESCAPED="a\nb\t\"c\" \\"
LITERAL='a\nb'
EQUALS=a=b==
LINES="-----BEGIN
middle
-----END"
OTHER=${PLAIN}s
DEFAULT=${TFLAUNCH_NOT_SET:-none}
MINE
PLAIN_AGAIN=1
PLAIN_AGAIN=2
"""


def test_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "from here")
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n", 3).encode())
    (tmp_path / "later").write_text("PLAIN=other\nPI=π\n")
    assert read([tmp_path / ".env"]) == {
        "PLAIN": "value",
        "EXPORTED": "yes",
        "SPACED": "with spaces",
        "EMPTY": "",
        "EMPTY_TOO": "",
        "HASH": "a#b",
        "SINGLE": "it is $HOME #1",
        "DOUBLE": "two words # no comment",
        "ESCAPED": 'a\nb\t"c" \\',
        "LITERAL": "a\\nb",
        "EQUALS": "a=b==",
        "LINES": "-----BEGIN\nmiddle\n-----END",
        "OTHER": "values",
        "DEFAULT": "none",
        "MINE": "from here",
        "PLAIN_AGAIN": "2",
    }
    both = read([tmp_path / ".env", tmp_path / "later"])
    assert (both["PLAIN"], both["PI"]) == ("other", "π")


def test_everything_that_is_wrong_is_told_with_its_line_and_no_value(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    lines = [
        "A=1",
        "",
        "# x",
        "not a line",
        "B='s3cret",
        "1C=s3cret",
        "CUDA_VISIBLE_DEVICES=0",
        "TF_CONFIG=s3cret",
    ]
    path.write_text("\n".join([*lines, "NOT_SET_HERE", "a-b=s3cret", ""]))
    (tmp_path / "other").write_bytes(b"A=\xff\n")
    with pytest.raises(EnvFileError) as raised:
        read([path])
    found = [str(problem).removeprefix(f"{path}:") for problem in raised.value.problems]
    assert [each.split(" ")[0] for each in found] == ["4:1:", "5:1:", "6:1:", "7:1:", "8:1:", "9:1:", "10:1:"]
    assert "CUDA_VISIBLE_DEVICES is what tflaunch sets" in found[3]
    assert "NOT_SET_HERE has no value, and is not set here" in found[5]
    assert "s3cret" not in raised.value.message
    assert raised.value.exit_code == EXIT_USAGE
    for name, message in {"other": "0xff is not UTF-8", ".": "Is a directory"}.items():
        with pytest.raises(EnvFileError, match=message):
            read([tmp_path / name])
