"""How OpenSSH would reach a host, for `tflaunch.remote`: its configuration, keys, host keys, log-in and transport."""
