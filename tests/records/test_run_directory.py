import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix, write_whole
from hpcps.records.inventory import UNDAMAGED
from hpcps.records.run_directory import RunDirectory


def test_from_spec_to_done(tmp_path):
    directory = RunDirectory(tmp_path / "a" / "runs" / "0123456789")
    spec = {"run_id": "0123456789", "label": "zeno · none", "index": 3, "swept": {}, "run": {"seed": 1}}
    directory.check_writable()
    directory.create(spec)
    directory.write_provenance({"hpcps": "0.1.0"}, uncommitted="diff --git a b\n")
    assert directory.spec == spec
    assert not directory.done
    directory.finish(12.3456)
    assert directory.done
    assert json.loads((directory.path / "DONE").read_text())["wall"] == 12.346
    assert sorted(path.name for path in directory.path.iterdir()) == [
        "DONE", "provenance.json", "records", "spec.json", "uncommitted.diff",
    ]  # fmt: skip


def test_a_clean_tree_leaves_no_patch_of_an_earlier_attempt(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write_provenance({}, "diff")
    directory.write_provenance({})
    assert not (tmp_path / "uncommitted.diff").exists()


@pytest.mark.parametrize("written", [0, 1], ids=["before the manifest", "after the manifest"])
def test_a_folder_that_is_deleted_while_a_checkpoint_is_completed(tmp_path, monkeypatch, written):
    checkpoints = RunDirectory(tmp_path / "run").checkpoints
    tmp_path.joinpath("run").mkdir()
    checksum = checkpoints.write(1, "worker-0", CheckpointPart(State({}, {}), Prefix(0), 0.0))

    def write_and_delete(path, content):
        if written:
            write_whole(path, content)
        shutil.rmtree(tmp_path / "run")
        if not written:
            write_whole(path, content)

    monkeypatch.setattr("hpcps.records.checkpoint.write_whole", write_and_delete)
    with pytest.raises(RunError, match="was deleted or moved during the run; run it again"):
        checkpoints.seal(1, "0123456789", {"worker-0": checksum}, keep=2)


def test_a_file_of_an_array_is_what_numpy_writes_and_takes_no_memory_of_its_size(tmp_path):
    for name, values in {"large": np.arange(1 << 20, dtype=np.float32), "empty": np.zeros(0, np.float32)}.items():
        tracemalloc.start()
        try:
            checksum = RunDirectory(tmp_path).save(name, values)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 19
        assert checksum == hashlib.sha256(values.tobytes()).hexdigest()
        np.save(tmp_path / "numpy.npy", values)
        assert (tmp_path / f"{name}.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_records_are_in_order_of_role_and_index(tmp_path):
    (tmp_path / "records").mkdir()
    for name in ("worker-10", "worker-2", "validator-0", "server-1", "server-0"):
        (tmp_path / "records" / f"{name}.jsonl").touch()
    names = [path.stem for path in RunDirectory(tmp_path).records]
    assert names == ["server-0", "server-1", "validator-0", "worker-2", "worker-10"]


def test_the_first_failure_comes_first_and_a_new_attempt_forgets_it(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create({})
    try:
        raise ValueError("no such block")
    except ValueError as error:
        directory.fail("worker", 2, "n03", 17, "exchange", error)
    directory.fail("server", 0, "n01", None, "wait", "was killed")
    (tmp_path / "failure" / "torn.json").write_text("{")
    first, second = directory.failures
    assert str(first) == "worker-2 on n03 failed in round 17, phase exchange: ValueError: no such block"
    assert str(second) == "server-0 on n01 failed in phase wait: was killed"
    killed = replace(first, phase="after its record `round`", error="the process was killed by signal 9 (SIGKILL)")
    said = "failed in round 17, after its record `round`: the process was killed by signal 9 (SIGKILL)"
    assert str(killed) == f"worker-2 on n03 {said}"
    assert str(replace(killed, round=None)) == f"worker-2 on n03 {said.replace('in round 17, ', '')}"
    report = json.loads((tmp_path / "failure" / "worker-2.json").read_text())
    assert "raise ValueError" in report["traceback"]
    assert report["pid"] == os.getpid()
    directory.create({})
    assert directory.failures == ()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "the disk is full: free disk space"),
        (errno.EDQUOT, "your quota is used up"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "change its permissions"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_a_write_refuses_is_said_with_what_to_do(tmp_path, monkeypatch, number, advice):
    def refuse(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match=advice) as caught:
        RunDirectory(tmp_path / "run").check_writable()
    assert "choose another results folder" in str(caught.value)
    assert list((tmp_path / "run").iterdir()) == []


def test_too_little_space_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 7, 3 * 2**20))
    with pytest.raises(RunError, match="has 3 MiB free, 64 MiB are needed"):
        RunDirectory(tmp_path).check_writable()


def test_a_crash_while_writing_leaves_the_old_file_whole(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    directory.create({"run_id": "old"})

    def refuse(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match="the disk is full"):
        directory.create({"run_id": "new"})
    assert directory.spec == {"run_id": "old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records", "spec.json"]


def finished(directory: RunDirectory, *processes: str) -> None:
    """Write the records that processes leave which have finished; server 0 has saved the model."""
    directory.create({"run_id": "a"})
    for process in processes:
        saved = {"final/server-0": directory.save("final/server-0", np.zeros(4))} if process == "server-0" else {}
        line = json.dumps({"event": "end", "reason": "finished", "checksums": saved})
        (directory.path / "records" / f"{process}.jsonl").write_text(line + "\n")


@pytest.mark.parametrize("lost", ["spec.json", "records/worker-0.jsonl", "records", "final/server-0.npy", "final"])
def test_done_is_written_and_believed_only_if_all_is_there(tmp_path, lost):
    directory, processes = RunDirectory(tmp_path / "run"), ("server-0", "worker-0")

    def lose():
        path = directory.path / lost
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    finished(directory, *processes)
    directory.finish(1.0, processes)
    assert (directory.done, directory.damage(contents=True)) == (True, UNDAMAGED)
    lose()
    assert not directory.done
    assert all(name.startswith(lost) for name in directory.damage().missing)
    (directory.path / "DONE").unlink()

    finished(directory, *processes)
    lose()
    with pytest.raises(RunError, match=f"{lost}.* missing in .*run it again"):
        directory.finish(1.0, processes)
    assert not (directory.path / "DONE").exists()


def test_a_file_that_was_cut_short_has_changed(tmp_path):
    directory = RunDirectory(tmp_path)
    finished(directory, "server-0")
    directory.finish(1.0, ["server-0"])
    os.truncate(tmp_path / "final" / "server-0.npy", 100)
    assert (directory.done, directory.damage().changed) == (False, ("final/server-0.npy",))


def test_a_process_that_has_not_finished_keeps_the_run_from_being_done(tmp_path):
    directory = RunDirectory(tmp_path)
    finished(directory, "worker-0")
    with (tmp_path / "records" / "worker-0.jsonl").open("a") as record:
        record.write('{"event": "start", "attempt": 2}\n')
    with pytest.raises(RunError, match="does not state that worker-0 has finished"):
        directory.finish(1.0, ["worker-0"])


def test_a_done_of_an_earlier_version_needs_a_spec_and_records(tmp_path):
    directory = RunDirectory(tmp_path)
    finished(directory, "worker-0")
    (tmp_path / "DONE").write_text('{"finished": "2026-01-01", "wall": 2.0}')
    assert directory.done
    shutil.rmtree(tmp_path / "records")
    assert (directory.done, directory.damage().missing) == (False, ("records",))


def test_a_folder_that_is_gone_is_not_made_anew(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match="was deleted or moved during the run"):
        directory.save("final/server-0", np.zeros(1))
    with pytest.raises(RunError, match="was deleted or moved during the run"):
        directory.checkpoints.write(1, "worker-0", CheckpointPart(State(), Prefix(0), 0.0))
    with pytest.raises(RunError, match="missing in"):
        directory.finish(1.0, ["worker-0"])
    assert not directory.path.exists()


def test_failures_of_several_attempts_stay_apart(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create({})
    for attempt in range(12):
        directory.fail("worker", attempt, "n01", None, "start", f"cause {attempt}", at=100.0 + attempt)
        directory.fail("server", 0, "n02", None, "wait", f"effect {attempt}", at=101.0 + attempt)
        if attempt == 3:
            # Somebody tidies up, and keeps something.
            shutil.rmtree(tmp_path / "earlier" / "failure-2")
            (tmp_path / "earlier" / "failure-copy").mkdir()
        if attempt < 11:
            directory.create({})
    assert [failure.error for failure in directory.failures] == ["cause 11", "effect 11"]
    kept = [10, 9, 8, 7, 6, 5, 4, 3, 2, 0]
    assert [failure.error for failure in directory.earlier_failures] == [f"cause {n}" for n in kept]


def test_only_known_failures_are_set_aside(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.create({})
    directory.fail("worker", 0, "n01", None, "start", "old", at=1.0)
    known = directory.failures
    directory.fail("worker", 1, "n01", None, "start", "new", at=2.0)
    directory.set_failures_aside(known)
    assert [failure.error for failure in directory.failures] == ["new"]
    assert [failure.error for failure in directory.earlier_failures] == ["old"]


@pytest.mark.usefixtures("starts_processes")
def test_a_run_is_one_process_s_as_long_as_it_holds_the_file(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "abc")
    claim = directory.claim()
    assert claim is not None
    other = f"from pathlib import Path; from hpcps.records.run_directory import RunDirectory as R; \
print(R(Path({str(directory.path)!r})).claim() is None)"

    def refused():
        return subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True).stdout.strip()

    assert refused() == "True"
    claim.close()
    assert refused() == "False"


def test_texts_of_foreign_records_can_be_printed(tmp_path, capsys):
    """They may come from anywhere: ESC and U+202E control a terminal, and a line break fakes a line."""
    hostile = "a\n\x1b[31mb\u202ec"
    (folder := tmp_path / "x" / "runs" / "abcd").mkdir(parents=True)
    run = {"name": "x", "model": {"name": hostile}}
    spec = {"run_id": "abcd", "label": hostile, "index": 0, "swept": {"model.name": hostile}, "run": run}
    (folder / "spec.json").write_text(json.dumps(spec))
    for name in ("failure", "records"):
        (folder / name).mkdir()
    start = {"event": "start", "run": "abcd", "role": "worker", "index": 0, "host": "n", "time": 0.0, "attempt": 1}
    (folder / "records" / "worker-0.jsonl").write_text(json.dumps(start) + "\n{damaged\n")
    failure = {"time": 1.0, "role": "worker", "index": 0, "host": hostile, "phase": hostile, "error": hostile}
    (folder / "failure" / "worker-0.json").write_text(json.dumps(failure))
    assert RunDirectory(folder).spec["label"] == r"a \x1b[31mb\u202ec"
    assert RunDirectory(folder).failures[0].error == "a\n\\x1b[31mb\\u202ec"
    for command in ("status", "collect"):
        main([command, "x", "--results", str(tmp_path)])
        said = "".join(capsys.readouterr())
        assert r"\x1b[31mb\u202ec" in said
        assert all(character.isprintable() for line in said.split("\n") for character in line)
