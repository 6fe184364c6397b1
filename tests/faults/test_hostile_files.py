"""Files that are not what they should be: whatever is in them, a reader says so in words, or leaves them out."""

import gzip
import hashlib
import json
import os
import pickle
import random
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hostile import mutated, wrong_lines, wrong_value
from scipy.io import savemat
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.data.files.formats import PickleError, read_batch, read_idx
from hpcps.data.sets import Svhn
from hpcps.errors import HpcpsError, InputError, RunError
from hpcps.execution.recorded_run import read_model
from hpcps.execution.simulation.calibration import fit
from hpcps.inputs import MiB, parse_json, read_gzip, read_json, whole_number
from hpcps.launch.hostfile import read_hostfile
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.numerics.state import State
from hpcps.records.checkpoint import CheckpointPart, Checkpoints
from hpcps.records.collect import collect
from hpcps.records.files import NUMBERS, Prefix, read_lines, whole_lines_end
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress
from hpcps.records.sweep import planned
from hpcps.records.trace.reader import read_trace
from hpcps.records.writer import RecordWriter

pytestmark = pytest.mark.usefixtures("starts_processes")

TIMES = 40


def survive(read: Callable[[], object], what: bytes) -> None:
    """Read something mutated: an error for people is all right."""
    try:
        read()
    except (HpcpsError, PickleError):
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} of {what[:3000]!r}") from error


@contextmanager
def restored(path: Path) -> Iterator[bytes]:
    """Give the content of a file, which is written back at the end."""
    whole = path.read_bytes()
    try:
        yield whole
    finally:
        path.unlink(missing_ok=True)  # a named pipe would wait for its reader
        path.write_bytes(whole)


def read_mutated(path: Path, read: Callable[[], object]) -> None:
    source = random.Random(path.name)
    with restored(path) as whole:
        for _ in range(TIMES // 3):
            change = source.choice((mutated, wrong_lines if path.suffix == ".jsonl" else wrong_value))
            path.write_bytes(change(source, whole))
            survive(read, path.read_bytes())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run that was traced."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "small.toml").write_text(small_experiment("small"))
    assert main(["run", str(folder / "small.toml"), "--results", str(folder), "--trace"]) == 0
    (run,) = (folder / "small/runs").iterdir()
    return run


@pytest.mark.parametrize("name", ["spec.json", "records/worker-0.jsonl", "records/validator-0.jsonl", "DONE"])
def test_a_run_of_mutated_files_is_collected_or_refused(name: str, run: Path) -> None:
    read_mutated(run / name, lambda: (collect(run.parent.parent), SweepProgress([run]).poll()))


def test_mutated_reports_of_failures_are_read(run: Path) -> None:
    directory, source = RunDirectory(run), random.Random(4)
    directory.fail("worker", 0, "here", 3, "train", ValueError("no"))
    path = run / "failure/worker-0.json"
    whole = path.read_bytes()
    try:
        for _ in range(TIMES):
            path.write_bytes(source.choice((mutated, wrong_value))(source, whole))
            survive(lambda: (directory.failures, SweepProgress([run]).poll()), path.read_bytes())
    finally:
        path.unlink()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"files": 5}',
        '{"sha256": 5}',
        '{"sha256": {"spec.json": 5}, "files": {"spec.json": 3}}',
        '{"files": ["spec.json"]}',
        '{"files": {"a\\u0000b": 1}}',
    ],
)
def test_a_hostile_done_is_not_believed(text: str, run: Path) -> None:
    with restored(run / "DONE"):
        assert RunDirectory(run).done
        (run / "DONE").write_text(text)
        assert not RunDirectory(run).done
        assert [status.state for status in SweepProgress([run]).poll()] == ["damaged"]


def test_other_folders_are_no_earlier_attempts(tmp_path: Path) -> None:
    for name in ("²", "9" * 30, "x", "2"):
        (tmp_path / f"earlier/failure-{name}").mkdir(parents=True)
    RunDirectory(tmp_path).create({})
    RunDirectory(tmp_path).fail("worker", 0, "n1", 3, "train", "it broke")
    RunDirectory(tmp_path).create({})
    assert (tmp_path / "earlier/failure-3/worker-0.json").exists()
    assert [failure.error for failure in RunDirectory(tmp_path).earlier_failures] == ["it broke"]


@pytest.mark.parametrize(
    "points",
    ["[" * 100_000, "5", "[5]", "[{}]", '[{"run_id": "../../x", "label": "", "index": 0, "swept": {}, "run": {}}]'],
)
def test_a_hostile_sweep_is_left_out(points: str, run: Path) -> None:
    folder = run.parents[1]
    path = folder / "sweeps/0000000000.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"file": "/nowhere.toml", "overrides": ["seed=9"], "points": {points}}}')
    try:
        whole = planned(folder)
        assert set(whole) <= {run.name}
        assert len(collect(folder).runs) == 1
    finally:
        path.unlink()


