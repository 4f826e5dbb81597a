"""Rules: the words of the program's command line."""

from tflaunch.ends.end_rule import ANYWHERE, FLAG, EndRule

_NO_FLAGS = (
    "the program does not take the cluster flags: --no-flags leaves them out, and TF_CONFIG describes the cluster "
    "(add --ps 0 if it has no parameter servers); if it has them by other names, "
    "--flag ps_hosts=NAME, and so on for worker_hosts, job_name and task_index"
)
_BY_PLACE = (
    "the program reads its arguments by position, and the cluster flags stand before them: --no-flags leaves them out, "
    "and TF_CONFIG describes the cluster (add --ps 0 if it has no parameter servers)"
)
_ONE_FLAG = "the program has no {0}: --flag {0}=NAME says what it calls it, --flag {0}= leaves it out"
_WITH_FLAGS = (
    "the program needs the cluster flags: --flags passes them; --flag ps_hosts=NAME, --flag task_index=NAME say what "
    "it calls them"
)
_OTHER_NAMES = (
    "the program got the cluster flags, but wants {0}, which tflaunch does not call so: --flag ps_hosts=NAME, "
    "worker_hosts=NAME, job_name=NAME or task_index=NAME says which of them that is, for example "
    "--flag task_index=task_id; if it is none of them, pass it after --"
)
_WRONG_WORD = "that is an argument of the program: correct it {at}"
_NO_SUCH = "the program has no argument {0}: correct it {at}; its `--help` lists what it takes"
_MISSING = "the program wants {0}, and was not given it: add it after --"
_OWN_PLACE = (
    "the program wants {0}, of which each task needs its own: --job-args 'worker={0}={{rank}}' gives it, and so on for "
    "{{world_size}}, {{chief_host}}:{{chief_port}}"
)
_OWN_ARGUMENT = (
    "the program wants {0}, of which each task needs its own: --job-args 'worker={{job}} {{index}}' gives them, in the "
    "order in which the program takes them, and so on for ps"
)
_BY_NUMBER = (
    "the program takes its argument {argument} at {place}, and was given fewer: add it after --, or to each task its "
    "own by --job-args 'worker={{index}}'"
)
_VALUE = "the value of the program's argument {0} does not fit: correct it {at}"
_CHOICE = "the program's argument {0} takes only certain values, which its message lists: correct it {at}"
_ROLE = (
    "the program knows no task of that name: start only the roles that it knows (no --chief, no --evaluator, --ps 0 "
    "as the case may be), or --flag job_name= leaves the flag out"
)
_HYDRA = (
    "Hydra takes no --flags: --no-flags leaves tflaunch's out, and TF_CONFIG describes the cluster; what you give it "
    "after -- must be KEY=VALUE, and a key that its config lacks needs a + in front: +{0}=VALUE"
)

_HOSTS = r"(?:ps|worker|chief)[-_]hosts"
_OWN = r"(job_name|task_index)"

