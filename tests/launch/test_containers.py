"""A job in a container: the real job script, with a stand-in for `apptainer` on the hosts of a stand-in for PBS."""

import subprocess

import pytest
from cluster import make_cluster
from environments import ROOT, interpreter

pytestmark = pytest.mark.usefixtures("starts_processes")

# What runs in it sees all folders of this machine, and a Python that nothing outside sees.
_APPTAINER = """#!/bin/bash
# apptainer exec [OPTION...] IMAGE COMMAND...
[ "$1" = exec ] && shift
while [[ $1 == -* ]]; do
  case $1 in --bind | --env) shift 2 ;; *) shift ;; esac
done
[ -r "$1" ] || exit 255
shift
echo "$(hostname)" >>{log}
export OUTSIDE=$PPID
exec unshare --mount --propagation private bash -c '
  root=$(mktemp -d {folder}/root.XXXX)
  mount -t tmpfs none $root
  for each in /*; do
    [ ! -L $each ] || cp -a $each $root
    [ -L $each ] || [ ! -d $each ] || {{ mkdir $root$each; mount --rbind $each $root$each; }}
  done
  mkdir $root/.singularity.d
  printf "#!/bin/sh\\nexec {python} \\"\\$@\\"\\n" >$root/.singularity.d/python
  chmod 755 $root/.singularity.d/python
  here=$PWD
  exec /usr/sbin/chroot $root sh -c "cd $here && exec \\"\\$@\\"" sh "$@"' apptainer "$@"
"""
# The daemon of PBS starts a command outside of containers.
_TMRSH = """#!/bin/bash
[ -z "$OUTSIDE" ] || exec nsenter --mount=/proc/$OUTSIDE/ns/mnt "$0.outside" "$@"
exec "$0.outside" "$@"
"""
FILE = """
name = "contained"
[topology]
workers = 2
validators = 0
servers = 1
[model]
name = "mlp"
[data]
name = "digits"
limit = 200
[train]
epochs = 1
"""


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def test_all_processes_of_a_job_run_in_its_image(tmp_path):
    cluster, python = make_cluster(tmp_path, hosts=2), interpreter("mpich")
    binaries = tmp_path / "bin"
    (binaries / "pbs_tmrsh").rename(binaries / "pbs_tmrsh.outside")
    program(binaries / "pbs_tmrsh", _TMRSH)
    program(binaries / "apptainer", _APPTAINER.format(log=tmp_path / "entered", folder=tmp_path, python=python))
    (tmp_path / "image.sif").write_text("an image")
    (tmp_path / "contained.toml").write_text(FILE)
    (tmp_path / "nodefile").write_text("node1\nnode2\nnode2\n")
    environment = {
        **cluster.of_job,
        "PATH": f"{binaries}:{cluster.of_job['PATH']}",
        "PBS_O_WORKDIR": str(ROOT),
        "HPCPS_RESULTS": str(tmp_path / "results"),
        "HPCPS_PYTHON": "/.singularity.d/python",
        "HPCPS_COMMAND": f"run {tmp_path}/contained.toml",
        "CONTAINER": str(tmp_path / "image.sif"),
    }
    script = ROOT / "launcher/pbs/command.sh"
    done = subprocess.run(
        [*cluster.enter, "bash", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended with status 0" in done.stdout
    (conf,) = (tmp_path / "results/contained/launch").glob("*/conf")
    assert f"{tmp_path}/results/containers/12.server/python -m mpi4py" in conf.read_text()
    entered = (tmp_path / "entered").read_text().split()
    assert set(entered) == {"node1", "node2"}
