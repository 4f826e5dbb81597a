"""Rules: the program's text, Python's versions and ways, the environment."""

from tflaunch.ends.end_rule import AFTERMATH, MODULE, NAME, EndRule

_OLD = (
    "Python{version} of {host} cannot read {place_or_file}: it is written for a newer one (match, := , f-strings, "
    "list[int], X | Y): name a newer Python by `python:`, `venv:` or `conda:` in the hostfile"
)
_USES_NEW = (
    "{place} uses what Python{version} of {host} does not have yet: name a newer Python by `python:`, `venv:` or "
    "`conda:` in the hostfile"
)
_SPAWN = (
    "the program starts processes by multiprocessing while it is being imported: put its main part under `if __name__ "
    '== "__main__":`'
)
_ENV = (
    "the program wants the variable {0}, which {task} does not have: --env {0}=VALUE sets it (where tasks differ, by a "
    "placeholder: {{index}}, {{rank}}, {{world_size}}, {{chief_host}}, ...), --env {0} takes it over from here; `env:` "
    "in the hostfile sets it for a host"
)

RULES = (
    EndRule(
        r"bdb\.BdbQuit",
        "a breakpoint() or pdb.set_trace() is left in the program, before {place}, and a task has no "
        "terminal: take it out, or --env PYTHONBREAKPOINT=0 passes over breakpoint()",
    ),
    EndRule(
        (
            r"invalid syntax\. Perhaps",
            r"Missing parentheses in call to 'print'",
            r"Missing parentheses in call to 'exec'",
            r"except \w{1,40}, \w{1,10}:",
        ),
        "the program is written for Python 2 ({place_or_file}), and {host} runs Python{version}: convert it "
        "(python -m lib2to3 -w FILE)",
    ),
    EndRule(
        (
            r"IndentationError",
            r"TabError",
        ),
        "the text of the program is indented wrongly, or mixes tabs and spaces, at {place_or_file}: correct "
        "it here; `python -m tabnanny FILE` finds such places",
    ),
    EndRule(
        (
            r"SyntaxError: (?:source code (?:string )?cannot contain null|\(unicode error\)|Non-(?:UTF-8"
            r"|ASCII)|'utf-8' codec)"
        ),
        "the text of the program at {place_or_file} is not UTF-8, or damaged: save it as UTF-8",
    ),
    EndRule(
        (
            r"SyntaxError: (?:invalid syntax|future feature|unmatched|expected|f-string|illegal target"
            r"|annotated name|cannot)"
        ),
        _OLD,
    ),
    EndRule(
        r"SyntaxError",
        "the text of the program is wrong at {place_or_file}: correct it here; if it is written for a newer "
        "Python than{version} of {host}, name one by `python:` in the hostfile",
    ),
    EndRule(
        (
            r"'(?:type|ABCMeta|_GenericAlias)' object is not subscriptable",
            r"unsupported operand type\(s\) for \|: '(?:type|NoneType|_GenericAlias|ABCMeta|ForwardRef)'",
        ),
        _OLD,
    ),
    EndRule(
        (
            r"object has no attribute 'removeprefix'",
            r"has no attribute 'removesuffix'",
            (
                r"unexpected keyword argument '(?:strict|dirs_exist_ok|capture_output|text|encoding|slots|kw_only"
                r"|missing_ok)'"
            ),
            r"module 'typing' has no attribute",
            r"has no attribute '(?:cached_property|batched|pairwise|to_thread|TaskGroup)'",
        ),
        _USES_NEW,
    ),
    EndRule(
        (
            r"module 'collections' has no attribute",
            r"has no attribute 'getargspec'",
            r"module 'inspect' has no attribute",
            r"module 'asyncio' has no attribute '(?:coroutine|async)",
            r"module 'time' has no attribute 'clock'",
            r"module 'ast' has no attribute",
            r"module 'pkgutil' has no attribute 'ImpImporter'",
            r"has no attribute 'SafeConfigParser'",
            r"module 'fractions' has no attribute 'gcd'",
            r"mutable default <class '[\w.]{1,160}'> for field",
        ),
        "the program or a package was written for an older Python than{version} on {host}: update that "
        "package by --requirements, or name an older Python in the hostfile (`python:`)",
    ),
    EndRule(
        (
            r"bootstrapping phase",
            r"freeze_support",
        ),
        _SPAWN,
    ),
    EndRule(r"context has already been set", _SPAWN + ", and call set_start_method there, once"),
    EndRule(
        (
            r"Can't (?:pickle|get) (?:local object|attribute|<function)",
            r"PicklingError",
            r"cannot pickle '[\w. ]{1,60}' object",
            r"Can't pickle",
        ),
        "multiprocessing can send only functions and objects that stand at the top of a module (no lambda, "
        "no local function, no open file, no lock) to another process ({place}): move it there, or use "
        "threads",
    ),
    EndRule(
        r"daemonic processes are not allowed to have children",
        "a process of a Pool starts processes itself ({place}), which is forbidden: "
        "concurrent.futures.ProcessPoolExecutor may",
    ),
    EndRule(
        r"'ascii' codec can't (?:decode|encode)",
        "{host} has no UTF-8 locale, so Python reads and writes ASCII: --env PYTHONUTF8=1 (or --env "
        "LC_ALL=C.UTF-8)",
    ),
    EndRule(
        r"'(?:utf-8|utf8|cp1252|latin-1)' codec can't (?:decode|encode)",
        "the program reads bytes as text that are not ({place}): open(..., 'rb') for data, or encoding= for "
        "the text's own",
    ),
    EndRule(
        (
            r"unsupported locale setting",
            r"locale\.Error",
        ),
        "{host} has no such locale: --env LC_ALL=C.UTF-8, or have the locale installed there",
    ),
    EndRule(
        r"KeyError: 'TF_CONFIG'",
        "the program wants TF_CONFIG, which {task} does not have: say --framework tensorflow",
        unless=("env:TF_CONFIG",),
    ),
    EndRule(r"KeyError: '([A-Z][A-Z0-9_]{2,60})'", _ENV),
    EndRule(r"TypeError: .{0,200}\bNoneType\b", _ENV.replace("{0}", "{unset}"), needs=("unset",)),
    EndRule(
        (
            r"[Ee]nv(?:ironment)?[ _-]?[Vv]ar(?:iable)?s? '?\"?\$?([A-Z][A-Z0-9_]{2,60})'?\"? (?:is )?(?:not "
            r"set|not found|missing|must be set|is required)"
        ),
        _ENV,
    ),
    EndRule(
        (
            r"EOFError: EOF when reading a line",
            r"getpass",
            r"GetPassWarning",
        ),
        "the program asks on its terminal ({place}), and tasks have none: pass the answer as an argument or "
        "by --env-file",
    ),
    EndRule(
        (
            r"no display name and no \$DISPLAY",
            r"cannot connect to X server",
            r"could not connect to display",
            r"Qt platform plugin",
            r"Cannot load backend '(?:TkAgg|Qt\w{0,6})'",
            r"Can't connect to display",
        ),
        "the program opens a window, and {host} has no screen: --env MPLBACKEND=Agg (matplotlib), --env "
        "QT_QPA_PLATFORM=offscreen; save figures to files",
    ),
    EndRule(
        (
            r"RecursionError",
            r"maximum recursion depth exceeded",
        ),
        "a function calls itself without end at {place}",
    ),
    EndRule(
        r"JSONDecodeError",
        "the program reads JSON that is empty or damaged at {place}: a file still being written, an empty "
        "answer of a server, a variable that is not set",
    ),
    EndRule(
        (
            r"yaml\.(?:parser|scanner)\.\w{1,30}Error",
            r"YAMLError",
            r"ParserError",
            r"TOMLDecodeError",
            r"configparser\.\w{1,30}Error",
        ),
        "a configuration file cannot be read ({place}): its message names the line",
    ),
    EndRule(
        r"load\(\) missing 1 required positional argument: 'Loader'",
        "PyYAML 6 wants a loader: yaml.safe_load(...) at {place}",
    ),
    EndRule(
        r"got an unexpected keyword argument '(\w{1,60})'",
        "a function at {place} has no argument {0}: the package on {host} is another version than the "
        "program was written for{differ_text} (--requirements pins one), or the name is wrong",
    ),
    EndRule(
        rf"module '({MODULE})' has no attribute '({NAME})'",
        "{0} on {host} has no {1} ({place}): it is another version than the program was written "
        "for{differ_text} (--requirements pins one), or a file of that name hides it",
    ),
    EndRule(
        r"AssertionError",
        "the program's own check failed at {place}: its message, or that line, says what it expects",
        AFTERMATH,
    ),
    EndRule(
        r"^KeyError: '?([\w./-]{1,60})", "a dictionary has no {0} at {place}: print its keys there", AFTERMATH
    ),
    EndRule(
        r"'NoneType' object",
        "something at {place} is None, which a function before it returned (a look-up without a result, a "
        "missing return)",
        AFTERMATH,
    ),
    EndRule(
        r"(?:NameError|UnboundLocalError): .{0,40}'(\w{1,60})'",
        "the program uses {0} at {place}, which nothing has set: a wrong name, or a missing import",
        AFTERMATH,
    ),
    EndRule(
        r"ZeroDivisionError",
        "the program divides by 0 at {place}: an empty dataset on {host} (fewer files than workers, a shard "
        "without data), or a count that is still 0",
        AFTERMATH,
    ),
    EndRule(
        r"IndexError",
        "a list or array has fewer entries than the program takes at {place}: an empty dataset on {host}, or "
        "an index of a task or GPU that is not there",
        AFTERMATH,
    ),
    EndRule(
        r"StopIteration",
        "the data came to its end at {place}: repeat() the dataset, or end the loop there",
        AFTERMATH,
    ),
    EndRule(
        (
            r"missing \d{1,2} required (?:positional|keyword-only) arguments?",
            r"takes \d{1,2} positional arguments? but",
            r"takes no arguments",
        ),
        "a function is called with other arguments than it has, at {place}: correct the call, or a package "
        "is another version than the program was written for (--requirements pins one)",
        AFTERMATH,
    ),
    EndRule(
        (
            r"invalid literal for int\(\)",
            r"could not convert string to float",
        ),
        "a text that is no number is read as one at {place}: an empty variable, a header line, a damaged "
        "line of data",
        AFTERMATH,
    ),
    EndRule(
        (
            r"\b(?:TypeError|AttributeError|ValueError|RuntimeError|NotImplementedError|OverflowError"
            r"|LookupError|ArithmeticError|Exception|InvalidArgumentError|FailedPreconditionError"
            r"|NotFoundError|OSError)\b"
        ),
        "the program raised this at {place}: look there first",
        AFTERMATH,
        needs=("place",),
    ),
)
