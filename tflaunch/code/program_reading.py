"""What the text of a program, and of the shipped modules that it imports, says of clusters; none of it is run."""

from __future__ import annotations

import ast
import contextlib
import itertools
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tflaunch.code.cluster_words import (
    ARGV,
    ASKS,
    BY_SIGNATURE,
    BY_TF_CONFIG,
    COMPILES_OTHER_THINGS,
    COORDINATES_IF_TOLD,
    DEFINES,
    DEFINES_ONLY,
    FRAMEWORK_NAMES,
    FRAMEWORK_PACKAGES,
    FRAMEWORK_VARIABLES,
    HOSTS_PART,
    KNOWN_PACKAGES,
    LEARNING,
    NO_TEXT_ACTIONS,
    OF_CONTRIB_LEARN,
    OF_ESTIMATOR,
    PLACES,
    PS_NAME,
    PS_TEXT,
    RANKS,
    RUNS_FILES,
    STRICT_CALLS,
    TEXT_DEFINES,
    TOLD_OTHERWISE,
    TOLERANT,
    USES,
    VARIABLE_OF_OTHERS,
)
from tflaunch.code.every_start import parts, statements
from tflaunch.code.found import Found, dotted, is_argv, plain_name
from tflaunch.code.imports import DYNAMIC, Module, modules
from tflaunch.code.interpreter import SHELL_SUFFIXES
from tflaunch.code.own_places import Own
from tflaunch.code.program import Program
from tflaunch.frameworks.horovod import BY_KERAS_2
from tflaunch.protocol.job import FLAGS, JobSpec

_MOST_BYTES = 2 * 2**20  # of all text together: a second of reading
_MORE = "is more than is read here"


@dataclass
class Reading:
    """What was found in the text of a program: the first of each kind, None if nothing is."""

    name: str  # of the program, as people see it
    flags: Found | None = None  # a cluster flag
    tf_config: Found | None = None  # TF_CONFIG, or what reads it
    sets: Found | None = None  # it sets TF_CONFIG itself, whatever value it had
    fixes: Found | None = None  # it gives its place among PyTorch's or JAX's processes a value of its own
    meets_here: Found | None = None  # it names the address of PyTorch's rank 0 itself, perhaps in a function
    spawns: Found | None = None  # it starts PyTorch's processes itself
    local: Found | None = None  # a strategy for the GPUs of one machine
    mirrored: Found | None = None  # a strategy that uses no ps
    by_nccl: Found | None = None  # CommunicationImplementation.NCCL, of such a strategy
    by_rings: Found | None = None  # CommunicationImplementation.RING
    ps: Found | None = None  # a word about parameter servers
    framework: Found | None = None  # variables of PyTorch's or JAX's launchers
    starts: set[str] = field(default_factory=set)  # all words that count for `framework`
    otherwise: Found | None = None  # it learns of other machines in other ways
    learns: Found | None = None  # the import of a framework
    hidden: Found | None = None  # code that cannot be read here
    foreign: Found | None = None  # the import of a package that is not read here
    any_flags: Found | None = None  # it takes, or may take, flags that it does not name
    app_run: Found | None = None  # TensorFlow's app.run, which lets all flags pass
    strict: Found | None = None  # absl, which refuses flags that neither it nor what it imports defines
    closed: Found | None = None  # a parser of its own, which refuses flags that it does not name
    argv: Found | None = None  # sys.argv as a whole
    coordinates: Found | None = None  # one of its tasks gives the others work
    resolves: Found | None = None  # it finds out by TF_CONFIG which task it is, whatever strategy it uses
    own_cluster: Found | None = None  # it names the cluster itself
    asks: Found | None = None  # what may tell it which task it is: the environment, the host's name
    estimator: Found | None = None  # tf.estimator, or what has names like its own
    wants_chief: Found | None = None  # tf.estimator, which refuses a cluster that has none
    distributed: Found | None = None  # a strategy of TensorFlow's over several machines
    compiles: Found | None = None  # Keras's `compile`
    fits: Found | None = None  # Keras's `fit`, or what any other library calls so
    keras_2: Found | None = None  # the import of what needs Keras 2
    keras_chosen: Found | None = None  # it says itself which Keras it wants
    # The flags that it defines, as they are written there: without dashes in front, `_` for `-` -> (name, where).
    defines: dict[str, Found] = field(default_factory=dict)
    of_text: set[str] = field(
        default_factory=set
    )  # those of them that take one text, not a number nor nothing
    own: Own = field(default_factory=Own)  # the words of its own by which it learns its place

    @property
    def flags_doubt(self) -> Found | None:
        """Why the program may take flags that it does not name; None: it does not."""
        sure = self.hidden or self.any_flags
        return sure or (
            None if self.closed else self.foreign or self.app_run or (None if self.strict else self.argv)
        )

    @property
    def doubt(self) -> Found | None:
        """Why more may be known to the program than what is found here; None: no more is."""
        return self.foreign or self.flags_doubt


