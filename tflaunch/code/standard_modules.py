"""Files of a program that hide modules of Python's own: what lies beside a script, Python finds first."""

from __future__ import annotations

from tflaunch.code.program import Program

# What TensorFlow, NumPy and PyTorch import of Python's library, but for what Python has loaded by then.
_NAMES = """
argparse array ast asyncio base64 bdb binascii bisect bz2 calendar cmd code codeop collections colorsys
concurrent contextlib contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib dis email
enum fnmatch fractions functools getopt getpass gettext glob gzip hashlib heapq hmac http importlib
inspect ipaddress json keyword linecache locale logging lzma math mimetypes multiprocessing numbers
opcode operator pathlib pdb pickle pkgutil platform pprint queue quopri random re reprlib resource
select selectors shlex shutil signal socket socketserver ssl statistics string stringprep struct
subprocess sysconfig tarfile tempfile textwrap threading timeit token tokenize traceback types typing
unicodedata unittest urllib uuid warnings weakref xml zipfile zlib
"""
IMPORTED = frozenset(_NAMES.split())


def hidden_by(program: Program) -> list[str]:
    """The files beside that program, relative to its directory, that such modules are hidden by."""
    if not program.file.endswith(".py"):
        return []
    beside = program.directory / program.roots[0]
    found = []
    for name in sorted(IMPORTED):
        for path in (beside / f"{name}.py", beside / name / "__init__.py"):
            if path.is_file():
                found.append(str(path.relative_to(program.directory)))
    return found
