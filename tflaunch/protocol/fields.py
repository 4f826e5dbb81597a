"""Checks JSON that comes from elsewhere: whether each field has the type and the range that it must have.

A spec describes a value.  A dict describes a record by its fields (`?name`: a field that may be missing), [X] a list of
X, (X, Y) a list of exactly an X and a Y, Each(K, X) an object with keys K and values X, OneOf alternatives; a function
describes the values for which it returns True.  The characters of a text are not checked: it may hold control
characters and lone surrogates, and is made safe where it is shown.
"""

from tflaunch.gpu_probe import MODULE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping

WORD, TEXT, PATH, NAME = 1024, 64 * 1024, 16 * 1024, 255  # characters
ARGUMENT = 128 * 1024  # of a word of a command line, as Linux has it
WHOLE = 2**63
NUMBER = 1e15  # seconds, bytes, degrees: no real one is larger
ATTEMPTS = 10**6
_DIGITS = frozenset("0123456789")
_JOB = _DIGITS.union("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_HEX = _DIGITS.union("abcdefABCDEF")
_ADDRESS = _HEX.union(".:")


class Each:
    """Describes an object: every key fits `key`, every value fits `value`."""

    def __init__(self, key: "Callable[[Any], bool]", value: "Any") -> None:
        self.key = key
        self.value = value


class OneOf:
    """Describes a value that fits one of `specs`."""

    def __init__(self, *specs: "Any") -> None:
        self.specs = specs


class RuledRecord:
    """Describes a record for which `rule` is true, too; the message about any other says that it is not `words`."""

    def __init__(self, fields: "Mapping[str, Any]", rule: "Callable[[Any], bool]", words: str) -> None:
        self.fields = fields
        self.rule = rule
        self.words = words


def a_flag(value: "Any") -> bool:
    return value is True or value is False


def a_text(value: "Any") -> bool:
    return isinstance(value, str) and len(value) <= TEXT


def an_argument(value: "Any") -> bool:
    """A word of a command line, or the value of a variable."""
    return isinstance(value, str) and len(value) <= ARGUMENT


def a_word(value: "Any") -> bool:
    return isinstance(value, str) and len(value) <= WORD


def a_path(value: "Any") -> bool:
    return isinstance(value, str) and len(value) <= PATH and "\0" not in value


def a_directory_name(value: "Any") -> bool:
    """A name that is safe as that of a directory; the id of a run is one."""
    if not (isinstance(value, str) and 0 < len(value) <= NAME):
        return False
    return value not in (".", "..") and "/" not in value and "\0" not in value


def a_task(value: "Any") -> bool:
    """`worker/3`."""
    if not isinstance(value, str):
        return False
    job, _, index = value.partition("/")
    fits = 0 < len(job) <= 63 and 0 < len(index) <= 7 and job[0] not in "0123456789_"
    return fits and _JOB.issuperset(job) and _DIGITS.issuperset(index) and index == str(int(index))


def a_whole_number(value: "Any") -> bool:
    return isinstance(value, int) and not a_flag(value) and 0 <= value < WHOLE


def an_integer(value: "Any") -> bool:
    return isinstance(value, int) and not a_flag(value) and -WHOLE <= value < WHOLE


def an_event_number(value: "Any") -> bool:
    return a_whole_number(value) and bool(value)


def an_attempt(value: "Any") -> bool:
    return isinstance(value, int) and not a_flag(value) and 0 <= value < ATTEMPTS


def a_number(value: "Any") -> bool:
    return (
        isinstance(value, (int, float)) and not a_flag(value) and bool(-NUMBER < value < NUMBER)
    )  # NaN compares as False


def a_time(value: "Any") -> bool:
    """A duration, or a point in time, in seconds."""
    return a_number(value) and bool(value >= 0)


def a_gpu_number(value: "Any") -> bool:
    """The index of a GPU, as the key of an object."""
    return 0 < len(value) < 6 and _DIGITS.issuperset(value)


def a_port(value: "Any") -> bool:
    return type(value) is int and 0 < value < 65536  # a host tells of many: no second call


def an_exit_code(value: "Any") -> bool:
    return isinstance(value, int) and not a_flag(value) and 0 <= value < 256


def a_signal(value: "Any") -> bool:
    return isinstance(value, int) and not a_flag(value) and 0 < value < 128


def an_address(value: "Any") -> bool:
    """An IP address, as inet_ntop writes it."""
    return isinstance(value, str) and 0 < len(value) <= 45 and _ADDRESS.issuperset(value)


def a_digest(value: "Any") -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and _HEX.issuperset(value)


def nothing(value: "Any") -> bool:
    """Null."""
    return value is None


def an_empty_text(value: "Any") -> bool:
    return isinstance(value, str) and not value


def the_only_module(value: "Any") -> bool:
    """The name of the one module that a host may lack, and that the launcher then sends."""
    return isinstance(value, str) and value == MODULE


def anything(_: "Any") -> bool:
    """A value that is passed on unread: it goes back to its own sender, or into the user's own files."""
    return True


def one_of(*words: str) -> "Callable[[Any], bool]":
    def known(value: "Any") -> bool:
        return isinstance(value, str) and value in words

    known.__name__ = "one of " + ", ".join(words)
    return known


def or_null(spec: "Any") -> OneOf:
    """Describes null, or a value that fits `spec`."""
    return OneOf(nothing, spec)


def misfit(spec: "Any", value: "Any", where: str) -> str:
    """Why `value` does not fit `spec`, or "": `gpus.0.index is not a whole number: -1`.

    `where` is the path to the value.  Fields that a record of `spec` does not have are removed from the value.
    """
    try:
        _check(spec, value)
    except _Misfit as odd:
        return odd.words % (".".join([where, *reversed(odd.path)]).lstrip(".") or "all of it")
    return ""


class _Misfit(Exception):
    """What does not fit: `words` about a place, and the `path` to it, the innermost name first."""

    def __init__(self, words: str, *path: str) -> None:
        self.words = words
        self.path = list(path)


def _check(spec: "Any", value: "Any") -> None:
    """Raise _Misfit where `value` does not fit.  Each message of each host comes here: nothing is made that fits."""
    if callable(spec):
        if not spec(value):
            raise _is_not(value, spec.__name__.replace("_", " "))
    elif isinstance(spec, dict):
        _check_record(spec, value)
    elif isinstance(spec, list):
        if not isinstance(value, list):
            raise _is_not(value, "a list")
        if not (callable(spec[0]) and all(map(spec[0], value))):
            _check_all(spec * len(value), range(len(value)), value)
    elif isinstance(spec, tuple):
        if not (isinstance(value, list) and len(value) == len(spec)):
            raise _is_not(value, "a list of %d" % len(spec))
        _check_all(spec, range(len(spec)), value)
    elif isinstance(spec, Each):
        if not isinstance(value, dict):
            raise _is_not(value, "an object")
        for key in value:
            if not spec.key(key):
                raise _is_not(key, spec.key.__name__.replace("_", " "), "the key ")
        _check_all([spec.value] * len(value), value, value.values())
    elif isinstance(spec, OneOf):
        *others, usual = spec.specs
        if not any(_fits(each, value) for each in others):
            _check(usual, value)
    else:
        _check(spec.fields, value)
        if not spec.rule(value):
            raise _is_not(value, spec.words)


def _check_all(specs: "Iterable[Any]", names: "Iterable[Any]", values: "Iterable[Any]") -> None:
    name = None  # type: Any
    try:
        for name, spec, each in zip(names, specs, values):  # noqa: B007, B905 - for the path; Python 3.8 has no `strict`
            if not (callable(spec) and spec(each)):
                _check(spec, each)
    except _Misfit as odd:
        odd.path.append(str(name))
        raise


def _fits(spec: "Any", value: "Any") -> bool:
    return bool(spec(value)) if callable(spec) else not misfit(spec, value, "")


def _check_record(spec: "Mapping[str, Any]", value: "Any") -> None:
    if not isinstance(value, dict):
        raise _is_not(value, "an object")
    known = 0
    name = ""
    try:
        for field, wanted in spec.items():
            name = field[1:] if field[0] == "?" else field
            if name in value:
                known += 1
                if not (callable(wanted) and wanted(value[name])):
                    _check(wanted, value[name])
            elif name is field:
                raise _Misfit("%s is missing")
    except _Misfit as odd:
        odd.path.append(name)
        raise
    if known < len(value):
        names = {field.lstrip("?") for field in spec}
        for name in [name for name in value if name not in names]:
            del value[name]


def _is_not(value: "Any", wanted: str, what: str = "") -> _Misfit:
    """`gpus.0.index is not a whole number: -1`."""
    return _Misfit("%s%%s is not %s: %s" % (what, wanted, quoted(value).replace("%", "%%")))


def quoted(value: "Any") -> str:
    """A value that came from elsewhere, short and in ASCII, for a message."""
    if isinstance(value, (list, dict)):
        return "%s of %d" % ("a list" if isinstance(value, list) else "an object", len(value))
    if isinstance(value, int) and abs(value) >= WHOLE:
        return "a number of %d bits" % value.bit_length()
    text = ascii(value if not isinstance(value, str) else value[:60])
    shown = text if len(text) < 90 else text[:80] + "..."
    return (
        shown
        if not isinstance(value, str) or len(value) <= 60
        else "%s (%d characters)" % (shown, len(value))
    )


def check(spec: "Any", value: "Any") -> None:
    """Raise ValueError where `value` does not fit `spec`; the message says at which field."""
    fault = misfit(spec, value, "")
    if fault:
        raise ValueError(fault)


def of_the_run(what: str, names: "Iterable[str]") -> "Callable[[Any], bool]":
    """A check whether a value is one of `names`: of the run's tasks, or its hosts; there may be thousands."""
    known = frozenset(names)

    def is_known(value: "Any") -> bool:
        return isinstance(value, str) and value in known

    is_known.__name__ = "%s of the run" % what
    return is_known
