"""Complete SHiNE servers on one machine: a private PostgreSQL, certificates, daemons on loopback.

For the demo and for the tests. Everything lives below one temporary directory, listens on free
loopback ports or in a private socket directory, and ends with the program that started it.

    process.py    starting and stopping children that do not outlive us
    postgres.py   a throw-away PostgreSQL cluster
    certs.py      a certificate authority and server certificates
    server.py     one server: database, configuration, frontd
"""

from .certs import Authority
from .postgres import Postgres
from .process import LabError, Process, environment, free_port, wait_until
from .server import Server

__all__ = [
    "Authority",
    "LabError",
    "Postgres",
    "Process",
    "Server",
    "environment",
    "free_port",
    "wait_until",
]
