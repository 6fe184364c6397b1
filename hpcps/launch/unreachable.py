"""Hosts that do not answer: some launchers start no process before they have reached all hosts, and say nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

_SSH = 22
_SECONDS = 3.0
_AT_A_TIME = 32


def unreachable(hosts: Iterable[str]) -> list[str]:
    """Return the hosts that do not answer, while another one does, or if there is no other one.

    A host that is up accepts or refuses a connection. If no host answers, a firewall may be the cause, and none is
    returned. This host does not count.

    Args:
        hosts: their names, or addresses.
    """
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        others = list(dict.fromkeys(hosts))
        answers = dict(zip(others, pool.map(_answers, others), strict=True))
    answers = {host: found for host, found in answers.items() if not (found and _is_here(host))}
    gone = [host for host, found in answers.items() if not found]
    return gone if len(answers) == 1 or len(gone) < len(answers) else []


def _answers(host: str) -> bool:
    try:
        socket.create_connection((host, _SSH), _SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def _is_here(host: str) -> bool:
    """Return whether an address of a host is one of this host: no other can be bound."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
