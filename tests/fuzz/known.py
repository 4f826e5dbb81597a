"""What is known to be wrong: the inputs in cases/ that a parser does not stand yet, each with the defect in words.

An entry goes when its defect does: a test fails when a case that stands here passes.
"""

# Targets that new input breaks at once, until that is mended: only what is kept of them is tried.
UNREADY: dict[str, str] = {}

KNOWN: dict[str, str] = {
    "log-lines/81a02910a0be": "what stands behind a return depends on how the bytes were cut (within a sequence)",
}
