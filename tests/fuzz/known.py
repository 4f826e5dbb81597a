"""What is known to be wrong: the inputs in cases/ that a parser does not stand yet, each with the defect in words.

An entry goes when its defect does: a test fails when a case that stands here passes.
"""

_QUOTES = "ssh_config: a quotation without an end is a ValueError, not a sentence with file and line"

# Targets that new input breaks at once, until that is mended: only what is kept of them is tried.
UNREADY: dict[str, str] = {
    "ssh-config": "~nosuchuser in any file's name, and quotations without an end",
}

KNOWN: dict[str, str] = {
    "ssh-config/87fc1ffb02a8": _QUOTES,
    "ssh-config/bbd2eab272f3": _QUOTES,
    "ssh-config/a909050e99dc": "ssh_config: Include of a home directory of nobody is a RuntimeError",
    "ssh-config/user-known-hosts-of-nobody": "ssh_config: a file in a home directory of nobody is a RuntimeError",
    "ssh-config/c86d7863b748": "ssh_config: Include of a name that is too long is an OSError",
    "fetch-pattern/7a063e4cb04c": "a pattern that ends with a backslash before its last slash is an IndexError",
    "gitignore/9c824b3243b3": "a line that ends with a backslash before its last slash is an IndexError",
    "log-lines/81a02910a0be": "what stands behind a return depends on how the bytes were cut (within a sequence)",
}
