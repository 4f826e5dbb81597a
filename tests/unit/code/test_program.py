"""Which programs are Python, and where no more than what a program imports is its code."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.support.code import files, grow
from tflaunch.code.bundle import code_of
from tflaunch.code.imports import imported_files
from tflaunch.code.program import find_program
from tflaunch.code.program_place import place_of
from tflaunch.protocol.errors import EXIT_USAGE, UsageError
from tflaunch.protocol.job import by_python

NEWER = "import os\nmatch os.name:\n    case 'posix' as x if x:\n        type X[T: int = 3] = T\n"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("passwd", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/false\n", "text that no Python"),
        ("config.json", json.dumps({"a": [1, True, None], "b": {"c": 1.5}}), "data"),
        ("config.yaml", "program: trainer.py\nargs: [1, 2]\nenv: {A: b}\n", "data"),
        ("conf.toml", '[tool.x]\nname = "x"\ndeep = [1, 2]\n', "data"),
        ("words.txt", "hello\nworld\n", "data"),
        ("numbers.csv", "1,2,3\n4,5,6\n", "data"),
        ("README.md", "# Title\n\nSome words, and more of them.\n", "text that no Python"),
        ("note.ipynb", '{"cells": [], "nbformat": 4}', "data"),
        ("train", "#!/usr/bin/env -S A=1 perl -w\nprint 1;\n", "a script for perl"),
        ("job.slurm", "#!/bin/sh\n#SBATCH -n 2\nls\n", "a script for sh"),
        ("train.py", "#!/bin/bash\npython3 -m trainer\n", "a script for bash"),
        ("elf", "\x7fELF\x02\x01\x01\0\0", "an executable of this system"),
        ("blob.py", "import os\n\0\0", "a binary file"),
        ("key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n", "text that no Python"),
    ],
)
def test_what_is_no_python_program_is_refused(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"{name}: not a Python program, but {what}") as raised:
        find_program(name, False, tmp_path)
    assert raised.value.exit_code == EXIT_USAGE
    assert raised.value.hint


@pytest.mark.parametrize(
    ("name", "text", "executable", "argv"),
    [
        ("train.sh", "#!/bin/bash\npython trainer.py\n", False, ("/bin/bash", "train.sh")),
        ("train.sh", "#!/bin/sh -e -u\nls\n", True, ("/bin/sh", "-e -u", "train.sh")),  # as the kernel has it
        ("train.sh", "python trainer.py\n", False, ("bash", "train.sh")),
        ("-train.sh", "", False, ("bash", "./-train.sh")),
        ("train", "#!/usr/bin/env -S uv run\nprint()\n", True, ("/usr/bin/env", "-S uv run", "train")),
        ("train.py", "#! /usr/bin/env -S uv run --python 3.12\nprint()\n", True,
         ("/usr/bin/env", "-S uv run --python 3.12", "train.py")),
        ("train.py", "#!/usr/bin/env -S uv run\nprint()\n", False, ("train.py",)),
        ("train.py", "#!/usr/bin/env python3\nprint()\n", True, ("train.py",)),
        ("train", "#!/opt/tf/bin/python3.11 -u\nprint()\n", True, ("train",)),
        ("train.py", "#!/bin/bash\npython3 -m trainer\n", True, ("/bin/bash", "train.py")),
        ("elf", "\x7fELF\x02\x01\x01\0\0", True, ("/usr/bin/env", "./elf")),
    ],
)  # fmt: skip
def test_what_runs_by_its_first_line_or_by_itself(
    tmp_path: Path, name: str, text: str, executable: bool, argv: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(0o755 if executable else 0o644)
    assert find_program(name, False, tmp_path).argv == argv
    assert by_python(argv) == (len(argv) == 1)


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("train", "#!/bin/bash\nls\n", "chmod [+]x train"),
        ("elf", "\x7fELF\x02\x01\x01\0\0", "chmod [+]x elf"),
        ("train.sh", "#!/bin/bash\r\nls\r\n", "sed -i"),
        ("train.sh", "ls\r\n", "sed -i"),
        ("note.ipynb", '{"cells": [], "nbformat": 4}', "jupyter nbconvert --to script note.ipynb"),
    ],
)
def test_what_would_run_after_one_step_says_which(tmp_path: Path, name: str, text: str, hint: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    with pytest.raises(UsageError) as raised:
        find_program(name, False, tmp_path)
    assert re.search(hint, raised.value.hint)


def test_a_directory_without_python_names_its_shell_scripts(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.sh").touch()
    with pytest.raises(UsageError) as raised:
        find_program("scripts", False, tmp_path)
    assert raised.value.hint == "Name one of its scripts: scripts/train.sh"
    with pytest.raises(UsageError) as raised:
        find_program("scripts/trein.sh", False, tmp_path)
    assert raised.value.hint == "Did you mean scripts/train.sh?"


def test_a_program_of_the_system_and_the_list_of_users_are_refused() -> None:
    for target in ("/etc/passwd", "/bin/sh"):
        with pytest.raises(UsageError, match="not a Python program"):
            find_program(target, False, Path("/"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty", ""),
        ("train", "import os\nprint(os.name)\n"),
        ("train", "print('only this')\n"),
        ("train", "from x import (a,\n b)\nprint a\n"),  # Python 2
        ("train", "print 'hello'\n"),
        ("newer", NEWER),
        ("train.py", "this is wrong, and Python says where\n"),
        ("train.py", "x: int = 3\n"),
        ("train", "#!/usr/bin/env python3.14\nwhat(is this)\n"),
        ("train", "#!/usr/bin/env -S uv run --script\n# /// script\n# ///\nimport os\n"),
        ("train", "#!/opt/pypy/bin/pypy3\n1\n"),
        ("both", "#!/bin/sh\n''''exec python3 \"$0\" \"$@\" #'''\nimport os\n"),
        ("utf8", "\ufeff# π\nimport os\n"),
    ],
)
def test_what_some_python_may_run_is_not_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert find_program(name, False, tmp_path).argv == (name,)


def test_a_zip_archive_with_a_main_is_a_program(tmp_path: Path) -> None:
    for name, member in (("app.pyz", "__main__.py"), ("data.zip", "data.csv")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, "import os\0")
    assert find_program("app.pyz", False, tmp_path).file == "app.pyz"
    with pytest.raises(UsageError, match=r"a zip archive without __main__\.py"):
        find_program("data.zip", False, tmp_path)


# --- where it lies


def test_places_where_more_lies_than_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(directory: Path) -> str:
        (directory / "trainer.py").write_text("")
        return find_program("trainer.py", False, directory).place

    home = grow(tmp_path / "people/me", {"project/": "", ".ssh/": "", "deep/.aws/x/": ""})
    monkeypatch.setenv("HOME", str(home))
    assert place(home) == "your home directory"
    assert place(tmp_path / "people") == "a directory of home directories"
    assert place(home / "project") == ""
    assert place(home / ".ssh") == "a directory for SSH keys"
    assert place(home / "deep/.aws/x") == "a directory for keys of AWS"
    everybodys = grow(tmp_path, {"scratch/deep/": "", "wsl/": ""}) / "scratch"
    everybodys.chmod(0o1777)
    assert place(everybodys) == "a directory that everybody may write to"
    assert place(everybodys / "deep") == ""
    (tmp_path / "wsl").chmod(0o777)
    assert place(tmp_path / "wsl") == ""  # where no file system says who may do what


def test_directories_of_the_system() -> None:
    for name, wanted in {
        "/etc": "a directory of the system",
        "/usr/bin": "a directory of the system",
        "/usr/lib/python3": "a directory of the system",
        "/var/tmp": "a directory that everybody may write to",
        "/": "a directory of the system",
        "/usr/local": "a directory of the system",
        pwd.getpwuid(os.getuid()).pw_dir: "your home directory",
    }.items():
        assert not Path(name).is_dir() or place_of(Path(name).resolve()) == wanted, name


# --- what it imports


HOME = {
    "trainer.py": """
        import os, helper, pkg.deep.mod
        from lib import tools, missing
        from lib.more import *
        from ns.part import thing
        import native
        def later():
            import lazy as l
            __import__("dynamic")
            importlib.import_module(".no")
            import_module("plugins.one")
            import_module("../../.ssh/id_test")
        """,
    "helper.py": "from second import x\nimport helper\n",
    "second.py": "import trainer",
    "pkg/__init__.py": "from . import used",
    "pkg/used.py": "from .deep import sibling\nfrom .. import second",
    "pkg/unused.py": "",
    "pkg/deep/__init__.py": "",
    "pkg/deep/mod.py": "from ..up import a\nfrom .sibling import b",
    "pkg/deep/sibling.py": "",
    "pkg/up.py": "",
    "pkg/data.csv": "",
    "lib/__init__.py": "",
    "lib/tools.py": "print 'Python 2'\nimport py2, other.mod as o\nfrom .local import x\n",
    "lib/local.py": "",
    "lib/more/__init__.py": "__all__ = ['alpha', 'beta']",
    "lib/more/alpha.py": "",
    "lib/more/beta.py": "",
    "lib/more/gamma.py": "",
    "py2.py": "",
    "other/mod.py": "",
    "ns/part.py": "",
    "ns/apart.py": "",
    "native.cpython-312-x86_64-linux-gnu.so": "",
    "lazy.py": "",
    "dynamic.py": "",
    "plugins/one.py": "",
    "plugins/two.py": "",
    "unused.py": "",
    ".ssh/id_test.py": "",
    ".ssh/id_test": "",
    "taxes.pdf": "",
}
IMPORTED = {
    "trainer.py", "helper.py", "second.py", "pkg/__init__.py", "pkg/used.py", "pkg/deep/__init__.py",
    "pkg/deep/mod.py", "pkg/deep/sibling.py", "pkg/up.py", "lib/__init__.py", "lib/tools.py", "lib/local.py",
    "lib/more/__init__.py", "lib/more/alpha.py", "lib/more/beta.py", "py2.py", "other/mod.py", "ns/part.py",
    "native.cpython-312-x86_64-linux-gnu.so", "lazy.py", "dynamic.py", "plugins/one.py",
}  # fmt: skip


def test_what_a_program_imports_is_found_in_its_text(tmp_path: Path) -> None:
    home = grow(tmp_path, HOME)
    (home / "trainer.py").write_text(textwrap.dedent(HOME["trainer.py"]))
    found = imported_files(home, "trainer.py")
    assert (found[0], set(found)) == ("trainer.py", IMPORTED)


def test_a_module_brings_the_packages_that_it_is_in(tmp_path: Path) -> None:
    home = grow(tmp_path, HOME)
    program = find_program("pkg.deep.mod", True, home)
    assert program.package == "pkg.deep"
    assert set(imported_files(home, program.file, program.package)) == {
        "pkg/deep/mod.py",
        "pkg/__init__.py",
        "pkg/used.py",
        "pkg/deep/__init__.py",
        "pkg/deep/sibling.py",
        "pkg/up.py",
    }


def test_of_a_home_directory_no_more_is_shipped_than_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = grow(tmp_path, {**HOME, "trainer.py": "import helper, pkg, keys, sub.outside", "data.csv": "1"})
    outside = Path(shutil.move(home / "unused.py", tmp_path.parent / f"{tmp_path.name}-outside.py"))
    (home / "keys.py").symlink_to(outside)
    (home / "sub").symlink_to(tmp_path.parent)
    (home / "second.py").unlink()
    (home / "second.py").symlink_to("pkg/unused.py")
    program = find_program("trainer.py", False, home)
    packed = code_of(program, ship=["data.csv"])
    wanted = {
        "trainer.py",
        "helper.py",
        "second.py",
        "pkg/__init__.py",
        "pkg/used.py",
        "pkg/deep/__init__.py",
    }
    assert files(packed) == {*wanted, "pkg/deep/sibling.py", "data.csv", "keys.py"}
    assert dict(packed.links) == {"keys.py": str(outside)}
    followed = code_of(program, follow_links=True)
    assert files(followed) == {*wanted, "pkg/deep/sibling.py", "keys.py"}
    assert not followed.links
    named = code_of(find_program("trainer.py", False, home, root=home))
    assert {"taxes.pdf", "unused.py"} & files(named) == {"taxes.pdf"}
    assert {secret.path for secret in named.secrets} == {".ssh/"}
