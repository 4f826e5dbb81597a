"""Warnings that are as true of the next run: a terminal gets them once, a pipe and --dry-run every time."""

from __future__ import annotations

from tests.support.launcher import Launcher
from tests.support.terminal import Terminal

SAID = "secrets stay here: .env"
AS_BEFORE = "1 warning as in earlier runs: --dry-run tells them"


def test_a_terminal_is_told_once_and_again_when_it_changes(launcher: Launcher) -> None:
    trainer = launcher.script("print('done')")
    (launcher.code / ".env").write_text("TOKEN=1\n")
    hosts = launcher.local(1)

    def shown(*words: str) -> str:
        argv = launcher.argv("run", hosts, trainer, "--ps=0", "--workers=1", *words)
        with Terminal(argv, launcher.env(), launcher.code, 200) as terminal:
            assert terminal.end() == 0
        return terminal.sentences

    first, second = shown(), shown()
    assert SAID in first
    assert AS_BEFORE not in first
    assert SAID not in second
    assert AS_BEFORE in second
    assert SAID in shown("--dry-run")
    assert SAID in launcher.run("run", hosts, trainer, "--ps=0", "--workers=1").ran().err
    (launcher.code / "id_rsa").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    third = shown()
    assert SAID in third
    assert "id_rsa" in third