@pytest.mark.parametrize("value", [1e308, -1e308, 2**53 - 1, "inf", 10**400, {"a": 1}], ids=lambda each: str(each)[:6])
def test_absurd_counts_and_times_are_unknown(value: object, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        for file in (run / "records").glob("*.jsonl"):
            lines = [json.loads(line) for line in stack.enter_context(restored(file)).splitlines()]
            lines = [line | dict.fromkeys(NUMBERS & set(line), value) for line in lines]
            file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        for command in ("collect", "status", "report"):
            assert main([command, "small", "--results", str(run.parents[2])]) == 0, capsys.readouterr().err
        assert "small" in capsys.readouterr().out


class BlockedError(Exception):
    """A command waits for a process that writes into a named pipe."""


@pytest.mark.parametrize(
    "name", ["spec.json", "DONE", "provenance.json", "records/worker-0.jsonl", "final/server-0.npy", "trace.json"]
)
def test_a_named_pipe_in_the_place_of_a_file_blocks_no_command(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def blocked(*_: object) -> None:
        raise BlockedError

    before = signal.signal(signal.SIGALRM, blocked)
    file, results = run / name, ("small", "--results", str(run.parents[2]))
    try:
        with restored(file):
            file.unlink()
            os.mkfifo(file)
            signal.alarm(60)
            main(["status", *results, "--verify"])
            main(["collect", *results])
            main(["replay", *results])
            signal.alarm(0)
            file.unlink(missing_ok=True)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "small" in capsys.readouterr().out


@pytest.mark.parametrize("read", [read_json, lambda path: read_gzip(path, 9), read_lines, whole_lines_end, read_model])
def test_readers_refuse_a_named_pipe(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((HpcpsError, OSError), match="it is a pipe, a socket or a device, and not a file"):
        read(tmp_path / "pipe")


def test_what_a_shell_passes_as_a_pipe_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"[1]")
    os.close(writer)
    assert read_json(Path(f"/dev/fd/{reader}")) == [1]
    os.close(reader)


def test_a_record_is_not_written_into_a_named_pipe(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    os.mkfifo(tmp_path / "records/worker-0.jsonl")
    with pytest.raises(RunError, match=r"cannot open the record .*it is a pipe"):
        RecordWriter(tmp_path, "r", "worker", 0, "h")
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(RunError, match="cannot"):
        RunDirectory(tmp_path).claim()


def test_half_a_pair_of_surrogates_can_be_printed_in_the_table(run: Path) -> None:
    path, spec = run / "records/worker-0.jsonl", run / "spec.json"
    with restored(path) as whole, restored(spec) as said:
        path.write_bytes(whole + b'{"event": "note", "host": "\\ud800"}\n')
        spec.write_text(json.dumps({**json.loads(said), "label": "\ud800"}))
        table = collect(run.parents[1]).table
        assert set(table.label) == {r"\ud800"}
        assert "?" in set(table.host)


def test_mutated_traces_are_read(run: Path) -> None:
    source = random.Random(5)
    path = run / "trace" / sorted(file.name for file in (run / "trace").glob("worker-0*"))[0]
    with restored(path) as whole:
        head, newline, rest = whole.partition(b"\n")
        for number in range(TIMES):
            other = source.choice((mutated, wrong_value))(source, head)
            path.write_bytes(other + newline + rest if number % 2 else mutated(source, whole))
            survive(lambda: read_trace(run), path.read_bytes())


@pytest.mark.parametrize("name", ["spec.json", "provenance.json", "records/worker-0.jsonl"])
def test_costs_are_fitted_to_mutated_files_or_not(name: str, run: Path) -> None:
    read_mutated(run / name, lambda: fit(run))


def checkpoint(folder: Path) -> Checkpoints:
    found = Checkpoints(folder)
    state = State({"weights": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"round": 3})
    found.seal(5, "abc", {"worker-0": found.write(5, "worker-0", CheckpointPart(state, Prefix(0), 1.5))}, keep=1)
    return found


def read_all(found) -> None:
    """Read everything of a checkpoint that the tests damage."""
    found.positions()
    found.check(5, "abc", frozenset({"worker-0"}))
    found.read(5, "worker-0")


def test_mutated_manifests_and_parts_are_refused(tmp_path: Path) -> None:
    found, source = checkpoint(tmp_path), random.Random(6)
    for path in sorted((tmp_path / "000000005").iterdir()):
        whole = path.read_bytes()
        for _ in range(TIMES):
            change = source.choice((mutated, wrong_value)) if path.suffix == ".json" else mutated
            path.write_bytes(change(source, whole))
            survive(lambda: read_all(found), path.read_bytes())
        path.write_bytes(whole)


def test_parts_whose_checksum_is_right_are_refused_too(tmp_path: Path) -> None:
    found, source = checkpoint(tmp_path), random.Random(7)
    part, manifest = tmp_path / "000000005/worker-0.npz", tmp_path / "000000005/manifest.json"
    whole, said = part.read_bytes(), manifest.read_text()
    for _ in range(2 * TIMES):
        content = mutated(source, whole)
        part.write_bytes(content)
        sums = hashlib.sha256(whole).hexdigest(), hashlib.sha256(content).hexdigest()
        manifest.write_text(said.replace(*sums))
        survive(lambda: found.read(5, "worker-0"), content)


def test_a_compressed_part_is_refused(tmp_path: Path) -> None:
    found = checkpoint(tmp_path)
    part, manifest = tmp_path / "000000005/worker-0.npz", tmp_path / "000000005/manifest.json"
    before = hashlib.sha256(part.read_bytes()).hexdigest()
    np.savez_compressed(part, weights=np.zeros(10**6))
    manifest.write_text(manifest.read_text().replace(before, hashlib.sha256(part.read_bytes()).hexdigest()))
    with pytest.raises(RunError, match=r"worker-0\.npz has invalid content: it is compressed"):
        found.read(5, "worker-0")


def test_other_folders_are_no_checkpoints(tmp_path: Path) -> None:
    found = checkpoint(tmp_path)
    for name in ("1²", "1" * 200, "1 copy", "٣"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    assert found.positions() == [5]


def test_a_manifest_of_brackets_is_refused(tmp_path: Path) -> None:
    found = checkpoint(tmp_path)
    (tmp_path / "000000005/manifest.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match="its manifest is damaged"):
        found.check(5, "abc", frozenset({"worker-0"}))


def test_mutated_host_files_are_read_or_refused(tmp_path: Path) -> None:
    path, source = tmp_path / "hosts", random.Random(8)
    for text in (b"node01 slots=4 gpus=0,1\nnode02:2\n# more\nnode03\nnode03\n", b"node01:0\nnode01:1\nnode02:0\n"):
        for _ in range(TIMES):
            path.write_bytes(mutated(source, text))
            survive(lambda: (read_hostfile(path), read_hostfile(path, "zenops")), path.read_bytes())
    path.write_text("node01 slots=" + "9" * 5000)
    with pytest.raises(HpcpsError, match=r"hosts:1: '9+' is no number of slots"):
        read_hostfile(path)


def test_mutated_plans_are_refused(tmp_path: Path) -> None:
    path, source = tmp_path / "plan", random.Random(9)
    Plan((Rank(0, "worker", 0, "localhost"),), (PlannedRun("abc", "x", "/tmp", {"run": {}}),)).write(path)
    whole = path.read_bytes()
    for _ in range(2 * TIMES):
        path.write_bytes(source.choice((mutated, wrong_value))(source, whole))
        survive(lambda: Plan.read(path), path.read_bytes())


def test_an_idx_file_is_uncompressed_no_further_than_it_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"\0\0\x08\x01" + (10_000).to_bytes(4, "big"))
        for _ in range(64):
            file.write(bytes(MiB))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"ubyte\.gz: corrupt or too large: more than 10,008 bytes"):
        read_idx(path, (10_000,))
    assert tracemalloc.get_traced_memory()[1] < 4 * MiB
    tracemalloc.stop()


def test_mutated_data_files_are_named(tmp_path: Path) -> None:
    source, path = random.Random(10), tmp_path / "labels.gz"
    whole = gzip.compress(b"\0\0\x08\x01" + (40).to_bytes(4, "big") + bytes(range(40)))
    batch = pickle.dumps({"labels": [1, 2, 3], "data": np.zeros((3, 3072), np.uint8)})
    for _ in range(TIMES):
        path.write_bytes(mutated(source, whole))
        survive(lambda: read_idx(path, (40,)), path.read_bytes())
        content = mutated(source, batch)
        survive(lambda content=content: read_batch(content, "labels"), content)
    labels, pixels = np.ones((26_032, 1), np.uint8), np.zeros((32, 32, 3, 26_032), np.uint8)
    for name, count in (("train_32x32.mat", 0), ("test_32x32.mat", 26_032)):
        savemat(tmp_path / name, {"X": pixels[..., :count], "y": labels[:count]}, do_compression=True)
    _, test = Svhn(dir=str(tmp_path)).open()
    matlab = (tmp_path / "test_32x32.mat").read_bytes()
    for _ in range(TIMES // 10):
        (tmp_path / "test_32x32.mat").write_bytes(mutated(source, matlab))
        survive(test.labels, b"a file of svhn")


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '{"a":' * 100_000, "\xff", "", "nul"])
def test_hostile_json_is_an_error_for_people(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(text.encode("latin-1"))
    for read in (lambda: read_json(path), lambda: parse_json("file", text.encode("latin-1"))):
        with pytest.raises(HpcpsError, match="not valid JSON"):
            read()
    with pytest.raises(HpcpsError, match="cannot be read"):
        read_json(tmp_path)
    with pytest.raises(HpcpsError, match="No such file"):
        read_gzip(tmp_path / "nowhere", 1)


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", "1.0", "1e3", "9" * 5000, "11", " 1", "0x1"])
def test_what_is_no_number_in_its_bounds_is_none(text: str) -> None:
    assert whole_number(text, 0, 10) is None


def test_numbers_in_their_bounds_are_read() -> None:
    assert [whole_number(text, 1, 10) for text in ("1", "10", "007")] == [1, 10, 7]
