"""How a program learns who it is among many, found in its text: flags, TF_CONFIG, another framework's variables.

Only a program that certainly takes no cluster flags is given none, and only one that certainly has no parameter servers
gets none unasked; whatever is in doubt is as it is for the classic trainers.  Doubt is what cannot be read here: what
an installed package does, a name that is made up when the program runs, text of another Python.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tflaunch.code.imports import DYNAMIC, Module, modules
from tflaunch.code.program import Program
from tflaunch.planning.frameworks import OF_THEIR_OWN, started_by
from tflaunch.protocol.job import FLAGS, PS, JobSpec, Role

_MOST_BYTES = 2 * 2**20  # of all text together: a second of reading
_MORE = "is more than is read here"

# --- what the words mean ---------------------------------------------------------------------------------

_MIRRORED = {
    "MultiWorkerMirroredStrategy",
    "CollectiveAllReduceStrategy",
}  # over several machines, without ps
_BY_TF_CONFIG = {
    *_MIRRORED, "ParameterServerStrategy", "ParameterServerStrategyV1", "ParameterServerStrategyV2",
    "TFConfigClusterResolver",
}  # fmt: skip
_OF_ESTIMATOR = {"train_and_evaluate", "RunConfig"}  # they read TF_CONFIG by themselves
_ON_ONE_MACHINE = {"MirroredStrategy", "CentralStorageStrategy", "OneDeviceStrategy"}
# What else knows of other machines, by whatever it is told.
_OTHER_CLUSTERS = {
    "ClusterSpec", "Server", "ClusterCoordinator", "SimpleClusterResolver", "SlurmClusterResolver",
    "KubernetesClusterResolver", "GCEClusterResolver", "TPUClusterResolver", "TPUStrategy", "DispatchServer",
    "experimental_connect_to_cluster", "experimental_connect_to_host", "dtensor",
}  # fmt: skip
# What PyTorch's and JAX's launchers tell by variables, and the packages that read them by themselves.
_FRAMEWORK_NAMES = {
    "init_process_group", "torch.distributed", "DistributedDataParallel", "FullyShardedDataParallel",
    "TrainingArguments", "jax.distributed", "multihost_utils", "keras.distribution",
}  # fmt: skip
_FRAMEWORK_VARIABLES = {
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
}  # fmt: skip
_FRAMEWORK_PACKAGES = {"lightning", "pytorch_lightning", "accelerate", "deepspeed"}
# A program that has one of these is told of the others in ways that are not ours.
_TOLD_OTHERWISE = {"horovod", "mpi4py", "ray", "dask", "byteps", "colossalai", "kungfu"}
_VARIABLE_OF_OTHERS = re.compile(
    r"TFLAUNCH_(?!RUN)\w+|SLURM_\w+|OMPI_\w+|PMI_\w+|HOROVOD_\w+|KERAS_DISTRIBUTION\w*"
)
_LEARNING = {"tensorflow", "keras", "tf_keras", "torch", "jax", "flax", "mxnet", "paddle"}

# Installed packages that define none of the cluster flags, whatever is imported of them.
_KNOWN_PACKAGES = {
    *_LEARNING, *_FRAMEWORK_PACKAGES, *_TOLD_OTHERWISE,
    "absl", "albumentations", "attr", "attrs", "bs4", "click", "cloudpickle", "colorama", "coloredlogs", "cv2",
    "cycler", "datasets", "dateutil", "dill", "dotenv", "einops", "fire", "fsspec", "gcsfs", "google", "grpc", "gym",
    "gymnasium", "h5py", "huggingface_hub", "imageio", "imgaug", "imblearn", "jaxlib", "joblib", "kaggle",
    "keras_applications", "keras_cv", "keras_hub", "keras_nlp", "keras_preprocessing", "keras_tuner", "librosa",
    "lightgbm", "lxml", "markdown", "matplotlib", "mlflow", "mpl_toolkits", "msgpack", "nibabel", "nltk", "numba",
    "numpy", "nvidia", "onnx", "onnxruntime", "opt_einsum", "optax", "orjson", "packaging", "pandas", "patsy", "PIL",
    "pkg_resources", "plotly", "polars", "portpicker", "prettytable", "psutil", "pyarrow", "pycocotools", "pydicom",
    "pydot", "pynvml", "pytz", "pywt", "rasterio", "regex", "requests", "rich", "ruamel", "s3fs", "safetensors",
    "scipy", "seaborn", "sentencepiece", "setuptools", "shapely", "SimpleITK", "six", "skimage", "sklearn",
    "soundfile", "spacy", "statsmodels", "tabulate", "tensorboard", "tensorboardX", "tensorflow_addons",
    "tensorflow_datasets", "tensorflow_estimator", "tensorflow_hub", "tensorflow_io", "tensorflow_probability",
    "tensorflow_text", "tensorflow_transform", "termcolor", "threadpoolctl", "tiktoken", "timm", "tokenizers", "toml",
    "tomli", "torchaudio", "torchmetrics", "torchtext", "torchvision", "tqdm", "transformers", "typer",
    "typing_extensions", "ujson", "urllib3", "wandb", "wrapt", "xgboost", "yaml", "zarr",
    # of other Pythons' own libraries
    "ConfigParser", "Queue", "StringIO", "__builtin__", "cPickle", "cStringIO", "cgi", "distutils", "imp", "pipes",
    "urllib2", "urlparse",
}  # fmt: skip
# Those that make options of the names of parameters and fields.
_BY_SIGNATURE = {"fire", "typer"}

_DEFINES = re.compile(r"add_argument|(add_|make_)?option|DEFINE(_\w+)?")  # what takes the name of an option
_DEFINES_ONLY = re.compile(r"add_argument|(add_|make_)option|DEFINE_\w+")  # and has no other meaning
_STRICT = {"parse_args", "parse_args_into_dataclasses", "parse_intermixed_args", "getopt", "gnu_getopt"}
_STRICT_CALLS = {"click.command", "click.group", "fire.Fire", "typer.run", "typer.Typer"}
_TOLERANT = {
    "parse_known_args", "parse_known_intermixed_args", "ignore_unknown_options", "allow_extra_args", "known_only",
    "return_remaining_strings",
}  # fmt: skip
# What a name of these tells: a field of Reading.
_USES = {
    "tf_config": _BY_TF_CONFIG, "mirrored": _MIRRORED, "local": _ON_ONE_MACHINE, "otherwise": _OTHER_CLUSTERS,
    "framework": _FRAMEWORK_NAMES, "strict": _STRICT,
}  # fmt: skip
_PS_NAME = re.compile(r"(?:.*_)?ps(?:_.*)?|.*parameter_?server.*", re.IGNORECASE)
_PS_TEXT = re.compile(r"(?<![a-z0-9])ps(?![a-z0-9])|parameter[_ -]?server", re.IGNORECASE)
# What runs a file that an import does not name.
_RUNS_FILES = {
    "exec", "execfile", "globals", "load_source", "run_module", "run_path", "SourceFileLoader",
    "spec_from_file_location",
}  # fmt: skip
_ARGV = {"argv", "orig_argv"}
# A part of the name of a flag, from which the whole is made: f"{job}_hosts".
_HOSTS_PART = re.compile(r"[_-]hosts\b|^-{0,2}hosts=?$")


class Found(NamedTuple):
    """Something in a program, and where: `TF_CONFIG` at `trainer.py:41`."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


