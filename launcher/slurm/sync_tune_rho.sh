#!/bin/bash
# Figure 7: zeno with seven values of rho; 2 servers, 2 validators beside them, 16 workers, 18 nodes; and one process
# that trains alone on the validators' shard ("validation only"). Type, in the repository:
#
#   sbatch launcher/slurm/sync_tune_rho.sh              all points not yet done, one after another
#   ONLY=0-6 sbatch launcher/slurm/sync_tune_rho.sh     some of them
#   sbatch --array=0-7 launcher/slurm/sync_tune_rho.sh  a point per subjob (--array=0-7%4: four at a time)
#
# The job books 1008 cores; a process computes on one, or on more with
# ARGS="--set train.threads=8" sbatch ...; docs/how-to/cluster.md says what that brings.
# Your site's account, partition and modules: docs/how-to/cluster.md.
#SBATCH --job-name=hpcps_fig7
#SBATCH --nodes=18
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --time=24:00:00

SCRIPT=launcher/slurm/sync_tune_rho.sh
EXPERIMENT=experiments/fig7_sync_tune_rho.toml

# Slurm runs a copy of this file: the repository is where sbatch was typed, or where HPCPS_HOME says.
HPCPS_HOME=${HPCPS_HOME:-${SLURM_SUBMIT_DIR:?this is a Slurm job script: submit it with sbatch}}
if [ ! -r "$HPCPS_HOME/launcher/slurm/common.sh" ]; then
  echo "$HPCPS_HOME is no hpcps repository: type sbatch there, or HPCPS_HOME=/path/to/it sbatch" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HPCPS_HOME/launcher/slurm/common.sh"
