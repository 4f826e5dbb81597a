"""The messages between launcher and agent, and their frames; no I/O here.

A frame is two lengths (unsigned 32 bit, network order), a JSON object and raw bytes.  Before its first frame the agent
sends MAGIC, so that what a login shell prints can be told from the frames.

    launcher -> agent
    agent    {} + sources, zlib'd                          the agent's program, where agent/loader lacks it
    probe    {ports: [first, last] | null, count, lease,   hold ports, lease GPUs (by UUID, or all); answer: `facts`.
              ask_gpus, within_s}                          ask_gpus: false leaves NVML alone; within_s: what NVML may
                                                           take.  A slow one is told of by `preparing`
    queue    {since, wants, gpus, planning}                join the queue for such GPUs; the next `facts` take it into
                                                           account
    let_go   {}                                            give the leases back
    keep     {gpus}                                        keep these leases for the run; give up the others and the
                                                           place in the queue
    module   {name} + source, zlib'd                       the module for the probe that the host lacks; `facts` again
    clock    {sent}                                        what time is it there? answer: `clock`
    check    {directories}                                 find what may trouble a run there; answer: `checked`
    code     {digest} + manifest, or nothing if it is long   is this code there already? answer: `code`
    manifest {last} + bytes                                a piece of it, zlib'd (agent/files/code_store); after the
                                                           last one, `code` again
    blob     {packed, last} + bytes                        a piece of the contents that the host lacks, one content
                                                           behind the other, zlib'd if packed; after the last one,
                                                           `code` again
    prepare  {requirements, images, engine, python, uv, setup, env}   install what the tasks run in, however long that
                                                           takes; answer: `prepared`
    stage    {tasks, attempt, code, ports, gpus, about, door, dial_key, ...}   make every task ready to start; answer:
                                                           `staged` or `failed`.  door: keep one more port, for
                                                           `entrust`; dial_key: of the dial check to come, "" for none;
                                                           passing: end with the launcher, keep nothing;
                                                           programs: job ("": all others) -> the file of the code that
                                                           its tasks' Python must be able to read, `read_by` the
                                                           launcher's (3.11, or ""); null: Python does not read it;
                                                           keras: say which Keras 3 the program gets, if any;
                                                           moves: requests for the case that hosts are lost
                                                           (tflaunch.protocol.moves);
                                                           (`failed` with again: send `code` and what is lacking now,
                                                           then stage once more)
    dial     {key, targets: [[address, port, host]], patience_s, load, names}   connect to each target; load: whether
                                                           all answers bring many bytes, or the numbers of those that
                                                           do; names: that are looked up, too; answer: `dialled`
    push     {key, target: [address, port, host], seconds}   send there as much as you can; answer: `pushed`
    release  {}                                            start the staged tasks; a `started` for each
    watch    {after, logs, window, client, ...}            send the events after that number, then each as it happens;
                                                           with logs ({task: [attempt, offset]}, null: none) the logs
                                                           from there, at most `window` bytes ahead; `through` when all
                                                           so far has been sent.  `tasks`: only these; a task that is
                                                           not in `logs` begins `tail` lines before the end of its log,
                                                           or at `since` (epoch seconds), else at the start.
                                                           A new watch replaces that of the same `client`
    credit   {bytes}                                       the receiver has taken so many bytes of log: send more; 0:
                                                           it only lives
    renew    {lease_s}                                     the launcher lives; without this the agent ends the run
    stop     {tasks: [...] | null, grace_s}                TERM, and KILL after the grace; null: every task
    signal   {tasks: {task: attempt}}                      SIGUSR1 to the programs of these attempts where they run: the
                                                           time limit is near.  A repetition does nothing
    restart  {tasks: {task: attempt}}                      start them again as those attempts; a repetition does nothing
    move     {places: {seat: host}, tasks, attempt}        the tasks that were on one host at first (its seat) are on
                                                           another one: start these tasks as that attempt, each where
                                                           its seat is, by the `moves` of `stage`.  A repetition does
                                                           nothing
    add      {tasks, attempt}                              start more tasks as that attempt, each as soon as it is
                                                           ready; before its `exit` is sent, all that a task has left
                                                           is killed.  A repetition does nothing
    look     {gpus_s}                                      what does each task do? answer: `looked`; with gpus_s, also
                                                           how its GPUs are used, asked so often
    end      {grace_s, stacks}                             stop every task, purge; answer: `swept`.  stacks: the tasks
                                                           hang: have them write where (tflaunch.agent.tasks.stacks)
    find     {patterns: [[regex, whether]], roots}         which outputs of the tasks match? answer: `found`
    read     {path, offset, size, digest}                  a piece of an output, or its SHA-256; answer: `piece`
    tensorboard {logdir}                                   start TensorBoard, and carry connections to it; `tensorboard`
    connect, bytes, taken, cut                             these connections, both ways: see protocol/tcp_streams;
                                                           connect {stream, port}: to the TensorFlow of a task
    said     {text, replanned}                             the launcher or coordinator has a sentence for all who watch
                                                           the run, now or later
    holds    {sentences, blind}                            what is wrong with the run now, and what the watchdog cannot
                                                           see, for those who ask later
    outcome  {outcome}                                     how the run has ended, for those who ask later
    memory   {offset, last} + bytes                        from the coordinator to its own agent, in pieces: what the
                                                           next coordinator must know (lifecycle/memory); before
                                                           `coordinate`, from a launcher that hands its run over
    bye      {}                                            the launcher wants nothing more
    entrust  {secret, address, later}                      the run goes on without a launcher: listen there for its
                                                           coordinator; answer: `entrusted`.  later: it does so once
                                                           there is a coordinator
    coordinate {members, state, lease_s, started, watchdog, clock, trial}   run the coordinator of the run from now on;
                                                           answer: `coordinating`.  trial: only find out whether it
                                                           reaches all hosts.  clock: of the launcher, which hands over
                                                           a run that goes on: `handed` at once, and from then on the
                                                           launcher decides nothing
    detach   {}                                            a user wants the launcher to hand the run over; answer:
                                                           `handed`
    stay     {reason, hint}                                the launcher does not hand the run over

    agent -> launcher
    lacks    {}                                            from the loader: this host does not keep the agent's program;
                                                           answer: `agent`
    hello    {run, host, pid, directory, alive, ports}     the agent is up; ports: it leads to those of tasks
    facts    {...}                                         see tflaunch.agent.host_facts
    clock    {sent, time}                                  the agent's time, and what was sent (epoch seconds)
    checked  {...}                                         see tflaunch.agent.host_check
    code     {have, lacks}                                 lacks: the contents to send, by their places in the
                                                           manifest; null: send the manifest itself
    preparing {line}                                       the last line of what installs there, until `prepared`
    prepared {made, seconds}                               made: it was not there before
    staged   {keras}                                       the version of Keras 3 there, if `stage` asked for it
    dialled  {results: [ms | [verdict, detail]], addresses: {name: [address]}, ways, names}   see
                                                           tflaunch.protocol.dialling; names: a digest of what was found
                                                           for those of `dial`
    pushed   {bytes, seconds, rtt_ms, lost, failed}        what arrived in that time; failed: [verdict, detail] | null
    looked   {tasks: {task: {...}}, gpus, gpus_age_s, fabrics, machine}   see tflaunch.agent.tasks.look, gpus.use and
                                                          host.load
    found    {files: [[path, size, modified (ns), executable]], left: [[path, why, bad]], there, last}   left: links
                                                           and such, or (bad) what cannot be read; there: names in
                                                           that directory, if nothing matches
    piece    {path, offset, digest, size, modified, why, gone} + bytes   size and modified of the file as it is now;
                                                           why: it could not be read; gone: it is not there any more
    tensorboard {state, why, lines}                        of TensorBoard: up, or failed, with the end of its log
    failed   {reason, hint, again}                         the last request could not be carried out; again: kept code
                                                           is damaged, and can be sent again
    log      {task, attempt, offset, cut} + bytes          cut: when the log before `offset` was found truncated (epoch
                                                           seconds), if it was
    through  {}
    entrusted {port, wide}                                 wide: on all addresses, since the host lacks that one
    coordinating {missing: {host: why}}                    the coordinator is connected to all hosts but these
    detach   {}                                            to the launcher: a user wants it to hand the run over
    handed   {reason, hint}                                the run has a coordinator now, or (reason) why it has not
    beat     {}                                            nothing to report; the agent lives

    events, each with `n` (1, 2, ...) and `time` (epoch seconds); the agent keeps them, and sends them again
    started  {task, attempt, pid}
    exit     {task, attempt, code, signal, signal_name, seconds, stopped, log_bytes} + end of the log   a number is
                                                           either in code or in signal
    expired  {reason, asked, ends_in}                      the agent ends the run: its lease has run out, or (asked)
                                                           another command has asked for it, or (ends_in) the engine
                                                           takes the slot back in so many seconds
    swept    {killed, survivors: [...], gpus: [{text, own}], logs: {task: [attempt, bytes]}}   the agent has checked:
                                                           only `survivors` are alive, only these GPUs are not free
    said     {text, replanned, moved}                      see above; replanned: the run goes on by another plan, with
                                                           other agents; moved: the tasks of a lost host that this
                                                           agent, of a spare, has taken over
    outcome  {outcome}                                     tflaunch.protocol.outcome.outcome_data
    gone     {reason}                                      read from what a dead agent has left: it did not end the run

    visit (a short-lived agent that serves any run on the host: for `tflaunch stop`, `ps`, `status`, `clean`, `gpus`)
    attach   {run, host}                                   show that run: `hello` of its agent, or (`alive` false) of
                                                           what its agent has left; then as above
    tensorboard {run, host, logdir}                        start TensorBoard for that run: `hello`, then as above,
                                                           until the channel ends, or nothing comes for 30 s
    list     {all, run, tail_bytes, running_tails}         the runs that are alive, or `all`; answer: `runs`
    runs     {machine, place, clock, runs: [{run, host, state, ...}], others}   see tflaunch.agent.ledger
    samples  {run, offset}                                 what the tasks of a detached run have used; answer: `samples`
    samples  {} + bytes                                    from there on, of the file that its coordinator keeps on this
                                                           host (agent/tally_file); none: it ends there
    measure  {}                                            what is kept there, and how much; answer: `usage`
    usage    {machine, place, directory, runs: [{run, bytes, idle_s, keep, ...}], code_bytes, environment_bytes,
                                                           rest_bytes}
    clean    {runs: [...], code_older_s, dry_run}          remove those that are not alive; answer: `cleaned`
    cleaned  {removed: {run: bytes}, left: {run: why}, code: {files, bytes}, environments: {...},
                                                           rest_bytes}
    finish   {run, grace_s}                                end all that is left of that run; answer: `finished`
    finished {known, found, killed, survivors, unsure, unsure_why, gpus, restarted}   restarted: when the machine was;
                                                           0: it was not
    probe    {topology, within_s}                          answer: `facts`; within_s: as for an agent
    module   {name} + source, zlib'd                       as above; `facts` again
"""

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` costs the agent's start more than it gives
    from typing import Any, Dict, List, Optional

PROTOCOL = 3
MAGIC = b"\0tflaunch-wire %d\n" % PROTOCOL
NOISE_LIMIT = 64 * 1024  # what a login shell may print before MAGIC, in bytes
HEAD_LIMIT = 16 * 1024 * 1024  # the JSON of a message, in bytes: `stage` describes all tasks of a host
# The same for a message from an agent, which may lie: the longest real ones describe a thousand runs, and decoded JSON
# takes up to thirty times as much memory.
ANSWER_LIMIT = 2 * 1024 * 1024
BODY_LIMIT = 1024 * 1024
# Of the time until an engine takes a slot back: for the agent, to sweep and to report, once its tasks have ended.
RECLAIM_S = 1.0
LAST_GRACE_S = 5.0  # from SIGTERM to SIGKILL where an agent ends its tasks because nobody renews its lease
_LENGTHS = struct.Struct("!II")


class _Plain:
    """The settings of `json.loads`."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float, parse_int = float, int


def _unknown(value: object) -> None:
    raise TypeError("%r is no JSON" % (value,))


# The C part of `json`: loading the rest of it, and `re`, takes longer than all messages of a run.
try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _plain = _Plain()  # type: Any
    _scan = make_scanner(_plain)  # type: Any
    _chunks = make_encoder(None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, True)  # type: Any
except Exception:  # another implementation of Python
    _scan = _chunks = None


def dumps(value: "Any") -> str:
    """`value` as JSON, in ASCII: the surrogates of odd file names survive."""
    try:
        return "".join(_chunks(value, 0))
    except Exception:  # `json` raises an exception that says what is wrong
        pass
    import json

    return json.dumps(value, separators=(",", ":"))


def loads(text: str) -> "Any":
    """The value of a JSON text; raises ValueError."""
    try:
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except Exception:  # as in `dumps`
        pass
    import json

    return json.loads(text)


class WireError(Exception):
    """The other end breaks the protocol; `noise` holds the bytes that came instead of MAGIC, if it did not come."""

    def __init__(self, message: str, noise: bytes = b"") -> None:
        super().__init__(message)
        self.noise = noise


class Message:
    """One message: its type, its JSON fields and its raw body."""

    __slots__ = ("body", "fields", "type")

    def __init__(self, type: str, fields: "Optional[Dict[str, Any]]" = None, body: bytes = b"") -> None:
        self.type = type
        self.fields = fields or {}
        self.body = body

    def __getitem__(self, name: str) -> "Any":
        """The field `name`; raises WireError where the other end has left it out."""
        try:
            return self.fields[name]
        except KeyError:
            raise WireError("a %r message without %r" % (self.type, name)) from None

    def __repr__(self) -> str:
        return "Message(%r, %r, %d bytes)" % (self.type, self.fields, len(self.body))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.type, self.fields, self.body) == (other.type, other.fields, other.body)

    __hash__ = None  # type: ignore[assignment]


def encode(type: str, body: bytes = b"", **fields: "Any") -> bytes:
    """The frame of one message; raises WireError when it is larger than the other end accepts."""
    fields["type"] = type
    head = dumps(fields).encode("ascii")
    if len(head) > HEAD_LIMIT or len(body) > BODY_LIMIT:
        raise WireError("%r message too large: %d + %d bytes" % (type, len(head), len(body)))
    return _LENGTHS.pack(len(head), len(body)) + head + body


class Decoder:
    """Makes messages of bytes, whatever the pieces in which the bytes come.

    With `magic`, what comes before MAGIC is skipped and kept in `noise`, NOISE_LIMIT bytes at most.
    The fields of the messages are not checked here, but in `tflaunch.protocol.messages`.
    """

    def __init__(self, magic: bool = False, head_limit: int = HEAD_LIMIT) -> None:
        """`head_limit`: the most that the JSON of a message may take, in bytes."""
        self._head_limit = head_limit
        self._buffer = bytearray()
        self._awaiting_magic = magic
        self.noise = b""

    @property
    def awaiting_magic(self) -> bool:
        """Whether MAGIC is still to come."""
        return self._awaiting_magic

    @property
    def rest(self) -> bytes:
        """The bytes of a message that has not come whole."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> "List[Message]":
        """The messages that are complete now; raises WireError for bytes that are not a frame."""
        self._buffer += data
        if self._awaiting_magic and not self._find_magic():
            return []
        messages = []
        start = 0
        while len(self._buffer) - start >= _LENGTHS.size:
            head_size, body_size = _LENGTHS.unpack_from(self._buffer, start)
            if head_size > self._head_limit or body_size > BODY_LIMIT:
                raise WireError("a frame of %d + %d bytes: not tflaunch's" % (head_size, body_size))
            middle = start + _LENGTHS.size + head_size
            if len(self._buffer) < middle + body_size:
                break
            messages.append(
                _message(
                    bytes(self._buffer[start + _LENGTHS.size : middle]),
                    bytes(self._buffer[middle : middle + body_size]),
                )
            )
            start = middle + body_size
        del self._buffer[:start]
        return messages

    def _find_magic(self) -> bool:
        at = self._buffer.find(MAGIC, 0, NOISE_LIMIT + len(MAGIC))
        if at < 0:
            self.noise = bytes(self._buffer[:NOISE_LIMIT])
            if len(self._buffer) >= NOISE_LIMIT + len(MAGIC):
                raise WireError("more than %d bytes of something else came first" % NOISE_LIMIT, self.noise)
            return False
        self.noise = bytes(self._buffer[:at])
        del self._buffer[: at + len(MAGIC)]
        self._awaiting_magic = False
        return True


def _message(head: bytes, body: bytes) -> Message:
    try:
        fields = loads(head.decode("ascii"))
        kind = fields.pop("type")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise WireError("a frame that holds no message: %r" % head[:80]) from None
    if not isinstance(kind, str):
        raise WireError("a message of type %r" % (kind,))
    return Message(kind, fields, body)
