"""How a run goes: its state machine, the driver, links to hosts, watchdog, time limits; shipped to hosts."""
