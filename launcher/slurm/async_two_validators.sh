#!/bin/bash
# Figure 6: asynchronous, 2 servers, 2 validators beside them, 8 workers, 10 nodes. Type, in the repository:
#
#   sbatch launcher/slurm/async_two_validators.sh              all points not yet done, one after another
#   ONLY=zeno++ sbatch launcher/slurm/async_two_validators.sh  some of them
#   sbatch --array=0-7 launcher/slurm/async_two_validators.sh  a point per subjob (--array=0-7%4: four at a time)
#
# The job books 1120 cores; a process computes on one, or on more with
# ARGS="--set train.threads=8" sbatch ...; docs/how-to/cluster.md says what that brings.
# Your site's account, partition and modules: docs/how-to/cluster.md.
#SBATCH --job-name=hpcps_fig6
#SBATCH --nodes=10
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=112
#SBATCH --time=24:00:00

SCRIPT=launcher/slurm/async_two_validators.sh
EXPERIMENT=experiments/fig6_async_two_validators.toml

# Slurm runs a copy of this file: the repository is where sbatch was typed, or where HPCPS_HOME says.
HPCPS_HOME=${HPCPS_HOME:-${SLURM_SUBMIT_DIR:?this is a Slurm job script: submit it with sbatch}}
if [ ! -r "$HPCPS_HOME/launcher/slurm/common.sh" ]; then
  echo "$HPCPS_HOME is no hpcps repository: type sbatch there, or HPCPS_HOME=/path/to/it sbatch" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HPCPS_HOME/launcher/slurm/common.sh"
