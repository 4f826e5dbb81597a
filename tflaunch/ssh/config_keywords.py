"""The keywords of ssh_config: what their values look like, and what tflaunch's own client makes of each.

A keyword is read; or it is passed over, because what it asks for concerns tflaunch's client not at all; or it is
refused, with the line and the proposal to have the system's `ssh` connect, because to pass over it could make a
connection that `ssh` would not make, or make it otherwise.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

YES = ("yes", "true")
_FLAG = (*YES, "no", "false")
_TIME = re.compile(r"none|(?:[0-9]{1,9}[smhdwSMHDW]?)+")
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


@dataclass(frozen=True)
class Keyword:
    """What is known of one keyword."""

    # "word", "words", "rest" (of the line, for a shell), or "anything": not looked at.
    takes: str = "anything"
    is_valid: Callable[[str], bool] = bool  # asked about each word
    read: bool = False
    # Of a keyword that is refused: the values, in small letters, that ask for nothing; None: it is read or passed over.
    harmless: tuple[str, ...] | None = None


def one_of(*words: str) -> Callable[[str], bool]:
    """Whether a value is one of these words, in whatever letters."""
    return lambda value: value.lower() in words


def port_number(value: str) -> int:
    """A port's number, given as such or as the name of a service; 0 for what is neither."""
    if re.fullmatch(r"\+?[0-9]{1,9}", value):
        number = int(value)
        return number if number < 65536 else 0
    try:
        return socket.getservbyname(value, "tcp")
    except (OSError, UnicodeError, ValueError):
        return 0


def hop(text: str) -> tuple[str | None, str, int | None] | None:
    """The user, the host and the port of `[user@]host[:port]`, or of an ssh:// URI; None for anything else.

    An IPv6 address stands in brackets.
    """
    user, at, place = text.removeprefix("ssh://").rstrip("/").rpartition("@")
    found = re.fullmatch(r"(?:\[([^]]+)\]|([^:\[\]]+))(?::(.*))?", place)
    number = port_number(found[3]) if found and found[3] else None
    if not found or number == 0 or (at and not user):
        return None
    return user or None, found[1] or found[2], number


def _is_jump(value: str) -> bool:
    first = value.split(maxsplit=1)[0] if value.strip() else ""  # what follows is nothing to ssh
    return first.lower() == "none" or all(map(hop, first.split(",")))


def seconds(value: str) -> float | None:
    """A time in OpenSSH's notation (`30`, `30s`, `1m30s`); None for `none`, and for 0."""
    units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    parts = re.findall(r"([0-9]{1,9})([smhdw]?)", "" if value == "none" else value.lower())
    return float(sum(int(number) * units[unit] for number, unit in parts)) or None


def _is_time(value: str) -> bool:
    return _TIME.fullmatch(value) is not None and (seconds(value) or 0) < 2**31


def _is_number(value: str) -> bool:
    return _NUMBER.fullmatch(value) is not None


