"""Rules: files and directories, disks, permissions, damaged data."""

from tflaunch.ends.end_rule import ANYWHERE, PATH, EndRule

_FULL = (
    "{disk_full}: make room on {host}, or send the outputs elsewhere (the program's own argument, `run_dir:` "
    "in the hostfile)"
)
_FULL_UNKNOWN = (
    "a disk of {host} is full, or a quota is reached: `df -h; df -i; quota` there shows which; make room, or send the "
    "outputs elsewhere (the program's own argument, `run_dir:` in the hostfile)"
)
_INODES = "{no_inodes}: remove small files on {host}, or write fewer"
_READ_ONLY = (
    "a disk of {host} is read-only there (mounted so, or after an error of the disk: `dmesg` there tells): write "
    "elsewhere; relative paths lie in the run's directory, which is writable"
)
# Of what the task printed about it, nothing could be written down.
READ_ONLY_LOG = (
    "the disk of {read_only} on {host}, where {task}'s log lies, has become read-only (an error of the disk? `dmesg` "
    "there tells): nothing that {task} printed since then is kept; have it repaired, or set `run_dir:` in the hostfile "
    "to another disk"
)
_MISSING = (
    "{0} is not on {host}: tflaunch ships the program's directory only, so bring the data to a path that all hosts "
    "have, and name it after -- ; --dry-run --show-files lists what is shipped, and why the rest is not"
)
_NO_PLACE = (
    "{task} writes {0}, and its directory is not there on {host}: make it first, os.makedirs(DIR, exist_ok=True); a "
    "relative path lies in the run's working directory, which holds what was shipped"
)
_NO_PERMISSION = (
    "the user of {task} may not use {0} on {host}: `ls -ld` there shows whose it is; have it allowed, write elsewhere, "
    "or log in as another user (`user:` in the hostfile)"
)
_NOT_STARTED = (
    "{task} may not start {0} on {host}, nor anything in it if that is cwd=: where it came with the program, chmod +x "
    "it here (git update-index --chmod=+x), or start it by its interpreter ([sys.executable, FILE], ['bash', FILE]); "
    "`ls -ld` there shows whose it is"
)
_STALE = (
    "a file on a network disk changed or went away under {task} on {host} (stale handle): another task or host "
    "deleted or replaced it; let each task write its own files, have the disk mounted anew if it lasts"
)
_DAMAGED = (
    "{task} read a damaged file on {host}: an interrupted write or copy, or no such file at all (a page of "
    "HTML, a pointer of Git LFS); make or fetch it again, there"
)
_EXISTS = (
    "{0} exists on {host} already: several tasks there make it, or an earlier run left it; write "
    "os.makedirs(..., exist_ok=True), or give each task a directory of its own (TASK_INDEX in its name)"
)
_PROGRAM = (
    "{host} has no program {0}: have it installed there, name its directory by PATH in the hostfile's "
    "`setup:` (export PATH=DIR:$PATH), or `module load` it"
)
_LOCKED = (
    "another process has that file open: all tasks open one HDF5 file for writing; let one write it, or give each "
    "its own; on a network disk, --env HDF5_USE_FILE_LOCKING=FALSE"
)

_NO_SPACE = (
    r"[Nn]o space left on device",
    r"Errno 28\b",
    r"ENOSPC",
)
_CUT_SHORT = r"\b\d{1,15} requested and \d{1,15} written"  # as NumPy says it
_QUOTA = (
    r"[Dd]isk quota exceeded",
    r"Errno 122\b",
)