@dataclass
class Reading:
    """What was found first of each kind; None: nowhere."""

    name: str  # of the program, as people see it
    flags: Found | None = None  # a cluster flag
    tf_config: Found | None = None  # TF_CONFIG, or what reads it
    sets: Found | None = None  # it makes a TF_CONFIG of its own, whatever there is
    local: Found | None = None  # a strategy for the cards of one machine
    mirrored: Found | None = None  # a strategy that takes no ps
    ps: Found | None = None  # a word about parameter servers
    framework: Found | None = None  # variables of PyTorch's or JAX's launchers
    starts: set[str] = field(default_factory=set)  # all such words
    otherwise: Found | None = None  # it knows of other machines in other ways
    learns: Found | None = None  # the import of a framework
    hidden: Found | None = None  # code of it that cannot be read here
    any_flags: Found | None = None  # flags that it does not name are taken, or may be
    strict: Found | None = None  # flags that it does not name are refused
    argv: Found | None = None  # sys.argv as a whole

    @property
    def doubt(self) -> Found | None:
        """Why it may take flags that it does not name."""
        return self.hidden or self.any_flags or (None if self.strict else self.argv)


def fitted(job: JobSpec, program: Program, *, anyway: bool = False) -> JobSpec:
    """`job` as the text of its program wants it where nobody has said: flags, ps, and what was chosen and why.

    `anyway`: the flags are passed whatever the program takes.  What is in doubt stays as it is.
    """
    found = read(program, job)
    if job.framework == "auto" and not (found.tf_config or found.flags or found.otherwise):
        # A name such as RANK alone may be anything's where not all of the program is read.
        starts = found.starts - _FRAMEWORK_VARIABLES if found.doubt else found.starts
        job = replace(job, framework=started_by(starts))
    if not anyway and job.flags is not None:
        job = _with_flags(job, found)
    if job.role(PS) == Role():  # nobody has said a word of ps
        job = _with_ps(job, found)
    if found.sets and not (found.flags or found.otherwise):
        hides = f"{found.sets}: that hides the TF_CONFIG that tflaunch gives each task"
        job = replace(job, notes=(*job.notes, hides))
    knows = found.tf_config or found.framework or found.flags or found.otherwise
    if found.learns and not (knows or found.doubt):
        local = f", and {found.local}, for the cards of one machine" if found.local else ""
        job = replace(job, alone=f"{found.name} reads neither the cluster flags nor TF_CONFIG{local}")
    return job


