# shellcheck shell=bash
# A site profile. Copy this file to launcher/pbs/site.sh, which git ignores, and keep the lines that you need.

# Options of qsub, for launcher/pbs/submit.sh and for successors: account, queue, file systems, group, e-mail, …
# shellcheck disable=SC2034
QSUB_OPTIONS=(-A my_project -q prod -l filesystems=home:eagle)

# On the first node of the job, before anything is started. If its last command fails, the job stops.
site_setup() {
  module load python mpich
  # umask 022                                       # everybody may read the results: PBS jobs start with 077
  # export HPCPS_PYTHON=/path/to/python              # default: .venv/bin/python, else python3
  # export HPCPS_MPIRUN=/path/to/mpirun              # default: beside that Python, else the first on PATH
  # export HPCPS_MPIRUN_OPTIONS="-iface ib0"         # further options for it
  # export HPCPS_CONTAINER_OPTIONS="--bind /scratch" # with CONTAINER: options of `apptainer exec`
  # export HPCPS_DATA=/shared/datasets               # where `hpcps data` put the data
  # export HPCPS_GPUS=0,1,2,3                        # the GPUs of each node, if the batch system does not say
  # export HPCPS_RESULTS=/scratch/me/results         # default: results/ in the repository; every node has to see it
}
