"""parallel-ssh: libssh2 and gevent."""

from __future__ import annotations

from pssh.clients import ParallelSSHClient

from bench.clients.common import AT_A_TIME, KEY, end, given

hosts, command = given()
client = ParallelSSHClient(
    hosts, user="root", pkey=KEY, pool_size=AT_A_TIME, allow_agent=False, identity_auth=False
)
output = client.run_command(command)
client.join(output)
end((each.exit_code for each in output), len(hosts))