# If several rules match a line, the first one counts.
RULES = (
    # float(sys.argv[1]), open(sys.argv[1])
    EndRule(rf"(?:Error|Exception)\b.{{0,200}}'--{_HOSTS}=", _BY_PLACE),
    EndRule(r"IndexError: list index out of range", _BY_NUMBER, needs=("argument",)),
    # argparse
    EndRule(rf"unrecognized arguments: (?:.*? )??--{_HOSTS}\b", _NO_FLAGS),
    EndRule(rf"unrecognized arguments: (?:.*? )??--{_OWN}\b", _ONE_FLAG),
    EndRule(rf"unrecognized arguments: (-{FLAG})", _NO_SUCH),
    EndRule(r"unrecognized arguments: ", _WRONG_WORD),
    # absl
    EndRule(rf"Unknown command line flag '{_HOSTS}'", _NO_FLAGS),
    EndRule(rf"Unknown command line flag '{_OWN}'", _ONE_FLAG),
    EndRule(rf"Unknown command line flag '({FLAG})'", "the program has no flag --{0}: correct it {at}"),
    EndRule(rf"FATAL Flags parsing error: flag --({_HOSTS})=None:", _OTHER_NAMES, needs=("given",)),
    EndRule(rf"FATAL Flags parsing error: flag --{_HOSTS}=None:", _WITH_FLAGS),
    EndRule(
        rf"flag --({FLAG})=None: Flag --{FLAG} must have a value",
        "the program wants --{0}, and was not given it: add --{0}=VALUE after --",
    ),
    EndRule(
        rf"flag --({FLAG})=\S{{0,200}}: ",
        "the value of the program's flag --{0} does not fit: correct it {at}",
    ),
    EndRule(r"FATAL Flags parsing error", _WRONG_WORD),
    EndRule(
        rf"UnparsedFlagAccessError: Trying to access flag --({FLAG}) before flags were parsed",
        "the program reads its flag {0} before absl has parsed the flags: start it by absl.app.run(main), or "
        "call flags.FLAGS(sys.argv) first",
    ),
    EndRule(
        rf"DuplicateFlagError: The flag '({FLAG})' is defined twice",
        "two modules of the program define the flag --{0}: rename one, or import the other's",
    ),
    # click, typer
    EndRule(rf"[Nn]o such option:? '?--{_HOSTS}\b", _NO_FLAGS),
    EndRule(rf"[Nn]o such option:? '?--{_OWN}\b", _ONE_FLAG),
    EndRule(rf"[Nn]o such option:? '?(-{FLAG})", _NO_SUCH),
    EndRule(r"Got unexpected extra arguments?\b", _WRONG_WORD),
    EndRule(rf"Missing (?:option|argument) '?(-?{FLAG})", _MISSING),
    EndRule(
        rf"Invalid value for '?(-?{FLAG})'?.{{0,300}} does not exist",
        "{0} of the program names a path that is not on {host}: correct it after --, or bring the data there",
    ),
    EndRule(rf"Invalid value for '?(-?{FLAG})", _VALUE),
    # fire
    EndRule(rf"Could not consume arg: --{_HOSTS}\b", _NO_FLAGS),
    EndRule(rf"Could not consume arg: (-?{FLAG})", _NO_SUCH),
    # getopt
    EndRule(rf"option --{_HOSTS} not recognized", _NO_FLAGS),
    EndRule(rf"option (-{FLAG}) not recognized", _NO_SUCH),
    EndRule(
        rf"the following arguments are required: (?:.{{0,300}} )?(--{_HOSTS})\b",
        _OTHER_NAMES,
        needs=("given",),
    ),
    EndRule(rf"the following arguments are required: (?:.*? )??--{_HOSTS}\b", _WITH_FLAGS),
    EndRule(
        r"the following arguments are required: (?:.*? )??"
        r"(--(?:rank|node[-_]rank|machine[-_]rank|process[-_]id|process[-_]index))\b",
        _OWN_PLACE,
    ),
    EndRule(
        r"the following arguments are required: (?:.*? )??((?:job_?name|task_?type), (?:task_?)?(?:index|id|number))\b",
        _OWN_ARGUMENT,
    ),
    EndRule(
        rf"the following arguments are required: (-?{FLAG}(?:, -?{FLAG}){{1,9}})$",
        "the program wants {0}, and was not given them: add them after --",
    ),
    EndRule(rf"the following arguments are required: (-?{FLAG})", _MISSING),
    EndRule(rf"argument (-?{FLAG})\S{{0,60}}: invalid choice: '(?:ps|worker|chief|master|evaluator)'", _ROLE),
    EndRule(rf"argument (-?{FLAG})\S{{0,60}}: invalid choice: ", _CHOICE),
    EndRule(rf"argument (-?{FLAG})\S{{0,60}}: invalid \w{{1,30}} value: ", _VALUE),
    EndRule(
        rf"argument (-?{FLAG})\S{{0,60}}: expected ",
        "the program's argument {0} stands there without a value: write it after -- as {0} VALUE",
    ),
    EndRule(
        rf"ambiguous option: (-{FLAG})\S{{0,200}} could match",
        "{0} begins several arguments of the program: write the one you mean in full after --",
    ),
    EndRule(
        rf"ArgumentError: argument (-?{FLAG})\S{{0,60}}: conflicting option string",
        "the program defines its argument {0} twice",
    ),
    EndRule(rf"Key '({FLAG})' is not in struct", _HYDRA),
    EndRule(
        r"Primary config (?:directory|module) .{0,200}not found",
        "Hydra does not find its config directory on {host}: it must be shipped with the program; --dry-run "
        "--show-files lists what is, --ship brings a file that an ignore rule keeps here",
    ),
    EndRule(
        r"^Usage: \S{1,200}\.py(?: \[|$)",
        "the program's parser (docopt) does not take these arguments: --no-flags leaves tflaunch's out, and "
        "TF_CONFIG describes the cluster; else correct what follows --",
        last=3,
        needs=("given",),
    ),
    EndRule(
        r"omegaconf\.errors\.MissingMandatoryValue: Missing mandatory value: (\S{1,100})",
        "the program's config wants {0}: add {0}=VALUE after --",
    ),
)

LOGGED = (
    EndRule(
        rf"pydantic_core\.\S{{0,60}}ValidationError: \d{{1,4}} validation errors? for ({FLAG})",
        "the program's configuration {0} has values of the wrong type: its message names each field; correct "
        "them in the config file or after --",
        ANYWHERE,
    ),
)
