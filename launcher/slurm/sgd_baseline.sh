#!/bin/bash
# SGD baseline: 2 servers, 2 validators beside them, 16 workers, 18 nodes. Type, in the repository:
#
#   sbatch launcher/slurm/sgd_baseline.sh
#
# The job books 1008 cores; a process computes on one, or on more with
# ARGS="--set train.threads=8" sbatch ...; docs/how-to/cluster.md says what that brings.
# Your site's account, partition and modules: docs/how-to/cluster.md.
#SBATCH --job-name=hpcps_sgd
#SBATCH --nodes=18
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --time=24:00:00

SCRIPT=launcher/slurm/sgd_baseline.sh
EXPERIMENT=experiments/sgd_baseline.toml

# Slurm runs a copy of this file: the repository is where sbatch was typed, or where HPCPS_HOME says.
HPCPS_HOME=${HPCPS_HOME:-${SLURM_SUBMIT_DIR:?this is a Slurm job script: submit it with sbatch}}
if [ ! -r "$HPCPS_HOME/launcher/slurm/common.sh" ]; then
  echo "$HPCPS_HOME is no hpcps repository: type sbatch there, or HPCPS_HOME=/path/to/it sbatch" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HPCPS_HOME/launcher/slurm/common.sh"
