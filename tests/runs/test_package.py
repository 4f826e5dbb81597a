"""What a package index would get: built, checked, installed from the wheel into a fresh environment, and run there."""

from __future__ import annotations

import email
import email.message
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import tflaunch
from tests.support import ROOT
from tests.support.agent_over_pipes import interpreters
from tests.support.launcher import Launcher

NAME = f"tflaunch-{tflaunch.__version__}"
VERSIONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
PYTHONS = interpreters()  # a test has another HOME, where none would be found
CACHE = Path.home() / ".cache" / "uv"
# What is in the repository and not for those who build or read tflaunch.
NOT_SHIPPED = (".ci/",)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel, which is built from the sdist."""
    missing = [name for name in ("build", "hatchling") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {' nor '.join(missing)} here: pip install -e '.[test]'")
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in directory.iterdir()} == {f"{NAME}.tar.gz", f"{NAME}-py3-none-any.whl"}
    return directory


def in_sdist(built: Path) -> set[str]:
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        return {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}


def in_wheel(built: Path) -> set[str]:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as archive:
        return set(archive.namelist())


def metadata(built: Path) -> email.message.Message:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as archive:
        return email.message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))


def of_repository(*which: str) -> set[str]:
    """The files of the repository that are here; which: --cached, --others."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository: an unpacked sdist")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *which, "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {name for name in listed.stdout.split("\0") if name and not name.startswith(NOT_SHIPPED)}
    return {name for name in names if (ROOT / name).is_file()}


def test_the_sdist_has_all_that_the_repository_has_and_nothing_else(built: Path) -> None:
    shipped = in_sdist(built) - {"PKG-INFO"}
    assert of_repository("--cached") <= shipped
    assert shipped <= of_repository("--cached", "--others")  # nothing that git ignores


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    package = {name for name in in_sdist(built) if name.startswith(("tflaunch/", "tflaunch_task/"))}
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    man = f"{NAME}.data/data/share/man/man1/tflaunch.1"
    assert in_wheel(built) == package | {man} | {f"{NAME}.dist-info/{name}" for name in about}
    assert package > {"tflaunch/py.typed", "tflaunch_task/py.typed"}


def test_the_metadata_are_what_an_index_takes_and_shows(built: Path) -> None:
    pytest.importorskip("twine", reason="no twine here: pip install -e '.[test]'")
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *sorted(built.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("PASSED") == 2
    said = metadata(built)
    assert said["Version"] == tflaunch.__version__
    assert said["License-Expression"] == "MIT"
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    assert "tensorflow" in said["Keywords"].split(",")


def test_the_long_description_renders_and_leads_nowhere_that_is_not_there(built: Path) -> None:
    markdown = pytest.importorskip("readme_renderer.markdown", reason="pip install -e '.[test]'")
    text = metadata(built).get_payload()
    assert isinstance(text, str)
    page = markdown.render(text)
    assert page is not None, "no renderer of Markdown"
    assert "tflaunch<" in page.partition("</h1>")[0]
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    own = "#user-content-"  # what the renderer gives each heading
    assert [each for each in links if not each.startswith(("https://", own))] == []


@pytest.mark.parametrize(
    ("readme", "shown"),
    [
        ("see [the docs](docs/a.md#b), [here](#there)", "see the docs, here"),
        ("[TF](https://tensorflow.org) and ![a run](docs/run.svg) x", "[TF](https://tensorflow.org) and  x"),
        ("![badge](https://x.org/b.svg)", "![badge](https://x.org/b.svg)"),
        ('<picture>\n<source srcset="d.svg">\n<img alt="a" src="l.svg">\n</picture>\n\n# A', "# A"),
        ('<img src="a.svg">b<img src="https://x.org/c.svg">', 'b<img src="https://x.org/c.svg">'),
        ('<a href="docs/">d</a> <a href="https://x.org">e</a>', 'd <a href="https://x.org">e</a>'),
    ],
)
def test_what_leads_into_the_repository_is_left_out(readme: str, shown: str) -> None:
    pytest.importorskip("hatchling", reason="pip install -e '.[test]'")
    from hatch_build import long_description

    assert long_description(readme) == shown


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; what it depends on comes from the environment of the tests, not the net."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("no pip here to install a wheel with")
    directory = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    wheel = built / f"{NAME}-py3-none-any.whl"
    words = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, *words, wheel],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [packages] = directory.glob("lib/python3*/site-packages")
    # A path in such a file is searched after the environment's own packages, and its own such files are not read:
    # tflaunch of this repository, which the tests have as an editable install, is not found.
    (packages / "of-the-tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def test_the_wheel_installs_and_runs_a_cluster(installed: Path, launcher: Launcher) -> None:
    env = {**launcher.env(), "PYTHONSAFEPATH": "1"}
    env.pop("PYTHONPATH", None)

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=launcher.code, env=env, capture_output=True, text=True, check=False, timeout=300
        )

    where = run(installed / "bin" / "python", "-c", "import tflaunch; print(tflaunch.__file__)").stdout
    assert where.startswith(str(installed))
    command = installed / "bin" / "tflaunch"
    assert run(command, "--version").stdout.startswith(f"tflaunch {tflaunch.__version__}, Python 3.")
    assert run(command, "run", "--help").stdout.startswith("Usage: tflaunch run [HOSTS] TRAINER.py")
    assert '"proxy_jump"' in run(command, "schema").stdout
    assert (installed / "share/man/man1/tflaunch.1").read_text() == (ROOT / "docs/tflaunch.1").read_text()

    script = launcher.script("import os\nprint('it is', os.environ['TFLAUNCH_TASK'])\n")
    done = run(command, "run", launcher.local(2), script, "--ps=0", "--workers=2", "--name=wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    for task in ("worker/0", "worker/1"):
        assert f"it is {task}" in done.stdout
    assert run(command, "logs", "wheel", "worker/1").stdout == "it is worker/1\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_python_that_the_metadata_name_installs_and_runs_it(
    version: str, built: Path, launcher: Launcher, tmp_path: Path
) -> None:
    uv = pytest.importorskip("uv", reason="pip install -e '.[test]'").find_uv_bin()
    place = tmp_path / "venv"
    python = place / "bin" / "python"
    found = [each for each in PYTHONS if f"python{version}" in os.path.realpath(each)]
    if not found:
        pytest.skip(f"no Python {version} here")
    env = {**launcher.env(), "UV_CACHE_DIR": str(CACHE)}
    env.pop("PYTHONPATH", None)

    def did(*words: str | Path) -> str:
        done = subprocess.run(
            words, cwd=launcher.code, env=env, capture_output=True, text=True, check=False, timeout=300
        )
        if words[0] == uv and "error sending request" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    did(uv, "venv", "--quiet", "--python", found[-1], place)
    words = ("install", "--quiet", "--constraint", ROOT / "constraints.txt", "--python", python)
    did(uv, "pip", *words, built / f"{NAME}-py3-none-any.whl")
    script = launcher.script("print('it runs')\n")
    command = place / "bin" / "tflaunch"
    assert f"Python {version}." in did(command, "--version")
    assert "it runs" in did(command, "run", launcher.local(1), script, "--ps=0", "--workers=1")


def test_what_is_installed_needs_no_compiler_and_no_root(built: Path) -> None:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as archive:
        wheel = archive.read(f"{NAME}.dist-info/WHEEL").decode()
        modes = {name.external_attr >> 16 & 0o7022 for name in archive.infolist()}
    assert "Root-Is-Purelib: true" in wheel
    assert modes == {0}, "setuid, or writable for others"
