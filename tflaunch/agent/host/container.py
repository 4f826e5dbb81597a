"""Tasks in containers of podman or docker: the command that runs one, its processes, and its removal after the run.

A container separates only the files.  It shares network, IPC and user with the host.  So a task in it can join the port
that the agent holds for it (the kernel lets only one user share a port), the task's files belong to the user, and the
agent finds and kills the task like any other process of the run.
"""

import os
import time

from tflaunch.agent.host import processes
from tflaunch.agent.host.rundir import CONTAINERS, HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from tflaunch.agent.host.rundir import RunDirectory

ENGINES = ("podman", "docker")
ANSWER_S = 30.0  # how long the engine may take to answer
REMOVAL_S = 60.0
# Before each try: podman refuses for a moment to remove a container whose processes have just been killed.
REMOVAL_PAUSES_S = (0.0, 0.5, 1.0, 2.0)
LINES = 8


def find(wanted: str) -> "Dict[str, Any]":
    """This host's engine: {path, kind, user, userns}.  Raises HostError when no engine works.

    `kind` is podman or docker, `user` and `userns` are the options by which a container runs as this user.
    """
    import shutil

    names = (wanted,) if wanted else ENGINES
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise HostError(
            "no %s on this host" % " and no ".join(names),
            "install podman there, or leave the container out for this host",
        )
    kind = "podman" if "podman" in _ask(path, "--version") else "docker"  # `docker` may be podman's own
    me = "%d:%d" % (os.getuid(), os.getgid())
    if kind == "podman":
        rootless = _ask(path, "info", "--format", "{{.Host.Security.Rootless}}") == "true"
        return {"path": path, "kind": kind, "user": me, "userns": "keep-id" if rootless else ""}
    security = _ask(path, "info", "--format", "{{.SecurityOptions}}")
    rootless = "name=rootless" in security  # there uid 0 is the user, and every other uid another user
    userns = "host" if "name=userns" in security else ""
    return {"path": path, "kind": kind, "user": "0:0" if rootless else me, "userns": userns}


def _ask(*words: str) -> str:
    import subprocess  # here and below: every guard imports this module, few hosts have containers

    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HostError("%s does not answer" % " ".join(words[:2])) from None
    except OSError as error:
        raise HostError("%s does not start: %s" % (words[0], error)) from error
    if done.returncode:
        raise HostError(
            "%s %s: %s" % (os.path.basename(words[0]), words[1], _last(done.stderr)),
            "try it there: %s info" % os.path.basename(words[0]),
        )
    return done.stdout.decode("utf-8", "replace").strip()


def _last(said: bytes) -> str:
    return "\n".join(said.decode("utf-8", "replace").strip().splitlines()[-LINES:])


def pull(engine: "Dict[str, Any]", image: str, log: str) -> bool:
    """Fetch the image if it is not here; returns whether it was fetched.  Raises HostError.

    What the engine says is appended to the file `log`.
    """
    try:
        _ask(engine["path"], "image", "inspect", "--format", "{{.Id}}", image)
        return False
    except HostError:
        pass
    import subprocess

    with open(log, "ab+") as said:
        begin = said.tell()
        words = [engine["path"], "pull", image]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        try:
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        said.seek(begin)
        failed = _last(said.read()) if process.returncode else ""
    if process.returncode:
        raise HostError(
            "the image %s cannot be fetched:\n%s" % (image, failed),
            "try it there: %s pull %s" % (os.path.basename(engine["path"]), image),
        )
    return True


