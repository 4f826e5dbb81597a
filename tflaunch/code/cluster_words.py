"""The names in a program's text that show how the program learns which task of a cluster it is."""

from __future__ import annotations

import re

from tflaunch.frameworks.table import ALL

MIRRORED = {"MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy"}  # over several machines, without ps
BY_TF_CONFIG = {
    *MIRRORED, "ParameterServerStrategy", "ParameterServerStrategyV1", "ParameterServerStrategyV2",
    "TFConfigClusterResolver",
}  # fmt: skip
# Names of the one task that gives the others work: TensorFlow calls it the coordinator, and its job is `chief`.
COORDINATES = {"ClusterCoordinator"}
COMPILES_OTHER_THINGS = {"re", "regex", "re2", "torch", "py_compile"}  # modules with a `compile` of their own
COORDINATES_IF_TOLD = {"ParameterServerStrategy", "ParameterServerStrategyV2"}  # TensorFlow 2: of a resolver
OF_ESTIMATOR = {"train_and_evaluate", "RunConfig"}  # they read TF_CONFIG by themselves
OF_CONTRIB_LEARN = {"RunConfig", "Experiment"}  # of TensorFlow 1: they read TF_CONFIG too, and need no chief
ON_ONE_MACHINE = {"MirroredStrategy", "CentralStorageStrategy", "OneDeviceStrategy"}
# Names in code that learns of other machines in other ways.
OTHER_CLUSTERS = {
    "ClusterSpec", "Server", "ClusterCoordinator", "SimpleClusterResolver", "SlurmClusterResolver",
    "KubernetesClusterResolver", "GCEClusterResolver", "TPUClusterResolver", "TPUStrategy", "DispatchServer",
    "experimental_connect_to_cluster", "experimental_connect_to_host", "dtensor",
}  # fmt: skip
# What the programs of frameworks with launchers of their own read: names, variables, and packages that read them.
FRAMEWORK_NAMES = {"keras.distribution"}.union(*(each.names for each in ALL))  # Keras's means none alone
FRAMEWORK_VARIABLES = set[str]().union(*(each.variables for each in ALL))
FRAMEWORK_PACKAGES = set[str]().union(*(each.launching for each in ALL))
# Packages whose own launchers tell each task where the others are, in ways that tflaunch does not offer.
TOLD_OTHERWISE = {"mpi4py", "ray", "dask", "byteps", "colossalai", "kungfu"}
VARIABLE_OF_OTHERS = re.compile(r"TFLAUNCH_(?!RUN)\w+|SLURM_\w+|OMPI_\w+|PMI_\w+|KERAS_DISTRIBUTION\w*")
LEARNING = {
    "tensorflow", "keras", "tf_keras", "torch", "jax", "flax", "mxnet", "paddle",
    "numpy", "pandas", "scipy", "sklearn", "xgboost", "lightgbm", "catboost", "statsmodels",
}  # fmt: skip

# Installed packages that define none of the cluster flags, whatever is imported of them.
KNOWN_PACKAGES = {
    *LEARNING, *FRAMEWORK_PACKAGES, *TOLD_OTHERWISE,
    "absl", "albumentations", "attr", "attrs", "bs4", "chex", "click", "cloudpickle", "clu", "colorama",
    "coloredlogs", "cv2", "cycler", "datasets", "dateutil", "diffusers", "dill", "dotenv", "einops", "evaluate",
    "fire", "fsspec", "gcsfs", "google", "grain", "grpc", "gym", "gymnasium", "h5py", "huggingface_hub", "imageio",
    "imgaug", "imblearn", "jaxlib", "joblib", "kaggle", "keras_applications", "keras_cv", "keras_hub", "keras_nlp",
    "keras_preprocessing", "keras_tuner", "librosa", "lightgbm", "lxml", "markdown", "matplotlib", "ml_collections",
    "mlflow", "mpl_toolkits", "msgpack", "nibabel", "nltk", "numba", "numpy", "nvidia", "onnx", "onnxruntime",
    "opacus", "opt_einsum", "optax", "orbax", "orjson", "packaging", "pandas", "patsy", "peft", "PIL",
    "pkg_resources", "plotly", "polars", "portpicker", "prettytable", "psutil", "pyarrow", "pycocotools", "pydicom",
    "pydot", "pynvml", "pytz", "pywt", "rasterio", "regex", "requests", "rich", "ruamel", "s3fs", "safetensors",
    "scipy", "seaborn", "sentencepiece", "setuptools", "shapely", "SimpleITK", "six", "skimage", "sklearn",
    "soundfile", "spacy", "statsmodels", "tabulate", "tensorboard", "tensorboardX", "tensorflow_addons",
    "tensorflow_datasets", "tensorflow_estimator", "tensorflow_hub", "tensorflow_io", "tensorflow_probability",
    "tensorflow_text", "tensorflow_transform", "termcolor", "threadpoolctl", "tiktoken", "timm", "tokenizers", "toml",
    "tomli", "torchaudio", "torchmetrics", "torchtext", "torchvision", "tqdm", "transformers", "typer",
    "typing_extensions", "ujson", "urllib3", "wandb", "wrapt", "xgboost", "yaml", "zarr",
    # standard libraries of other Python versions
    "ConfigParser", "Queue", "StringIO", "__builtin__", "cPickle", "cStringIO", "cgi", "distutils", "imp", "pipes",
    "urllib2", "urlparse",
}  # fmt: skip
# Packages that make options from the names of parameters and fields.
BY_SIGNATURE = {"fire", "typer"}

