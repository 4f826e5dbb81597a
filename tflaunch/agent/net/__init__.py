"""Connections of this host.

channel         the channel that sshd gives, and how a visit passes it to an agent
peers           sealed TCP between the agents of a detached run
connections     what the kernel knows of TCP connections and open ports
socket_owners   which task each socket belongs to
port_holders    who has the ports that could not be held
ports           ports held from before the plan to the end of the run
dial_check      both ends of the dial check: which hosts reach each other?
dial_answering  the end that listens
throughput      how much this host can send to another
nics            interfaces and RDMA devices: how fast they are, which GPUs they are near
name_lookup     names of hosts, looked up in a child process
hosts_file      those that /etc/hosts alone decides, which need none
"""
