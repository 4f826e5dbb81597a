"""Rules: GPUs, their driver and their libraries."""

from tflaunch.ends.end_rule import AFTERMATH, ANYWHERE, EndRule

_OOM = (
    "the GPU of {task} on {host} has no memory left{held}: make batches or the model smaller; if several tasks share "
    "a GPU, --env TF_FORCE_GPU_ALLOW_GROWTH=true (JAX: --env XLA_PYTHON_CLIENT_PREALLOCATE=false) keeps the first "
    "from taking all of it; `tflaunch gpus` shows who else uses it, --min-gpu-memory SIZE asks for a larger one"
)
_CUDNN = (
    "cuDNN did not start on {host}: its GPU's memory is full (--env TF_FORCE_GPU_ALLOW_GROWTH=true; `tflaunch gpus` "
    "shows who uses it), or cuDNN is another version than the framework was built for (install it with its own "
    "libraries: tensorflow[and-cuda])"
)
_DRIVER = (
    "the NVIDIA driver of {host} is too old for the CUDA of its framework (`nvidia-smi` there shows which it can): "
    "have the driver updated, or install a version of the framework for an older CUDA; --exclude {host} goes on "
    "without it"
)
_ONE_GPU = (
    "each task sees its own GPUs only: its device is cuda:LOCAL_RANK, which is 0 in each task, not cuda:RANK"
)
_MISMATCH = (
    "the NVIDIA driver of {host} was updated, and its old kernel module still runs: have {host} restarted (or its "
    "nvidia modules loaded anew); --exclude {host} goes on without it"
)
_BROKEN = (
    "a GPU of {host} is broken or lost (the kernel's log there, `dmesg | grep -i xid`, has its Xid): --exclude {host}, "
    "have it reset or restarted"
)
# By the Xids that the driver has told of (xid_ends.py).
SICK_CARD = (
    "{told}: the card, or what it is plugged into, is at fault, not the program; --exclude {card} goes on without it, "
    "until it is reset or its host restarted; where the Xid comes again, it wants another card"
)
OF_PROGRAM = "{told}: --env CUDA_LAUNCH_BLOCKING=1 shows the line of the program"
_NCCL = (
    "NCCL failed between the tasks' GPUs{held}: --env NCCL_DEBUG=INFO shows why in the logs; several networks: --env "
    "NCCL_SOCKET_IFNAME=eth0 names the right one; no InfiniBand: --env NCCL_IB_DISABLE=1"
)

_CDI = (
    "podman on {host} knows no GPU {0}: there is no CDI file that names it, or one from before a change of GPUs or of "
    "the driver; make it anew there, as root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (it comes with "
    "nvidia-container-toolkit; one that names GPUs by index alone wants --device-name-strategy=uuid, too)"
)
_DOCKER = (
    "docker on {host} gives no GPUs: have nvidia-container-toolkit installed there, then, as root: nvidia-ctk runtime "
    "configure --runtime=docker && systemctl restart docker; or --container-engine podman"
)

_BY_NUMBER = (
    r"Could not satisfy explicit device specification '.{0,80}GPU",
    r"Cannot assign a device for operation .{0,300}GPU",
    r"/device:GPU:\d{1,2} .{0,60}(?:unknown device|but available devices)",
    r"GPU:\d{1,3} unknown device",
    r"specified visible device index was not",
    r"Invalid device id",
)
_NONE_AT_ALL = (
    "the program asks for a GPU by its number, and {task} was given none: {host} has no GPU, or none that was free, or "
    "--gpus-per-worker is 0 (`tflaunch gpus` shows which hosts have some; --gpus-per-worker 1 takes those only); for "
    "the CPU, leave tf.device(...) out, or set allow_soft_placement"
)
_TWO_DRIVERS = (
    r"[Dd]river/library version mismatch",
    r"kernel version \S{1,20} does not match DSO version",
)
_GPU_FULL = r"CUDA_ERROR_OUT_OF_MEMORY"
_NO_CUDNN = r"[Cc]ould not create cudnn handle"
_NCCL_SHARES = (
    r"Error while creating shared memory segment",
    r"nccl-\w{1,20}.{0,80}No space left",
)
_NCCL_SHM = (
    "/dev/shm of {host} was full{shm_text}, which NCCL needs: enlarge it (mount -o remount,size=16G "
    "/dev/shm; in a container --shm-size), or remove what old runs left there"
)

