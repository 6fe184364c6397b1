"""What every transport promises: the same checks over each that is registered, and over one of a plugin."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contract_rank import WORLD, check

from hpcps import registry
from hpcps.cli.main import main
from hpcps.launch.detect import detect_mpi
from hpcps.transport import ProcessGroup
from hpcps.transport.inproc import Exchange

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "plugins" / "my_transport.py"
BUILT_IN = registry.installed().of("transports")


class Threads(ProcessGroup):
    """A role of a run in one process, in a thread of its own."""

    def __init__(self, rank, exchange, barrier, texts, lock):
        self.rank, self.size = rank, len(WORLD)
        self._endpoint, self._barrier, self._texts = exchange.endpoint(WORLD[rank]), barrier, texts
        reduce = self._endpoint.reduce

        def one_after_another(*values):  # its roles take turns in one thread, so it has no lock
            with lock:
                reduce(*values)

        self._endpoint.reduce = one_after_another

    @property
    def transport(self):
        return self._endpoint

    def collect(self, text):
        self._texts[self.rank] = text
        self._barrier.wait(60)
        texts = list(self._texts)
        self._barrier.wait(60)
        return texts

    def settle(self):
        self.barrier()
        while self._endpoint.receive() is not None:
            pass
        self.barrier()


def in_threads(transport):
    exchange, barrier, texts = Exchange(), threading.Barrier(len(WORLD)), [""] * len(WORLD)
    lock = threading.Lock()
    groups = [Threads(rank, exchange, barrier, texts, lock) for rank in range(len(WORLD))]
    with ThreadPoolExecutor(len(WORLD)) as pool:
        return [*pool.map(check, groups, WORLD, [transport.offers] * len(WORLD))]


def in_processes(kind, transport, plugin, folder):
    program = [str(Path(__file__).with_name("contract_rank.py")), kind, str(plugin), str(folder / "plan")]
    size = len(WORLD) + bool(transport.further_role)
    if "mpi" in transport.offers:
        mpirun = [str(detect_mpi().mpirun), "-n", str(size), sys.executable, "-m", "mpi4py"]
        processes = [subprocess.Popen([*mpirun, *program], stdout=subprocess.PIPE, text=True)]
    else:
        processes = [
            subprocess.Popen(
                [sys.executable, *program],
                env={**os.environ, "HPCPS_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(line) for line in "".join(printed).splitlines()]


@pytest.mark.parametrize("kind", [*BUILT_IN, "my_transport"], ids=lambda kind: f"over {kind}")
def test_it_does_what_every_transport_does(kind, tmp_path):
    plugin = "" if kind in BUILT_IN else PLUGIN
    known = registry.Registry([load_plugin(plugin)] if plugin else []).of("transports")
    transport = known[kind]()
    seen = in_threads(transport) if transport.in_process else in_processes(kind, transport, plugin, tmp_path)
    sent, received = ({each["role"]: each[way] for each in seen} for way in ("sent", "received"))
    assert set(sent) >= {str(peer) for peer in WORLD}
    assert sent["worker-0"] == sent["validator-0"] > 13_000_000
    assert received["server-0"] == sent["worker-0"] + sent["validator-0"], "both ends count the same bytes"


def load_plugin(path):
    from hpcps.registry.plugins import load, read_plugin

    return load(read_plugin(path), path)


EXPERIMENT = """
name = "small"
plugins = ["./my_transport.py"]
topology = { workers = 2, servers = 2, validators = 0 }
transport.kind = "my_transport"
model.name = "mlp"
data = { name = "digits", limit = 320, test_limit = 32 }
train = { epochs = 1, batch_size = 16 }
"""


def test_a_run_over_the_transport_of_a_plugin_equals_that_in_one_process(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("my_transport.py").write_text(PLUGIN.read_text())
    Path("small.toml").write_text(EXPERIMENT)
    with registry.using(registry.installed()):
        assert main(["run", "small.toml", "--results", "over"]) == 0, capfd.readouterr()
        assert main(["run", "small.toml", "--results", "in", "--set", "transport.kind=inproc"]) == 0
    over, alone = ([*Path(each).glob("small/runs/*")] for each in ("over", "in"))
    finals = [{path.name: path.read_bytes() for path in run.glob("final/*")} for (run,) in (over, alone)]
    assert len(finals[0]) == 2
    assert finals[0] == finals[1]
    spec = json.loads((over[0] / "spec.json").read_text())
    assert spec["components"]["transport"]["origin"] == "plugin my_transport.py"
    assert spec["run"]["transport"]["kind"] == "my_transport"


def test_a_plugin_cannot_promise_what_no_transport_offers(tmp_path, capsys):
    path = tmp_path / "my_transport.py"
    path.write_text(PLUGIN.read_text().replace('{"processes"}', '{"teleport"}'))
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    with registry.using(registry.installed()):
        assert main(["check", str(tmp_path / "small.toml")]) == 2
    said = capsys.readouterr().err
    assert "small.toml:3: plugins[0]" in said
    assert "offers teleport, but only processes, hosts, mpi" in said
    assert 'its offers lack "processes"' in said


def test_a_transport_of_one_host_is_not_launched_on_two(tmp_path, capsys):
    (tmp_path / "my_transport.py").write_text(PLUGIN.read_text())
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    (tmp_path / "hosts").write_text("a slots=3\nb slots=3\n")
    arguments = ["run", str(tmp_path / "small.toml"), "--results", str(tmp_path / "r"), "--dry-run"]
    with registry.using(registry.installed()):
        assert main([*arguments, "--hostfile", str(tmp_path / "hosts")]) == 2
    said = capsys.readouterr().err
    assert 'transport.kind = "my_transport" connects processes of one host, and the launch has 2 hosts' in said
