"""Rules: TensorFlow's clusters, checkpoints, graphs and shapes; Keras."""

from tflaunch.ends.end_rule import AFTERMATH, ANYWHERE, PATH, STACK, EndRule
from tflaunch.frameworks.tensorflow import KERAS_ADVICE

_SHARDED = (
    "each ps writes its part of the checkpoint on its own host: give it a directory that all hosts share (a `workdir:` "
    "on a shared disk with --no-sync, or its path as the program's own argument), or Saver(sharded=False) in the "
    "program, then the chief writes all of it"
)
_TEMP = (
    "all tasks write one checkpoint in parts, and its directory is not the same disk on all hosts, or two tasks write "
    "to one path: give it a directory that all hosts share, and let only the chief name the real one (other workers a "
    "path of their own)"
)
_KERAS_3 = f"Keras 3 has no fit under MultiWorkerMirroredStrategy and ParameterServerStrategy: {KERAS_ADVICE}"
_PER_WORKER = (
    f"with Keras's fit: {_KERAS_3}; in a loop of your own: give the dataset to "
    "coordinator.create_per_worker_dataset()"
)
_NO_PS = "MultiWorkerMirroredStrategy takes no parameter servers: --ps 0"
_SHAPE = (
    "shapes do not fit together at {place}: the data or a layer has other sizes than the program expects; print the "
    "shape there, mind the batch dimension and a last, smaller batch (batch(..., drop_remainder=True))"
)
_OTHER_SHAPES = (
    r"Matrix size-incompatible",
    r"Incompatible shapes",
    r"Input to reshape is a tensor with",
    r"cannot reshape (?:array|tensor)",
    r"Shapes? .{0,60}(?:are|is) incompatible",
    r"incompatible with the layer",
    r"Dimensions must be equal",
    r"must have the same (?:shape|first dimension|rank)",
    r"Shape mismatch",
    r"shape mismatch",
    r"expected (?:axis|min_ndim|ndim|shape)",
    r"could not broadcast",
    r"operands could not be broadcast",
    r"Data cardinality is ambiguous",
    r"inhomogeneous",
    r"setting an array element with a sequence",
    r"Cannot batch tensors with different shapes",
    r"required broadcastable shapes",
    r"Dimension \d{1,3} (?:in both shapes|of input).{0,40}must",
    r"logits and labels must",
    r"ConcatOp : Dimension",
    r"Cannot feed value of shape",
    r"shapes .{0,60}not aligned",
    r"matmul: Input operand",
    r"all the input array dimensions",
    r"slice index \d{1,12} of dimension",
    r"TensorShape.{0,40}incompatible",
)
_BATCH = (
    "the batch does not divide evenly at {place}: take a global batch size that is a multiple of the number of "
    "replicas (workers x GPUs), and batch(..., drop_remainder=True)"
)
_CHECKPOINT = (
    "the checkpoint does not fit the program: it is of another model, or of an older one, in the same directory; "
    "start with an empty one, or restore only what fits (expect_partial(), Saver(var_list))"
)
_END = (
    "the data came to its end at {place}: repeat() the dataset, or end the training there (except "
    "tf.errors.OutOfRangeError); with queues, num_epochs is used up, or a reader failed above"
)
_NAN = (
    "the loss or a gradient is no number (NaN) at {place}: a smaller learning rate, clipped gradients, a look at the "
    "data (the mean of an empty last batch is NaN: batch(N, drop_remainder=True)); "
    "tf.debugging.enable_check_numerics() names the first op"
)
_DEVICE = (
    "the program puts an op on a device that {task} has not: it must open its session on its own server "
    "(server.target), and the names of jobs and tasks must be those of the cluster; allow_soft_placement=True for GPUs"
)
_INDEX = (
    "a label or index is outside of its range at {place}: the classes of the model (its last layer, depth) "
    "are fewer than the labels, or labels begin with 1"
)

