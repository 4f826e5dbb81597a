"""A hostfile that the user did not name: which one counts."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from tflaunch.hosts import find_default, load
from tflaunch.protocol.errors import UsageError


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that a test may make as unsafe as it likes, with a hosts.yaml."""
    directory = tmp_path / "shared"
    directory.mkdir(mode=0o755)
    (directory / "hosts.yaml").write_text("- gpu01\n")
    return directory


def somebody_else(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 65534, 65534, follow_symlinks=False)


def everybody(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def sticky(path: Path) -> None:
    path.chmod(0o1777)


def a_group(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 0, 65534)
    path.chmod(path.stat().st_mode | 0o020)


def own_group(path: Path) -> None:
    user = pwd.getpwuid(os.getuid())
    if grp.getgrgid(user.pw_gid).gr_name != user.pw_name:
        pytest.skip("the user has no group of the same name")
    os.chown(path, -1, user.pw_gid)
    path.chmod(path.stat().st_mode | 0o020)


def nothing(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("directory", "file", "said"),
    [
        (nothing, nothing, ""),
        (nothing, own_group, ""),
        (own_group, own_group, ""),
        (sticky, nothing, ""),  # as /tmp: nobody else may replace it
        (nothing, everybody, "it may be written by everybody (mode 0646)"),
        (nothing, a_group, "it may be written by the group"),
        (nothing, somebody_else, "it belongs to the user"),
        (sticky, somebody_else, "it belongs to the user"),
        (everybody, nothing, "may be written by everybody (mode 0757)"),
        (a_group, nothing, "may be written by the group"),
        (somebody_else, nothing, "its directory"),
    ],
)
def test_a_hostfile_that_nobody_named_counts_only_if_nobody_else_could_write_it(
    shared: Path, directory: Callable[[Path], None], file: Callable[[Path], None], said: str
) -> None:
    path = shared / "hosts.yaml"
    path.chmod(0o644)
    file(path)
    directory(shared)
    if not said:
        assert find_default({}, shared) == str(path)
        return
    with pytest.raises(UsageError) as caught:
        find_default({}, shared)
    assert caught.value.message.startswith(f"{path} does not count as the default hostfile: ")
    assert said in caught.value.message
    assert f"name it ({path})" in caught.value.hint
    assert "chmod go-w" in caught.value.hint
    assert find_default({"TFLAUNCH_HOSTS": str(path)}, shared) == str(path)  # named
    assert [host.name for host in load(str(path)).hosts] == ["gpu01"]


def test_a_hostfile_that_nobody_named_may_be_a_link_if_nobody_else_could_turn_it(
    shared: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    link = here / "hosts.yaml"
    link.symlink_to("../shared/hosts.yaml")
    assert find_default({}, here) == str(link)
    sticky(here)
    assert find_default({}, here) == str(link)
    everybody(shared)
    with pytest.raises(UsageError, match=r"its directory .*shared may be written by everybody"):
        find_default({}, here)
    shared.chmod(0o755)
    somebody_else(link)
    with pytest.raises(UsageError, match="it is a symbolic link that belongs to the user"):
        find_default({}, here)
    link.unlink()
    link.symlink_to("hosts.yaml")
    assert find_default({}, here) is None  # a circle is no file


def test_the_hostfile_of_the_config_directory_is_looked_at_likewise(tmp_path: Path) -> None:
    path = tmp_path / "tflaunch/hosts.yaml"
    path.parent.mkdir()
    path.write_text("- gpu01\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find_default(environ, tmp_path) == str(path)
    path.chmod(0o666)
    with pytest.raises(UsageError, match="may be written by everybody"):
        find_default(environ, tmp_path)


def test_find_default(tmp_path: Path) -> None:
    config = tmp_path / "config"
    (config / "tflaunch").mkdir(parents=True)
    (tmp_path / "home/.config/tflaunch").mkdir(parents=True)
    environ = {"XDG_CONFIG_HOME": str(config), "HOME": str(tmp_path / "home")}
    assert find_default(environ, tmp_path) is None
    at_home = tmp_path / "home/.config/tflaunch/hosts.yaml"
    at_home.touch()
    assert find_default(environ, tmp_path) is None
    assert find_default({**environ, "XDG_CONFIG_HOME": ""}, tmp_path) == str(at_home)
    (config / "tflaunch/hosts.yaml").touch()
    assert find_default(environ, tmp_path) == str(config / "tflaunch/hosts.yaml")
    (tmp_path / "hosts.yaml").touch()
    assert find_default(environ, tmp_path) == str(tmp_path / "hosts.yaml")
    assert find_default({**environ, "TFLAUNCH_HOSTS": "a,b"}, tmp_path) == "a,b"
