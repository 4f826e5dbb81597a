"""How a host is reached by SSH: by tflaunch's own client or by the system's `ssh`; for remote.py.

    target, ssh_config, config_lines, config_match,    what ssh_config and the hostfile say of a host
    config_keywords, tokens, algorithms
    key_files, keys, known_hosts, host_key         the user's keys and the servers'
    client, connection, login, transport, command_wire  tflaunch's own SSH client, by fabric and paramiko
    openssh, openssh_wire, openssh_log,            the system's `ssh`: its process, its log, why it did not log in,
    openssh_failures, openssh_key                  and which key the server has
    deadline, dropped, failures, refused_keys,     what both need
    resolver, sockets

Only connection, login, transport, channel and private_keys import fabric and paramiko, which take a quarter of a second
to load: `client` imports them while the first servers answer the dial.
"""
