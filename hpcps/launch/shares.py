"""How much of every tensor of a script each process combines, where servers and the workers' hosts share the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from hpcps.launch.plan import Rank

_HOLD = ("worker", "server")
"""The roles that may combine tensors."""


def optimal_shares(worker_hosts: int, server_hosts: int) -> tuple[Fraction, Fraction]:
    """Return the share of a host that has servers only, and that of a host that has workers.

    There are n hosts of workers and k of servers, all with the same bandwidth. As multiples of the bytes of the
    tensors, a server host sends n c for its share c, and a worker host 1 + (n - 2) w for its share w: the 1 - w that
    others combine, and its results to the n - 1 others. The maximum of these is smallest if they are equal, with
    k c + n w = 1: then c = 2 (n - 1) / D and w = (n - k) / D, where D = n² + k n - 2 k. If k > n, the servers combine
    everything; and if n = 1, the workers do, because they then send nothing.

    This is theorem 1 of "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU
    Clusters" (BytePS, OSDI'20), whose M_SS-CPU / M and M_SS-GPU / M are c and w. It sums the gradients of a host before
    they are sent. Here each worker sends its own, which changes nothing if all hosts have the same number of workers.

    Args:
        worker_hosts: the number of hosts that have workers, n ≥ 1.
        server_hosts: the number of hosts that have servers and no worker, k ≥ 0.
    """
    n, k = worker_hosts, server_hosts
    if n == 1:
        return Fraction(0), Fraction(1)
    if k > n:
        return Fraction(1, k), Fraction(0)
    whole = n * n + k * n - 2 * k
    return Fraction(2 * (n - 1), whole), Fraction(n - k, whole)


def host_shares(world: Sequence[Rank]) -> dict[str, Fraction]:
    """Return the share of each host, in the order of the ranks; see `optimal_shares`."""
    having = {role: {rank.host for rank in world if rank.role == role} for role in _HOLD}
    only_servers = having["server"] - having["worker"]
    of_servers, of_workers = optimal_shares(len(having["worker"]), len(only_servers))
    hosts = dict.fromkeys(rank.host for rank in world if rank.role in _HOLD)
    return {host: of_servers if host in only_servers else of_workers for host in hosts}


def shares_of(world: Sequence[Rank]) -> tuple[int, ...]:
    """Return the share of each rank relative to the others; the workers and servers of a host have the same share.

    A further role, such as the scheduler of ps-lite, has none.
    """
    shares, holders = host_shares(world), Counter(rank.host for rank in world if rank.role in _HOLD)
    each = [shares[rank.host] / holders[rank.host] if rank.role in _HOLD else Fraction(0) for rank in world]
    common = lcm(*(share.denominator for share in each))
    return tuple(int(share * common) for share in each)


def describe_shares(world: Sequence[Rank]) -> str:
    """Return a table of the hosts: the share that each combines, what it then sends, and its processes.

    The bytes that a host sends are as many as it receives. They are given as multiples of those of the tensors of one
    worker: each of its w workers sends what other hosts combine, and each host its results to all workers elsewhere.
    """
    shares = host_shares(world)
    workers = Counter(rank.host for rank in world if rank.role == "worker")
    rows = [("host", "combines", "sends", "processes")]
    for host, share in shares.items():
        sends = workers[host] * (1 - share) + (workers.total() - workers[host]) * share
        names = ", ".join(str(rank) for rank in world if rank.host == host and rank.role in _HOLD)
        rows.append((host, f"{float(share):.1%}", f"{float(sends):.2f} x", names))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    wide = "# {0:{4}}  {1:>{5}}  {2:>{6}}  {3}"
    return "\n".join(wide.format(*row, *widths) for row in rows)
