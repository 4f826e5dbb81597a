"""Rules: modules that are missing, or of another version than the program was written for."""

from tflaunch.code.standard_modules import IMPORTED
from tflaunch.ends.end_rule import ANYWHERE, MODULE, NAME, PATH, EndRule

_STANDARD = "|".join(sorted(IMPORTED))
_INSTALL = (
    "name another Python by `python:`, `venv:` or `conda:` in the hostfile, or install {0} by --requirements"
)
_NO_MODULE = "{python} on {host} has no {0}: " + _INSTALL + "; if the module is yours, see --code-dir"
_GONE_STDLIB = (
    "Python{version} on {host} has no {0} any more: name an older Python (3.11) in the hostfile, or update the package "
    "that imports it; for distutils, setuptools in --requirements brings it back"
)
_TF1 = (
    "that is TensorFlow 1, and {host} has TensorFlow 2{of}: write `import tensorflow.compat.v1 as tf` and "
    "tf.disable_v2_behavior(), or name a Python with TensorFlow 1.15 in the hostfile (`python:`)"
)
_KERAS = (
    "the program is written for Keras 2, and {host} has Keras 3{of_keras}: install tf_keras by --requirements and say "
    "--env TF_USE_LEGACY_KERAS=1, or "
)
_NEW_STDLIB = (
    "Python{version} on {host} is too old: it has no {0} yet; name a newer Python by `python:`, `venv:` or `conda:` in "
    "the hostfile"
)
_ABI = (
    "a package on {host} was built for NumPy 1 and meets NumPy 2{of_numpy} (or the other way round): "
    "--requirements with numpy<2, or with newer versions of the packages that its traceback names"
)
_SHADOW = "{0} in the program's directory hides the package of that name: rename that file"
_PROTOBUF = (
    "the generated _pb2.py files and protobuf{of_protobuf} on {host} do not fit together: --requirements with "
    "protobuf<4 (or 3.20.3) for old ones, a newer protobuf for new ones; --env "
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python is a slow way out"
)
_COMPILED_FOR_1 = r"A module that was compiled using NumPy 1\.x cannot be run in"

