"""Recipes of the cookbook that need hosts of their own: the files and the commands are those of the page."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.docs import plays, shapes
from tests.docs.pages import Command, commands, files, outputs
from tests.docs.world import Reader, rename
from tests.support import ROOT
from tests.support.bed import Bed
from tests.support.patience import until

PAGE = ROOT / "docs/cookbook.md"
# Of `123456`, the code that the bastion asks for.
HASH = "$5$saltsalt$bNuW6hMdhDP6R51UI1RrpgGgbWeTrM7ajkOj8vMX2d."


def recipe(*words: str) -> list[Command]:
    """The commands of the page that hold one of the words."""
    return [command for command in commands(PAGE) if any(word in command.text for word in words)]


def play(reader: Reader, command: Command) -> str:
    """Type it; it must succeed, and print what the page shows."""
    typed = reader.must(plays.uncommented(command.text))
    assert not shapes.missing(command.prints, typed.all), f"{command.where}\n{typed.all}"
    return typed.all


def test_behind_a_jump_host_with_a_second_factor(bed: Bed, tmp_path: Path) -> None:
    asks = ("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    [bastion] = bed.up(1, options=asks)
    behind = bed.up(2)
    for host, name in zip([bastion, *behind], ["bastion", "gpu01", "gpu02"], strict=True):
        rename(host, name)
    bed.name_all()
    (bastion.directory / "shadow").write_text(f"root:{HASH}:19000:0:99999:7:::\n")
    for host in behind:
        bed.cut(bed.launcher, host)
    reader = Reader(tmp_path / "reader", bed)
    reader.write(files(PAGE))
    config = reader.home / ".ssh/config"
    page = files(PAGE)["~/.ssh/config"].replace("bastion.example.com", "bastion")
    sockets = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))  # the path of a socket must be short
    page = page.replace("~/.ssh", str(sockets))
    config.write_text(page + config.read_text())
    config.chmod(0o600)
    phone = reader.home / "phone"
    phone.write_text("#!/bin/sh\necho 123456\n")
    phone.chmod(0o700)
    login, check, run, logout = recipe("behind.yaml", "ssh -fN bastion", "ssh -O exit bastion")

    refused = reader.type(run.text)
    assert refused.code == 69
    [shown] = [block for block in outputs(PAGE) if "ProxyJump" in block.text]
    assert not shapes.missing(shown.lines, refused.all), refused.all

    reader.env |= {"SSH_ASKPASS": str(phone), "SSH_ASKPASS_REQUIRE": "force"}
    play(reader, login)
    del reader.env["SSH_ASKPASS"], reader.env["SSH_ASKPASS_REQUIRE"]
    assert "all is well" in play(reader, check)
    assert "succeeded" in play(reader, run)
    assert bastion.log().count("Accepted password") == 1  # the code was typed once
    play(reader, logout)
    until(lambda: not reader.left(), "the end of what the commands have started")
    shutil.rmtree(sockets)


def test_many_small_machines(bed: Bed, tmp_path: Path) -> None:
    for number, host in enumerate(bed.up(16), 1):
        rename(host, f"node{number:02}")
    bed.name_all()
    reader = Reader(tmp_path / "reader", bed)
    reader.write(files(PAGE))
    found = recipe("nodes.yaml")
    assert len(found) == 5
    for command in found:
        play(reader, command)
    until(lambda: not reader.left(), "the end of what the commands have started")
