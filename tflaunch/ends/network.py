"""Rules: networks, names, ports, certificates."""

from tflaunch.ends.end_rule import AFTERMATH, ANYWHERE, EndRule

_GO_ON = (
    "{task} called a task that did not listen yet, and gRPC gave up at once: --env GRPC_FAIL_FAST=false has it wait "
    "for the others"
)
_PEER = (
    "another task was gone, or did not answer, when {task} called it: the cause is in that task's log, mostly the one "
    "that ended before; if all of them run, `tflaunch check` shows which hosts do not reach each other"
)
_PORT = (
    "a port is taken on {host}: one that the program chose itself (`ss -ltnp` there shows by whom; take the one that "
    "tflaunch gives each task: TF_CONFIG, --worker_hosts, MASTER_PORT), or the task's own, which its agent holds with "
    "SO_REUSEPORT: set that on the socket, too, or pass the port by a placeholder (--job-args, --job-env), then "
    "SO_REUSEADDR is enough"
)
_PORT_OWN = (
    "{own_port} on {host} is the port of {task} itself, which its agent holds for it with SO_REUSEPORT: set that on "
    "the socket, too (sock.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)), or pass the port by a placeholder (--job-args, "
    "--job-env), then SO_REUSEADDR is enough"
)
_PORT_TF = (
    "another process on {host} has the port that TensorFlow wants to listen on (`ss -ltnp` there shows which): does "
    "the program take its port from TF_CONFIG or the cluster flags, or did an earlier run leave a server (`tflaunch "
    "ps`, `tflaunch stop RUN`)?"
)
_LOOPBACK = (
    "gloo listens on the address of its host's own name: on {host}, /etc/hosts must give that name the address that "
    "the other hosts reach; with PyTorch, --env GLOO_SOCKET_IFNAME=eth0 (the name of an interface) will do"
)
_NAME = (
    "{host} cannot look up a name that the program uses: write it right, or have it in DNS or /etc/hosts there; hosts "
    "of a cluster without the internet need the data beforehand"
)
_KERAS_DATA = (
    "{host} cannot fetch {0}, a data set of Keras: copy the file to ~/.keras/datasets on each host beforehand"
)
_CLOCK = "; or the clock of {host} is wrong (`tflaunch check` compares clocks)"

_UNEVEN = (
    "{done} had ended with 0, and {task} still called it in a collective: give all workers the same number of steps "
    "(an even share of the data, or .repeat() with steps_per_epoch)"
)

_IN_USE = (
    r"[Aa]ddress already in use",
    r"Errno 98\b",
    r"EADDRINUSE",
)
# PyTorch's
_STORE_PORT = r"server socket has failed to listen on any .{0,400}(?:EADDRINUSE|[Aa]ddress already in use)"
_NO_SERVER = (
    r"Failed to add port to server",
    r"No address added out of total",
)
_NO_PEER = r"failed to connect to all addresses"
# JAX's and TensorFlow's
COORDINATION = r"coordination service"
_BROKEN_OFF = r"Collective ops is aborted"

