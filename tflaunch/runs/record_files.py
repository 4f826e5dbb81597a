"""Where the records of runs lie on this machine, and how their files are read, written and locked.

    $TFLAUNCH_STATE, else $XDG_STATE_HOME/tflaunch/runs, else ~/.local/state/tflaunch/runs
    └── trainer-k3f9x2/
        ├── run.json         what was started, by which user, and how its hosts are reached
        ├── outcome.json     how the run ended; absent while it runs, and when the launcher was killed
        ├── events.jsonl    what the run told, as --json prints it (documents/kept_events.py)
        ├── samples.jsonl    what its tasks used while it went on (samples.py)
        ├── host-samples.jsonl  the same, of the time without a launcher (host_samples.py)
        ├── slots.json       what gives the slots of an engine back; absent where the run has hosts of its own
        ├── given-up.json    `tflaunch stop` has given up the request for slots; the launcher that waits ends by it
        ├── lock             locked (flock) for as long as the launcher lives, so that no pid need be trusted
        └── logs/worker-0.log   every byte that the task wrote; worker-0.1.log after its first restart

Directories are 0700 and files 0600: a command line or an environment may hold secrets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tflaunch.inputs.ownership import written_by_others
from tflaunch.protocol import ancestry, directories
from tflaunch.protocol.errors import RecordError
from tflaunch.runs.run_ids import RUN_ID

FORMAT = 1  # of run.json
SLOTS = "slots.json"
GIVEN_UP = "given-up.json"
# What Python raises over data that are not as tflaunch writes them: damaged, or of another version.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_ELSEWHERE = "Set TFLAUNCH_STATE= to a directory of your own, which others may not write to."


def state_root() -> Path:
    """Return the directory that holds all records; it need not exist."""
    if chosen := os.environ.get("TFLAUNCH_STATE"):
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification has relative paths ignored.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "tflaunch" / "runs"


def check_root(root: Path) -> bool:
    """Return whether the directory of records is there; raises RecordError where others may put records into it.

    Call this before anything is read or written there: a record says which commands to run, and by which ssh_config.
    Once the directory is there, no other user can put anything in its place.
    """
    try:
        weak = ancestry.weak_place(str(root))
        if weak is not None and _holds_home(Path(weak[0]), root):
            weak = None
        place, info = weak or (str(root), root.stat())
        reason = written_by_others(Path(place), info)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RecordError(f"cannot read the records {root}: {sentence(error)}", _ELSEWHERE) from error
    if weak is not None or reason:
        who = f"{place} {reason}" if reason else f"too many links lead to {place}"
        raise RecordError(f"{who}: others could put records among yours in {root}", _ELSEWHERE)
    return True


def _holds_home(place: Path, root: Path) -> bool:
    """Whether who may write into `place` has the home directory with all that is in it, these records among it."""
    home = Path.home()
    return home.is_relative_to(place) and root.is_relative_to(home)


def make_root(root: Path) -> None:
    """Make the directory of records, for this user alone; raises RecordError."""
    if not check_root(root):
        with writing(root):
            weak = ancestry.weak_place(str(root))
            if weak is not None and _holds_home(Path(weak[0]), root):
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                os.close(directories.make_private(str(root)))
        check_root(root)


def recorded_ids(root: Path) -> list[str]:
    """Return the ids of all runs that have a directory in `root`, sorted; raises RecordError."""
    if not check_root(root):
        return []
    with reading(root):
        try:
            return sorted(name for name in os.listdir(root) if RUN_ID.fullmatch(name))  # noqa: PTH208
        except FileNotFoundError:
            return []


def is_locked(path: Path) -> bool:
    """Return whether a living launcher holds the lock of that record; raises OSError."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_about(path: Path) -> dict[str, Any]:
    """Return run.json of the record at `path`; raises OSError, and ValueError where it is damaged."""
    about = read_object(path / "run.json")
    check_format("run.json", about, FORMAT)
    return about


def check_format(name: str, data: Mapping[str, Any], format: int) -> None:
    """Raise ValueError where the data of that file have another format."""
    if data.get("format") != format:
        raise ValueError(f"{name} has format {data.get('format')!r}, this tflaunch reads {format}")


def read_outcome(path: Path) -> dict[str, Any] | None:
    """Return outcome.json of the record at `path`, None without one; raises OSError, ValueError."""
    try:
        return read_object(path / "outcome.json")
    except FileNotFoundError:
        return None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raises OSError, and ValueError where it holds none."""
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return data


def write_object(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file that is, at every moment, absent, old or complete; raises OSError."""
    text = json.dumps(data) + "\n"  # with an indent, json is many times slower
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `write_object` does; raises OSError."""
    descriptor, building = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        Path(building).replace(path)
    except BaseException:
        Path(building).unlink(missing_ok=True)
        raise


def plain(value: Any) -> Any:
    """Return what JSON can hold: dataclasses and mappings as objects, sequences as arrays."""
    if value is None or isinstance(value, (str, int, float)):  # most, and the rest takes longer to rule out
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def tuples(value: Any) -> Any:
    """Return what `plain` made, with lists as tuples again, as the dataclasses have them."""
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write the record at `path` inside: an OSError there becomes a RecordError."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write the record {path}: {sentence(error)}",
            "Set TFLAUNCH_STATE= to a directory on a disk that you can write to.",
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read the record at `path` inside: an OSError, or what damaged data raises, becomes a RecordError."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot read the record {path}: {sentence(error)}",
            "Give the hostfile too, then the record is not needed.",
        ) from error
    except DAMAGE as error:
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise RecordError(
            f"cannot read the record {path}: {what}",
            "It is damaged, or of another version of tflaunch. Give the hostfile too, then it is not needed.",
        ) from error


def sentence(error: OSError) -> str:
    """Return what the system says of that error, without its number and path."""
    return os.strerror(error.errno) if error.errno else str(error)
