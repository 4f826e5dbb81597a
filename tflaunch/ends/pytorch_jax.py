"""Rules: PyTorch and JAX."""

from tflaunch.ends.end_rule import AFTERMATH, NAME, STACK, EndRule
from tflaunch.ends.network import COORDINATION

_NOT_TOLD = (
    "JAX finds the coordinator by itself, but not the rest: call jax.distributed.initialize("
    'num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"]))'
)
_RENDEZVOUS = (
    "not all ranks came together in time: the ranks that are missing failed or still start (the task that ended first "
    "says why), or MASTER_ADDR cannot be reached from {host} (`tflaunch check`); say --framework torch, and take "
    "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment"
)
_STATE = (
    "the state dict is of another model: saved from DistributedDataParallel, its names begin with `module.` (save "
    "model.module.state_dict(), or strip that); else the model changed since"
)
_FIND_UNUSED = (
    "parameters of the model had no part in the loss: DistributedDataParallel(..., "
    "find_unused_parameters=True), or use them all"
)

RULES = (
    EndRule(r"(?:Number of processes|The process id of the current process) must be defined", _NOT_TOLD),
    EndRule(
        (
            r"coordinator_address should be defined",
            r"jax\.distributed\.initialize.{0,60}(?:must|should) be called before",
            r"must be called before any JAX (?:calls|computations)",
            r"distributed\.initialize should only be called once",
        ),
        "jax.distributed.initialize must be the first call of JAX in the program, once: move it to its top "
        "({place}); say --framework jax",
    ),
    EndRule(
        (
            r"Barrier timed out",
            r"RegisterTask",
            r"Coordination(?:Service|Agent)",
            COORDINATION,
            r"JAX distributed service",
            r"GetKeyValue\(\) timed out",
            r"DEADLINE_EXCEEDED.{0,200}(?:/jax|key)",
        ),
        "not all JAX processes came together in time: those that are missing failed or still start (the task "
        "that ended first says why), or the coordinator cannot be reached from {host} (`tflaunch check`)",
    ),
    EndRule(
        (
            r"Unable to initialize backend '(cuda|gpu|rocm|tpu)'",
            r"Unknown backend:? '?(gpu|cuda|tpu)",
            r"Backend '(gpu|cuda|tpu)' (?:failed|is not)",
            r"Requested backend '?(gpu|cuda|tpu)",
        ),
        "JAX on {host} has no GPU: {task} was given none (--gpus-per-worker 1), or its jaxlib is the one for "
        "CPUs (jax[cuda12] in --requirements)",
    ),
    EndRule(
        r"assert _default_backend is not None",
        "JAX on {host} finds no device of the kind that JAX_PLATFORMS names: {task} was given no GPU "
        "(--gpus-per-worker 1), or its jaxlib is the one for CPUs (jax[cuda12] in --requirements)",
        STACK,
    ),
    EndRule(
        (
            r"TracerBoolConversionError",
            r"TracerArrayConversionError",
            r"ConcretizationTypeError",
            r"TracerIntegerConversionError",
            r"UnexpectedTracerError",
            r"Leaked trace",
            r"NonConcreteBooleanIndexError",
        ),
        "a jitted function treats a traced value as a number ({place}): jax.lax.cond, jnp.where, or "
        "static_argnums for that argument",
    ),
    EndRule(
        (
            r"compiling computation that requires (\d{1,6}) logical devices, but only (\d{1,6})",
            r"pmap .{0,60}(?:devices|size)",
            r"requires \d{1,6} (?:replicas|devices)",
            r"which implies that the global size of its dimension",
            r"number of devices .{0,60}must",
        ),
        "the program counts on more devices than {task} has: shapes must follow jax.local_device_count() (or "
        "be a multiple of it) at {place}",
    ),
    EndRule(
        (
            r"dot_general requires contracting dimensions",
            r"Incompatible shapes for (?:broadcasting|dot)",
            r"got incompatible shapes",
        ),
        "shapes do not fit together at {place}: print them there",
    ),
    EndRule(
        r"FloatingPointError: invalid value \(nan\)",
        "a result is no number (NaN) at {place}: a smaller learning rate, a look at the data",
    ),
    EndRule(
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",
        "PyTorch wants {0}, which tflaunch sets where it knows that the program uses PyTorch: say "
        "--framework torch",
    ),
    EndRule(
        r"KeyError: '(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK|LOCAL_WORLD_SIZE)'",
        "the program reads {0}, which tflaunch sets where it knows that the program uses PyTorch: say "
        "--framework torch",
    ),
    EndRule(
        r"Default process group has not been initialized",
        "the program uses torch.distributed before init_process_group ({place}): call it first; say "
        "--framework torch",
    ),
    EndRule(
        r"trying to initialize the default process group twice",
        "the program calls init_process_group twice ({place}): once is enough",
    ),
    EndRule(
        (
            r"DistNetworkError",
            r"DistStoreError",
            r"[Tt]imed? ?out after \d{1,6} (?:seconds|ms|clients)",
            r"Timed out (?:initializing process group|after)",
            r"store.{0,40}timed? ?out",
            r"connectFullMesh failed",
            r"client socket has (?:timed out|failed)",
            r"wait timeout after \d{1,9}ms",
            r"store based barrier",
        ),
        _RENDEZVOUS,
    ),
    EndRule(
        (
            r"no GPUs found",
            r"ProcessGroupNCCL is only supported with GPUs",
            r"Distributed package doesn't have NCCL",
            r"NCCL backend.{0,60}(?:not available|requires)",
        ),
        "the program takes NCCL, and {task} has no GPU, or a PyTorch for CPUs: --gpus-per-worker 1 where "
        "there are GPUs, else init_process_group('gloo')",
    ),
    EndRule(
        (
            r"Missing key\(s\) in state_dict",
            r"Unexpected key\(s\) in state_dict",
            r"Error\(s\) in loading state_dict",
            r"size mismatch for [\w.]{1,100}",
        ),
        _STATE,
    ),
    EndRule(
        (
            r"Weights only load failed",
            r"weights_only",
        ),
        "torch.load loads only tensors since PyTorch 2.6: torch.load(..., weights_only=False) if you trust "
        "the file",
    ),
    EndRule(
        (
            r"mat1 and mat2 shapes cannot be multiplied",
            r"size mismatch, got",
            r"The size of tensor a",
            r"stack expects each tensor to be equal size",
            r"Expected input batch_size",
            r"Given groups=",
            r"shape '\[.{0,60}\]' is invalid for input",
            r"Sizes of tensors must match",
            r"must match the size of tensor",
            r"expected .{0,40}dimensional",
        ),
        "shapes do not fit together at {place}: print them there; a DataLoader needs samples of one size "
        "(collate_fn pads them), and mind a last, smaller batch (drop_last=True)",
    ),
    EndRule(
        (
            r"mat1 and mat2 must have the same dtype",
            r"expected scalar type",
            r"expected m1 and m2",
            r"Found dtype",
            r"should be the same\b",
            r"expected dtype",
            r"Input type .{0,60}and weight type",
        ),
        "two tensors are of different types, or on different devices, at {place}: .to(device), .float()",
    ),
    EndRule(
        r"Expected all tensors to be on the same device",
        "the model and the data are on different devices at {place}: .to(device) for both, with device = "
        "cuda:LOCAL_RANK",
    ),
    EndRule(
        (
            r"index out of range in self",
            r"Target -?\d{1,12} is out of bounds",
            r"is out of bounds for dimension",
        ),
        "a label or token is outside of its range at {place}: the model has fewer classes, or the embedding "
        "fewer rows, than the data",
    ),
    EndRule(
        (
            r"modified by an inplace operation",
            r"backward through the graph a second time",
            r"does not require grad",
            r"element 0 of tensors",
        ),
        "the gradient cannot be taken at {place}: an in-place operation (x += 1) changed what it needs, "
        "backward() ran twice, or nothing in the loss has requires_grad",
    ),
    EndRule(
        (
            r"Expected to have finished reduction in the prior iteration",
            r"marked a variable ready twice",
        ),
        _FIND_UNUSED,
    ),
    EndRule(
        (
            r"InvalidCxxCompiler",
            r"No working C\+\+ compiler",
            r"Failed to find C compiler",
            r"CppCompileError",
            r"gcc: (?:fatal )?error",
            r"Ninja is required",
            r"Error building extension",
            r"command 'x86_64-linux-gnu-gcc' failed",
            r"nvcc.{0,40}not found",
            r"CUDA_HOME environment variable is not set",
        ),
        "{host} has no compiler that the program needs (torch.compile, extensions): have gcc, g++ and ninja "
        "installed, or `module load` them in the hostfile's `setup:`; --env TORCHDYNAMO_DISABLE=1 goes "
        "without torch.compile",
    ),
    EndRule(
        (
            r"InductorError",
            r"BackendCompilerFailed",
            r"TorchRuntimeError",
            r"torch\._dynamo\.exc",
        ),
        "torch.compile failed at {place}: --env TORCHDYNAMO_DISABLE=1 goes without it",
    ),
    EndRule(
        (
            r"ProcessRaisedException",
            r"ProcessExitedException",
            r"ChildFailedError",
        ),
        "a process that {task} started failed ({place}): its own traceback stands above, after `-- Process N "
        "terminated`",
        AFTERMATH,
    ),
    EndRule(
        rf"Caught ({NAME}) in DataLoader worker process",
        "the dataset raised {0} in a loader process: num_workers=0 shows it in the main one; its traceback "
        "stands in the log",
        AFTERMATH,
    ),
    EndRule(
        (
            r"torchrun",
            r"torch\.distributed\.(?:run|launch|elastic)",
        ),
        "torchrun starts its own tasks, and tflaunch has done so already: run the program itself, with "
        "--framework torch",
        AFTERMATH,
    ),
)
