"""`hpcps check` as it is typed."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import BACKEND

from hpcps.cli import check

ROOT = Path(__file__).parents[2]
FIG3 = ROOT / "experiments" / "fig3_sync_single_validator.toml"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    check.register(parser.add_subparsers())
    parsed = parser.parse_args(["check", *arguments])
    code: int = parsed.handler(parsed)
    return code


def test_a_summary_reads_as_it_did(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert run("experiments/fig3_sync_single_validator.toml", "--only", "zeno") == 0
    assert capsys.readouterr().out == (Path(__file__).parent / "golden" / "summary.txt").read_text(encoding="utf-8")


def test_aspects_that_differ_between_points_are_all_named(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(write("[[sweep]]\n'topology.workers' = [4, 8]")), "--set", "topology.validators=0") == 0
    assert (
        "1 server, 0 validators, 4 workers: 5 processes over mpi; or 1 server, 0 validators, 8 workers: 9 processes"
        in capsys.readouterr().out
    )


def quorums(capsys: pytest.CaptureFixture[str], path: Path, *overrides: str) -> str:
    """Return what `hpcps check` says about the quorum of the points."""
    assert run(str(path), *(each for key in overrides for each in ("--set", key))) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("quorum"))
    return line.removeprefix("quorum").strip()


def test_a_quorum_of_all_workers_is_named(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert quorums(capsys, write("[[sweep]]\n'train.quorum' = [3, 4]")) == (
        "a round closes with 3 of 4 answers; average combines their updates; late updates are dropped; "
        "or a round waits for all 4 workers"
    )
    assert quorums(capsys, write(), "train.quorum=2", "train.grace=0.5").startswith(
        "a round closes 0.5 s after 2 of 4 answers; average combines"
    )


def test_many_quorums_are_listed_by_their_numbers(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("[[sweep]]\n'train.quorum' = [1, 2, 3, 4]\n[[sweep]]\n'train.late' = ['drop', 'next']")
    assert quorums(capsys, path) == "a round closes with 1, 2, 3 or 4 of 4 answers"
    # Three workers and four workers: the parts of a quorum are rounded up.
    found = quorums(capsys, path, "topology.workers=7", "topology.validators=2")
    assert found == "each validator: a round closes with 1 or 2 of 3, or 1, 2 or 3 of 4 answers"


@pytest.mark.parametrize("keys", [["communication.participation=0.5"], ["attack.kind=silent", "attack.rate=0.25"]])
def test_answers_of_a_quorum_may_be_absences(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], keys: list[str]
) -> None:
    path = write("[[sweep]]\n'train.quorum' = [3]\n[[sweep]]\n'train.late' = ['drop', 'next']")
    assert "with 3 of 4 answers, of which some may be absences; average combines" in quorums(capsys, path, *keys)
    path = write("[[sweep]]\n'train.quorum' = [1, 2, 3, 4]")
    assert (
        quorums(capsys, path, *keys) == "a round closes with 1, 2, 3 or 4 of 4 answers, of which some may be absences"
    )


def test_a_run_in_one_process_is_no_processes(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(write()), "--set", "transport.kind=inproc") == 0
    assert "1 server, 1 validator, 4 workers: all in one process\n" in capsys.readouterr().out


def test_the_schema_is_printed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "hpcps experiment file"


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run()
    assert "FILE is required without --schema" in capsys.readouterr().err


@pytest.mark.usefixtures("starts_processes")
def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; from hpcps.spec.load import load_experiment; from hpcps.cli import check; "
        f"e = load_experiment({str(FIG3)!r}); check.summary(e); "
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'mpi4py', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_cautions_are_those_of_the_selected_points(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write("[[sweep]]\n'data.split' = ['iid', 'by_class']"))
    assert run(path, "--only", "iid") == 0
    assert "warning" not in capsys.readouterr().out
    assert run(path, "--only", "by_class") == 0
    assert "warning" in capsys.readouterr().out


def test_what_is_odd_is_printed(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(write()), "--set", "data.split=by_class") == 0
    assert "\nwarning: --set data.split=by_class: data.split: 4 of 4 workers lack classes" in capsys.readouterr().out


def test_what_run_refuses_on_this_machine_is_a_warning(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCPS_DATA", raising=False)
    path, backend = str(write()), f"model.backend={BACKEND}"
    assert run(path, "--set", backend) == 0
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "results").exists()
    (tmp_path / "file").touch()
    assert run(path, "--set", backend, "--set", "data.name=mnist", "--results", "file/results") == 0
    written, data = capsys.readouterr().err.splitlines()
    assert written.startswith("hpcps: warning: `hpcps run` refuses it on this machine: cannot write to the results")
    assert data.startswith("hpcps: warning: `hpcps run` refuses it on this machine: no mnist in data")


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ('{kind="topk", k=320}', ""),
        ('{kind="topk", k=321}', "k: 1 of 3 encoded blocks of mlp, such as output.weight, send half of their values"),
        ('{kind="sparse_loco", k=2048}', "k: 1 of 3 encoded blocks of mlp, such as output.weight, send half of their"),
        (
            '{kind="sparse_loco", k=2049}',
            "k: 3 of 3 encoded blocks of mlp, such as hidden1.weight, send half of the values of ea",
        ),
        ('{kind="demo", k=32}', ""),
        (
            '{kind="demo", k=2049}',
            "k: 3 of 3 encoded blocks of mlp, such as hidden1.weight, send half of the values of ea",
        ),
        ('{kind="topk", k=0.5}', ""),
        ('{kind="topk", k=0.51}', "k: at most half of the values of a block are sent, and k = 0.51 is more: use less"),
        ('{kind="demo", k=0.51}', "k: at most half of the values of a block are sent, and k = 0.51 is more: use less"),
        ('{kind="int8", min_bytes=32768}', ""),
        ('{kind="int8", min_bytes=32769}', "min_bytes: the largest block of mlp has 32768 bytes, so nothing is enc"),
    ],
)
def test_a_compressor_that_does_not_fit_the_model_is_a_warning(
    keys: str, warning: str, write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    changes = (f"communication.compression={keys}", "model.name=mlp", "data.name=digits")
    assert run(str(write()), *(word for change in changes for word in ("--set", change))) == 0
    found = [line for line in capsys.readouterr().err.splitlines() if "communication.compression" in line]
    assert [f"hpcps: warning: communication.compression.{warning}" in line for line in found] == [True] * bool(warning)


def test_a_gpu_that_is_missing_is_a_warning(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.chdir(tmp_path)
    settings = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    assert run(str(write()), "--set", "train.device=cuda", "--set", "train.threads=3") == 0
    (device,) = capsys.readouterr().err.splitlines()
    assert device.startswith('hpcps: warning: `hpcps run` refuses it on this machine: train.device = "cuda", but')
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == settings
