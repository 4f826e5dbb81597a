"""Rules: shells, scripts, interpreters, containers."""

from tflaunch.ends.end_rule import AFTERMATH, ANYWHERE, PATH, EndRule

_CRLF = (
    "a script has the line ends of Windows: sed -i 's/\\r$//' FILE here (and `*.sh text eol=lf` in "
    ".gitattributes keeps them so)"
)
_NOT_FOUND = (
    "{host} has no program {0}: have it installed, name its directory in the hostfile's `setup:` (export "
    "PATH=DIR:$PATH), or `module load` it"
)
_BASH = (
    "the script is written for bash, and runs by sh: write #!/bin/bash as its first line, or name it as "
    "`bash FILE`"
)

_WINDOWS = (
    r"\\r(?:'|\^M|: )",
    r"\^M: (?:bad interpreter|not found|No such file)",
    r"use -\[v\]S to pass options in shebang",
    r"^: (?:invalid option|not found|No such file)",
)

RULES = (
    EndRule(
        _WINDOWS,
        _CRLF,
    ),
    EndRule(
        _WINDOWS,
        _CRLF,
        ANYWHERE,
    ),
    EndRule(
        rf"({PATH}): (?:cannot execute: required file not found|bad interpreter)",
        "{0} names an interpreter in its first line that {host} does not have, or has the line ends of "
        "Windows: correct its #! (#!/usr/bin/env python3), or sed -i 's/\\r$//' it",
    ),
    EndRule(
        (
            r"(?:line \d{1,6}|: \d{1,6}): (source|\[\[|declare|pushd|shopt|function|let|local|mapfile"
            r"|readarray): not found"
        ),
        _BASH,
    ),
    EndRule(
        (
            r"Bad substitution",
            r"Syntax error: (?:\"\(\"|redirection) unexpected",
        ),
        _BASH,
    ),
    EndRule(
        r"(?:line \d{1,6}|^bash|^sh|: \d{1,6}): (module|ml|spack): (?:command )?not found",
        "{host} sets up `{0}` in login shells only: begin the hostfile's `setup:` with `source /etc/profile` "
        "(or the script that defines it), or use absolute paths",
    ),
    EndRule(
        (
            (
                r"(?:line \d{1,6}|^bash|^sh|: \d{1,6}): (conda|mamba|micromamba"
                r"|source activate): (?:command )?not found"
            ),
            r"CondaError: Run 'conda init'",
            r"not been properly configured to use 'conda activate'",
        ),
        "conda is not set up for scripts: name the environment by `conda:` in the hostfile, and leave `conda "
        "activate` out of the program",
    ),
    EndRule(
        r"(?:line \d{1,6}|^bash|^sh|^/bin/\w{1,6}|: \d{1,6}): ([\w./+-]{1,100}): (?:command )?not found",
        _NOT_FOUND,
    ),
    EndRule(r"env: '?‘?([\w./+-]{1,100})'?’?: No such file or directory", _NOT_FOUND),
    EndRule(r"exec: \"?([\w./+-]{1,100})\"?:? (?:executable file )?not found", _NOT_FOUND),
    EndRule(
        rf"(?:line \d{{1,6}}|: \d{{1,6}}): ({PATH}): Permission denied",
        "{0} is not executable on {host}: chmod +x it here (git update-index --chmod=+x), or run it as `bash "
        "{0}`",
    ),
    EndRule(
        (
            r"(?:line \d{1,6}|: \d{1,6}): (?:cd|\.|source|cannot (?:open"
            rf"|create))?:? ?({PATH}): No such file or directory"
        ),
        "the script uses {0}, which is not on {host}: only the program's directory is shipped; --ship brings "
        "an ignored file",
        ask="file",
    ),
    EndRule(
        rf"can't open file '({PATH})'",
        "{0} is not on {host}: it must lie in the directory that is shipped (--code-dir), and not be ignored "
        "(--dry-run --show-files lists what is shipped)",
        ask="file",
    ),
    EndRule(
        r": (\w{1,60}): unbound variable",
        "the script wants the variable {0}, which {task} does not have: --env {0}=VALUE sets it",
    ),
    EndRule(
        r": (\w{1,60}): parameter (?:null or )?not set",
        "the script wants the variable {0}, which {task} does not have: --env {0}=VALUE sets it",
    ),
    EndRule(
        (
            r"syntax error(?: near unexpected token|: unexpected end of file)",
            r"Syntax error: ",
        ),
        "the script has an error at the line that the shell names: `bash -n FILE` here finds it",
        AFTERMATH,
    ),
    EndRule(
        (
            r"exec format error",
            r"exec user process caused",
        ),
        "the container's image was built for another processor than that of {host}: build it for this one "
        "(--platform)",
    ),
    EndRule(
        (
            r"(?:manifest|pull access|image).{0,80}(?:unknown|denied|not found)",
            r"Error response from daemon",
            r"OCI runtime",
            r"could not select device driver",
            r"nvidia-container-cli",
        ),
        "the container did not start on {host}: its image is not there, or the engine has no access to GPUs "
        "(nvidia-container-toolkit): try `podman run` or `docker run` of that image there",
        ANYWHERE,
    ),
    EndRule(
        (
            r"make: \*\*\*",
            r"CMake Error",
            r"error: linker command failed",
            r"fatal error: [\w./+-]{1,80}: No such file",
        ),
        "a build failed on {host}: the compiler's first error stands above; headers come with -dev packages, "
        "or `module load`",
    ),
    EndRule(
        r"sudo: (?:a terminal is required|a password is required|no tty)",
        "the program calls sudo, which asks for a password: tasks have no terminal; have that done on {host} "
        "beforehand",
    ),
    EndRule(
        (
            r"Host key verification failed",
            r"Permission denied \(publickey",
        ),
        "the program itself calls ssh from {host}, and may not log in: tflaunch starts tasks on all hosts "
        "already; leave ssh, pdsh or mpirun out of the program",
    ),
)