def _with_flags(job: JobSpec, found: Reading) -> JobSpec:
    told = found.tf_config or found.framework or found.local
    if told is None or found.flags:
        return job
    if (
        found.doubt and job.framework not in OF_THEIR_OWN
    ):  # whose programs take none, whatever is not read here
        return _chosen(
            job,
            f"the cluster flags are passed, too, though {told}, for {found.doubt}; --no-flags leaves them out",
        )
    job = replace(job, flags=None)
    return _chosen(job, f"no cluster flags: {told}, and names none of them; --flags passes them")


def _with_ps(job: JobSpec, found: Reading) -> JobSpec:
    without = found.mirrored or found.framework
    if without is None:
        return job
    if why := found.ps or (found.hidden if job.framework not in OF_THEIR_OWN else None):
        return _chosen(job, f"ps are planned, though {without}, for {why}; --ps 0 leaves them out")
    job = replace(job, roles={**job.roles, PS: Role(0)})
    return _chosen(job, f"no ps: {without}, and speaks of none; --ps N starts N")


def _chosen(job: JobSpec, choice: str) -> JobSpec:
    return replace(job, choices=(*job.choices, choice))


def read(program: Program, job: JobSpec) -> Reading:
    """What the text of that program says, and that of the shipped modules that it imports; none of it is run."""
    names = {*(job.flags or {}).values(), *FLAGS, *(f"{name}_hosts" for name in job.others)}
    names = {_plain(name) for name in names if name}
    # TensorFlow's own API has these words, too: in it they are no flags.
    words = {"job_name", "task_index", "task_id"}
    found = _Findings(Reading(program.file), names - words, words | (names & words))
    for module in _modules(program):
        if module is None:
            found.note("hidden", _MORE, program.file)
        else:
            found.take(module)
    return found.reading


def _modules(program: Program) -> Iterator[Module | None]:
    """The files of it, as many as are read here; None: and more."""
    size = 0
    for module in modules(program.directory, program.file, program.package, program.roots):
        yield module
        with contextlib.suppress(OSError):
            size += (program.directory / module.path).stat().st_size
        if size > _MOST_BYTES:
            yield None
            return


