"""Virtual environments on this host: one for each Python and content of a requirements file, made once and kept.

    <parent>/.environments/<digest>/            the environment
    <parent>/.environments/<digest>/made.json   what it was made from; it is there once the environment is complete
    <parent>/.environments/<digest>.lock        exclusive lock while an agent makes it, shared lock while agents use it

An environment is made where it stays, since its programs contain their own path.  Without made.json it is incomplete,
and the next run that wants it makes it again.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time

from tflaunch.agent.host.rundir import ENVIRONMENTS, HostError, explain, inner
from tflaunch.agent.tasks import shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

MADE = "made.json"
PIP_FROM_OUTSIDE = [22, 3]  # pip installs into environments that have no pip since this version
LINES = 12  # of the installer's output that the user sees when it fails
_MARK = b"\0tflaunch-environment\0"

# Prints what makes environments differ, and whether this Python itself belongs to a virtual environment.
IDENTITY = """\
import importlib.util, json, os, sys, sysconfig
def version(name):
    try:
        from importlib.metadata import version
        return [int(part) for part in version(name).split(".")[:2]]
    except Exception:
        return []
base = getattr(sys, "base_prefix", sys.prefix)
print(json.dumps({
    "identity": [sys.version, sysconfig.get_config_var("SOABI"), sysconfig.get_platform(),
                 os.path.realpath(sys.executable), sys.prefix],
    "inner": sys.prefix != base,
    "packages": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
    "pip": version("pip"),
    "ensurepip": importlib.util.find_spec("ensurepip") is not None,
}))
"""


def directory_of(parent: str) -> str:
    """The directory of all environments."""
    return os.path.join(parent, ENVIRONMENTS)


def activation(path: str) -> str:
    """The line of shell that activates an environment."""
    import shlex

    # `activate` of venv and of uv differ, and define more than this, which both do.
    return 'export VIRTUAL_ENV=%s; export PATH="$VIRTUAL_ENV/bin:$PATH"; unset PYTHONHOME' % shlex.quote(path)


def hold(path: str, wait: bool = True) -> "Optional[int]":
    """A descriptor that keeps the environment from being removed; None when it is not there, or incomplete.

    Without `wait`, raises BlockingIOError when another process makes or removes it just now.
    """
    lock = _lock(path, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
    try:
        os.utime(os.path.join(path, MADE))  # used just now
    except OSError:
        os.close(lock)
        return None
    return lock


def unused(path: str, for_s: float) -> "Optional[int]":
    """Lock an environment that no run has used for `for_s`, or that is incomplete; None for any other."""
    try:
        lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    try:
        if time.time() - os.stat(os.path.join(path, MADE)).st_mtime >= for_s:
            return lock
    except OSError:
        return lock
    os.close(lock)
    return None


def _lock(path: str, how: int) -> int:
    """The lock on an environment; with LOCK_NB raises BlockingIOError when another process has it."""
    name = path + ".lock"
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
        except OSError as error:
            if error.errno not in (
                errno.ENOLCK,
                errno.EOPNOTSUPP,
                errno.ENOSYS,
            ):  # else the disk has no locks
                os.close(descriptor)
                raise
        try:
            if _same(descriptor, name):
                return descriptor
        except OSError:
            pass
        os.close(descriptor)  # it was removed while we waited


def _same(descriptor: int, name: str) -> bool:
    ours, there = os.fstat(descriptor), os.stat(name)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


class Maker:
    """Makes the environment that a message `prepare` wants, in a process that may be stopped at any moment."""

    def __init__(self, parent: str, scratch: str, wanted: "Dict[str, Any]") -> None:
        """`scratch` is a directory of this run's own."""
        self._parent = parent
        self._scratch = scratch
        self._requirements = wanted["requirements"]
        self._env = wanted["env"]
        self._setup = wanted["setup"]
        self._python = wanted["python"]
        self._launchers_uv = wanted.get("uv") or ""
        self._log = os.path.join(scratch, "environment.log")

    def make(self) -> "Dict[str, Any]":
        """{path, made}: where the environment is, and whether this call made it.  Raises HostError, SystemExit."""
        try:
            inner(self._scratch)
            inner(directory_of(self._parent))
            env = self._environment()
            python = shutil.which(os.path.expanduser(self._python), path=env.get("PATH"))
            if python is None:
                raise HostError(
                    "no program %s on this host" % self._python, "name the interpreter there by `python:`"
                )
            about = self._ask(python, env)
            path = os.path.join(directory_of(self._parent), self._digest(about))
            held = hold(path)
            if held is None:
                held = _lock(path, fcntl.LOCK_EX)
                if not os.path.exists(os.path.join(path, MADE)):
                    self._make(path, python, about, env)
                    return {"path": path, "made": True}
            return {"path": path, "made": False}
        except OSError as error:
            raise explain(error, self._scratch) from error

    def _environment(self) -> "Dict[str, str]":
        """The variables that a task has after the profile and its setup; raises HostError."""
        path = os.path.join(self._scratch, "environment.setup")
        shell.write(
            path, self._env, self._setup, "", "printf '\\000tflaunch-environment\\000'\nexec env -0\n"
        )
        with open(self._log, "ab") as log:
            done = subprocess.run(
                shell.login(path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._env},
                start_new_session=True,
                check=False,
            )
        _, mark, text = done.stdout.partition(_MARK)  # a login profile may print before it
        if not mark:
            raise HostError(
                self._said() or "setup failed", "correct `setup:`, `conda:` or `venv:` in the hostfile"
            )
        pairs = (os.fsdecode(each).partition("=") for each in text.split(b"\0") if each)
        return {name: value for name, _, value in pairs}

    def _ask(self, python: str, env: "Dict[str, str]") -> "Dict[str, Any]":
        done = subprocess.run(
            [python, "-I", "-c", IDENTITY],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            check=False,
        )
        try:
            about = json.loads(done.stdout)  # type: Dict[str, Any]
        except ValueError:
            said = done.stdout.decode("utf-8", "replace").strip()[-300:]
            raise HostError("%s does not run: %s" % (python, said)) from None
        return about

    def _digest(self, about: "Dict[str, Any]") -> str:
        wanted = [self._requirements["digest"], self._requirements["system_site"], about["identity"]]
        return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:20]

    def _make(self, path: str, python: str, about: "Dict[str, Any]", env: "Dict[str, str]") -> None:
        """Make the environment completely or not at all."""
        set_aside_and_remove(path)  # remove what a killed agent has left
        try:
            self._install(path, python, about, env)
            with open(os.path.join(path, MADE + ".new"), "w") as file:
                json.dump({"of": self._requirements["name"], "python": about["identity"]}, file)
            os.rename(os.path.join(path, MADE + ".new"), os.path.join(path, MADE))
        except BaseException:
            set_aside_and_remove(path)
            os.unlink(path + ".lock")
            raise

    def _install(self, path: str, python: str, about: "Dict[str, Any]", env: "Dict[str, str]") -> None:
        source = os.path.join(self._scratch, "requirements")
        inner(source)
        for name, text in self._requirements["files"].items():
            with open(os.path.join(source, name), "w", encoding="utf-8") as file:
                file.write(text)
        name, system = self._requirements["name"], self._requirements["system_site"]
        inside = os.path.join(path, "bin", "python")
        from_outside = about["pip"] >= PIP_FROM_OUTSIDE
        by_pip = self._requirements["kind"] == "pip" and (from_outside or about["ensurepip"])
        uv = "" if by_pip else self._uv(python, env)
        make = [uv, "venv", "--quiet", "--python", python] if uv else [python, "-I", "-m", "venv"]
        make += (
            ["--without-pip"] if by_pip and from_outside else []
        )  # installing pip would take longer than everything else
        make += ["--system-site-packages"] if system else []
        self._run([*make, path], env, source)
        if system and about["inner"]:
            # venv passes on only the packages of the base Python, not those of the environment that `python` is in.
            for found in _site_packages(path):
                with open(os.path.join(found, "tflaunch-inherited.pth"), "w") as file:
                    # By addsitedir, not as bare paths: these directories may contain .pth files.
                    for each in dict.fromkeys(about["packages"]):
                        file.write("import site; site.addsitedir(%a)\n" % each)
        if by_pip:
            pip = [python, "-m", "pip", "--python", inside] if from_outside else [inside, "-m", "pip"]
            words = [
                "--disable-pip-version-check",
                "--no-input",
                "install",
                "--progress-bar",
                "off",
                "-r",
                name,
            ]
            self._run([*pip, *words], env, source)
        elif self._requirements["kind"] == "lock":
            env = {**env, "UV_PROJECT_ENVIRONMENT": path, "UV_PYTHON_DOWNLOADS": "never"}
            words = ["--frozen", "--no-install-project", "--no-default-groups", "--no-progress"]
            self._run([uv, "sync", *words, "--python", inside], env, source)
        else:
            self._run([uv, "pip", "install", "--no-progress", "--python", inside, "-r", name], env, source)

    def _uv(self, python: str, env: "Dict[str, str]") -> str:
        uv = shutil.which("uv", path=env.get("PATH", "") + os.pathsep + os.path.expanduser("~/.local/bin"))
        uv = uv or shutil.which(self._launchers_uv)
        if uv is not None:
            return uv
        name, hint = self._requirements["name"], "install uv there (docs.astral.sh/uv; or: pipx install uv)"
        if self._requirements["kind"] == "pip":
            name, hint = "%s without pip and ensurepip" % python, hint + ", or what Debian calls python3-venv"
        raise HostError("%s needs uv, and there is no uv on this host" % name, hint)

    def _run(self, words: "List[str]", env: "Dict[str, str]", directory: str) -> None:
        """Run that program with its output in the log; it ends with this process.  HostError has its last lines."""
        env = {name: value for name, value in env.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
        with open(self._log, "ab") as log:
            size = log.tell()
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=directory,
                start_new_session=True,
            )
            try:
                code = process.wait()
            except BaseException:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                raise
        if code:
            raise HostError(
                "%s:\n%s"
                % (self._requirements["name"], self._said(size) or "%s ended with %d" % (words[0], code)),
                "correct %s; the host needs a way to its package index (`env:` for PIP_INDEX_URL, UV_INDEX_URL "
                "or a proxy)" % self._requirements["name"],
            )

    def _said(self, since: int = 0) -> str:
        try:
            with open(self._log, "rb") as log:
                log.seek(since)
                return "\n".join(log.read().decode("utf-8", "replace").strip().splitlines()[-LINES:])
        except OSError:
            return ""


def _site_packages(path: str) -> "List[str]":
    library = os.path.join(path, "lib")
    found = [os.path.join(library, name, "site-packages") for name in os.listdir(library)]
    return [each for each in found if os.path.isdir(each)]


def set_aside_and_remove(path: str) -> None:
    """Rename the environment at once, then remove it; `tflaunch clean` removes what cannot be removed now."""
    from tflaunch.protocol import removal

    if os.path.lexists(path):
        removal.free(removal.set_aside(path))
