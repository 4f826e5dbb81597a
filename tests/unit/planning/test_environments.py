"""What is read of requirements on the launcher's machine."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tflaunch.agent.tasks import environment
from tflaunch.hosts import Host as Entry
from tflaunch.planning import environments
from tflaunch.planning.environments import behind, read, to_prepare
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import JobSpec


def test_included_files_go_along_and_comments_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    top = tmp_path / "requirements.txt"
    top.write_text(
        "# all\ntensorflow==2.18 \\\n   ; python_version > '3'  # why\n-r sub/more.txt\n--hash-less\n"
    )
    (tmp_path / "sub" / "more.txt").write_text("--requirement=../requirements.txt\n-cpins.txt\nnumpy\n")
    (tmp_path / "sub" / "pins.txt").write_text("numpy<3\n")
    found = read(top)
    assert found.files == {
        "requirements.txt": "tensorflow==2.18    ; python_version > '3'\n-r 1-more.txt\n--hash-less\n",
        "1-more.txt": "--requirement requirements.txt\n-c 2-pins.txt\nnumpy\n",
        "2-pins.txt": "numpy<3\n",
    }
    before = found.digest
    top.write_text(top.read_text().replace("# all", "# everything"))
    assert read(top).digest == before
    (tmp_path / "sub" / "pins.txt").write_text("numpy<2\n")
    assert read(top).digest != before
    json.dumps(to_prepare(Entry("here"), JobSpec((), requirements=found), []))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n-e ../mine\n", ":2: ../mine is on this machine"),
        ("--editable=.\n", ":1: . is on this machine"),
        ("./mine.whl\n", ":1: ./mine.whl is on this machine"),
        ("wheels/mine-1-py3-none-any.whl\n", "is on this machine"),
        ("mine @ file:../mine\n", "is on this machine"),
        ("--find-links wheels\n", ":1: wheels is on this machine"),
        ("-r nowhere.txt\n", ":1: -r nowhere.txt: there is no such file"),
    ],
)
def test_what_only_this_machine_has_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(UsageError) as raised:
        read(tmp_path / "r.txt")
    assert said in raised.value.message


@pytest.mark.parametrize(
    "line",
    ["-e git+https://x.org/a.git#egg=a", "a @ https://x.org/a.whl", "https://x.org/a.whl", "/nfs/a-1.whl", "-f /nfs/w",
     "--extra-index-url https://x.org/simple", "a[b]>=1,<2", "a @ file:///nfs/a.whl"],
)  # fmt: skip
def test_what_hosts_may_have_is_left_as_it_is(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line + "\n")
    assert read(tmp_path / "r.txt").files == {"r.txt": line + "\n"}


LOCK = """
[[package]]
name = "mine"
source = { virtual = "." }

[package.metadata]
requires-dist = [
    { name = "tiny", marker = "extra == 'more'" },
    { name = "some-thing", extras = ["x"], specifier = ">=4,<4.9" },
]

[[package]]
name = "some-thing"
version = "4.8"
source = { registry = "https://pypi.org/simple" }
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python cannot read TOML")
@pytest.mark.parametrize(
    ("dependencies", "asks"),
    [
        ("[\"Some_Thing[x] <4.9, >= 4 ; python_version > '3'\"]", ""),
        ('["some-thing[x]>=4,<4.12"]', "asks for some-thing<4.12,>=4: the hosts"),
        ('["some-thing[x]>=4,<4.9", "numpy"]', "asks for numpy: the hosts"),
        ("[]", "asks for no some-thing: the hosts"),
        ('["numpy", "pandas"]', "asks for numpy, and 2 more: the hosts"),
        ("[3]", ""),
    ],
)
def test_a_lock_that_is_older_than_its_project(tmp_path: Path, dependencies: str, asks: str) -> None:
    (tmp_path / "uv.lock").write_text(LOCK)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "mine"\ndependencies = {dependencies}\n')
    said = behind(read(tmp_path / "pyproject.toml"))
    assert said.startswith("uv.lock is older than pyproject.toml") == bool(asks)
    assert asks in said


def test_projects_with_local_parts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.uv.sources]\nmine = { path = "../mine" }\n')
    with pytest.raises(UsageError, match=r"pyproject.toml:2: \.\./mine is on this machine"):
        read(tmp_path / "pyproject.toml")
    sources = ['virtual = "."', 'editable = "../m"']
    (tmp_path / "uv.lock").write_text("".join(f"[[package]]\nsource = {{ {each} }}\n" for each in sources))
    with pytest.raises(UsageError, match=r"uv.lock:4: \.\./m is on this machine"):
        read(tmp_path / "uv.lock")
    with pytest.raises(UsageError, match="there is no such file"):
        read(tmp_path / "none.txt")


def test_setup_of_a_host_is_its_own_first() -> None:
    from tflaunch.hosts import Host as HostOfFile

    assert environments.setup(HostOfFile(name="a", setup=("one",))) == ("one",)
    first, conda, venv = environments.setup(
        HostOfFile(name="a", setup=("one",), venv="~/my venv", conda="tf")
    )
    assert first == "one"
    assert conda.endswith("tflaunch_conda tf")
    assert venv.endswith(". \"$HOME\"'/my venv'/bin/activate")
    assert environment.activation("/a b").startswith("export VIRTUAL_ENV='/a b';")


def test_the_names_of_the_files_do_not_count(tmp_path: Path) -> None:
    def digest(top: str, included: str, text: str = "tensorflow==2.21.0") -> str:
        there = Path(tempfile.mkdtemp(dir=tmp_path))
        (there / included).write_text(f"{text}\n")
        (there / top).write_text(f"numpy\n-r {included}\n")
        return read(there / top).digest

    one = digest("requirements.txt", "base.txt")
    assert digest("gpu.txt", "other.txt") == one
    assert digest("requirements.txt", "base.txt", "tensorflow==2.20.0") != one
    (tmp_path / "flat.txt").write_text("numpy\ntensorflow==2.21.0\n")
    assert read(tmp_path / "flat.txt").digest != one
