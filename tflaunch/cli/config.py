"""`tflaunch config`: shows what the configuration files say, and which of them counts."""

from __future__ import annotations

from tflaunch.cli.arguments import JsonDocument


def config(*, json: JsonDocument = False) -> None:
    """Show the configuration: each value that counts, with the file and the line that it comes from.

    The files are /etc/tflaunch/config.toml, of this machine, and ~/.config/tflaunch/config.toml, which is yours and
    wins.  The command line, the environment, a job file and a hostfile win over both.  tflaunch schema config prints
    their JSON Schema.
    """
    from tflaunch.api.requests.configured import configuration
    from tflaunch.console.config_page import config_data, config_lines
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.inputs.config import paths

    screen, found = Screen(), configuration()
    with reader_may_leave():
        if json:
            screen.write_json(config_data(found, paths()))
        else:
            screen.show(config_lines(found, paths(), screen))
