"""Which promises are known to be broken: cases of the suite that may fail, each with the defect in words.

An entry goes when its defect does.
"""

KNOWN: dict[str, str] = {
    "run/outcome#0:time=true": "at times a run does not end when a host breaks the protocol with its copy of the "
    "outcome, just before the outputs are fetched (or the player does not answer there as an agent does)",
    "stopped/expired#0:n=one": "an event with a number that was used before is not heard, as after a reconnection; the "
    "player says nothing more, so the run goes on",
}
