"""Rules: memory of the host, processes, open files."""

from tflaunch.ends.end_rule import ANYWHERE, EndRule

_NO_MEMORY = (
    "the memory of {host}{memory_text} was not enough for {task}{peak_text}: give it less to hold (smaller batches, "
    "shuffle buffers, caches), or spread the tasks over more hosts"
)
_LIMITED = (
    "{task} was refused memory on {host}, though it had used only {peak} of {memory}: it asked for one piece that is "
    "much too large (at {place}), or a limit is set (`ulimit -v` there, in the hostfile's `setup:` or in the program)"
)
_FILES = (
    "{task} may open {open_files} files at once on {host} (`ulimit -n`): raise it in the hostfile's `setup:` by "
    "`ulimit -n 65536` (the hard limit is the system's: /etc/security/limits.conf), or close files, use fewer parallel "
    "readers"
)
_FILES_UNKNOWN = (
    "{task} has more files open than {host} allows (`ulimit -n` there tells the limit): raise it in the hostfile's "
    "`setup:` by `ulimit -n 65536`, or close files, use fewer parallel readers"
)
_TOO_MANY = (
    r"Too many open files",
    r"Errno 24\b",
    r"EMFILE",
)
_NOT_THERE = (
    r"No such file or directory",
    r"[Nn]o files matched",
    r"[Ff]ile not found",
    r"does not exist",
    r"[Uu]nable to open file",
    r"No module named",
    r"cannot open shared object",
)
_SHM = (
    "/dev/shm of {host} is too small for what the program's processes share{shm_text}: enlarge it (mount -o "
    "remount,size=16G /dev/shm; in a container --shm-size), use fewer loader processes (num_workers), or remove what "
    "old runs left in it"
)
_THREADS = (
    "{task} may start no more processes or threads on {host}: `ulimit -u`, or the pids limit of its cgroup or "
    "container, is reached; raise it, or use fewer (--env OMP_NUM_THREADS=1, --env OPENBLAS_NUM_THREADS=1)"
)

BAD_ALLOC = r"std::bad_alloc"
_NO_THREAD = (
    r"can't start new thread",
    r"pthread_create failed",
    r"failed to create thread",
    r"Thread creation failed",
)
_REFUSED = (
    BAD_ALLOC,
    r"\bMemoryError\b",
    r"Cannot allocate memory",
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
    r"OOM when allocating tensor",
    r"Allocation of \d{1,20} exceeds",
    r"Out of memory (?:while trying to allocate|allocating) (\d{1,20})",
)

# Where a program has no descriptor left, what it opens next is said not to be there.
FILES = (
    EndRule(
        _TOO_MANY,
        _FILES,
        needs=("open_files",),
    ),
    EndRule(
        _TOO_MANY,
        _FILES_UNKNOWN,
    ),
    EndRule(_NOT_THERE, _FILES, needs=("no_files_left", "open_files")),
    EndRule(_NOT_THERE, _FILES_UNKNOWN, needs=("no_files_left",)),
)
RULES = (
    EndRule(_TOO_MANY[0], _FILES, ANYWHERE, needs=("open_files",)),
    EndRule(_TOO_MANY[0], _FILES_UNKNOWN, ANYWHERE),
    EndRule(
        (
            r"out of shared memory",
            r"unable to (?:open|mmap|allocate|write to) (?:shared memory|file </torch)",
            r"shm_open",
            r"Bus error.{0,80}shared memory",
            r"/dev/shm.{0,60}No space left",
            r"No space left on device.{0,60}/dev/shm",
            r"insufficient shared memory",
        ),
        _SHM,
    ),
    EndRule(
        (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,40}\) (?:is killed by signal: Bus error"
            r"|exited unexpectedly)"
        ),
        "a loader process of {task} died: /dev/shm of {host} was full{shm_text}, or its memory{memory_text} "
        "ran out; use fewer loader processes (num_workers), enlarge /dev/shm; num_workers=0 shows what the "
        "loader itself raises",
    ),
    EndRule(
        (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,40}\) is killed by signal: (?:Killed"
            r"|Segmentation fault|Aborted)"
        ),
        "a loader process of {task} was killed on {host}, mostly because memory ran out{memory_text}: use "
        "fewer loader processes (num_workers), or smaller prefetch; num_workers=0 shows what the loader "
        "itself raises",
    ),
    EndRule(
        (
            *_NO_THREAD,
            r"Resource temporarily unavailable.{0,60}(?:thread|fork)",
            r"(?:fork|vfork|clone).{0,40}(?:Resource temporarily unavailable|Cannot allocate)",
            r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable$",
        ),
        _THREADS,
    ),
    EndRule(
        _NO_THREAD,
        _THREADS,
        ANYWHERE,
    ),
    EndRule(
        r"[Uu]nable to allocate ([\d.]{1,8} [KMGTPE]iB)",
        "NumPy was asked for an array that the memory of {host} cannot hold{memory_text}: look at its shape "
        "and type at {place}; read in pieces (np.memmap, tf.data)",
    ),
    EndRule(
        _REFUSED,
        _LIMITED,
        needs=("far_from_full",),
    ),
    EndRule(
        _REFUSED,
        _NO_MEMORY,
    ),
    EndRule(
        (
            BAD_ALLOC,
            r"[Oo]ut of memory: Killed process",
        ),
        _NO_MEMORY,
        ANYWHERE,
    ),
    EndRule(
        (
            r"slurmstepd: error: .{0,60}(?:oom[-_]kill|Exceeded .{0,20}memory limit)",
            r"Detected \d{1,6} oom[-_]kill",
        ),
        "SLURM ended {task} because it used more memory than the job has: ask for more (sbatch --mem=...), "
        "or give the tasks less to hold",
        ANYWHERE,
    ),
    EndRule(
        r"slurmstepd: error: .{0,80}DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)",
        "SLURM ended the job ({0}): ask for more time (sbatch --time=...), and have the program restore its "
        "last checkpoint; --restarts does not help there",
        ANYWHERE,
    ),
    EndRule(
        (
            r"A process in the process pool was terminated abruptly",
            r"BrokenProcessPool",
        ),
        "a process that {task} had started died, mostly because memory ran out on {host}{memory_text}: start "
        "fewer of them",
    ),
    EndRule(
        (
            r"JavaScript heap out of memory",
            r"java\.lang\.OutOfMemoryError",
        ),
        _NO_MEMORY,
    ),
)