def faults(program: Program) -> Iterator[str]:
    """A sentence for each file of it that is no Python to the Python here."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    for module in _modules(program):
        fault = module and (module.fault or _refused(module))
        if module and fault and module.path.endswith(".py"):
            place = f"{module.path}:{fault.lineno}" if fault.lineno else module.path
            what = f"{place}: Python {ours} here cannot read it: {fault.msg}"
            yield f"{what}; the hosts' own Python has the last word"


def _refused(module: Module) -> SyntaxError | None:
    """What is wrong with text that fits the grammar, as `return` outside a function."""
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


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


@dataclass
class _Findings:
    """One walk over each tree."""

    reading: Reading
    names: Collection[str]  # of cluster flags, which nobody else uses
    words: Collection[str]  # and which others use as well
    signatures: bool = False
    seen: set[int] = field(default_factory=set)  # nodes that have been looked at with what they are part of
    path: str = ""

    def note(self, kind: str, what: str, path: str, line: int = 0) -> None:
        if getattr(self.reading, kind) is None:
            setattr(self.reading, kind, Found(what, f"{path}:{line}" if line else path))

    def take(self, module: Module) -> None:
        """Look at all of it."""
        self.path, self.seen = module.path, set()
        if module.tree is None:
            much = not module.fault and module.path.endswith(".py")
            self.note("hidden", _MORE if much else "cannot be read by the Python here", module.path)
        for name, line in module.elsewhere:
            self._import(name, line)
        for statement in module.tree.body if module.tree else ():
            if isinstance(statement, ast.Assign) and any(map(_is_tf_config, statement.targets)):
                self._found("sets", "sets TF_CONFIG itself", statement.lineno)
        line = 0
        for node in ast.walk(module.tree) if module.tree else ():
            line = getattr(node, "lineno", line)
            self._node(node, line)

    def _found(self, kind: str, what: str, line: int) -> None:
        if kind == "framework":
            self.reading.starts.add(what.rpartition(" ")[2])
        self.note(kind, what, self.path, line)

    def _import(self, name: str, line: int) -> None:
        top = name.partition(".")[0]
        self.signatures |= top in _BY_SIGNATURE
        if top in _LEARNING:
            self._found("learns", f"imports {top}", line)
        if top in _FRAMEWORK_PACKAGES:
            self._found("framework", f"imports {top}", line)
        elif top in _TOLD_OTHERWISE:
            self._found("otherwise", f"imports {top}", line)
        if top not in _KNOWN_PACKAGES and top not in sys.stdlib_module_names:
            self._found("hidden", f"imports {name}, which is not read here", line)

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
            if _is_argv(node.value) and isinstance(node.slice, ast.Constant):
                self.seen.add(id(node.value))  # one word of it
        elif isinstance(node, ast.Name):
            self._name(node.id, line)
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
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._name(node.name, line)
            if self.signatures and getattr(getattr(node, "args", None), "kwarg", None):
                self._found("any_flags", "takes options of any name", line)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self._parameter(node.target.id, line)

    # -- of each kind of node

    def _text(self, text: str, line: int) -> None:
        self._flag_in(text, line)
        if "TF_CONFIG" in text:
            self._found("tf_config", "reads TF_CONFIG", line)
        if text in _FRAMEWORK_VARIABLES:
            self._found("framework", f"reads {text}", line)
        if _VARIABLE_OF_OTHERS.fullmatch(text):
            self._found("otherwise", f"reads {text}", line)
        if _DEFINES_ONLY.fullmatch(text):  # getattr(flags, "DEFINE_string")
            self._found("any_flags", "makes the names of its flags when it runs", line)
        if text in _ARGV:
            self._found("argv", "reads sys.argv as a whole", line)
        if text in _TOLERANT:
            self._found("any_flags", f"takes options that it does not know ({text})", line)
        if _PS_TEXT.search(text):
            self._found("ps", "speaks of ps", line)

    def _flag_in(self, text: str, line: int, *, prose: bool = False) -> None:
        plain = text.replace("-", "_").lower()
        for name in self.names:
            if name in plain:
                self._found("flags", f"has {name}", line)
        if prose:
            return
        if _HOSTS_PART.search(text):
            self._found("any_flags", "makes the names of its flags when it runs", line)
        for word in self.words:
            if plain.strip("_").partition("=")[0] == word or f"__{word}" in plain:
                self._found("flags", f"has {word}", line)

    def _name(self, name: str, line: int) -> None:
        plain = _plain(name)
        if plain in self.names:
            self._found("flags", f"has {name}", line)
        for kind, known in _USES.items():
            if name in known:
                self._found(kind, f"uses {name}", line)
        if name in _TOLERANT:
            self._found("any_flags", f"takes options that it does not know ({name})", line)
        if _PS_NAME.fullmatch(name):
            self._found("ps", f"has {name}", line)

    def _attribute(self, node: ast.Attribute, line: int) -> None:
        self._name(node.attr, line)
        if node.attr in ("job_name", "task_index") and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            self._found("flags", f"has {node.attr}", line)  # of an object that some parser has made
        if node.attr in _ARGV and id(node) not in self.seen:  # whatever name `sys` has there
            self._found("argv", "reads sys.argv as a whole", line)
        if id(node) not in self.seen and _DEFINES_ONLY.fullmatch(node.attr):
            self._found("any_flags", "makes the names of its flags when it runs", line)
        chain = _chain(node)
        last = ".".join(chain[-2:])
        if last in _FRAMEWORK_NAMES:
            self._found("framework", f"uses {last}", line)
        if last in _STRICT_CALLS:
            self._found("strict", f"uses {last}", line)
        if chain[-2:-1] == ["estimator"] and node.attr in _OF_ESTIMATOR:
            self._found("tf_config", f"uses tf.estimator.{node.attr}", line)
        if chain[-2:] == ["app", "run"]:
            if chain[0] in ("app", "absl"):  # unless `app` is TensorFlow's: see _import_from
                self._found("strict", "uses absl.app", line)
            else:
                self._found("any_flags", "takes options that it does not know (tf.app.run)", line)

    def _parameter(self, name: str, line: int) -> None:
        self._name(name, line)
        if self.signatures and _plain(name) in self.words:
            self._found("flags", f"has {name}", line)

    def _keyword(self, node: ast.keyword, line: int) -> None:
        if node.arg is None:
            return
        tolerant = node.arg in _TOLERANT
        if tolerant and isinstance(node.value, ast.Constant) and not node.value.value:
            return  # known_only=False
        self._name(node.arg, line)

    def _import_from(self, node: ast.ImportFrom, line: int) -> None:
        module, names = node.module or "", {alias.name for alias in node.names}
        for name in names:
            if f"{module.rpartition('.')[2]}.{name}" in _FRAMEWORK_NAMES:
                self._found("framework", f"imports {module}.{name}", line)
        top = module.partition(".")[0]
        if top == "tensorflow" and ("app" in names or module.endswith(".app")):
            self._found("any_flags", "takes options that it does not know (tf.app.run)", line)
        if "estimator" in module and (used := names & _OF_ESTIMATOR):
            self._found("tf_config", f"uses tf.estimator.{min(used)}", line)
        if module == "sys" and names.intersection(_ARGV):
            self._found("argv", "reads sys.argv as a whole", line)
        if top in ("tensorflow", "official") and "*" in names:
            self._found("hidden", f"imports all of {module}", line)

    def _call(self, node: ast.Call, line: int) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "FLAGS":  # absl's, of words
            self._found("strict", "uses absl.flags", line)
        if called == "len" and node.args and _is_argv(node.args[0]):
            self.seen.add(id(node.args[0]))
        elif _DEFINES.fullmatch(called):
            self.seen.add(id(node.func))
            first = node.args[:1] if called.startswith("DEFINE") else node.args
            named = [word.value for word in node.keywords if word.arg == "name"]
            if not all(isinstance(name, ast.Constant) for name in [*first, *named]):
                self._found("any_flags", "makes the names of its flags when it runs", line)
        elif called in DYNAMIC and node.args and not isinstance(node.args[0], ast.Constant):
            self._found("hidden", "imports what has no name before it runs", line)
        elif called in _RUNS_FILES:
            self._found("hidden", f"runs what cannot be read here ({called})", line)


def _is_argv(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "argv"
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


def _is_tf_config(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "TF_CONFIG"
        and _chain(node.value)[-1:] == ["environ"]
    )


def _chain(node: ast.expr) -> list[str]:
    """`tf.compat.v1.app` as its parts, as far as they are names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else parts
