"""Files of variables: read as python-dotenv reads them, every mistake with its line, no value shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher import TELL, Launcher, told
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
    for name, message in {"other": "0xff is not UTF-8", "no": "No such file", ".": "Is a directory"}.items():
        with pytest.raises(EnvFileError, match=message):
            read([tmp_path / name])


def test_tasks_get_them_and_nobody_else_sees_them(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    file = tmp_path / "secrets.env"
    file.write_text(f"OUT={out}\nTOKEN='s3cret word'\nOVER=s3cret\n")
    words: list[str | Path] = [
        launcher.local(2),
        launcher.script(TELL),
        "--env-file",
        file,
        "--env=OVER=said",
        "--ps=1",
        "--json",
    ]
    plan = launcher.run("run", *words, "--dry-run").ran()
    done = launcher.run("run", *words, "--ps-grace=0.2").ran()
    assert {task.env["TOKEN"] for task in told(out).values()} == {"s3cret word"}
    assert {task.env["OVER"] for task in told(out).values()} == {"said"}
    [event] = [event for event in plan.events if event["event"] == "plan"]
    assert [task["env"]["TOKEN"] for task in event["tasks"]] == ["***"] * 3
    assert "s3cret" not in plan.out + plan.err + done.out + done.err
    status = launcher.run("status", done.events[-1]["run_id"])
    assert "s3cret" not in status.out + status.err
    for path in (*launcher.state.rglob("*"), *launcher.hosts.rglob("*")):
        if (
            path.is_file() and b"s3cret" in path.read_bytes()
        ):  # only an agent's own request, for its user alone
            assert path.is_relative_to(launcher.hosts)
            assert path.stat().st_mode & 0o077 == 0


def test_in_a_job_file_they_are_relative_to_it(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    trainer = launcher.script(TELL)
    (trainer.parent / "job.yaml").write_text(
        "program: trainer.py\nenv_file: .env\nenv: {B: job}\nroles: {ps: 0, worker: 1}\n"
    )
    (trainer.parent / ".env").write_text(f"OUT={out}\nA=file\nB=file\n")
    (tmp_path / "more").write_text("A=more\n")
    launcher.run(
        "run", launcher.local(1), trainer.parent / "job.yaml", f"--env-file={tmp_path / 'more'}", cwd=tmp_path
    ).ran()
    task = told(out)["worker/0"]
    assert (task.env["A"], task.env["B"]) == ("more", "job")
    assert ".env" not in task.files
    (trainer.parent / ".env").write_text("A=1\nTF_CONFIG={}\n")
    done = launcher.run("run", launcher.local(1), trainer.parent / "job.yaml", cwd=tmp_path).ran(EXIT_USAGE)
    assert f"{trainer.parent / '.env'}:2" in done.sentences
