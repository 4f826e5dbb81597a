"""The architecture as the folders show it: who imports whom, what leaves this machine, and how long things may be."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tomllib

import tflaunch
from tests.support.agent_over_pipes import interpreters
from tflaunch.sessions import payload

HOUSE = Path(tflaunch.__file__).parent
# Each room imports only from floors below its own; rooms on one line are one floor.
FLOORS = (
    ("gpu_probe",),
    ("text",),
    ("protocol", "in_task", "slot"),
    ("diagnosis",),
    ("lifecycle", "frameworks"),
    ("inputs", "agent"),
    ("hosts",),
    ("planning", "sessions"),
    ("ssh", "code", "engines"),
    ("remote", "runs", "survey", "ends"),
    ("launch",),
    ("sweeps", "tuning"),
    ("documents",),
    ("console", "api"),
    ("cli", "spark"),
    ("__main__",),
)
# Those of agent/, its highest, with the other files of the folder, left out.
LAYERS = (
    ("host",),
    ("files",),
    ("net",),
    ("gpus",),
    ("tasks",),
    ("slot",),
    ("host_facts", "viewer", "ledger"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
SHIPPED = {
    "gpu_probe",
    "text",
    "protocol",
    "in_task",
    "slot",
    "diagnosis",
    "lifecycle",
    "frameworks",
    "agent",
}
LOOSE = {"__init__", "__main__", "hosts", "gpu_probe", "remote"}

FILES = {
    ".".join(["tflaunch", *path.relative_to(HOUSE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in HOUSE.rglob("*.py")
}


@cache
def named_in(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """What this file imports, anywhere in it: each module, and what it imports from it."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found.append((node.module or "", tuple(alias.name for alias in node.names)))
    return found


def modules_named_in(path: Path) -> Iterator[str]:
    """The modules that this file imports, or imports from, anywhere in it."""
    return (module for module, _ in named_in(path))


def imports_of(path: Path) -> set[str]:
    """The modules of tflaunch that this file imports: at its top, inside functions, and for types alone."""
    found = set()
    for module, names in named_in(path):
        wholes = {f"{module}.{name}" for name in names}
        found |= {whole if whole in FILES else module for whole in wholes} if names else {module}
    return {name for name in found if name in FILES and name != "tflaunch"}


@cache
def imports() -> dict[str, set[str]]:
    """What each file imports; not read before a test asks, for each of pytest's workers reads this file."""
    return {name: imports_of(path) for name, path in FILES.items()}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_few_files_stand_loose() -> None:
    assert {path.stem for path in HOUSE.glob("*.py")} == LOOSE, (
        "put the file into a room, or name it in LOOSE"
    )