def read(program: Program, job: JobSpec) -> Reading:
    """Read the text of that program, and of the shipped modules that it imports."""
    names = {*(job.flags or {}).values(), *FLAGS, *(f"{name}_hosts" for name in job.others)}
    names = {plain_name(name) for name in names if name}
    # TensorFlow's own API uses these words too, not as flags.
    words = {"job_name", "task_index", "task_id"}
    reader = _Reader(Reading(program.file), names - words, words | (names & words))
    for module in _modules(program):
        if module is None:
            reader.note("hidden", _MORE, program.file)
        else:
            reader.take(module)
    if program.file.endswith(SHELL_SUFFIXES):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            reader.reading.own.take_script(
                (program.directory / program.file).read_text("utf-8"), program.file
            )
        reader.reading.sets = reader.reading.own.exports
    return reader.reading


def _modules(program: Program) -> Iterator[Module | None]:
    """The modules of a program, as many as are read here; then None, if there are more."""
    size = 0
    for module in modules(program.directory, program.file, program.package, program.roots):
        yield module
        with contextlib.suppress(OSError):
            size += (program.directory / module.path).stat().st_size
        if size > _MOST_BYTES:
            yield None
            return


def texts(program: Program) -> Iterator[str]:
    """The text of each file of a program that is read here."""
    for module in _modules(program):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield (program.directory / module.path).read_text("utf-8") if module else ""


