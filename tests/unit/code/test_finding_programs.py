"""Which program is meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.code import grow
from tflaunch.code.program import find_program
from tflaunch.protocol.errors import UsageError


@pytest.mark.parametrize(
    ("target", "directory", "argv"),
    [
        ("trainer.py", ".", ("trainer.py",)),
        ("sub/train.py", "sub", ("train.py",)),
        ("sub/../trainer.py", ".", ("trainer.py",)),
        ("-weird.py", ".", ("./-weird.py",)),
        ('it\'s a "test" $HOME.py', ".", ('it\'s a "test" $HOME.py',)),
        ("link.py", "sub", ("train.py",)),  # as Python itself finds what it imports
        ("no_suffix", ".", ("no_suffix",)),
    ],
)
def test_scripts(tmp_path: Path, target: str, directory: str, argv: tuple[str, ...]) -> None:
    grow(tmp_path, dict.fromkeys(["trainer.py", "-weird.py", 'it\'s a "test" $HOME.py', "no_suffix"], ""))
    grow(tmp_path, {"sub/train.py": "", "sub/helper.py": ""})
    (tmp_path / "link.py").symlink_to("sub/train.py")
    program = find_program(target, False, tmp_path)
    assert (program.directory, program.argv) == ((tmp_path / directory).resolve(), argv)
    assert (program.directory / program.file).is_file()
    absolute = find_program(str(tmp_path / target), False, Path("/"))
    assert absolute == program


def test_a_script_below_the_directory_to_ship(tmp_path: Path) -> None:
    grow(tmp_path, {"pkg/bin/-t.py": "", "pkg/lib.py": "", "-d/t.py": ""})
    program = find_program("pkg/bin/-t.py", False, tmp_path, root=Path("pkg"))
    assert (program.directory, program.argv) == (tmp_path / "pkg", ("bin/-t.py",))
    assert find_program("-d/t.py", False, tmp_path, root=tmp_path).argv == ("./-d/t.py",)
    with pytest.raises(UsageError, match=r"t\.py is not in .*pkg, the directory to ship"):
        find_program("-d/t.py", False, tmp_path, root=tmp_path / "pkg")
    with pytest.raises(UsageError, match="there is no such directory to ship"):
        find_program("-d/t.py", False, tmp_path, root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("trainr.py", "trainr.py: there is no such file", "Did you mean trainer.py?"),
        ("sub/tran.py", "sub/tran.py: there is no such file", "Did you mean sub/train.py?"),
        ("trainer", "trainer: there is no such file", "Did you mean trainer.py?"),
        ("wibble.py", "wibble.py: there is no such file in", "Correct the path of the script."),
        ("nowhere/t.py", "nowhere/t.py: there is no directory", "Correct the path of the script."),
        ("trainer.py/t.py", "trainer.py/t.py: there is no directory", "Correct the path of the script."),
        ("sub.train", "sub.train: there is no such file", "To run the module: -m sub.train"),
        ("sub", "sub: a directory, not a script", "Name one of its scripts: sub/train.py"),
        ("runs", "runs: a directory, not a script", "To run it as a module: -m runs"),
        ("data", "data: a directory, not a script, and no .py or .sh file is in it", "Name a script."),
        ("", "the command names no program", "Name a Python script"),
        ("pipe", "pipe: not a regular file", "Name a Python script."),
        ("/dev/null", "/dev/null: not a regular file", "Name a Python script."),
        ("x" * 300, "File name too long", "Name a Python script"),
        ("loop.py", "Too many levels of symbolic links", "Name a Python script"),
    ],
)
def test_no_such_script(tmp_path: Path, target: str, message: str, hint: str) -> None:
    grow(tmp_path, {"trainer.py": "", "sub/train.py": "", "runs/__main__.py": "", "data/x.csv": ""})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(UsageError) as raised:
        find_program(target, False, tmp_path)
    assert message in raised.value.message
    assert raised.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "file"),
    [("train", "train.py"), ("pkg.mod", "pkg/mod.py"), ("pkg.run", "pkg/run/__main__.py")],
)
def test_modules(tmp_path: Path, name: str, file: str) -> None:
    grow(tmp_path, {"train.py": "", "pkg/__init__.py": "", "pkg/mod.py": "", "pkg/run/__main__.py": ""})
    program = find_program(name, True, tmp_path)
    assert (program.directory, program.argv, program.file) == (tmp_path, ("-m", name), file)
    assert find_program(name, True, Path("/"), root=tmp_path) == program


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "pkg.mud",
            "-m pkg.mud: neither pkg/mud.py nor pkg/mud/__main__.py is in",
            "Did you mean -m pkg.mod?",
        ),
        ("other.thing", "-m other.thing: neither other/thing.py", "Start tflaunch in the directory"),
        ("pkg", "/pkg is a package without __main__.py", "Name one of its modules, -m pkg.MODULE"),
        ("pkg/mod.py", "-m pkg/mod.py: not the name of a module", "Did you mean -m pkg.mod?"),
        ("pkg.mod.py", "-m pkg.mod.py: not the name of a module", "Did you mean -m pkg.mod?"),
        ("..up", "-m ..up: not the name of a module", "Write it with dots"),
        ("", "-m : not the name of a module", "Write it with dots"),
    ],
)
def test_no_such_module(tmp_path: Path, name: str, message: str, hint: str) -> None:
    grow(tmp_path, {"pkg/__init__.py": "", "pkg/mod.py": ""})
    with pytest.raises(UsageError) as raised:
        find_program(name, True, tmp_path)
    assert message in raised.value.message
    assert raised.value.hint.startswith(hint)
