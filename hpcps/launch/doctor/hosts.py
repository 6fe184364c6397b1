"""Examines the hosts of a launch: the facts of each, its clock, and the connections of each pair.

`host_probe` runs on each host, started as a launch over ssh would start a process there: first for the facts, then for
the network. A host that gives no facts has a problem instead, and the others are compared without it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcps.errors import InputError, LaunchError
from hpcps.inputs import parse_json
from hpcps.launch.batch import host_agent
from hpcps.launch.bounded import CommandResult, ask
from hpcps.launch.doctor import host_probe
from hpcps.launch.hostfile import Host
from hpcps.launch.local_rank import same_host, same_name
from hpcps.launch.remote import remote_command

FACTS_SECONDS = 20.0
"""Seconds in which a host gives its facts, and in which it then connects to this one."""
NETWORK_SECONDS = 25.0
"""Seconds after which no further pairs are measured."""
_PAIR_SECONDS = 15.0
_GREETING_SECONDS = 5.0
_CLOCK_TRIALS = 5
SLOW = 1 / 3
"""A link is slow with less than this part of the median bandwidth."""
_MOST_AGAIN = 12
_OF_SSH = "ended with status 255"


@dataclass(frozen=True)
class HostReport:
    """What one host answered.

    Attributes:
        host: the host.
        facts: the result of `host_probe.facts`; empty if there is none.
        problem: why there are no facts.
        shares: whether the host and this one see each other's files in the results folder.
        ahead: the seconds that its clock is ahead of the clock of this host; None if that is not known.
        network: why its network was not measured; empty if it was.
    """

    host: Host
    facts: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    shares: bool = False
    ahead: float | None = None
    network: str = ""

    @property
    def name(self) -> str:
        """The name of the host in the host file."""
        return self.host.name


@dataclass(frozen=True)
class HostLink:
    """The connection from one host to another one.

    Attributes:
        source: the host that sends.
        target: the host that receives.
        latency: half a round trip, in seconds; None if it was not measured.
        bandwidth: bytes per second of one TCP connection; None if it was not measured.
        problem: why it was not measured.
    """

    source: str
    target: str
    latency: float | None = None
    bandwidth: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class HostsReport:
    """The answers of all hosts.

    Attributes:
        hosts: by host, in the order of the host file.
        links: the measured connections.
        pairs: the number of pairs of hosts that could be measured.
        folder: the folder that all hosts have to share.
        seconds: how long it took.
    """

    hosts: tuple[HostReport, ...]
    links: tuple[HostLink, ...]
    pairs: int
    folder: Path
    seconds: float

    def data(self) -> dict[str, Any]:
        """Return it as JSON values."""
        hosts = [
            {"host": each.name, "slots": each.host.slots, **{key: getattr(each, key) for key in _FIELDS}}
            for each in self.hosts
        ]
        links = [asdict(link) for link in self.links]
        return {"hosts": hosts, "links": links, "pairs": self.pairs, "folder": str(self.folder)} | {
            "seconds": round(self.seconds, 1)
        }


_FIELDS = ("problem", "facts", "shares", "ahead", "network")


def examine(hosts: Sequence[Host], results: Path) -> HostsReport:
    """Examine hosts in parallel.

    Args:
        hosts: the hosts.
        results: the folder of all results, which all hosts have to see.

    Raises:
        LaunchError: the folder cannot be written here.
    """
    began = time.monotonic()
    with _shared_folder(results) as folder, ThreadPoolExecutor(2 * len(hosts)) as pool:
        token = (folder / "token").read_text(encoding="utf-8")
        here = _here(hosts)
        numbers = range(len(hosts))
        reports = list(pool.map(lambda host, number: _facts(host, here, number, folder, token), hosts, numbers))
        links: list[HostLink] = []
        pairs = 0
        able = [report for report in reports if report.facts]
        if able:
            with _Network(able, here, pool) as network:
                reports = [network.with_clock(report) if report.facts else report for report in reports]
                pairs = network.pairs
                links = network.links()
    return HostsReport(tuple(reports), tuple(links), pairs, folder.parent, time.monotonic() - began)


@contextmanager
def _shared_folder(results: Path) -> Iterator[Path]:
    """Make a folder with a file `token` in the folder of the results, or in the first one above it that exists."""
    there = next(path for path in (results.absolute(), *results.absolute().parents) if path.exists())
    with ExitStack() as stack:
        try:
            folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=there))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / "token").write_text(secrets.token_hex(16), encoding="utf-8")
        except OSError as error:
            raise LaunchError(
                f"{results.absolute()} cannot be written ({there}: {error.strerror}): choose another results folder "
                "with --results"
            ) from error
        yield folder


def _here(hosts: Sequence[Host]) -> str:
    """Return the name of the host that is this machine; empty if none is. Two names of one machine are two hosts."""
    own = socket.gethostname()
    names = [host.name for host in hosts]
    alike = [name for name in names if same_name(name, own)]
    return next(iter(alike or [name for name in names if same_host(name, own)]), "")


def _command(host: Host, here: str, *arguments: object) -> list[str]:
    """Return the command that runs the probe on a host; here without an agent."""
    words = [sys.executable, host_probe.__file__, *map(str, arguments)]
    return words if host.name == here else remote_command(host_agent(), host.name, words)


def _facts(host: Host, here: str, number: int, folder: Path, token: str) -> HostReport:
    answer = ask(_command(host, here, "facts", folder, number), FACTS_SECONDS)
    found: dict[str, Any] = {}
    for line in answer.output.splitlines():
        with suppress(InputError):  # a shell may print something of its own
            parsed = parse_json("", line)
            found = parsed if isinstance(parsed, dict) else found
    if "python" not in found:
        return HostReport(host, problem=_reason(host, answer))
    theirs = folder / str(number)
    mutual = found.pop("token") == token and theirs.exists()
    return HostReport(host, found, shares=mutual)


def _reason(host: Host, answer: CommandResult) -> str:
    """Return why a host gave no facts, and what to do."""
    agent = host_agent().name
    if answer.expired or answer.problem.startswith(_OF_SSH):
        return f"{answer.problem}: it has to be up, and `{agent} {host.name} true` to work without a password"
    what = answer.problem or "the probe prints nothing"
    return f"{what}: every host needs {sys.executable} and {host_probe.__file__} under these paths"


class _Network:
    """Connections to the probes of hosts, which measure the connections between them.

    Args:
        reports: the hosts that have given facts.
        here: the one that is this machine.
        pool: threads: two for each host.
    """

    def __init__(self, reports: Sequence[HostReport], here: str, pool: ThreadPoolExecutor) -> None:
        self._reports, self._here, self._pool = reports, here, pool
        self._token = secrets.token_hex(16)
        self._probes: dict[str, _Probe] = {}
        self._ended: dict[str, Future[CommandResult]] = {}
        self._silent: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> _Network:
        listener = self._stack.enter_context(socket.create_server(("", 0), backlog=len(self._reports)))
        listener.settimeout(0.1)
        port = listener.getsockname()[1]
        for number, report in enumerate(self._reports):
            arguments = ("network", _own_address(report.name), port, self._token, number)
            limit = FACTS_SECONDS + NETWORK_SECONDS + 2 * _PAIR_SECONDS
            self._ended[report.name] = self._pool.submit(ask, _command(report.host, self._here, *arguments), limit)
        deadline = time.monotonic() + FACTS_SECONDS
        while time.monotonic() < deadline and any(
            report.name not in self._probes and not self._ended[report.name].done() for report in self._reports
        ):
            with suppress(TimeoutError):
                self._greet(listener.accept()[0])
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()  # the probes end when their connections end
        for name, ended in self._ended.items():
            if name in self._probes:
                ended.result()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_GREETING_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        probe = _Probe(connection)
        self._stack.callback(probe.close)
        with suppress(OSError, ValueError, KeyError, IndexError, TypeError):  # nobody else's connection counts
            said = probe.read()
            if secrets.compare_digest(str(said["token"]), self._token):
                connection.settimeout(_PAIR_SECONDS)
                probe.port = int(said["port"])
                self._probes[self._reports[said["number"]].name] = probe

    def with_clock(self, report: HostReport) -> HostReport:
        """Return the report with the difference of the clocks, or with why the network was not measured."""
        probe = self._probes.get(report.name)
        if probe is None:
            ended = self._ended[report.name]
            why = ended.result().problem if ended.done() else f"does not connect within {FACTS_SECONDS:g} s"
            return replace(report, network=why or "ended before it had connected")
        try:
            return replace(report, ahead=min(probe.clock() for _ in range(_CLOCK_TRIALS))[1])
        except OSError as error:
            del self._probes[report.name]
            return replace(report, network=f"the connection was lost: {error}")

    @property
    def pairs(self) -> int:
        """The number of pairs of hosts whose probes are connected."""
        return len(self._probes) * (len(self._probes) - 1) // 2

    def links(self) -> list[HostLink]:
        """Measure each pair once, many at a time; then those again, one at a time, that are slower than most."""
        found: dict[tuple[str, str], list[HostLink]] = {}
        until = time.monotonic() + NETWORK_SECONDS
        for pairs in rounds(list(self._probes)):
            if time.monotonic() > until:
                break
            found |= zip(pairs, self._pool.map(self._measure, pairs), strict=True)
        known = sorted(link.bandwidth for links in found.values() for link in links if link.bandwidth is not None)
        least = known[len(known) // 2] * SLOW if known else 0.0
        slow = [pair for pair, links in found.items() if any((link.bandwidth or least) < least for link in links)]
        for pair in slow[:_MOST_AGAIN]:
            if time.monotonic() < until:
                again = {(link.source, link.target): link for link in self._measure(pair)}
                both = [(link, again.get((link.source, link.target), link)) for link in found[pair]]
                found[pair] = [max(each, key=lambda link: link.bandwidth or 0.0) for each in both]
        return [link for links in found.values() for link in links]

    def _measure(self, pair: tuple[str, str]) -> list[HostLink]:
        """Measure a pair of hosts; return the link in each direction."""
        first, second = reversed(pair) if pair[0] in self._silent else pair
        try:
            found = self._probes[first].ask({"host": second, "port": self._probes[second].port})
        except TimeoutError:
            self._silent.add(first)
            found = {"problem": f"not measured within {_PAIR_SECONDS:g} s"}
        except (OSError, ValueError):
            found = {"problem": "the connection to the doctor was lost"}
        if "problem" in found:
            return [HostLink(first, second, problem=str(found["problem"]))]
        latency = float(found["latency"])
        return [HostLink(first, second, latency, found["sends"]), HostLink(second, first, latency, found["receives"])]


class _Probe:
    """The connection to the probe of a host; `port` is that of its connections to other hosts."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lines = connection, connection.makefile("rw", encoding="utf-8")
        self.port = 0

    def close(self) -> None:
        """Close the connection, with which the probe ends."""
        for part in (self._lines, self._connection):
            with suppress(OSError):
                part.close()

    def read(self) -> dict[str, Any]:
        """Read an answer."""
        line = self._lines.readline()
        if not line:
            raise ConnectionError("it has ended")
        found = json.loads(line)
        return found if isinstance(found, dict) else {}

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and read the answer."""
        self._lines.write(json.dumps(request) + "\n")
        self._lines.flush()
        return self.read()

    def clock(self) -> tuple[float, float]:
        """Return the seconds of a round trip, and how far the clock of the host is ahead, as NTP estimates it."""
        sent = time.time()
        theirs = float(self.ask({})["time"])
        back = time.time()
        return back - sent, theirs - (sent + back) / 2


def rounds(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs of hosts in rounds, in each of which a host is in one pair: as in a tournament."""
    places: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        yield [(a, b) for a, b in zip(places[:half], reversed(places[half:]), strict=True) if a and b]
        places[1:] = [places[-1], *places[1:-1]]


def _own_address(host: str) -> str:
    """Return the address under which another host reaches this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # nothing is sent
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
