"""Rules: shared libraries, the C library, the processor's instructions."""

from tflaunch.ends.end_rule import ANYWHERE, PATH, EndRule

_CUDA = (
    "{host} lacks {0}: {python} has a framework for another CUDA than is installed; install it with its own libraries "
    "by --requirements (tensorflow[and-cuda], torch, jax[cuda12]), or --env LD_LIBRARY_PATH=DIR, or `module load cuda` "
    "in the hostfile's `setup:`"
)
_SYSTEM = "the system of {host} lacks the library {0}: have its package installed there, or use --container"

RULES = (
    EndRule(
        (
            r"(lib(?:cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|cupti|nvinfer"
            r"|nvJitLink|nvToolsExt|cufile)\w{0,30}\.so[.\d]{0,12})[^;]{0,40}: cannot open shared object file"
        ),
        _CUDA,
    ),
    EndRule(
        r"(libcuda\.so[.\d]{0,4}): cannot open shared object file",
        "{host} has no NVIDIA driver ({0}), or the container was not given it: run GPU tasks on hosts that "
        "`tflaunch gpus` shows with GPUs, or install the driver",
    ),
    EndRule(
        (
            r"(libGL\.so\.1|libgthread\S{0,20}|libSM\.so\.6|libXext\.so\.6"
            r"|libXrender\.so\.1): cannot open shared object file"
        ),
        "OpenCV needs {0}, a library for screens, which {host} lacks: put opencv-python-headless in place of "
        "opencv-python into --requirements, or have libgl1 and libglib2.0-0 installed",
    ),
    EndRule(
        r"(libpython3\.\d{1,2}\S{0,8}\.so[.\d]{0,6}): cannot open shared object file",
        "{0} is not on the library path of {host}: --env LD_LIBRARY_PATH=DIR with the lib directory of that "
        "Python, or a Python that needs none",
    ),
    EndRule(
        (
            r"(libmpi\w{0,10}\.so[.\d]{0,6}|libiomp5\.so|libopenblas\S{0,12}|libhdf5\S{0,16}|libjpeg\S{0,10}"
            r"|libtcmalloc\S{0,16}): cannot open shared object file"
        ),
        _SYSTEM + "; for MPI, `module load openmpi` in the hostfile's `setup:`",
    ),
    EndRule(
        r"((?<![\w.+-])[\w.+-]{1,80}\.so[.\w]{0,20}): cannot open shared object file",
        _SYSTEM + "; if it is yours, --ship brings it, and --env LD_LIBRARY_PATH=. finds it",
    ),
    EndRule(
        r"version [`']?(GLIBCXX_[\d.]{1,12}|CXXABI_[\d.]{1,12})'? not found",
        "libstdc++ on {host} is too old for a package that was built elsewhere ({0}): use the libstdc++ of a "
        "conda environment (`conda:`, or --env LD_LIBRARY_PATH=ENV/lib), or install the package on that host "
        "by --requirements, or use --container",
    ),
    EndRule(
        r"version [`']?(GLIBC_[\d.]{1,12})'? not found",
        "the C library of {host} is older than {0}, for which a package or program was built: install or "
        "build it on that host (--requirements), an older version of it, or use --container",
    ),
    EndRule(
        r"undefined symbol: (_ZN(?:K?10tensorflow|K?3tsl|K?3xla|K?4absl|K?2tf)\w{0,80})",
        "a library with custom ops was built for another TensorFlow than {host} has{of}: build it anew for "
        "that one, or install the version that it was built for by --requirements",
    ),
    EndRule(
        r"undefined symbol: (_ZN?K?\w{0,6}(?:c10|at5|2at|5torch|torch)\w{0,80})",
        "an extension was built for another PyTorch than {host} has{of_torch}: build it anew for that one, "
        "or install the version that it was built for",
    ),
    EndRule(
        r"undefined symbol: (_?_?(?:cu|nccl|nv)[A-Za-z]\w{0,60})",
        "the CUDA libraries that {host} loads are of different versions ({0}): LD_LIBRARY_PATH brings an "
        "older one than the framework has itself; --env LD_LIBRARY_PATH= leaves it out",
    ),
    EndRule(
        r"undefined symbol: (_?Py\w{1,60})",
        "an extension was built for another Python than{version} on {host} ({0}): install it anew there by "
        "--requirements",
    ),
    EndRule(
        r"(?:symbol lookup error|ImportError|OSError): .{0,300}undefined symbol: (\w{1,80})",
        "a shared library on {host} is of another version than the one that its user was built with (it has "
        "no {0}): build or install them anew together, there; LD_LIBRARY_PATH may bring the wrong one",
    ),
    EndRule(
        r"(?:invalid ELF header|file too short|wrong ELF class|not a valid ELF)",
        "a shared library is broken, or built for another kind of machine than {host} (a checkout of Git LFS "
        "holds only a pointer in its place): build or install it on that host",
    ),
    EndRule(
        (
            r"failed to map segment from shared object",
            r"cannot allocate memory in static TLS block",
        ),
        "{host} does not load a shared library: its disk may be mounted noexec, or too many libraries take "
        "thread storage; import that package first, or --env LD_PRELOAD=PATH of the library that the message "
        "names",
    ),
    EndRule(
        (
            r"cannot execute binary file",
            r"Exec format error",
        ),
        "the program or its interpreter was built for another processor than that of {host} (`uname -m` "
        "there tells), or is a script without a first line #!: build it for that one",
    ),
    EndRule(
        (
            r"The TensorFlow library was compiled to use (\w{1,20}) instructions, but these aren't available "
            r"on your machine"
        ),
        "the processor of {host} has no {0}, for which its TensorFlow was built: use hosts with newer "
        "processors (--exclude {host}), or a TensorFlow that was built without",
    ),
    EndRule(
        r"This version of jaxlib was built using (\w{1,12}) instructions, which your CPU",
        "the processor of {host} has no {0}, for which its jaxlib was built: --exclude {host}, or build "
        "jaxlib there",
    ),
    EndRule(
        (
            r"(?:NumPy was built with baseline optimizations|CPU dispatcher tracer already initlized"
            r"|requires a CPU with)"
        ),
        "the processor of {host} lacks instructions for which the package was built: --exclude {host}, or "
        "install an older version of it",
    ),
    EndRule(
        r"Could not load library (lib\w{1,40}\.so[.\d]{0,10})\. Error",
        "{host} does not load {0}: its cuDNN is incomplete, or of another version than the framework was "
        "built for; install the framework with its own libraries by --requirements (tensorflow[and-cuda], "
        "torch)",
        ANYWHERE,
    ),
    EndRule(
        (
            r"OMP: Error #15",
            r"libiomp5\S{0,20} already initialized",
        ),
        "two copies of OpenMP are in one process on {host} (conda and pip mixed, mostly): install all "
        "packages by one of them; --env KMP_DUPLICATE_LIB_OK=TRUE goes on at your own risk",
        ANYWHERE,
    ),
    EndRule(
        rf"({PATH}): cannot restore segment prot after reloc",
        "the security settings (SELinux) of {host} forbid loading {0}: ask its administrator",
    ),
)
