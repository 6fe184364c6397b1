# shellcheck shell=bash
# A site profile. Copy this file to launcher/slurm/site.sh, which git ignores, and keep the lines that you need.

# Options of sbatch, for launcher/slurm/submit.sh and for successors: account, partition, constraints, e-mail, …
# shellcheck disable=SC2034
SBATCH_OPTIONS=(--account=my_project --partition=standard --constraint=cpu)

# On the first node of the job, before anything is started. If its last command fails, the job stops.
site_setup() {
  module load python mpich
  # umask 022                                       # everybody may read the results
  # export HPCPS_PYTHON=/path/to/python              # default: .venv/bin/python, else python3
  # export HPCPS_MPIRUN=/path/to/mpirun              # default: beside that Python, else the first on PATH, else srun
  # export HPCPS_MPIRUN_OPTIONS="-iface ib0"         # further options for it; for srun such as --mpi=pmix
  # export HPCPS_CONTAINER_OPTIONS="--bind /scratch" # with CONTAINER: options of `apptainer exec`
  # export HPCPS_DATA=/shared/datasets               # where `hpcps data` put the data
  # export HPCPS_GPUS=0,1,2,3                        # the GPUs of each node, if the batch system does not say
  # export HPCPS_RESULTS=/scratch/me/results         # default: results/ in the repository; every node has to see it
}