RULES = (
    EndRule(r"unresolvable CDI devices? nvidia\.com/gpu=([\w-]{1,60})", _CDI),
    EndRule(
        (
            r"could not select device driver .{0,40}capabilities: \[\[gpu\]\]",
            r"unknown or invalid runtime name: nvidia",
            r"nvidia-container-cli: initialization error",
        ),
        _DOCKER,
    ),
    EndRule(r"CUDA out of memory\. Tried to allocate ([\d.]{1,8} [KMGT]i?B)", _OOM),
    EndRule(r"OOM when allocating tensor .{0,300}device:GPU", _OOM),
    EndRule(
        (
            r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)",
            _GPU_FULL,
            r"CUDA error: out of memory",
            r"cudaErrorMemoryAllocation",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"CUDNN_STATUS_ALLOC_FAILED",
        ),
        _OOM,
        unless=("no_gpu",),
    ),
    EndRule(
        (
            _GPU_FULL,
            r"ran out of memory trying to allocate",
        ),
        _OOM,
        ANYWHERE,
    ),
    EndRule(
        (
            r"CUBLAS_STATUS_NOT_INITIALIZED",
            r"CUDNN_STATUS_NOT_INITIALIZED",
            r"CUDNN_STATUS_INTERNAL_ERROR",
            _NO_CUDNN,
            r"Failed to get convolution algorithm",
            r"DNN library (?:is not found|initialization failed)",
            r"No DNN in stream executor",
            r"Unable to load cuDNN",
        ),
        _CUDNN,
    ),
    EndRule(
        (
            _NO_CUDNN,
            r"Possibly insufficient driver version",
        ),
        _CUDNN,
        ANYWHERE,
    ),
    EndRule(
        (
            r"Loaded (?:runtime )?CuDNN library: ([\d.]{1,12}) but source was compiled (?:with"
            r"|against):? ([\d.]{1,12})"
        ),
        "{host} loads cuDNN {0}, and its framework was built for {1}: install that one, or the framework "
        "with its own libraries (tensorflow[and-cuda]); LD_LIBRARY_PATH may bring the old one",
        ANYWHERE,
    ),
    EndRule(
        r"invalid device ordinal",
        _ONE_GPU,
    ),
    EndRule(
        (
            r"driver version is insufficient for CUDA runtime",
            r"NVIDIA driver on your system is too old",
            r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            r"forward compatibility was attempted",
            r"CUDA_ERROR_COMPAT_NOT_SUPPORTED",
            r"unsupported toolchain",
            r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            r"kernel driver does not appear to be running",
        ),
        _DRIVER,
    ),
    EndRule(
        (*_TWO_DRIVERS, r"LIB_RM_VERSION_MISMATCH", r"NVMLError_LibRmVersionMismatch"),
        _MISMATCH,
    ),
    EndRule(
        _TWO_DRIVERS,
        _MISMATCH,
        ANYWHERE,
    ),
    EndRule(
        (
            r"NVMLError_\w{0,30}Driver\w{0,12}NotLoaded",
            r"NVMLError_LibraryNotFound",
            r"NVML Shared Library Not Found",
            r"Found no NVIDIA driver on your system",
            r"CUDA unknown error",
            r"couldn't communicate with the NVIDIA driver",
        ),
        "{host} has no NVIDIA driver that runs, so its tasks have no GPU: --include the hosts that `tflaunch "
        "gpus` shows with GPUs, or --gpus-per-worker 0 if the program needs none; with --workers N and no "
        "GPUs given, the program must not ask for one",
    ),
    EndRule(
        (
            r"NVMLError_(\w{1,40})",
            r"pynvml\.\w{1,40}",
            r"NVML_ERROR_(\w{1,40})",
        ),
        "NVML does not work on {host}: `nvidia-smi` there shows the same; --exclude {host}, or, if the "
        "program needs no GPU, keep it from asking NVML",
    ),
    EndRule(
        (
            r"GPU is lost",
            r"fallen off the bus",
            r"CUDA_ERROR_ECC_UNCORRECTABLE",
            r"uncorrectable ECC error",
            r"hardware stack error",
            r"CUDA_ERROR_HARDWARE_STACK_ERROR",
            r"Unable to determine the device handle for GPU",
        ),
        _BROKEN,
    ),
    EndRule(
        (
            r"CUDA_ERROR_SYSTEM_NOT_READY",
            r"system not yet initialized",
            r"cudaErrorSystemNotReady",
        ),
        "the fabric manager of {host} does not run, without which its NVSwitch GPUs do not start: have "
        "nvidia-fabricmanager started there; --exclude {host}",
    ),
    EndRule(
        (
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            r"CUDA_ERROR_DEVICE_UNAVAILABLE",
            r"all CUDA-capable devices are busy",
        ),
        "another process has the GPU of {task} on {host} for itself (compute mode exclusive): `tflaunch "
        "gpus` shows who; choose other GPUs by --exclude {host}:INDEX",
    ),
    EndRule(
        (
            r"no kernel image is available for execution",
            r"CUDA_ERROR_NO_BINARY_FOR_GPU",
            r"sm_\d{2,3} is not compatible with the current PyTorch installation",
            r"CUDA_ERROR_INVALID_(?:PTX|SOURCE|IMAGE)",
        ),
        "the framework on {host} was built for other models of GPU than it has: install a version that knows "
        "this model, or --gpu-model NAME takes others",
    ),
    EndRule(
        r"Torch not compiled with CUDA enabled",
        "{python} on {host} has the PyTorch for CPUs: install the one for CUDA by --requirements (with the "
        "line --extra-index-url https://download.pytorch.org/whl/cu126), or let the program use the CPU",
    ),
    EndRule(
        (
            r"no CUDA-capable device is detected",
            r"CUDA_ERROR_NO_DEVICE",
            r"cudaErrorNoDevice",
            r"No CUDA GPUs are available",
            r"Attempting to deserialize object on a CUDA device",
            r"Cannot find any GPU",
            r"No GPU (?:devices )?(?:found|available)",
            r"requires a GPU",
        ),
        "{task} was given no GPU, or its framework finds none: tflaunch masks all GPUs that a task was not "
        "given; --gpus-per-worker 1 gives each worker one (`tflaunch gpus` shows where there are any)",
    ),
    EndRule(_BY_NUMBER, _NONE_AT_ALL, needs=("no_gpu",)),
    EndRule(
        _BY_NUMBER,
        "the program asks for a GPU by a number that {task} does not have: each task sees only the GPUs it "
        "was given, numbered from 0, so write /GPU:0, set allow_soft_placement, or --gpus-per-worker N gives "
        "it more",
    ),
    EndRule(
        r"device-side assert triggered",
        "a kernel found a wrong index on the GPU, mostly a label or token outside of its range: --env "
        "CUDA_LAUNCH_BLOCKING=1 shows the line, or let the program run once on the CPU",
    ),
    EndRule(
        (
            r"illegal memory access",
            r"CUDA_ERROR_ILLEGAL_ADDRESS",
            r"unspecified launch failure",
            r"CUDA_ERROR_LAUNCH_FAILED",
            r"misaligned address",
        ),
        "a kernel on the GPU of {task} wrote where it must not: --env CUDA_LAUNCH_BLOCKING=1 shows the line; "
        "if it comes on {host} only, its GPU may be broken (`dmesg | grep -i xid` there), so --exclude {host}",
    ),
    EndRule(
        (
            r"launch timed out and was terminated",
            r"CUDA_ERROR_LAUNCH_TIMEOUT",
        ),
        "the GPU of {host} also drives a screen, which ends long kernels: choose another GPU (--exclude "
        "{host}:INDEX)",
    ),
    EndRule(
        (
            r"Cannot re-initialize CUDA in forked subprocess",
            r"CUDA_ERROR_NOT_INITIALIZED",
            r"initialization error.{0,40}fork",
        ),
        "the program forks after it has used CUDA: start its processes by multiprocessing's `spawn`, or "
        "before CUDA is used",
    ),
    EndRule(
        (
            (
                r"(?:Physical|Virtual|Visible|Logical) devices cannot be (?:modified"
                r"|configured) after being initialized"
            ),
            r"Memory growth (?:cannot differ|must be set)",
        ),
        "the program configures GPUs after TensorFlow has begun to use them: do it first; --env "
        "TF_FORCE_GPU_ALLOW_GROWTH=true needs no code",
    ),
    EndRule(
        (
            r"libdevice not found",
            r"Couldn't (?:get|invoke) ptxas",
            r"ptxas (?:exited|returned)",
            r"Can't find libdevice",
        ),
        "XLA finds no CUDA tools on {host} (libdevice, ptxas): --env "
        "XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda, or install tensorflow[and-cuda] by --requirements",
    ),
    EndRule(
        r"Duplicate GPU detected",
        "two tasks use one GPU, which NCCL refuses: give each its own (--gpus-per-worker 1, fewer "
        "--workers), and let the program take cuda:LOCAL_RANK",
    ),
    EndRule(_NCCL_SHARES, _NCCL_SHM),
    EndRule(
        _NCCL_SHARES,
        _NCCL_SHM,
        ANYWHERE,
    ),
    EndRule(
        (
            r"Watchdog caught collective operation timeout",
            r"ran for \d{1,12} milliseconds before timing out",
        ),
        "the tasks waited in vain for one of them in a collective: the tasks did not all make the same "
        "calls, or one hangs, or is slower than the timeout: look at the task whose log ended first; "
        "init_process_group(timeout=...) allows for more",
    ),
    EndRule(
        (
            r"ncclInvalidUsage",
            r"NCCL (?:Error 5|version mismatch)",
            r"Mismatched NCCL version",
        ),
        "the tasks use NCCL wrongly, or its versions differ between hosts{differ_text}: let all have one "
        "version; each task must take its own GPU",
    ),
    EndRule(
        (
            r"ncclRemoteError",
            r"ncclInternalError",
            r"ncclSystemError",
            r"ncclUnhandledCudaError",
            r"NCCL error",
            r"NCCL WARN",
            r"unhandled (?:system|cuda) error",
        ),
        _NCCL,
    ),
    EndRule(
        (
            r"socketStartConnect: Connect to \S{1,60} failed",
            r"NET/Socket",
            r"Call to connect .{0,40}(?:refused|route)",
        ),
        _NCCL,
        AFTERMATH,
    ),
    EndRule(
        (
            r"CUDA error: (\w[\w -]{1,60})",
            r"CUDA_ERROR_(\w{1,40})",
            r"cudaError(\w{1,40})",
        ),
        "the GPU of {task} on {host} failed: --env CUDA_LAUNCH_BLOCKING=1 shows the line; `tflaunch gpus` "
        "shows the state of its GPUs; if it comes on {host} only, --exclude {host}",
        AFTERMATH,
    ),
)
