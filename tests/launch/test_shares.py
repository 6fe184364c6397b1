"""What servers on hosts of their own combine, and what the hosts of the workers do beside them."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hpcps.cli.main import main
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.shares import host_shares, optimal_shares, shares_of


def traffic(shares, workers):
    """Return the most bytes that a host sends or receives in an exchange, as a multiple of those of the tensors.

    Args:
        shares: the share of each host.
        workers: the number of those that have a worker; they are the first ones.
    """
    sent, received = np.zeros(len(shares)), np.zeros(len(shares))
    for worker in range(workers):
        for host, share in enumerate(shares):
            if host != worker:  # the worker sends its values, and gets the result
                sent[[worker, host]] += share
                received[[host, worker]] += share
    return max(*sent, *received)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_no_other_shares_have_less_traffic(n):
    random = np.random.default_rng(n)
    for k in range(2 * n):
        of_servers, of_workers = optimal_shares(n, k)
        assert k * of_servers + n * of_workers == 1
        best = traffic([float(of_workers)] * n + [float(of_servers)] * k, n)
        if 0 < k <= n:  # and all networks carry the same
            assert n * of_servers == 1 + (n - 2) * of_workers
        for step in range(101) if k else ():
            w = step / 100 / n
            assert best <= traffic([w] * n + [(1 - n * w) / k] * k, n) + 1e-12
        for shares in random.dirichlet(np.full(n + k, 0.5), 200):
            assert best <= traffic(shares, n) + 1e-12


def test_the_ends_of_the_formula():
    assert optimal_shares(4, 0) == (Fraction(6, 16), Fraction(1, 4))
    assert optimal_shares(4, 4) == (Fraction(1, 4), 0)
    assert optimal_shares(4, 5) == (Fraction(1, 5), 0)  # more servers than the networks of the workers can use
    assert optimal_shares(1, 1) == optimal_shares(1, 3) == (0, 1)


def world(*hosts):
    """Return the ranks of hosts: `("a", "worker", "worker"), …`."""
    indices = {"worker": iter(range(99)), "server": iter(range(99)), "scheduler": iter(range(1))}
    every = [(host, role) for host, *roles in hosts for role in roles]
    return [Rank(rank, role, next(indices[role]), host) for rank, (host, role) in enumerate(every)]


def test_hosts_count_and_not_processes():
    ranks = world(("a", "worker", "worker", "scheduler"), ("b", "worker"), ("c", "server"))
    assert host_shares(ranks) == {"a": Fraction(1, 4), "b": Fraction(1, 4), "c": Fraction(1, 2)}
    assert shares_of(ranks) == (1, 1, 0, 2, 4)
    # A server on the host of a worker uses its network.
    assert shares_of(world(("a", "worker", "server"), ("b", "worker"))) == (1, 1, 2)


HOSTS = "n1 slots=2\nn2 slots=2\nn3 slots=2\nc1\nc2 slots=4\n"


@pytest.fixture
def launch(starts_processes, tmp_path, monkeypatch, capsys):
    """Call the command with `--dry-run`; return its status and what it prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text(HOSTS)

    def call(*arguments):
        status = main(["launch", *arguments, "--dry-run", "python", "train.py"])
        return status, *capsys.readouterr()

    return call


TABLE = """\
# host  combines   sends  processes
# n1        9.1%  1.09 x  worker-0
# n2        9.1%  1.09 x  worker-1
# n3        9.1%  1.09 x  worker-2
# c1       36.4%  1.09 x  server-0
# c2       36.4%  1.09 x  server-1
"""


def test_dry_run_prints_the_shares(tmp_path, launch):
    status, said, _ = launch("-n", "3", "--servers", "2", "--colocated", "--hostfile", "hosts")
    assert (status, said.split("\n", 2)[2]) == (0, TABLE)
    status, said, _ = launch("-n", "6", "--servers", "2", "--colocated", "--hostfile", "hosts", "--transport", "pslite")
    assert said.endswith(
        "# n3        9.1%  2.18 x  worker-2, worker-5\n"
        "# c1       36.4%  2.18 x  server-0\n"
        "# c2       36.4%  2.18 x  server-1\n"
    )
    plan = Plan.read(sorted(tmp_path.glob("results/train/launch/*/conf.plan.json"))[-1])
    assert plan.script is not None
    assert plan.script.shares == (1, 1, 0, 1, 1, 1, 1, 8, 8)
    assert [rank.role for rank in plan.world][2] == "scheduler"


def test_the_table_of_the_manual(tmp_path, launch):
    manual = (Path(__file__).parents[2] / "docs/how-to/own-script.md").read_text()
    (table,) = re.findall(r"^```\n(# host .*?)^```$", manual, re.MULTILINE | re.DOTALL)
    (tmp_path / "hosts").write_text("n01:2\nn02:2\nn03:2\nn04:2\nc01\nc02\n")
    _, said, _ = launch("-n", "8", "--servers", "2", "--colocated", "--hostfile", "hosts")
    assert said.split("\n", 2)[2] == table


def test_the_table_of_this_machine(launch):
    status, said, _ = launch("-n", "2", "--servers", "1", "--colocated")
    assert status == 0
    assert said.endswith("\n# localhost    100.0%  0.00 x  worker-0, worker-1, server-0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "3"], "there are none: add --servers S, or leave it out"),
        (
            ["-n", "3", "--servers", "5", "--hostfile", "hosts"],
            "5 servers need a host each, beside those of the workers, and hosts has 5: add hosts, or leave out",
        ),
        (["-n", "2", "--servers", "4", "--hostfile", "hosts"], "all workers are on n1, where they combine tensors"),
        (
            ["-n", "7", "--servers", "2", "--hostfile", "hosts"],
            "--colocated: the last 2 hosts are those of the servers; 7 workers need 7 slots, hosts has 6 on 3 hosts",
        ),
    ],
)
def test_what_cannot_be_shared(launch, arguments, message):
    status, said, error = launch(*arguments, "--colocated")
    assert (status, said) == (ExitStatus.REFUSED, "")
    assert message in error
    assert error.count("\n") == 1


def test_runs_with_and_without_servers_beside_workers_are_no_repetitions(tmp_path, launch):
    from hpcps.launch.script import run_of
    from hpcps.registry import active

    transport = active().of("transports")["mpi"]()
    runs = [run_of(["python", "a.py"], 2, 1, transport, tmp_path, colocated=colocated) for colocated in (False, True)]
    assert [run.label for run in runs] == ["a.py (2 workers, 1 server)", "a.py (2 workers, 1 server, colocated)"]
    assert [run.spec["swept"].get("topology.colocated") for run in runs] == [None, True]


def test_the_kernel_queues_little_unless_the_environment_says_otherwise(tmp_path, launch, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl_tcp_sndbuf", "0")
    launch("-n", "3", "--hostfile", "hosts")
    (configfile,) = tmp_path.glob("results/train/launch/*/conf")
    assert "UCX_TCP_SNDBUF=256k" in configfile.read_text()
    assert "btl_tcp_sndbuf" not in configfile.read_text()
