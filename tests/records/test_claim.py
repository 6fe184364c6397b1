import subprocess
import sys

from hpcps.records.run_directory import RunDirectory


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