def test_every_folder_is_a_room_on_a_floor() -> None:
    rooms = {path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == FLOOR.keys() - LOOSE, (
        "enter each room in FLOORS, on its floor, and in docs/architecture.md"
    )


@pytest.mark.parametrize("room", sorted(FLOOR))
def test_a_room_imports_only_from_the_floors_below(room: str) -> None:
    upwards = [
        f"{name} imports {other}"
        for name, others in imports().items()
        if room_of(name) == room
        for other in others
        if room_of(other) != room and FLOOR[room_of(other)] >= FLOOR[room]
    ]
    assert not upwards


def layer(module: str) -> int:
    inside = [*module.split("."), "__init__"][2]
    return next((at for at, names in enumerate(LAYERS) if inside in names), len(LAYERS))


def test_a_layer_of_the_agent_imports_only_from_those_below() -> None:
    upwards = [
        f"{name} imports {other}"
        for name, others in imports().items()
        if room_of(name) == "agent"
        for other in others
        if room_of(other) == "agent" and layer(other) > layer(name)
    ]
    assert not upwards


def test_nothing_outside_the_agent_imports_it() -> None:
    assert not [
        f"{name} imports {other}"
        for name, others in imports().items()
        if room_of(name) != "agent"
        for other in others
        if room_of(other) == "agent"
    ]


def test_what_executors_of_spark_get_imports_nothing_of_tflaunch() -> None:
    assert not imports()["tflaunch.spark.in_executor"]


def test_what_is_shipped_imports_only_what_is_shipped() -> None:
    assert not [
        f"{name} imports {other}"
        for name, others in imports().items()
        if room_of(name) in SHIPPED
        for other in others
        if room_of(other) not in SHIPPED
    ]


def test_only_the_console_imports_rich() -> None:
    drawing = {name: set(modules_named_in(path)) for name, path in FILES.items()}
    users = {
        name for name, modules in drawing.items() if any(each.split(".")[0] == "rich" for each in modules)
    }
    assert {room_of(name) for name in users} == {"console"}
    # rich wraps and shrinks as it likes: the console has a drawer of tables of its own, and that one only.
    assert not [name for name in users if drawing[name] & {"rich.table", "rich.columns"}]


def test_only_the_command_line_imports_typer() -> None:
    users = {name for name, path in FILES.items() if "typer" in modules_named_in(path)}
    assert {room_of(name) for name in users} == {"cli"}


def test_only_one_file_loads_textual() -> None:
    users = {
        name
        for name, path in FILES.items()
        if any(each.split(".")[0] == "textual" for each in modules_named_in(path))
    }
    assert users == {"tflaunch.console.watch_app"}
    loading = {name for name, others in imports().items() if others & users}
    assert loading == {"tflaunch.console.gpu_watch.survey_watch", "tflaunch.cli.top"}
    for name, watch in {
        "tflaunch.console.gpus_output": "gpu_watch.survey_watch",
        "tflaunch.cli.top": "watch_app",
    }.items():
        text = FILES[name].read_text("utf-8")
        assert f"\nfrom tflaunch.console.{watch}" not in text, (
            "not for `gpus` without --watch, not for --help"
        )


def test_no_files_import_each_other_in_a_circle() -> None:
    left = {name: set(others) for name, others in imports().items()}
    while free := [name for name, others in left.items() if not others]:
        for name in free:
            del left[name]
        for others in left.values():
            others.difference_update(free)
    assert not left, "each of these is in a circle of imports, or imports one that is"


def test_an_agent_is_made_of_all_shipped_rooms_but_what_runs_in_a_task_or_around_it() -> None:
    rooms = SHIPPED - {"in_task", "slot"}
    whole = {name for name in FILES if room_of(name) in rooms}
    site = {
        "tflaunch.in_task",
        "tflaunch.in_task.stacks_site",
    }  # the text that an agent gives each task's Python
    # Only what people are shown has them.
    at_home = {"tflaunch.text.extras", "tflaunch.text.lines", "tflaunch.text.times"}
    assert set(payload.shipped_files()) == {"tflaunch"} | site | whole - at_home


def test_a_shipped_package_holds_nothing_but_its_docstring_and_modules() -> None:
    """The loader on a host runs no package's own code (the version is for launchers)."""
    for name, path in payload.shipped_files().items():
        if path.name == "__init__.py":
            names = {
                ast.unparse(node).split(" = ")[0] for node in ast.parse(path.read_text("utf-8")).body[1:]
            }
            assert names <= ({"__version__"} if name == "tflaunch" else set()), name


def test_the_linter_knows_what_is_shipped() -> None:
    rules = tomllib.loads((HOUSE.parent / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    (pattern,) = [each for each in rules["per-file-ignores"] if each.startswith("tflaunch/{")]
    inside = pattern.removeprefix("tflaunch/{").removesuffix("}").split(",")
    assert {each.removesuffix("/**").removesuffix(".py") for each in inside} == SHIPPED, (
        "per-file-ignores of pyproject.toml must name what is shipped"
    )


@pytest.mark.parametrize("python", interpreters())
def test_whatever_is_shipped_loads_with_every_python(python: str) -> None:
    modules = sorted(name for name in FILES if room_of(name) in SHIPPED)
    script = (
        "import importlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
    )
    subprocess.run([python, "-I", "-S", "-c", script, str(HOUSE.parent), *modules], check=True)


@pytest.mark.parametrize("python", interpreters())
def test_what_tasks_import_needs_no_tflaunch(python: str) -> None:
    place = HOUSE.parent / "tflaunch_task"
    modules = {module for path in place.glob("*.py") for module in modules_named_in(path)}
    assert not [each for each in modules if each.split(".")[0] == "tflaunch"]
    script = "import sys; sys.path.insert(0, sys.argv[1]); import tflaunch_task, tflaunch_task.tensors"
    subprocess.run([python, "-I", "-S", "-c", script, str(place.parent)], check=True)


MOST_LINES = 300  # of a class
MOST_PARAMETERS = 8


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a function has, but for the object or class itself."""
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in named if each.arg not in ("self", "cls")])


def test_no_class_is_long_and_no_function_has_many_parameters() -> None:
    nodes = [
        (f"{name.removeprefix('tflaunch.')}.{node.name}", node)
        for name, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    classes = {
        name
        for name, node in nodes
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= MOST_LINES
    }
    assert not classes, f"a class has at most {MOST_LINES} lines: part it"
    functions = {
        name
        for name, node in nodes
        if not isinstance(node, ast.ClassDef) and parameters(node) > MOST_PARAMETERS
    }
    assert not functions, (
        f"a function takes at most {MOST_PARAMETERS} parameters: make a class of some that belong together"
    )


@cache
def names_of(path: Path) -> set[str]:
    """The functions and classes of this file, methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            inside = node.body if isinstance(node, ast.ClassDef) else []
            found |= {
                node.name,
                *(f"{node.name}.{each.name}" for each in inside if isinstance(each, ast.FunctionDef)),
            }
    return found


def public_classes(path: Path) -> set[str]:
    nodes = ast.parse(path.read_text("utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"}


def test_no_public_class_has_the_name_of_another() -> None:
    defining: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for each in public_classes(path):
            defining.setdefault(each, []).append(name)
    assert not {each: names for each, names in defining.items() if len(names) > 1}


# Files of the same name in two rooms. A verb's file has the verb's name wherever its work is done: those in cli/ do not
# count. Rename one of a pair when you come by; add nothing.
SAME_FILES = {"tensorflow.py"}


def test_few_files_have_the_name_of_another() -> None:
    paths = [path for name, path in FILES.items() if room_of(name) != "cli" and path.name != "__init__.py"]
    names = [path.name for path in paths]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == SAME_FILES, "two rooms have files of one name: rename one of them"