_READ: dict[str, Keyword] = {
    **dict.fromkeys(
        ("user", "hostname", "hostkeyalias", "identityfile", "certificatefile", "revokedhostkeys"),
        Keyword("word", read=True),
    ),
    **dict.fromkeys(
        ("pkcs11provider", "ignoreunknown", "identityagent", "bindaddress"), Keyword("word", read=True)
    ),
    **dict.fromkeys(
        ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms", "pubkeyacceptedalgorithms"),
        Keyword("word", read=True),
    ),
    **dict.fromkeys(
        ("include", "userknownhostsfile", "globalknownhostsfile", "canonicaldomains"),
        Keyword("words", read=True),
    ),
    **dict.fromkeys(
        ("hashknownhosts", "identitiesonly", "canonicalizefallbacklocal"),
        Keyword("word", one_of(*_FLAG), read=True),
    ),
    **dict.fromkeys(
        ("gssapiauthentication", "hostbasedauthentication"), Keyword("word", one_of(*_FLAG), read=True)
    ),
    "proxycommand": Keyword("rest", read=True),
    "proxyjump": Keyword("rest", _is_jump, read=True),
    "host": Keyword("words", read=True),
    "match": Keyword(read=True),
    "port": Keyword("word", lambda value: port_number(value) > 0, read=True),
    "connecttimeout": Keyword("word", _is_time, read=True),
    "requiredrsasize": Keyword("word", _is_number, read=True),
    "canonicalizemaxdots": Keyword("word", _is_number, read=True),
    "canonicalizehostname": Keyword("word", one_of(*_FLAG, "always"), read=True),
    "addressfamily": Keyword("word", one_of("any", "inet", "inet6"), read=True),
    "stricthostkeychecking": Keyword("word", one_of(*_FLAG, "ask", "off", "accept-new"), read=True),
}
_REFUSED: dict[str, Keyword] = {
    "checkhostip": Keyword("word", one_of(*_FLAG), harmless=("no", "false")),
    "proxyusefdpass": Keyword("word", one_of(*_FLAG), harmless=("no", "false")),
    "pubkeyauthentication": Keyword(
        "word", one_of(*_FLAG, "unbound", "host-bound"), harmless=(*YES, "unbound", "host-bound")
    ),
    "preferredauthentications": Keyword("word", harmless=()),  # unless publickey is among them
    "knownhostscommand": Keyword("rest", harmless=("none",)),
    "canonicalizepermittedcnames": Keyword("words", harmless=("none",)),
    "bindinterface": Keyword("word", harmless=()),
    "refuseconnection": Keyword("rest", harmless=()),
}
# What a session has or shows, what is forwarded, logins by a question, and what belongs to ssh's own files: tflaunch
# has none of it.  Stricter than ssh with them are those who pass over VerifyHostKeyDNS and
# NoHostAuthenticationForLocalhost.
_PASSED_OVER: dict[str, Keyword] = {
    **dict.fromkeys(
        (
            *(
                "batchmode",
                "clearallforwardings",
                "enableescapecommandline",
                "enablesshkeysign",
                "exitonforwardfailure",
            ),
            *(
                "forkafterauthentication",
                "forwardx11",
                "forwardx11trusted",
                "gatewayports",
                "gssapidelegatecredentials",
            ),
            *("kbdinteractiveauthentication", "nohostauthenticationforlocalhost", "passwordauthentication"),
            *("permitlocalcommand", "stdinnull", "streamlocalbindunlink", "tcpkeepalive", "visualhostkey"),
        ),
        Keyword("word", one_of(*_FLAG)),
    ),
    **dict.fromkeys(("updatehostkeys", "verifyhostkeydns"), Keyword("word", one_of(*_FLAG, "ask"))),
    **dict.fromkeys(("forwardx11timeout", "serveraliveinterval"), Keyword("word", _is_time)),
    **dict.fromkeys(
        ("connectionattempts", "numberofpasswordprompts", "serveralivecountmax"), Keyword("word", _is_number)
    ),
    **dict.fromkeys(("localcommand", "remotecommand"), Keyword("rest")),
    "compression": Keyword("word", one_of("yes", "no")),
    "controlmaster": Keyword("word", one_of(*_FLAG, "auto", "ask", "autoask")),
    "requesttty": Keyword("word", one_of(*_FLAG, "force", "auto")),
    "sessiontype": Keyword("word", one_of("none", "subsystem", "default")),
    "tunnel": Keyword("word", one_of(*_FLAG, "ethernet", "point-to-point")),
    **dict.fromkeys(
        (
            *("addkeystoagent", "casignaturealgorithms", "channeltimeout", "controlpath", "controlpersist"),
            *(
                "dynamicforward",
                "escapechar",
                "fingerprinthash",
                "forwardagent",
                "hostbasedacceptedalgorithms",
            ),
            *(
                "ipqos",
                "kbdinteractivedevices",
                "localforward",
                "loglevel",
                "logverbose",
                "obscurekeystroketiming",
            ),
            *("permitremoteopen", "rekeylimit", "remoteforward", "securitykeyprovider", "sendenv", "setenv"),
            *(
                "streamlocalbindmask",
                "syslogfacility",
                "tag",
                "tunneldevice",
                "versionaddendum",
                "warnweakcrypto",
            ),
            "xauthlocation",
            # What distributors add.
            *("gssapiclientidentity", "gssapikexalgorithms", "gssapikeyexchange", "gssapirenewalforcesrekey"),
            *("gssapiserveridentity", "gssapitrustdns"),
            # ssh itself passes over what it once knew.
            *("afstokenpassing", "cipher", "compressionlevel", "fallbacktorsh", "globalknownhostsfile2"),
            *("kerberosauthentication", "kerberostgtpassing", "protocol", "rhostsauthentication"),
            *("rhostsrsaauthentication", "rsaauthentication", "useprivilegedport", "userknownhostsfile2"),
            *("useroaming", "usersh"),
        ),
        Keyword(),
    ),
}
_APPLE = {"usekeychain": Keyword("word", one_of(*_FLAG))} if sys.platform == "darwin" else {}
KEYWORDS: dict[str, Keyword] = {**_READ, **_REFUSED, **_PASSED_OVER, **_APPLE}
# Other spellings -> the keyword.
ALIASES = {
    "challengeresponseauthentication": "kbdinteractiveauthentication",
    "dsaauthentication": "pubkeyauthentication",
    "hostbasedkeytypes": "hostbasedacceptedalgorithms",
    "identityfile2": "identityfile",
    "keepalive": "tcpkeepalive",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
    "skeyauthentication": "kbdinteractiveauthentication",
    "smartcarddevice": "pkcs11provider",
    "tisauthentication": "kbdinteractiveauthentication",
}


def is_harmless(keyword: str, value: str) -> bool:
    """Whether that value of a keyword that is refused asks for nothing."""
    if keyword == "preferredauthentications":
        return "publickey" in value.split(",")
    return value.lower() in (KEYWORDS[keyword].harmless or ())