RULES = (
    EndRule(
        (*_NO_SPACE, _CUT_SHORT),
        _FULL,
        needs=("disk_full",),
    ),
    EndRule(
        _NO_SPACE,
        _INODES,
        needs=("no_inodes",),
    ),
    EndRule(
        (*_NO_SPACE, _CUT_SHORT, *_QUOTA),
        _FULL_UNKNOWN,
    ),
    EndRule(
        (_NO_SPACE[0], _QUOTA[0]),
        _FULL,
        ANYWHERE,
        needs=("disk_full",),
    ),
    EndRule(
        (_NO_SPACE[0], _QUOTA[0]),
        _FULL_UNKNOWN,
        ANYWHERE,
    ),
    EndRule(
        (
            r"Read-only file system",
            r"Errno 30\b",
        ),
        _READ_ONLY,
    ),
    EndRule(
        (
            r"Stale (?:NFS )?file handle",
            r"Errno 116\b",
            r"ESTALE",
        ),
        _STALE,
    ),
    EndRule(
        (
            r"Input/output error",
            r"Errno 5\]",
            r"Remote I/O error",
            r"Errno 121\b",
            r"Transport endpoint is not connected",
            r"Errno 107\]",
        ),
        "a disk of {host} fails, or its network disk is away (`dmesg` there tells): --exclude {host}, or "
        "have it mounted anew",
    ),
    EndRule(
        (
            r"Errno 27\]",
            r"File too large",
        ),
        "{task} reached the limit of a file's size on {host} (`ulimit -f`, or the disk's own): raise it in "
        "the hostfile's `setup:` by `ulimit -f unlimited`, or write several files",
    ),
    EndRule(
        (
            r"Errno 36\]",
            r"File name too long",
        ),
        "the program makes a name of more than 255 characters: shorten it at {place} (run names made of all "
        "parameters, mostly)",
    ),
    EndRule(
        (
            r"Errno 39\]",
            r"Directory not empty",
        ),
        "another task writes into a directory while {task} removes it: let one task alone (the chief) tidy up",
    ),
    EndRule(
        (
            r"Errno 18\]",
            r"Invalid cross-device link",
        ),
        "os.rename moves no file from one disk to another (/tmp to a network disk, say): use shutil.move at "
        "{place}",
    ),
    EndRule(
        (
            r"Errno 26\]",
            r"Text file busy",
        ),
        "several tasks of {host} write a program while another runs it: let one build it, or give each its "
        "own copy",
    ),
    EndRule(
        rf"PermissionError: \[Errno 13\] [\w ]{{1,40}}: '({PATH})'",
        _NOT_STARTED,
        needs=("starts",),
    ),
    EndRule(rf"PermissionError: \[Errno (?:1|13)\] [\w ]{{1,40}}: '({PATH})'", _NO_PERMISSION),
    EndRule(rf"PermissionDeniedError: .{{0,200}}?({PATH}); Permission denied", _NO_PERMISSION),
    EndRule(
        rf"[Uu]nable to (?:synchronously )?open file \(unable to open file: name = '({PATH})', errno = 2",
        _MISSING,
        ask="file",
    ),
    EndRule(
        rf"FileNotFoundError: \[Errno 2\] No such file or directory: '({PATH})'", _NO_PLACE, needs=("writes",)
    ),
    EndRule(
        (
            rf"Cannot save file into a non-existent directory: '({PATH})'",
            rf"Parent directory ({PATH}) does not exist",
        ),
        _NO_PLACE,
    ),
    EndRule(
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '([\w-]{1,40})'$", _MISSING, ask="file"
    ),
    EndRule(
        (
            r"FileNotFoundError: .{0,200}?(?:No such file or directory|does not exist"
            rf"|not found).{{0,20}}?[:'\"] ?'?({PATH})"
        ),
        _MISSING,
        ask="file",
    ),
    EndRule(r"[Uu]nable to (?:synchronously )?(?:open|lock) file,? ?\(?(?:unable to lock file)", _LOCKED),
    EndRule(
        (
            r"file signature not found",
            r"truncated file",
            r"Can't open HDF5",
            r"bad object header",
            r"addr overflow",
            r"superblock",
        ),
        _DAMAGED,
    ),
    EndRule(rf"NotFoundError: .{{0,300}}?({PATH}); No such file or directory", _MISSING, ask="file"),
    EndRule(
        rf"No files matched pattern: ({PATH})",
        "no file matches {0} on {host}: tflaunch ships the program's directory only, so bring the data to a "
        "path that all hosts have, and name it after --",
        ask="file",
    ),
    EndRule(
        (
            r"(?:Could not find directory|[Dd]irectory .{0,40}not found:?|No such directory:?"
            rf"|not a directory:?) ['\"]?({PATH})"
        ),
        _MISSING,
        ask="file",
    ),
    EndRule(
        rf"Parent directory of ({PATH}) doesn't exist, can't save",
        "{host} has no directory for {0}, and Saver makes none: make it first (tf.io.gfile.makedirs), or "
        "write to a path that all hosts have",
    ),
    EndRule(rf"FileExistsError: .{{0,100}}?'({PATH})'", _EXISTS),
    EndRule(
        rf"IsADirectoryError: .{{0,100}}?'({PATH})'",
        "{0} is a directory on {host}, and the program wants a file: name the file in it, after --",
    ),
    EndRule(
        rf"NotADirectoryError: .{{0,100}}?'({PATH})'",
        "a part of {0} is a file on {host}, and the program wants a directory: correct the path, after --",
    ),
    EndRule(
        (
            r"corrupted record at \d{1,20}",
            r"DataLossError",
            r"truncated record at",
            r"Checksum does not match",
            r"not an sstable",
            r"Unable to open table file",
            r"checksum mismatch",
        ),
        _DAMAGED,
    ),
    EndRule(
        (
            r"This file contains pickled \(object\) data",
            r"invalid load key, 'v'",
            r"invalid load key, '<'",
            r"not a zip file",
            r"BadZipFile",
            r"failed finding central directory",
            r"PytorchStreamReader",
            r"UnidentifiedImageError",
            r"cannot identify image file",
            r"Failed to interpret file",
            r"zlib\.error",
            r"BadGzipFile",
            r"Not a gzipped file",
            r"CRC check failed",
            r"pickle data was truncated",
            r"EOFError: Compressed file ended",
            r"Ran out of input",
            r"ArrowInvalid: Parquet",
            r"magic bytes",
            r"unexpected end of data",
            r"Unknown image file format",
            r"Input is not a (?:JPEG|PNG)",
        ),
        _DAMAGED,
    ),
    EndRule(
        r"Object arrays cannot be loaded when allow_pickle=False",
        "the .npy file holds Python objects: np.load(..., allow_pickle=True) if you trust it, or write it as "
        "numbers",
    ),
    EndRule(
        r"unsupported pickle protocol: (\d{1,2})",
        "the file was pickled by a newer Python than{version} on {host}: name the same Python on all hosts "
        "(`python:` in the hostfile), or pickle with protocol=4",
    ),
    EndRule(
        r"subprocess\.\w{0,20}Error: Command .{0,400} returned non-zero exit status (\d{1,3})",
        "a command that {task} runs ({place}) failed with exit code {0} on {host}: what it said stands above "
        "in the log; try it there by ssh",
    ),
    EndRule(
        r"CalledProcessError: Command '?.{0,300}'? died with <Signals\.(\w{1,10})",
        "a command that {task} runs ({place}) was killed by {0} on {host}",
    ),
    EndRule(
        r"detected dubious ownership in repository",
        "git refuses a directory that another user owns: --env GIT_CONFIG_COUNT=1 --env "
        "GIT_CONFIG_KEY_0=safe.directory --env GIT_CONFIG_VALUE_0=*",
    ),
    EndRule(
        r"not a git repository",
        "the program asks git, and tflaunch does not ship .git: pass the commit in by --env GIT_COMMIT=$(git "
        "rev-parse HEAD)",
    ),
    EndRule(
        (
            r"(?:DatasetNotFoundError|Dataset \S{1,80} (?:not found|doesn't exist|could not be found))",
            r"Failed to construct dataset",
            r"Could not find data in",
        ),
        "the dataset is not on {host}, and was not downloaded: download it once there (tfds.load(..., "
        "data_dir=DIR)), or name a directory that all hosts share",
    ),
    EndRule(
        (
            r"(?:couldn't connect to|Couldn't reach|We couldn't connect to) .{0,60}(?:huggingface|hub)",
            r"LocalEntryNotFoundError",
            r"OfflineModeIsEnabled",
            r"outgoing traffic has been disabled",
        ),
        "{host} has no way to huggingface.co, and nothing of it in its cache: download it once where there "
        "is one, and --env HF_HOME=DIR names a directory that all hosts share",
    ),
    EndRule(
        (
            r"GatedRepoError",
            r"Access to model \S{1,100} is restricted",
            r"401 Client Error",
            r"Invalid username or password",
            r"Repository Not Found for url",
        ),
        "{host} may not download that: --env-file FILE with your token (HF_TOKEN=..., WANDB_API_KEY=...) "
        "gives it to the tasks and hides it in records",
    ),
    EndRule(
        (
            r"api_key not configured",
            r"wandb login",
            r"UsageError: No API key configured",
        ),
        "wandb has no key on {host}: --env-file FILE with WANDB_API_KEY=..., or --env WANDB_MODE=offline",
    ),
)

SUBPROCESS = (
    EndRule(
        (
            r"FileNotFoundError: \[Errno 2\] No such file or directory: '((?:ffmpeg|git|nvidia-smi|nvcc|gcc"
            r"|g\+\+|ninja|protoc|make|cmake|aws|gsutil|wget|curl|tar|unzip|java|srun|mpirun|hdfs|hadoop"
            r"|dot)\w{0,8})'"
        ),
        _PROGRAM,
    ),
)
