"""The messages between launcher and agent, and their frames; no I/O here.

A frame is two lengths (unsigned 32 bit, network order), a JSON object and raw bytes.  Before the first frame
the agent sends MAGIC, so that whatever a login shell prints can be told from it.

    launcher -> agent
    agent    {} + sources, zlib'd                          for the loader (sessions/payload), where it lacks them
    probe    {ports: [first, last] | null, count, lease}   hold ports, lease cards (UUIDs, or all); answered by `facts`
    queue    {since, wants, gpus, planning}                a place in the queue for such cards; the next `facts` heed it
    let_go   {}                                            give the leases back
    keep     {gpus}                                        these leases are the run's; give up the others and the place
    module   {name} + source, zlib'd                       a module for the probe that the host lacks; `facts` again
    clock    {sent}                                        what time is it? answered by `clock`
    check    {directories}                                 what may trouble a run there; answered by `checked`
    code     {digest} + manifest, or nothing if it is long   is this code here already? answered by `code`
    manifest {last} + bytes                                a piece of it, zlib'd (tflaunch.agent.files.code_store); after the
                                                           last one, `code` again
    blob     {packed, last} + bytes                        a piece of what it lacks, zlib'd if packed, one content
                                                           behind the other; after the last one, `code` again
    prepare  {requirements, images, engine, python, setup, env}   have what the tasks run in, however long that takes;
                                                           answered by `prepared`
    stage    {tasks, attempt, code, ports, gpus, about, door, dial_key, ...}   make every task ready to start; `staged`
                                                           or `failed`; with door, keep one port more, for `entrust`;
                                                           dial_key: of the dial check to come, "" for none; passing:
                                                           it ends with its launcher, and nothing of it is kept;
                                                           program: the file of the code that the tasks' Python is to
                                                           be able to read, `read_by` the launcher's (3.11, or "")
                                                           (`failed` with again: ask with `code` what it lacks now,
                                                           and stage once more)
    dial     {key, targets: [[address, port, host]], patience_s, load}   call each of them, with load for many bytes;
                                                           answered by `dialled`
    release  {}                                            start what is staged; a `started` for each task
    watch    {after, logs, window, client, ...}            tell the events after that one, then each as it happens;
                                                           with logs ({task: [attempt, offset]}, null: none) also
                                                           those, from there, `window` bytes ahead at most; `through`
                                                           when all that there is has been sent. `tasks` wants only
                                                           those; a task not in `logs` begins `tail` lines before
                                                           its end, or at `since` (epoch seconds), else at its start.
                                                           A new watch of the same `client` replaces the old one
    credit   {bytes}                                       that many bytes of log were taken: send more
    renew    {lease_s}                                     the launcher lives; without it the agent ends the run
    stop     {tasks: [...] | null, grace_s}                TERM, and KILL after the grace; null: every task
    restart  {tasks: {task: attempt}}                      start them again as those attempts; repeated: nothing
    add      {tasks, attempt}                              more tasks, each started as soon as it is ready, as that
                                                           attempt; nothing of one lives on when its `exit` is told.
                                                           Repeated: nothing
    look     {}                                            what is each task doing? answered by `looked`
    end      {grace_s, stacks}                             stop every task, sweep, answer `swept`; stacks: they are
                                                           stuck, and write where (tflaunch.agent.tasks.stacks)
    find     {patterns: [[regex, whether]], roots}         which outputs of the tasks match? answered by `found`
    read     {path, offset, size, digest}                  a piece of one, or its SHA-256; answered by `piece`
    board    {logdir}                                      TensorBoard is wanted, and connections to it; `board`
    connect, bytes, taken, cut                             such connections, both ways: see protocol/tcp_streams
    said     {text, replanned}                             who decides says that to all who watch, now or later
    outcome  {outcome}                                     how the run has ended, for those who ask later
    memory   {offset, last} + bytes                        from the coordinator to its own agent, in pieces: what the
                                                           next one is to know, should it die (lifecycle/memory)
    bye      {}                                            nothing more is wanted
    entrust  {secret, address}                             the run goes on without launcher: let its coordinator in
                                                           there; `entrusted`
    coordinate {members, state, lease_s, started, oversight}   this host decides for the run from now on;
                                                           `coordinating`

    agent -> launcher
    lacks    {}                                            by the loader: this host does not keep the agent; `agent`
    hello    {run, host, pid, directory, alive}            the agent is up
    facts    {...}                                         see tflaunch.agent.facts
    clock    {sent, time}                                  its own, and what was sent (epoch seconds)
    checked  {...}                                         see tflaunch.agent.host_check
    code     {have, lacks}                                 the places in the manifest of the contents that are to be
                                                           sent; null: the manifest is
    prepared {made, seconds}                               made: it was not there before
    staged   {}
    dialled  {results: [ms | [verdict, detail]], addresses: {name: [address]}}   see tflaunch.protocol.dialling
    looked   {tasks: {task: {...}}}                        see tflaunch.agent.tasks.look
    found    {files: [[path, size, modified (ns), executable]], left: [[path, why, bad]], there, last}   left: links
                                                           and such, or (bad) what cannot be read; there: names in
                                                           that directory, if nothing matches
    piece    {path, offset, digest, size, modified, why, gone} + bytes   size and modified of the file as it is now;
                                                           why it could not be read; whether it is gone
    board    {state, why, lines}                           of TensorBoard: up, or failed, with the end of its log
    failed   {reason, hint, again}                         the last request could not be carried out; again: kept
                                                           code is damaged, which can be sent again
    log      {task, attempt, offset, cut} + bytes          cut: when what came before `offset` was found truncated
                                                           (epoch seconds), if it was
    through  {}
    entrusted {port, wide}                                 wide: on all its addresses, for it has not that one itself
    coordinating {missing: {host: why}}                    the coordinator is connected, but for these
    beat     {}                                            nothing to say, but alive

    events, each with `n` (1, 2, ...) and `time` (epoch seconds); the agent keeps them, and tells them again
    started  {task, attempt, pid}
    exit     {task, attempt, code, signal, signal_name, seconds, stopped, log_bytes} + tail   one of code and signal
                                                           is a number
    expired  {reason, asked}                               the agent ends the run: no lease, or it was `asked` to
    swept    {killed, survivors: [...], cards: [{text, own}], logs: {task: [attempt, bytes]}}   checked: only
                                                           `survivors` are alive, and of its cards only `cards` not free
    said     {text, replanned}                             what who decides tells those who watch; replanned: the run
                                                           goes on by another plan, with other agents
    outcome  {outcome}                                     tflaunch.protocol.outcome.outcome_data
    gone     {reason}                                      from what a dead agent has left: it did not end by itself

    visit (a short-lived agent that serves any run on the host: for `tflaunch stop`, `ps`, `status`, `clean`, `gpus`)
    attach   {run, host}                                   become a view onto that run: `hello` of its agent, or of
                                                           what it has left (`alive` false); then as above
    board    {run, host, logdir}                           start TensorBoard for that run: `hello`, then as above,
                                                           until the channel ends, or nothing comes for 30 s
    list     {all, run, tail_bytes}                        what is alive, or `all`; answered by `runs`
    runs     {machine, place, clock, runs: [{run, host, state, ...}], others}   see tflaunch.agent.ledger
    measure  {}                                            what is kept there, and how much; answered by `usage`
    usage    {machine, place, directory, runs: [{run, bytes, idle_s, keep, ...}], code_bytes, environment_bytes,
                                                           rest_bytes}
    clean    {runs: [...], code_older_s, dry_run}          remove those that are not alive; answered by `cleaned`
    cleaned  {removed: {run: bytes}, left: {run: why}, code: {files, bytes}, environments: {...},
                                                           rest_bytes}
    finish   {run, grace_s}                                end that run whatever is left of it; answered by `finished`
    finished {known, found, killed, survivors, unsure, cards, restarted}   restarted: when the machine was, 0: not
    probe    {topology}                                    answered by `facts`
    module   {name} + source, zlib'd                       as above; `facts` again
"""

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` costs the agent's start more than it gives
    from typing import Any, Dict, List, Optional

PROTOCOL = 3
MAGIC = b"\0tflaunch-wire %d\n" % PROTOCOL
NOISE_LIMIT = 64 * 1024  # what a login shell may print before MAGIC
HEAD_LIMIT = 16 * 1024 * 1024  # of what an agent takes from a launcher: the requests of all tasks of its host
# Of what is taken from an agent, which may lie: the longest real ones tell of a thousand runs, and what is decoded
# takes up to thirty times as much memory.
ANSWER_LIMIT = 2 * 1024 * 1024
BODY_LIMIT = 1024 * 1024
_LENGTHS = struct.Struct("!II")


class _Plain:
    """How `json.loads` has it."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float, parse_int = float, int


def _unknown(value: object) -> None:
    raise TypeError("%r is no JSON" % (value,))


# What `json` itself is made of: to load the rest of it, and `re`, takes longer than the messages of a whole run.
try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _plain = _Plain()  # type: Any
    _scan = make_scanner(_plain)  # type: Any
    _chunks = make_encoder(None, _unknown, encode_basestring_ascii, None, ":", ",", False, False, True)  # type: Any
except Exception:  # another Python
    _scan = _chunks = None


def dumps(value: "Any") -> str:
    """That value as JSON, in ASCII: surrogates of odd file names survive."""
    try:
        return "".join(_chunks(value, 0))
    except Exception:  # `json` says what is wrong
        pass
    import json

    return json.dumps(value, separators=(",", ":"))


def loads(text: str) -> "Any":
    """The value of that JSON; raises ValueError."""
    try:
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except Exception:  # `json` says what is wrong
        pass
    import json

    return json.loads(text)


class WireError(Exception):
    """The bytes are not this protocol; `noise` holds what came instead of MAGIC, if that was missing."""

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
        """The field `name`; raises WireError when the peer left it out."""
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
    """The frame of one message; raises WireError when it is larger than a peer accepts."""
    fields["type"] = type
    head = dumps(fields).encode("ascii")
    if len(head) > HEAD_LIMIT or len(body) > BODY_LIMIT:
        raise WireError("%r message too large: %d + %d bytes" % (type, len(head), len(body)))
    return _LENGTHS.pack(len(head), len(body)) + head + body


class Decoder:
    """Bytes in, messages out, however the bytes were cut.

    With `magic`, everything before MAGIC is dropped (and kept in `noise`), NOISE_LIMIT bytes at most.
    What the messages hold is for `tflaunch.protocol.messages` to check.
    """

    def __init__(self, magic: bool = False, head_limit: int = HEAD_LIMIT) -> None:
        """`head_limit` is what the fields of a message may take, in bytes."""
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
        """What has come of the next message."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> "List[Message]":
        """The messages that are complete now; raises WireError on anything that is not a frame."""
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