RULES = (
    EndRule(
        (
            _BROKEN_OFF,
            r"CollectiveReduce",
            r"CollectiveGather",
            r"RecvBuf",
            COORDINATION,
        ),
        _UNEVEN,
        needs=("done",),
    ),
    EndRule(r"[Gg]loo.{0,400}(?:remote=\[127\.|tcp/device\.cc:\d{1,5}\] rv == 0)", _LOOPBACK),
    EndRule(
        _STORE_PORT,
        "tflaunch holds rank 0's port for TensorFlow, so PyTorch's store cannot use it: say --framework torch",
        unless=("env:MASTER_ADDR",),
    ),
    EndRule(_STORE_PORT, _PORT),
    EndRule(
        (r"Could not start gRPC server", *_NO_SERVER),
        _PORT_TF,
    ),
    EndRule(
        _IN_USE,
        _PORT_OWN,
        needs=("own_port",),
    ),
    EndRule(
        _IN_USE,
        _PORT,
    ),
    EndRule(
        (
            r"Cannot assign requested address",
            r"Errno 99\b",
            r"EADDRNOTAVAIL",
        ),
        "the program listens on an address that {host} does not have: bind to 0.0.0.0, or take the address "
        "from TF_CONFIG; `address:` in the hostfile sets which one tflaunch tells the tasks",
    ),
    EndRule(
        (*_NO_SERVER, r"Failed to bind to address"),
        _PORT_TF,
        ANYWHERE,
    ),
    EndRule(
        r"certificate has expired",
        "the certificate of the server that the program calls has expired (have it renewed)" + _CLOCK,
    ),
    EndRule(
        r"certificate is not yet valid",
        "the certificate is not valid yet: the clock of {host} is slow (`tflaunch check` compares clocks; "
        "`timedatectl` there), or it was issued for later",
    ),
    EndRule(
        r"certificate verify failed: (?:self[- ]signed certificate|unable to get (?:local )?issuer)",
        "{host} does not know who signed the server's certificate: have that CA installed there, or --env "
        "SSL_CERT_FILE=PATH (requests: REQUESTS_CA_BUNDLE=PATH) names it",
    ),
    EndRule(
        (
            r"Hostname mismatch, certificate is not valid for",
            r"doesn't match (?:either of )?'",
        ),
        "the server's certificate is for another name: call it by the name in the certificate",
    ),
    EndRule(
        (
            r"CERTIFICATE_VERIFY_FAILED",
            r"SSLCertVerificationError",
            r"SSLError",
            r"SSL_ERROR_SSL",
            r"TLSV1_ALERT",
            r"WRONG_VERSION_NUMBER",
        ),
        "TLS failed between {host} and a server: a wrong certificate, a proxy in between (http_proxy), or "
        "plain HTTP on that port" + _CLOCK,
    ),
    EndRule(
        (
            r"ExpiredToken",
            r"RequestTimeTooSkewed",
            r"token (?:is )?expired",
            r"Token used too (?:early|late)",
            r"clock skew",
        ),
        "the server does not take the time or token of {host}: renew the token (--env-file FILE); `tflaunch "
        "check` compares clocks",
    ),
    EndRule(r"URL fetch failure on \S{0,60}/tf-keras-datasets/([\w.-]{1,80})", _KERAS_DATA),
    EndRule(
        (
            r"Name or service not known",
            r"Temporary failure in name resolution",
            r"nodename nor servname",
            r"Name resolution failed",
            r"DNS resolution failed",
            r"[Cc]ould not resolve host",
            r"NameResolutionError",
            r"getaddrinfo",
        ),
        _NAME,
    ),
    EndRule(
        (
            r"Network is unreachable",
            r"No route to host",
            r"Errno 101\b",
            r"Errno 113\b",
        ),
        "{host} has no way to the address that the program calls: `tflaunch check` shows which hosts reach "
        "each other; for the internet, --env https_proxy=... where there is a proxy (and --env no_proxy=...: "
        "gRPC between the tasks must not use it)",
    ),
    EndRule(
        (
            r"ProxyError",
            r"Tunnel connection failed",
            r"407 Proxy Authentication",
            r"HTTP proxy returned",
            r"http_proxy",
            r"failed to connect to (?:http )?proxy",
        ),
        "a proxy stands between the program and its goal: --env no_proxy=HOST,HOST for the hosts of the run "
        "(gRPC fails through proxies: --env http_proxy= --env https_proxy=)",
    ),
    EndRule(
        (
            r"(?:UnavailableError|UNAVAILABLE).{0,300}Connection refused",
            rf"(?:UnavailableError|UNAVAILABLE).{{0,300}}{_NO_PEER}",
        ),
        _GO_ON,
        needs=("slow_start",),
        unless=("env:GRPC_FAIL_FAST",),
    ),
    EndRule(
        _NO_PEER,
        _GO_ON,
        AFTERMATH,
        needs=("slow_start",),
        unless=("env:GRPC_FAIL_FAST",),
    ),
    EndRule(
        (
            r"UnavailableError",
            r"UNAVAILABLE",
            r"Socket closed",
            r"Connection reset by peer",
            r"Connection refused",
            r"Broken pipe",
            r"Connection closed by (?:peer|remote)",
            _NO_PEER,
            r"GOAWAY",
            r"keepalive watchdog timeout",
            r"recvmsg",
            r"Errno 104\b",
            r"Errno 111\b",
            r"Errno 32\b",
        ),
        _PEER,
        AFTERMATH,
    ),
    EndRule(
        (
            r"AbortedError",
            _BROKEN_OFF,
            r"CancelledError",
            r"CANCELLED",
            r"was cancelled",
            r"RPC cancelled",
            r"SessionRunHook",
        ),
        _PEER,
        AFTERMATH,
    ),
    EndRule(
        (
            r"Timeout(?:Error|Expired)?\b.{0,120}",
            r"timed out",
            r"DEADLINE_EXCEEDED",
            r"DeadlineExceededError",
            r"Deadline Exceeded",
        ),
        "something that {task} waited for ({place}) did not come in time: a task or server that does not run "
        "or cannot be reached; `tflaunch check` shows which hosts reach each other",
        AFTERMATH,
    ),
)