def faults(program: Program) -> Iterator[str]:
    """A sentence for each file of a program that the Python here cannot read."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    for module in _modules(program):
        fault = module and (module.fault or _refused(module))
        if module and fault and module.path.endswith(".py"):
            place = f"{module.path}:{fault.lineno}" if fault.lineno else module.path
            what = f"{place}: Python {ours} here cannot read it: {fault.msg}"
            yield f"{what}; the hosts' own Python has the last word"


def _refused(module: Module) -> SyntaxError | None:
    """What is wrong with text that fits the grammar: `return` outside a function, for example."""
    if module.tree is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(module.tree, module.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        pass
    return None


@dataclass
class _Reader:
    """Walks over the syntax trees of a program's modules, and notes what it finds."""

    reading: Reading
    names: Collection[str]  # names of cluster flags that mean nothing else
    words: Collection[str]  # names of cluster flags that may mean something else
    signatures: bool = False  # the program's options are the parameters of its functions
    seen: set[int] = field(default_factory=set)  # nodes that were looked at together with their parent
    path: str = ""

    def note(self, kind: str, what: str, path: str, line: int = 0) -> None:
        if getattr(self.reading, kind) is None:
            setattr(self.reading, kind, Found(what, f"{path}:{line}" if line else path))

    def take(self, module: Module) -> None:
        """Note what is in that module."""
        self.path, self.seen = module.path, set()
        if module.tree is None:
            much = not module.fault and module.path.endswith(".py")
            self.note("hidden", _MORE if much else "cannot be read by the Python here", module.path)
        for name, line in module.elsewhere:
            self._import(name, line)
        for statement in statements(module.tree) if module.tree else ():
            if _strategy_in(statement):
                break  # it has read the variables by then
            self._assigned(statement)
        if module.tree:
            self.reading.own.take(module.tree, module.path, first=module.path == self.reading.name)
        line = 0
        for node in ast.walk(module.tree) if module.tree else ():
            line = getattr(node, "lineno", line)
            self._node(node, line)

    def _assigned(self, statement: ast.stmt) -> None:
        for name, value in _set_in(statement):
            if name == "TF_CONFIG":
                self._found("sets", "sets TF_CONFIG itself", statement.lineno)
            elif name in PLACES and isinstance(value, ast.Constant):
                self._found("fixes", f"sets {name} itself", statement.lineno)

    def _found(self, kind: str, what: str, line: int) -> None:
        if kind == "framework":
            self.reading.starts.add(what.rpartition(" ")[2])
        self.note(kind, what, self.path, line)

    def _import(self, name: str, line: int) -> None:
        top = name.partition(".")[0]
        self.signatures |= top in BY_SIGNATURE
        if name in BY_KERAS_2:
            self._found("keras_2", name, line)
        if top == "tf_keras":
            self._found("keras_chosen", "imports tf_keras", line)
        if top in LEARNING:
            self._found("learns", f"imports {top}", line)
        if top in FRAMEWORK_PACKAGES:
            self._found("framework", f"imports {top}", line)
        elif top in TOLD_OTHERWISE:
            self._found("otherwise", f"imports {top}", line)
        if top not in KNOWN_PACKAGES and top not in sys.stdlib_module_names:
            self._found("foreign", f"imports {name}, which is not read here", line)

    def _node(self, node: ast.AST, line: int) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            self.seen.add(id(node.value))
            if isinstance(node.value.value, str):  # a docstring: docopt takes flags from it
                self._flag_in(node.value.value, line, prose=True)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in self.seen:
                self._text(node.value, line)
        elif isinstance(node, ast.Call):
            self._call(node, line)
        elif isinstance(node, ast.Subscript):
            if isinstance(node.ctx, ast.Store):
                self.seen.add(id(node.value))  # sets a variable, reads none
                if _variable(node) == "TF_CONFIG":
                    self.seen.add(id(node.slice))
                    for kind in ("tf_config", "resolves"):  # whoever needs it, reads it then
                        self._found(kind, "sets TF_CONFIG", line)
            if is_argv(node.value) and isinstance(node.slice, ast.Constant):
                self.seen.add(id(node.value))  # reads one argument, not sys.argv as a whole
        elif isinstance(node, ast.Name):
            self._name(node.id, line)
            if node.id in ASKS and id(node) not in self.seen:
                self._found("asks", f"uses {node.id}", line)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, line)
        elif isinstance(node, ast.arg):
            self._parameter(node.arg, line)
        elif isinstance(node, ast.keyword):
            self._keyword(node, line)
        elif isinstance(node, ast.alias):
            self._name(node.name.rpartition(".")[2], line)
            for part in (node.name, node.asname or ""):
                self._name(part, line)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node, line)
        elif isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Constant) and "MASTER_ADDR" in map(_variable, node.targets):
                self._found("meets_here", "sets MASTER_ADDR itself", line)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._name(node.name, line)
            if self.signatures and getattr(getattr(node, "args", None), "kwarg", None):
                self._found("any_flags", "takes options of any name", line)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self._parameter(node.target.id, line)

    # One method for each kind of node.

    def _text(self, text: str, line: int) -> None:
        self._flag_in(text, line)
        if "TF_USE_LEGACY_KERAS" in text:
            self._found("keras_chosen", "sets TF_USE_LEGACY_KERAS", line)
        if "TF_CONFIG" in text:
            self._found("tf_config", "reads TF_CONFIG", line)
            self._found("resolves", "reads TF_CONFIG", line)
        if text in FRAMEWORK_VARIABLES:
            self._found("framework", f"reads {text}", line)
        if VARIABLE_OF_OTHERS.fullmatch(text):
            self._found("otherwise", f"reads {text}", line)
        if DEFINES_ONLY.fullmatch(text):  # getattr(flags, "DEFINE_string")
            self._found("any_flags", "makes the names of its flags when it runs", line)
        if text in ARGV:
            self._found("argv", "reads sys.argv as a whole", line)
        if text in TOLERANT:
            self._found("any_flags", f"takes options that it does not know ({text})", line)
        if PS_TEXT.search(text):
            self._found("ps", "mentions ps", line)

    def _flag_in(self, text: str, line: int, *, prose: bool = False) -> None:
        plain = text.replace("-", "_").lower()
        for name in self.names:
            if name in plain:
                self._found("flags", f"has {name}", line)
        if prose:
            return
        if HOSTS_PART.search(text):
            self._found("any_flags", "makes the names of its flags when it runs", line)
        for word in self.words:
            if plain.strip("_").partition("=")[0] == word or f"__{word}" in plain:
                self._found("flags", f"has {word}", line)

    def _name(self, name: str, line: int) -> None:
        plain = plain_name(name)
        if plain in self.names:
            self._found("flags", f"has {name}", line)
        for kind, known in USES.items():
            if name in known:
                self._found(kind, f"uses {name}", line)
        if name == "TFConfigClusterResolver":
            self._found("resolves", f"uses {name}", line)
        if name in TOLERANT:
            self._found("any_flags", f"takes options that it does not know ({name})", line)
        if PS_NAME.fullmatch(name):
            self._found("ps", f"has {name}", line)

    def _attribute(self, node: ast.Attribute, line: int) -> None:
        self._name(node.attr, line)
        if node.attr in ASKS and id(node) not in self.seen:
            self._found("asks", f"uses {node.attr}", line)
        if node.attr in ("job_name", "task_index") and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            self._found("flags", f"has {node.attr}", line)  # of an object that some parser has made
        if node.attr in ARGV and id(node) not in self.seen:  # whatever name `sys` has there
            self._found("argv", "reads sys.argv as a whole", line)
        if id(node) not in self.seen and DEFINES_ONLY.fullmatch(node.attr):
            self._found("any_flags", "makes the names of its flags when it runs", line)
        chain = dotted(node)
        last = ".".join(chain[-2:])
        if last in FRAMEWORK_NAMES:
            self._found("framework", f"uses {last}", line)
        if last in STRICT_CALLS:
            self._found("closed", f"uses {last}", line)
        if chain[-2:-1] == ["estimator"] and node.attr in OF_ESTIMATOR:
            self._of_estimator(node.attr, line)
        elif chain[-2:-1] == ["learn"] and node.attr in OF_CONTRIB_LEARN:
            self._found("tf_config", f"uses tf.contrib.learn.{node.attr}", line)
        if chain[-2:] == ["app", "run"]:
            if chain[0] in ("app", "absl"):  # unless `app` is TensorFlow's: see _import_from
                self._found("strict", "uses absl.app", line)
            else:
                self._found("app_run", "takes options that it does not know (tf.app.run)", line)

    def _parameter(self, name: str, line: int) -> None:
        self._name(name, line)
        if self.signatures and plain_name(name) in self.words:
            self._found("flags", f"has {name}", line)

    def _keyword(self, node: ast.keyword, line: int) -> None:
        if node.arg is None:
            return
        tolerant = node.arg in TOLERANT
        if tolerant and isinstance(node.value, ast.Constant) and not node.value.value:
            return  # known_only=False
        self._name(node.arg, line)

    def _import_from(self, node: ast.ImportFrom, line: int) -> None:
        module, names = node.module or "", {alias.name for alias in node.names}
        for name in names:
            for pair in map(".".join, itertools.pairwise([*module.split("."), name])):
                if pair in FRAMEWORK_NAMES:
                    self._found("framework", f"imports {pair}", line)
        top = module.partition(".")[0]
        if top == "tensorflow" and ("app" in names or module.endswith(".app")):
            self._found("app_run", "takes options that it does not know (tf.app.run)", line)
        if "estimator" in module and (used := names & OF_ESTIMATOR):
            self._of_estimator(min(used), line)
        if module == "sys" and names.intersection(ARGV):
            self._found("argv", "reads sys.argv as a whole", line)
        if top in ("tensorflow", "official") and "*" in names:
            self._found("hidden", f"imports all of {module}", line)

    def _call(self, node: ast.Call, line: int) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute):
            if called == "fit":
                self._found("fits", "calls fit", line)
            elif called == "compile" and _of_keras(node):
                self._found("compiles", "calls compile", line)
        if called == "run" and "learn_runner" in dotted(node.func):
            self._found("tf_config", "uses tf.contrib.learn", line)
        if called in COORDINATES_IF_TOLD and (node.args or node.keywords) and "v1" not in dotted(node.func):
            self._found("coordinates", f"uses {called}", line)
        if called in RANKS and (called != "initialize" or "distributed" in dotted(node.func)):
            self._ranked(node, RANKS[called], line)
        if called == "spawn" and {"mp", "multiprocessing"}.intersection(dotted(node.func)):
            self._found("spawns", f"starts its processes itself ({'.'.join(dotted(node.func))})", line)
        if called == "FLAGS":  # absl's, of words
            self._found("strict", "uses absl.flags", line)
        if called == "len" and node.args and is_argv(node.args[0]):
            self.seen.add(id(node.args[0]))
        elif DEFINES.fullmatch(called):
            self.seen.add(id(node.func))
            first = node.args[:1] if called.startswith("DEFINE") else node.args
            named = [word.value for word in node.keywords if word.arg == "name"]
            self._defined(node, called, [*first, *named], line)
            if not all(isinstance(name, ast.Constant) for name in [*first, *named]):
                self._found("any_flags", "makes the names of its flags when it runs", line)
        elif called in DYNAMIC and node.args and not isinstance(node.args[0], ast.Constant):
            self._found("hidden", "imports what has no name before it runs", line)
        elif called in RUNS_FILES:
            self._found("hidden", f"runs what cannot be read here ({called})", line)

    def _of_estimator(self, name: str, line: int) -> None:
        self._found("tf_config", f"uses tf.estimator.{name}", line)
        self._found("wants_chief", f"uses tf.estimator.{name}", line)

    def _ranked(self, node: ast.Call, argument: str, line: int) -> None:
        for word in node.keywords:
            if (
                word.arg == argument
                and isinstance(word.value, ast.Constant)
                and isinstance(word.value.value, int)
            ):
                self._found("fixes", f"passes {argument}={word.value.value}", line)

    def _defined(self, node: ast.Call, called: str, names: list[ast.expr], line: int) -> None:
        """Note the flags that a call defines: absl's have no dashes there, those of argparse and click have two."""
        of_text = _takes_text(node, called)
        for named in names:
            if not isinstance(named, ast.Constant) or not isinstance(named.value, str):
                continue
            name = named.value.lstrip("-")
            if called.startswith("DEFINE") or named.value.startswith("--"):
                self.reading.defines.setdefault(plain_name(name), Found(name, f"{self.path}:{line}"))
                if of_text:
                    self.reading.of_text.add(plain_name(name))


