"""asyncssh: one event loop for all hosts."""

from __future__ import annotations

import asyncio

import asyncssh

from bench.clients.common import AT_A_TIME, KEY, SSH, end, given

hosts, command = given()


async def run_all() -> list[int | None]:
    key = asyncssh.read_private_key(KEY)
    known = asyncssh.read_known_hosts(str(SSH / "known_hosts"))
    at_a_time = asyncio.Semaphore(AT_A_TIME)

    async def run(host: str) -> int | None:
        options = {"username": "root", "client_keys": [key], "known_hosts": known, "config": None}
        async with (
            at_a_time,
            asyncssh.connect(host, agent_path=None, login_timeout=120, **options) as connection,
        ):
            done = await connection.run(command)
            code: int | None = done.exit_status
            return code

    return await asyncio.gather(*map(run, hosts))


end(asyncio.run(run_all()), len(hosts))