def command(
    directory: "RunDirectory", request: "Dict[str, Any]", attempt: int, cwd: str, script: str
) -> "List[str]":
    """The command that runs `script` in a container; append the words of the task's program to it.

    The script sets the task's variables; the command does not contain them.  Raises HostError.
    """
    from tflaunch.agent.host import python_site

    engine = directory.read(CONTAINERS)
    wanted = request["container"]
    name = "tflaunch-%s-%s-%s" % (directory.run, directory.host, request["id"].replace("/", "-"))
    words = [
        engine["path"],
        "run",
        "--rm",
        "--interactive",  # its input is the gate
        "--init",  # a program that is process 1 would not get SIGTERM
        "--network=host",
        # NCCL shares memory between the processes of a host; rootless podman needs /dev/mqueue for that.
        "--ipc=host" if os.path.isdir("/dev/mqueue") else "--volume=/dev/shm:/dev/shm",
        "--pull=never",
        "--log-driver=none",
        "--security-opt=label=disable",
        "--name=%s%s" % (name, "-%d" % attempt if attempt else ""),
        "--user=%s" % engine["user"],
        "--workdir=%s" % cwd,
        "--entrypoint=/bin/sh",
    ]
    # podman's are children of this process, which binds them; a rootless podman may not name CPUs.
    if request.get("cpus") and engine["kind"] == "docker":
        words.append("--cpuset-cpus=%s" % request["cpus"])
    if request.get("numactl"):
        words.append("--cap-add=SYS_NICE")  # docker and older podmans forbid memory policies without it
    if engine["userns"]:
        words.append("--userns=%s" % engine["userns"])
    marks = {
        processes.RUN_MARK: directory.run,
        processes.HOST_MARK: directory.host,
        processes.TASK_MARK: request["id"],
    }
    for variable, value in marks.items():  # process 1 carries them, too
        words.append("--env=%s=%s" % (variable, value))
        words.append("--label=%s=%s" % (_label(variable), value))
    # A working directory of a trial's own holds links to the code.
    linked = [directory.work] if cwd.startswith(directory.own + "/") else []
    site = python_site.site(directory.path) if request.get("stacks", True) else ""
    fixed = ["%s:%s:ro" % (place, place) for place in (script, *([site] if os.path.isdir(site) else []))]
    for place in (cwd, *linked, *fixed, *wanted["mounts"]):
        source, _, rest = place.partition(":")
        source = os.path.expanduser(source)
        words.append("--volume=%s:%s" % (source, os.path.expanduser(rest) if rest else source))
    words += _gpus(engine["kind"], request["gpus"])
    # A login bash where the image has one, as on a host.
    start = 'test -x /bin/bash && exec /bin/bash -l "$0" "$@"; exec /bin/sh "$0" "$@"'
    return [*words, wanted["image"], "-c", start if request["setup"] else 'exec /bin/sh "$0" "$@"', script]


def _label(variable: str) -> str:
    return variable.lower().replace("_", ".")


def _gpus(kind: str, uuids: "List[str]") -> "List[str]":
    if kind == "podman":
        return ["--device=nvidia.com/gpu=%s" % uuid for uuid in uuids]
    # Quoted, for docker reads a list of values.
    return ['--gpus="device=%s"' % ",".join(uuids)] if uuids else []


def inside(run: str, host: str, task: str) -> "List[processes.Process]":
    """The processes in the container of a task, process 1 first; the engine's own are left out."""
    ours = _pid_namespace("self")
    found = processes.marked(processes.every().values(), run, host, task)
    within = [each for each in found if _pid_namespace(str(each.pid)) not in ("", ours)]
    return sorted(within, key=lambda each: (each.start, each.pid))


def _pid_namespace(pid: str) -> str:
    try:
        return os.readlink("/proc/%s/ns/pid" % pid)
    except OSError:
        return ""


def remove(directory: "RunDirectory") -> "List[str]":
    """Kill and remove every container of this run on this host; returns what is left, described for the user."""
    record = directory.read(CONTAINERS)
    engine, kind = record.get("path"), record.get("kind")
    if not engine:
        return []
    import subprocess

    filters = ["label=%s=%s" % (_label(processes.RUN_MARK), directory.run)]
    filters += ["label=%s=%s" % (_label(processes.HOST_MARK), directory.host)]
    listing = [engine, "ps", "--all", "--quiet", *("--filter=" + each for each in filters)]
    try:
        found = _ask(*listing).split()
        for pause_s in REMOVAL_PAUSES_S:
            if not found:
                break
            time.sleep(pause_s)
            subprocess.run(
                [engine, "rm", "--force", *([] if kind == "docker" else ["--time=0"]), *found],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                timeout=REMOVAL_S,
                check=False,
            )
            found = _ask(*listing).split()
        return ["container %s" % each for each in found]
    except subprocess.TimeoutExpired:
        return ["a container: %s rm does not end" % engine]
    except (OSError, HostError) as error:
        return ["perhaps a container: %s" % error]


def remove_all(directory: "RunDirectory") -> None:
    """Call `remove` in a process of its own, which ends with 0 only where nothing is left; `left` says what is."""
    left = remove(directory)
    if left:
        directory.write(CONTAINERS, {**directory.read(CONTAINERS), "left": left})
        raise SystemExit


def left(directory: "RunDirectory") -> "List[str]":
    """What `remove_all` has left where it did not end with 0, or did not end: the engine may still be removing it."""
    return list(
        directory.read(CONTAINERS).get("left") or ["perhaps a container: its removal was not finished"]
    )