# Other names under which trainers have the cluster flags, as far as these are no words for anything else.
ALSO_CALLED = {
    "ps_hosts": ("ps_host", "ps_servers", "ps_addresses"),
    "worker_hosts": ("worker_host", "worker_servers", "worker_addresses"),
    "chief_hosts": ("chief_host",),
    "job_name": ("job", "job_type", "task_type"),
    "task_index": ("task_id", "worker_index", "replica_id", "task_idx", "task_number", "worker_id", "task"),
}

# The same where the flag takes a text: as a number (`--workers 4`) it says how many.
IF_OF_TEXT = {"ps_hosts": ("ps",), "worker_hosts": ("workers", "worker"), "chief_hosts": ("chief",)}
# A definition that takes one text: absl's, by their names; those of argparse and click by what they are told.
TEXT_DEFINES = re.compile(r"DEFINE_(string|list|spaceseplist)|add_argument|(add_|make_)?option")
NO_TEXT_ACTIONS = {"store_true", "store_false", "store_const", "count", "help", "version"}

DEFINES = re.compile(
    r"add_argument|(add_|make_)?option|DEFINE(_\w+)?"
)  # functions that take the name of an option
DEFINES_ONLY = re.compile(r"add_argument|(add_|make_)option|DEFINE_\w+")  # those that mean nothing else
STRICT = {"parse_args", "parse_args_into_dataclasses", "parse_intermixed_args", "getopt", "gnu_getopt"}
STRICT_CALLS = {"click.command", "click.group", "fire.Fire", "typer.run", "typer.Typer"}
TOLERANT = {
    "parse_known_args", "parse_known_intermixed_args", "ignore_unknown_options", "allow_extra_args", "known_only",
    "return_remaining_strings",
}  # fmt: skip
# Names that read what may differ between the tasks.
ASKS = {"getenv", "environ", "gethostname", "node", "getfqdn", "uname", "input"}
# Fields of Reading, and the names that set them.
USES = {
    "tf_config": BY_TF_CONFIG, "mirrored": MIRRORED, "local": ON_ONE_MACHINE, "otherwise": OTHER_CLUSTERS,
    "framework": FRAMEWORK_NAMES, "closed": STRICT, "coordinates": COORDINATES, "estimator": OF_ESTIMATOR,
    "distributed": MIRRORED | COORDINATES_IF_TOLD, "own_cluster": {"SimpleClusterResolver"},
    "by_nccl": {"NCCL"}, "by_rings": {"RING"},
}  # fmt: skip
# Of these variables a value of the program's own keeps its tasks from finding each other.
PLACES = FRAMEWORK_VARIABLES - {"MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
# Arguments by which PyTorch and JAX are told which process it is, where the variables are not to say it.
RANKS = {"init_process_group": "rank", "initialize": "process_id"}
RANK_VARIABLES = {"rank": "RANK", "process_id": "JAX_PROCESS_ID"}
PS_NAME = re.compile(r"(?:.*_)?ps(?:_.*)?|.*parameter_?server.*", re.IGNORECASE)
PS_TEXT = re.compile(r"(?<![a-z0-9])ps(?![a-z0-9])|parameter[_ -]?server", re.IGNORECASE)
# Names of functions that run a file without an import.
RUNS_FILES = {
    "exec", "execfile", "globals", "load_source", "run_module", "run_path", "SourceFileLoader",
    "spec_from_file_location",
}  # fmt: skip
ARGV = {"argv", "orig_argv"}
# A part from which the program makes a flag's whole name: f"{job}_hosts".
HOSTS_PART = re.compile(r"[_-]hosts\b|^-{0,2}hosts=?$")

# What other launchers give a task, by the names of their flags and variables -> what stands for it here.
FLAGS_OF_OTHERS = {
    "{rank}": ("rank", "node_rank", "process_id", "proc_id", "process_index", "global_rank", "machine_rank"),
    "{world_size}": (
        "world_size", "num_processes", "num_procs", "nnodes", "num_nodes", "process_count", "num_machines",
    ),
    "{chief_host}:{chief_port}": ("coordinator_address", "coordinator"),
    "tcp://{chief_host}:{chief_port}": ("dist_url", "init_method", "dist_init_method"),
    "{chief_host}": ("master_addr", "master_address", "master_ip", "coordinator_host", "coordinator_ip"),
    "{chief_port}": ("master_port", "coordinator_port"),
}  # fmt: skip
VARIABLES_OF_OTHERS = {
    "{rank}": (
        "PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
    ),
    "{world_size}": (
        "NUM_PROCESSES", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE",
    ),
    "{local_rank}": (
        "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
    ),
    "{chief_host}:{chief_port}": ("COORDINATOR_ADDRESS",),
    "{chief_port}": ("COORDINATOR_PORT",),
}  # fmt: skip
BY_FLAG = {name: value for value, names in FLAGS_OF_OTHERS.items() for name in names}
BY_VARIABLE = {name: value for value, names in VARIABLES_OF_OTHERS.items() for name in names}
HOSTS_OF_OTHERS = {  # the hosts that another launcher got: no placeholder stands for these
    "SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "LSB_DJOB_HOSTFILE", "LSB_HOSTS", "LSB_MCPU_HOSTS",
    "PBS_NODEFILE", "PE_HOSTFILE", "OAR_NODEFILE",
}  # fmt: skip
# An address with a port, alone or after a scheme: `gpu01:2222`, `tcp://10.0.0.7:23456`.
ADDRESS = re.compile(r"(?:[a-z]{2,8}://)?[\w.-]{1,253}: ?\d{2,5}", re.ASCII)
