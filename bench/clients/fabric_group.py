"""fabric's ThreadingGroup, as its documentation shows it: a thread for each host."""

from __future__ import annotations

from fabric import ThreadingGroup

from bench.clients.common import end, given

hosts, command = given()
results = ThreadingGroup(*hosts).run(command, hide=True, warn=True, in_stream=False)
end((result.exited for result in results.values()), len(hosts))