RULES = (
    EndRule(
        (
            r"Attempt to convert a value \(PerReplica:",
            r"distribute\.values\.PerReplica'>\) to a Tensor",
        ),
        _KERAS_3,
    ),
    EndRule(r"pass this dataset to ClusterCoordinator\.create_per_worker_dataset", _PER_WORKER),
    EndRule(r"There is no id for task_type 'ps'", _NO_PS),
    EndRule(
        (
            r"`task_id` (\d{1,6}) exceeds the maximum id of (\w{1,20})",
            r"Task (\d{1,6}) was not defined in job",
        ),
        "the program builds a cluster with fewer tasks than it is started as: take it from TF_CONFIG or the "
        "flags, with nothing hard-coded",
    ),
    EndRule(
        (
            r"There must be at least one (ps|worker|chief)",
            r"must have (?:at least )?one (ps|worker|chief)",
        ),
        "the program's strategy wants a {0}: ParameterServerStrategy needs --ps 1 or more, --workers and "
        "--chief",
    ),
    EndRule(
        r"Collective ops must be configured at program startup",
        "MultiWorkerMirroredStrategy must be made before any other call of TensorFlow: make it the first "
        "line of the program after its imports",
    ),
    EndRule(
        (
            r"Could not parse port for local server",
            r"Unknown server def",
            r"cluster spec.{0,60}(?:invalid|malformed)",
        ),
        "the program builds its own server from addresses that are not HOST:PORT: take them from TF_CONFIG "
        "or the cluster flags as they are",
    ),
    EndRule(r"ckpt\S{0,100}_temp\S{0,200}; No such file or directory", _SHARDED, ANYWHERE),
    EndRule(
        (
            r"_temp(?:_|/|-)\S{0,200}(?:; No such file|: No such file|not found|does not exist)",
            r"MergeV2Checkpoints",
            r"tempstate\S{0,60}[;:] (?:No such|not found)",
        ),
        _TEMP,
        ANYWHERE,
    ),
    EndRule(
        (
            rf"The passed save_path is not a valid checkpoint: ({PATH})",
            rf"Failed to find any matching files for ({PATH})",
            r"Could not find checkpoint",
            r"No checkpoint found",
        ),
        "{host} has no such checkpoint: the chief of an earlier run wrote it on its own host; fetch it there "
        "(tflaunch fetch), or let all hosts share that directory",
    ),
    EndRule(
        (
            r"Key \S{1,200} not found in checkpoint",
            r"Assign requires shapes of both tensors to match",
            r"Restoring from checkpoint failed",
            r"Tensor name \S{1,200} not found in checkpoint",
            r"Received incompatible tensor with shape",
            r"checkpoint.{0,80}(?:mismatch|incompatible)",
            r"Shape mismatch.{0,100}checkpoint",
            r"Layer count mismatch",
            r"axes don't match array",
            r"You are trying to load a weight file",
            r"Weights for model .{0,60}have not",
            r"Cannot assign value to variable",
            r"A total of \d{1,5} objects could not be loaded",
        ),
        _CHECKPOINT,
    ),
    EndRule(
        (
            r"Attempting to use uninitialized value (\S{1,100})",
            r"uninitialized resource",
            r"Error while reading resource variable \S{1,100} from Container: localhost",
            r"Variables? not initialized",
        ),
        "the program reads a variable ({0}) before anyone has set it: run "
        "tf.compat.v1.global_variables_initializer(), or let MonitoredTrainingSession do it with "
        "is_chief=(task_index == 0)",
    ),
    EndRule(
        r"Graph is finalized and cannot be modified",
        "the program adds an op ({place}) after MonitoredTrainingSession or Supervisor has closed the graph: "
        "make all ops (also summaries, tf.assign) before the session",
    ),
    EndRule(
        (
            r"content is larger than 2GB",
            r"larger than the 2GB limit",
            r"GraphDef cannot be larger than 2GB",
            r"exceeded maximum protobuf size",
            r"Message tensorflow\.\w{1,40} exceeds maximum",
            r"Cannot serialize protocol buffer .{0,200}2147483647",
        ),
        "the graph holds the data itself, and protobuf takes at most 2 GB: feed it by tf.data or "
        "placeholders, not as a constant",
    ),
    EndRule(
        (
            r"OutOfRangeError",
            r"End of sequence",
            r"FIFOQueue .{0,60}is closed and has insufficient elements",
            r"RandomShuffleQueue .{0,60}is closed",
            r"ran out of data",
        ),
        _END,
    ),
    EndRule(
        (
            r"NanLossDuringTrainingError",
            r"Tensor had (?:NaN|Inf)",
            r"Model diverged with loss = NaN",
            r"Nan in summary histogram",
            r"contains? (?:NaN|nan|inf)\b",
            r"check_numerics",
            r"FloatingPointError: invalid value",
            r"Terminating training.{0,20}NaN",
            r"returned nan values",
            r"non-finite",
        ),
        _NAN,
    ),
    EndRule(r"Cannot assign a device for operation", _DEVICE),
    EndRule(
        (
            r"`?batch_?size`?.{0,80}(?:must be|is not|isn't) (?:divisible|a multiple)",
            r"(?:not|evenly) divi(?:sible|de)",
            r"divisible by",
        ),
        _BATCH,
    ),
    EndRule(_OTHER_SHAPES, _CHECKPOINT, needs=("restores",)),
    EndRule(_OTHER_SHAPES, _SHAPE),
    EndRule(
        r"IndexError: index (-?\d{1,20}) is out of bounds for axis (\d{1,2}) with size (\d{1,20})",
        "the program takes entry {0} of an array that has {2} (axis {1}) at {place}: it is shorter on {host} "
        "than the program expects, or the number is one of other data (a label without a class)",
    ),
    EndRule(
        (
            r"Received a label value of",
            r"indices\[.{0,60}\] = -?\d{1,20} is not in \[",
            r"index -?\d{1,20} is out of bounds",
            r"label_num",
            r"OOV",
            r"out of range \[",
            r"is out of valid range",
        ),
        _INDEX,
    ),
    EndRule(
        r"You must feed a value for placeholder tensor '([\w/]{1,100})",
        "the program runs a step without a value for its placeholder {0} ({place}): put it into feed_dict",
    ),
    EndRule(
        (
            r"cannot compute \w{1,40} as input #\d",
            r"Tensor conversion requested dtype",
            r"cannot be cast",
            r"incompatible dtypes",
            r"has type \w{1,20} that does not match",
            r"expected \w{1,20} but got \w{1,20} dtype",
            r"must be of the same type",
        ),
        "two tensors have different types at {place}: tf.cast one of them (float64 from NumPy and float32 of "
        "the model, mostly)",
    ),
    EndRule(
        (
            r"Using a symbolic `?tf\.Tensor`? as a Python",
            r"Cannot convert a symbolic (?:tf\.Tensor|Tensor)",
            r"Tensor objects are only iterable when eager",
            r"The tensor .{0,60}cannot be accessed (?:from )?here",
            r"out of scope",
        ),
        "the program uses a tensor of a graph as if it were a number ({place}): use tf.cond, tf.while_loop "
        "or tf functions there, or take that line out of the tf.function; with NumPy 1.20 and TensorFlow "
        "below 2.5, --requirements with numpy<1.20",
    ),
    EndRule(
        (
            r"You must (?:call `?compile|compile your model)",
            r"Model has not been compiled",
            r"model\.compile",
        ),
        "the program trains a model that it has not compiled ({place}): model.compile(...) first",
    ),
    EndRule(
        (
            r"_distributed_tf_\w{1,40}",
            r"distribution\.extended\.update",
        ),
        "the model, the optimizer and compile() must all be made within the same `with strategy.scope():` "
        "({place})",
        STACK,
    ),
    EndRule(
        (
            (
                r"(?:Variable|model|optimizer|metric).{0,120}(?:was |were |is )?(?:not )?created (?:in|under"
                r"|within|outside) .{0,60}(?:strategy|scope)"
            ),
            r"Mixing different tf\.distribute\.Strategy",
            r"strategy\.scope",
            r"under the scope of a `?tf\.distribute",
            r"different distribution strategy",
        ),
        "the model, the optimizer and compile() must be made within the same `with strategy.scope():` "
        "({place})",
    ),
    EndRule(
        r"it must have one \"?(chief|master)\"? node",
        "the program (tf.estimator) wants a {0} in its cluster: add --job {0}=1",
    ),
    EndRule(
        (
            r"(?:ValueError|JSONDecodeError).{0,200}TF_CONFIG",
            r"TF_CONFIG.{0,100}(?:not set|missing|invalid|must be)",
        ),
        "the program reads TF_CONFIG, and finds it wrong: it must not change it; `tflaunch run ... "
        "--dry-run` shows what each task gets",
    ),
    EndRule(
        (
            r"(?:pywrap_tensorflow|_pywrap_tensorflow_internal).{0,100}(?:failed|error|cannot)",
            r"Failed to load the native TensorFlow runtime",
        ),
        "TensorFlow on {host} cannot load its own libraries: it is half installed, or built for another "
        "system; install it anew there (--requirements, or `venv:` in the hostfile)",
    ),
    EndRule(
        r"Unable to (?:synchronously )?create (?:link|dataset|group) \(name already exists",
        "two layers of the model have the same name, so HDF5 cannot save it: name them differently, or save "
        "as .keras",
    ),
    EndRule(
        r"File system scheme '?\[?(hdfs|viewfs)\]?'? not implemented",
        "TensorFlow knows no {0}: paths since 2.6: have the program read and write them by hdfs-native and fsspec, as "
        "examples/on_hdfs.py does, or bring the data to a disk",
    ),
    EndRule(
        r"File system scheme '?\[?(\w{1,12})\]?'? not implemented",
        "TensorFlow on {host} cannot read {0}: paths: install tensorflow-io by --requirements and import it, "
        "or bring the data to a disk",
    ),
    EndRule(
        (
            r"(?:[Cc]ould not find|No such file or directory:?) '?(libjvm\.so|libhdfs\.so)",
            r"libhdfs\.so",
        ),
        "TensorFlow on {host} finds no Hadoop: --env HADOOP_HDFS_HOME=DIR, JAVA_HOME=DIR, and CLASSPATH "
        "(hadoop classpath --glob) in the hostfile's `setup:`",
    ),
    EndRule(
        (
            r"Please provide a TPU Name",
            r"TPU.{0,60}(?:not found|unavailable)",
        ),
        "the program wants a TPU, and {host} has none: choose another strategy there",
    ),
    EndRule(
        (
            r"ParseExample",
            r"Feature: (\w{1,60}) \(data type: \w{1,20}\) is required but could not be found",
        ),
        "the records on {host} have no feature {0}, or of another type: they were written by another version "
        "of the program; look at one by tf.train.Example.FromString",
    ),
    EndRule(
        (
            r"Input is (?:empty|not)",
            r"Unable to decode bytes",
            r"Invalid (?:PNG|JPEG)",
            r"Expected image",
        ),
        "a file of the dataset is no image that TensorFlow can read: the files before it stand in the log if "
        "you print names; skip it by dataset.ignore_errors()",
    ),
    EndRule(
        (
            r"Unimplemented(?:Error)?:",
            r"UNIMPLEMENTED",
        ),
        "TensorFlow on {host} has no such operation for that type, device or library{differ_text}: its "
        "message names it; another version, another dtype, or the CPU for that op",
        AFTERMATH,
    ),
    EndRule(
        (
            r"InternalError",
            r"INTERNAL:",
        ),
        "TensorFlow itself failed at {place}{differ_text}: its message has more above; hosts with different "
        "versions, or a GPU in trouble (`tflaunch gpus`) are the usual causes",
        AFTERMATH,
    ),
    EndRule(
        (
            r"Failed copying input tensor",
            r"Dst tensor is not initialized",
        ),
        "the memory of the GPU of {task} on {host} is full: smaller batches; --env "
        "TF_FORCE_GPU_ALLOW_GROWTH=true; `tflaunch gpus` shows who uses it",
    ),
    EndRule(
        (
            r"uses (?:a different|another) version",
            r"RuntimeVersionMismatch",
            r"Invalid(?:Argument)?Error.{0,100}unknown (?:op|attr)",
            r"unexpected (?:op|attr)",
        ),
        "versions of TensorFlow differ between the tasks{differ_text}: let all hosts have one "
        "(--requirements, or `venv:` in the hostfile)",
        ANYWHERE,
        needs=("differ",),
    ),
)