def _of_keras(node: ast.Call) -> bool:
    """Whether a call of `compile` is that of a Keras model, not of `re`, `torch` or another module."""
    if {"optimizer", "loss"} & {word.arg for word in node.keywords}:
        return True
    return bool(node.args) and dotted(node.func)[0] not in COMPILES_OTHER_THINGS


def _takes_text(node: ast.Call, called: str) -> bool:
    """Whether the flag that this call defines takes one text, as far as the call says."""
    told = {word.arg: word.value for word in node.keywords}
    if not TEXT_DEFINES.fullmatch(called) or told.keys() & {"nargs", "choices", "is_flag", "count"}:
        return False
    action, kind, default = told.get("action"), told.get("type"), told.get("default")
    if isinstance(action, ast.Constant) and action.value in NO_TEXT_ACTIONS:
        return False
    if isinstance(default, ast.Constant) and not isinstance(default.value, str | None):
        return False
    return not (isinstance(kind, ast.Name) and kind.id in ("int", "float", "bool", "complex"))


def _strategy_in(statement: ast.stmt) -> bool:
    """Whether the statement makes what reads TF_CONFIG."""
    calls = (each for each in parts(statement) if isinstance(each, ast.Call))
    return any(BY_TF_CONFIG.intersection(dotted(each.func)[-1:]) for each in calls)


def _set_in(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The variables of the environment that the statement sets, whatever they were, and the values."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield _variable(target), statement.value
    elif isinstance(statement, ast.AugAssign) and dotted(statement.target)[-1:] == ["environ"]:
        yield from _items(statement.value)
    elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        chain = dotted(call.func)
        if chain[-2:] == ["environ", "update"]:
            yield from ((word.arg or "", word.value) for word in call.keywords)
            for given in call.args:
                yield from _items(given)
        elif chain[-1:] == ["putenv"] and len(call.args) == 2:
            name = call.args[0]
            yield str(name.value) if isinstance(name, ast.Constant) else "", call.args[1]


def _items(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The items of `{"A": 1}` and `dict(A=1)`, as far as they have names."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value
    elif isinstance(node, ast.Call) and dotted(node.func) == ["dict"]:
        yield from ((word.arg or "", word.value) for word in node.keywords)


def _variable(node: ast.expr) -> str:
    """The name of the variable of the environment that is set there, "" for anything else."""
    if not (isinstance(node, ast.Subscript) and dotted(node.value)[-1:] == ["environ"]):
        return ""
    return str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