RULES = (
    EndRule(
        rf"^\S{{1,200}}: (?:.{{0,400}}: )?No module named '?({MODULE})'?; '?({MODULE})'? is not a package",
        _SHADOW.replace("{0}", "{1}.py"),
        ask="module",
    ),
    EndRule(
        (
            r"No module named '?(distutils|imp|asynchat|asyncore|smtpd|cgi|crypt|pipes|telnetlib|imghdr"
            r"|sndhdr)\b"
        ),
        _GONE_STDLIB,
    ),
    EndRule(r"No module named '?(tomllib|zoneinfo|graphlib)\b", _NEW_STDLIB),
    EndRule(
        r"No module named '?(tensorflow\.(?:contrib|examples|python\.keras|estimator)[.\w]{0,80})",
        "TensorFlow{of} on {host} has no {0} any more: "
        + "write the program for TensorFlow 2, or name a Python with the version that it was written for in "
        "the hostfile (`python:`)",
    ),
    EndRule(
        (
            r"No module named '?(tensorflow\.keras[.\w]{0,80}|keras\.(?:engine|layers|utils|optimizers"
            r"|preprocessing|applications)[.\w]{0,80})"
        ),
        _KERAS + "change the import: Keras 3 has no {0}",
    ),
    EndRule(
        r"No module named '?(tf_keras)\b",
        "TF_USE_LEGACY_KERAS is set, and {python} on {host} has no tf_keras: install it by --requirements (a "
        "line tf_keras~=2.x of TensorFlow's own version), or leave the variable out",
    ),
    EndRule(
        r"No module named '?(numpy\._core)[.\w]{0,60}",
        "that was pickled or built with NumPy 2, and {host} has NumPy 1{of_numpy}: --requirements with "
        "numpy>=2, or write the file again with the older one",
    ),
    EndRule(
        (
            r"No module named '?(cv2|PIL|sklearn|yaml|skimage|bs4|dateutil|google\.protobuf|attr|Crypto|git"
            r"|dotenv|serial)\b"
        ),
        "{python} on {host} has no {0}; its package is called otherwise (cv2: opencv-python-headless, PIL: "
        "pillow, sklearn: scikit-learn, yaml: pyyaml, skimage: scikit-image, dotenv: python-dotenv): put it "
        "into --requirements",
    ),
    EndRule(rf"^\S{{1,200}}: (?:.{{0,400}}[:(] ?)?No module named '?({MODULE})", _NO_MODULE, ask="module"),
    EndRule(
        r"PackageNotFoundError: (?:No package metadata was found for )?([\w.-]{1,80})",
        "{python} on {host} lacks the package {0}: " + _INSTALL,
    ),
    EndRule(
        r"DistributionNotFound: The '([\w.-]{1,80})", "{python} on {host} lacks the package {0}: " + _INSTALL
    ),
    EndRule(
        (
            r"(?:VersionConflict|ImportError): "
            r".{0,100}?((?<![\w.-])[\w.-]{1,60}[<>=!~]{1,2}[\w.]{1,20})(?:,\S{1,60})? is required"
        ),
        "{python} on {host} has another version than {0}: install that one by --requirements",
    ),
    EndRule(
        rf"partially initialized module '({MODULE})' has no attribute",
        _SHADOW.replace("{0}", "{0}.py, or another file of that name,"),
    ),
    EndRule(
        (
            rf"cannot import name '{NAME}' from partially initialized module '({_STANDARD})'",
            # Python 3.13 has "consider renaming" in place of the path.
            rf"cannot import name '{NAME}' from '({_STANDARD})' \((?!\S{{0,240}}/python3\.\d{{1,2}}/|unknown)",
        ),
        _SHADOW.replace("{0}", "{0}.py"),
    ),
    EndRule(
        rf"cannot import name '{NAME}' from partially initialized module '({MODULE})'",
        "two modules of the program import each other in a circle ({place}): move the import of {0} into the "
        "function that needs it",
    ),
    EndRule(
        (
            r"module '(random|logging|types|queue|email|token|code|copy|csv|string|select|profile|socket"
            r"|signal|calendar|statistics|json(?=' has no attribute '(?:loads?|dumps?)'))' has no attribute"
        ),
        _SHADOW.replace("{0}", "{0}.py"),
    ),
    EndRule(
        r"attempted relative import (?:with no known parent package|beyond top-level package)",
        "the program is part of a package, and was started as a file: start it as a module, `tflaunch run "
        "HOSTS -m PACKAGE.MODULE --code-dir DIR`, where DIR holds the package",
    ),
    EndRule(
        r"module 'tensorflow' has no attribute '(contrib)'",
        "tf.contrib went away with TensorFlow 1, and {host} has TensorFlow 2{of}: name a Python with "
        "TensorFlow 1.15 in the hostfile (`python:`), or replace what comes from tf.contrib",
    ),
    EndRule(
        r"module 'tensorflow' has no attribute '(estimator)'",
        "TensorFlow{of} on {host} has no tf.estimator any more (2.15 was the last that had): name a Python "
        "with an older one, or rewrite that part for Keras",
    ),
    EndRule(
        (
            r"module 'tensorflow' has no attribute '(Session|placeholder|app|flags|logging|train|get_variable"
            r"|variable_scope|ConfigProto|global_variables_initializer|gfile|GraphDef|reset_default_graph"
            r"|layers|log|set_random_seed|to_float|disable_eager_execution|InteractiveSession|Print|python_io"
            r"|assign|random_normal|truncated_normal|GPUOptions|OptimizerOptions|RunOptions|RunMetadata|GraphKeys"
            r"|get_default_graph|get_default_session|get_collection|add_to_collection|local_variables_initializer"
            r"|tables_initializer|initialize_all_variables|trainable_variables|global_variables)'",
            r"module 'tensorflow\._api\.v2\.train' has no attribute '(Server|Supervisor|Saver|SyncReplicasOptimizer"
            r"|MonitoredTrainingSession|replica_device_setter|get_or_create_global_step|get_global_step"
            r"|(?:GradientDescent|Adam|Adagrad|Momentum|RMSProp|Ftrl)Optimizer)'",
        ),
        _TF1,
    ),
    EndRule(
        r"module 'tensorflow\S{0,40}' has no attribute '(\w{1,80})'",
        "TensorFlow{of} on {host} has no {0}: the program was written for another version; name a Python "
        "that has it in the hostfile (`python:`), or install it by --requirements",
    ),
    EndRule(
        (
            r"tf\.\w{1,40}\(?\)? is not compatible with eager execution",
            r"not supported when eager execution is enabled",
            r"Session graph is empty",
        ),
        "the program is written for TensorFlow 1's graphs, and TensorFlow 2{of} on {host} runs eagerly: call "
        "tf.compat.v1.disable_eager_execution() (or disable_v2_behavior()) at its start",
    ),
    EndRule(
        (
            r"Argument\(s\) not recognized: \{'(lr|decay)'",
            r"unexpected keyword argument '(lr|decay|period)'",
        ),
        _KERAS + "write learning_rate= for lr=, and no decay= or period=",
    ),
    EndRule(
        (
            r"Keras 3 only supports",
            r"not compatible with Keras 3",
            r"Invalid filepath extension for saving",
            r"filename must end in `\.(?:weights\.h5|keras)`",
            r"filepath provided must end in `\.(?:keras|weights\.h5)",
        ),
        _KERAS + "give the file a name that ends in .keras (weights: .weights.h5)",
    ),
    EndRule(
        (
            r"KerasTensor cannot be used as input to a TensorFlow function",
            r"A KerasTensor is symbolic",
        ),
        _KERAS + "wrap that tf function into a keras.layers.Layer",
    ),
    EndRule(
        (
            r"Unrecognized keyword arguments passed to \w{1,60}: \{'(?:batch_shape|batch_input_shape|weights"
            r"|input_length|input_shape)'"
        ),
        "the model was saved by another version of Keras than {host} has{of_keras}: load it with the version "
        "that saved it, or --env TF_USE_LEGACY_KERAS=1 with tf_keras",
    ),
    EndRule(
        (
            r"Could not (?:locate class|deserialize) '(\w{1,80})'",
            r"Unknown (?:layer|loss|metric|optimizer|object): '?(\w{1,80})",
        ),
        "Keras does not know a class or function of yours that the saved model uses: decorate it with "
        "@keras.saving.register_keras_serializable(), or pass custom_objects= to load_model",
    ),
    EndRule(
        r"Keras cannot be imported\. Check that it is installed",
        "TF_USE_LEGACY_KERAS is set, or Keras is broken, on {host}: {python} needs tf_keras, by "
        "--requirements, or --env TF_USE_LEGACY_KERAS=0",
    ),
    EndRule(
        r"Your environment has TF_USE_LEGACY_KERAS set to True, but you do not have the tf_keras package",
        "TF_USE_LEGACY_KERAS is set, and {python} on {host} has no tf_keras: install it by --requirements, "
        "or --env TF_USE_LEGACY_KERAS=0",
        ANYWHERE,
    ),
    EndRule(
        (
            r"module 'numpy' has no attribute '(\w{1,30})'",
            r"`np\.(\w{1,30})` was removed in the NumPy 2",
        ),
        "NumPy{of_numpy} on {host} has no such name any more: --requirements with numpy<1.24 (for np.float, "
        "np.int, np.bool, np.object) or numpy<2, or write the present name, which its message tells",
    ),
    EndRule(
        (
            r"numpy\.core\.multiarray failed to import",
            _COMPILED_FOR_1,
            r"numpy\.(?:dtype|ndarray|ufunc) size changed",
            r"_ARRAY_API not found",
            r"module compiled against (?:ABI|API) version",
        ),
        _ABI,
    ),
    EndRule(_COMPILED_FOR_1, _ABI, ANYWHERE),
    EndRule(
        (
            r"Descriptors cannot (?:not )?be created directly",
            r"cannot import name '(?:builder|runtime_version)' from 'google\.protobuf",
            r"Detected (?:incompatible|mismatched) Protobuf Gencode/Runtime",
            r"module 'google\.protobuf\S{0,60}' has no attribute",
            r"_internal_create_key",
            r"'MessageFactory' object has no attribute",
            r"Couldn't build proto file into descriptor pool",
            r"duplicate file name \(?\S{1,100}\.proto",
            r"This program (?:requires|was compiled against) version \S{1,20} of the Protocol Buffer",
        ),
        _PROTOBUF,
    ),
    EndRule(
        (
            r"cannot import name '(?:Mapping|MutableMapping|Sequence|Iterable|Callable|Hashable|Sized"
            r"|MutableSequence|MutableSet|Set|Container)' from 'collections'"
        ),
        "a package or the program was written for Python before 3.10 (names in `collections`), and {host} runs"
        "{version}: update that package by --requirements, or name an older Python in the hostfile",
    ),
    EndRule(
        (
            rf"cannot import name '((?!ByteString){NAME})' from '(typing|types|enum|datetime|itertools"
            r"|functools|contextlib|dataclasses)' \(\S{0,240}/python3\.\d{1,2}/\w{1,20}\.py\)"
        ),
        _NEW_STDLIB.replace("{0}", "{1}.{0}"),
    ),
    EndRule(
        rf"cannot import name '({NAME})' from '({MODULE})' \(({PATH})\)",
        "{1} on {host} is another version than the program wants (it has no {0}): install the right one by "
        "--requirements; if {1} is yours, a file elsewhere on its path hides it: {2}",
        ask="name",
    ),
    EndRule(
        rf"cannot import name '?({NAME})'?(?: from '?({MODULE}))?",
        "a module on {host} is of another version than the program wants (it has no {0}): install the right "
        "one by --requirements",
    ),
    EndRule(
        (
            r"DLL load failed",
            r"is not a supported wheel on this platform",
        ),
        "a package on {host} was built for another system: install it there by --requirements",
    ),
    EndRule(
        r"Op type not registered '(\w{1,80})'",
        "{host} has a TensorFlow without the op {0}: its version is older than the one that made the "
        "graph{differ_text}, or a library with custom ops was not loaded (tf.load_op_library, import "
        "tensorflow_text ...)",
    ),
    EndRule(
        r"NodeDef mentions attr(?:ibute)? '?(\w{1,60})'? (?:not in|which is not in) ",
        "the graph comes from a newer TensorFlow than {host} has{of}{differ_text}: let all hosts have one "
        "version (--requirements, or `venv:` in the hostfile)",
    ),
    EndRule(
        (
            r"Your environment has inconsistent versions",
            r"version mismatch.{0,60}(?:jaxlib|torch|tensorflow)",
            r"jaxlib (?:version )?\S{1,20} is (?:newer|older) than",
            r"jaxlib is version \S{1,20}, but this version of jax requires",
        ),
        "jax and jaxlib on {host} are of different versions{differ_text}: install both together by "
        "--requirements (jax[cpu] or jax[cuda12])",
    ),
    EndRule(
        (
            r"The version(?:s)? of torchvision",
            r"operator torchvision::\w{1,30} does not exist",
            r"torchvision.{0,60}(?:not compatible|was compiled)",
        ),
        "torch and torchvision on {host} do not fit together: install both together by --requirements",
    ),
    EndRule(
        (
            r"pip(?:'s dependency resolver|\.exceptions|: error)",
            r"Could not find a version that satisfies the requirement ([\w.<>=!~\[\]-]{1,80})",
        ),
        "pip finds no such package for the Python{version} of {host}: correct its line in --requirements, or "
        "name another Python",
        ANYWHERE,
    ),
)
