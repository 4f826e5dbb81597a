"""What the steps of a command are called to people; `--json` has their names."""

from __future__ import annotations

from tflaunch.text.numbers import counted

# name -> while it goes on; once it is over, with what stands for {}, of which `total` counts how many there are
_WORDS = {
    "waiting for slots": ("waiting for slots", "got {}", "slot"),
    "connecting": ("connecting", "connected to {}", "host"),
    "probing": ("checking GPUs", "checked the GPUs of {}", "host"),
    "shipping": ("shipping", "shipped the code to {}", "host"),
    "installing": ("installing", "installed the environment on {}", "host"),
    "pulling": ("fetching the image", "fetched the image on {}", "host"),
    "staging": ("preparing", "prepared {}", "host"),
    "setting up": ("preparing", "prepared {}", "host"),
    "dialling": ("testing the network", "tested the network of {}", "host"),
    "dialling more": ("testing all ways of some hosts", "tested all ways of some hosts from {}", "host"),
    "dialling again": ("testing slow ways again", "tested slow ways again from {}", "host"),
    "entrusting": ("starting the coordinator", "started the coordinator", ""),
    "starting": ("starting", "started {}", "server"),
    "asking": ("asking", "asked {}", "host"),
    "stopping": ("stopping", "stopped on {}", "host"),
    "checking": ("checking", "checked {}", "host"),
    "importing TensorFlow": ("importing TensorFlow", "imported TensorFlow on {}", "host"),
    "trying Python": ("trying Python", "tried Python on {}", "host"),
    "waiting": ("waiting for GPUs", "waited for {}", "GPU"),
    "trying": ("measuring layouts", "measured layouts in {}", "run"),
    "measuring": ("measuring", "measured", ""),
    "cleaning": ("cleaning", "cleaned {}", "host"),
    "fetching": ("fetching", "fetched {}", "file"),
}


def going_on(name: str) -> str:
    """Return what that step is called while it goes on."""
    return _WORDS[name][0] if name in _WORDS else name


def over(name: str, done: int, total: int) -> str:
    """Return the sentence for a step that is over, or was cut short: `connected to 3 of 4 hosts`."""
    _, past, noun = _WORDS.get(name, ("", name, ""))
    if not noun:
        return past if done == total else f"{past} {done}/{total}"
    return past.format(counted(total, noun) if done == total else f"{done} of {counted(total, noun)}")
