"""By which words of its own a program learns its place: arguments, flags, variables and addresses."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from tflaunch.code.cluster_words import ADDRESS, BY_FLAG, DEFINES, RANKS
from tflaunch.code.every_start import parts, statements
from tflaunch.code.found import Found, dotted, is_argv, plain_name

# Of a script of a shell: what hands its arguments on, or may; and a line that sets TF_CONFIG.
_HANDS_ON = re.compile(r"\$\{?[@*1-9]|\bshift\b|\bgetopts\b|\bsource\b|^[ \t]*\. ", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_SETS = re.compile(r"^[ \t]*(?:export[ \t]+)?TF_CONFIG=", re.MULTILINE)
_MOST_TEXT = 65_536  # characters of a script
_SERVERS = {"Server", "ClusterSpec"}
_OPTIONAL = {"?", "*"}


@dataclass
class Own:
    """What was found: the first of each kind, None if nothing is."""

    argv: Found | None = None  # the first argument that every start takes from sys.argv by its place
    wanted: dict[str, str] = field(
        default_factory=dict
    )  # arguments that argparse wants by their place -> where
    commands: bool = False  # its parser has subcommands, each with arguments of its own
    counts: bool = False  # it looks how many arguments there are
    flags: dict[str, Found] = field(default_factory=dict)  # those of FLAGS_OF_OTHERS, as they are written
    left_open: set[str] = field(default_factory=set)  # flags that must be given, or are -1 else
    reads: dict[str, str] = field(default_factory=dict)  # variables that it cannot do without -> where
    may_read: dict[str, str] = field(default_factory=dict)  # the same, where it may do without -> where
    asks: set[str] = field(default_factory=set)  # variables that it looks for
    address: Found | None = None  # an address that stands in its text
    serves: Found | None = None  # it makes a server, or a cluster, of TensorFlow's
    fixed: list[Found] = field(default_factory=list)  # servers whose task stands in the text: `worker/0`
    dials: Found | None = None  # a session of a server at a fixed address
    meets: Found | None = None  # an address that it gives PyTorch or JAX for rank 0
    keeps: Found | None = None  # a script of a shell that hands no arguments on
    exports: Found | None = None  # a script of a shell that sets TF_CONFIG
    master: Found | None = None  # the value of MASTER_ADDR that stands in its text

    def take(self, tree: ast.Module, path: str, *, first: bool) -> None:
        """Note what is in that module; `first`: it is the program itself, whose arguments are those of the tasks."""
        defaults: set[int] = set()
        line = 0
        for node in ast.walk(tree):
            line = getattr(node, "lineno", line)
            if isinstance(node, ast.Call):
                self._call(node, f"{path}:{line}", first, defaults)
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
                self.asks.add(str(node.left.value))
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                if any(_names(target, "MASTER_ADDR") for target in node.targets):
                    self.master = self.master or Found(str(node.value.value), f"{path}:{line}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in defaults:
                self._text(node.value, f"{path}:{line}")
        for statement in statements(tree):
            for node in parts(statement):
                if isinstance(node, ast.Subscript | ast.Call):
                    self._read(node, f"{path}:{node.lineno}", first)

    def take_script(self, text: str, path: str) -> None:
        """Note what is in a script of a shell."""
        text = _COMMENT.sub("", text[:_MOST_TEXT])
        if not _HANDS_ON.search(text):
            self.keeps = Found("hands no arguments on", path)
        if found := _SETS.search(text):
            line = text.count("\n", 0, found.start()) + 1
            self.exports = Found("sets TF_CONFIG itself", f"{path}:{line}")

    def _text(self, text: str, where: str) -> None:
        if ADDRESS.fullmatch(text):
            self.address = self.address or Found(text, where)
            if text.startswith("grpc://"):
                self.dials = self.dials or Found(text, where)

    def _call(self, node: ast.Call, where: str, first: bool, defaults: set[int]) -> None:
        called = dotted(node.func)[-1:] or [""]
        words = {word.arg: word.value for word in node.keywords}
        if called[0] == "add_subparsers":
            self.commands = True
        elif called[0] == "len" and node.args and is_argv(node.args[0]):
            self.counts = True
        elif called[0] in ("get", "getenv") and node.args and isinstance(node.args[0], ast.Constant):
            self.asks.add(str(node.args[0].value))
        elif called[0] in _SERVERS:
            self.serves = self.serves or Found(f"makes a {called[0]}", where)
            job, index = words.get("job_name"), words.get("task_index")
            if isinstance(job, ast.Constant) and isinstance(index, ast.Constant):
                self.fixed.append(Found(f"{job.value!s}/{index.value!s}", where))
        elif called[0] in RANKS and (called[0] != "initialize" or "distributed" in dotted(node.func)):
            first_is = node.args[0] if node.args and called[0] == "initialize" else None
            address = words.get("init_method") or words.get("coordinator_address") or first_is
            if isinstance(address, ast.Constant) and ADDRESS.fullmatch(str(address.value)):
                self.meets = self.meets or Found(str(address.value), where)
        elif DEFINES.fullmatch(called[0]):
            defaults.update(id(each) for each in (*node.args, *words.values()))
            self._defined(node, called[0], words, where, first)

    def _defined(
        self, node: ast.Call, called: str, words: dict[str | None, ast.expr], where: str, first: bool
    ) -> None:
        texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
        names = [each for each in texts[:1] if called.startswith("DEFINE")] or texts
        default = words.get("default")
        for name in (each for each in names if isinstance(each, str)):
            if called.startswith("DEFINE") or name.startswith("--"):
                written = name.lstrip("-")
                if plain_name(name) in BY_FLAG and not _is(default, "env://"):
                    self.flags.setdefault(plain_name(name), Found(written, where))
                if _is(words.get("required"), True) or _is_minus_one(default):
                    self.left_open.add(plain_name(name))
            elif first and called == "add_argument" and not name.startswith("-"):
                nargs = words.get("nargs")
                free = isinstance(nargs, ast.Constant) and nargs.value in _OPTIONAL
                if not free and not isinstance(nargs, ast.Attribute):  # argparse.REMAINDER
                    self.wanted.setdefault(name, where)

    def _read(self, node: ast.Subscript | ast.Call, where: str, first: bool) -> None:
        if isinstance(node, ast.Call):  # int(os.getenv("RANK")) fails without it
            if dotted(node.func) == ["int"] and len(node.args) == 1:
                self._variable(_got(node.args[0]), where, self.reads)
            self._variable(_got(node), where, self.may_read)
        elif isinstance(node.ctx, ast.Load):
            if first and is_argv(node.value) and isinstance(node.slice, ast.Constant):
                if isinstance(node.slice.value, int) and node.slice.value > 0:
                    self.argv = self.argv or Found(f"sys.argv[{node.slice.value}]", where)
            elif dotted(node.value)[-1:] == ["environ"]:
                self._variable(node.slice, where, self.reads)

    @staticmethod
    def _variable(name: ast.expr | None, where: str, into: dict[str, str]) -> None:
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            into.setdefault(name.value, where)


def _got(node: ast.expr) -> ast.expr | None:
    """The variable that `os.getenv(...)` or `os.environ.get(...)` reads there, with no default."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    called = dotted(node.func)
    return node.args[0] if called[-1:] == ["getenv"] or called[-2:] == ["environ", "get"] else None


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _is_minus_one(node: ast.expr | None) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is(node.operand, 1)


def _names(node: ast.expr, variable: str) -> bool:
    """Whether that is `os.environ[variable]`."""
    return (
        isinstance(node, ast.Subscript)
        and dotted(node.value)[-1:] == ["environ"]
        and _is(node.slice, variable)
    )
