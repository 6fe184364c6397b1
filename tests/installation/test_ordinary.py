"""`make test` runs its stages as on an ordinary machine, whatever this one has set."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_stages_get_few_variables_and_few_open_files(tmp_path):
    kept = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(tmp_path),
        "CI": "1",
        "HPCPS_RESULTS": 'it\'s "here" and $HOME',
        "PIP_CERT": "/a b.pem",
        "UV_INDEX": "",
        "https_proxy": "http://[::1]:80",
        "SSL_CERT_FILE": "two\nCI=lines",
    }
    others = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "LANG": "C", "BASH_FUNC_x%%": "() { echo; }"}
    # What `make test` would give to the make of the stages.
    command = ["make", "test", "MAKE=sh -c 'ulimit -Sn; env -0'", "PROCESSES=7"]
    done = subprocess.run(command, cwd=ROOT, env=kept | others, capture_output=True, text=True, check=True)
    limit, _, variables = done.stdout.partition("\n")
    assert limit == "512"
    given = dict(entry.split("=", 1) for entry in variables.split("\0") if entry)
    assert "PROCESSES=7" in given.pop("MAKEFLAGS")
    assert set(given) - set(kept) <= {"MAKELEVEL", "PWD", "PIP_DISABLE_PIP_VERSION_CHECK"}
    assert {name: given[name] for name in kept} == kept
