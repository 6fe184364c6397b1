#!/bin/bash
# Figure 3: 1 server, 1 validator, 16 workers, a process per node. Type, in the repository:
#
#   sbatch launcher/slurm/sync_single_validator.sh               all points not yet done, one after another
#   ONLY=zeno sbatch launcher/slurm/sync_single_validator.sh     some of them
#   sbatch --array=0-15 launcher/slurm/sync_single_validator.sh  a point per subjob (--array=0-15%4: four at a time)
#
# The job books 1008 cores; a process computes on one, or on more with
# ARGS="--set train.threads=8" sbatch ...; docs/how-to/cluster.md says what that brings.
# Your site's account, partition and modules: docs/how-to/cluster.md.
#SBATCH --job-name=hpcps_fig3
#SBATCH --nodes=18
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --time=24:00:00

SCRIPT=launcher/slurm/sync_single_validator.sh
EXPERIMENT=experiments/fig3_sync_single_validator.toml

# Slurm runs a copy of this file: the repository is where sbatch was typed, or where HPCPS_HOME says.
HPCPS_HOME=${HPCPS_HOME:-${SLURM_SUBMIT_DIR:?this is a Slurm job script: submit it with sbatch}}
if [ ! -r "$HPCPS_HOME/launcher/slurm/common.sh" ]; then
  echo "$HPCPS_HOME is no hpcps repository: type sbatch there, or HPCPS_HOME=/path/to/it sbatch" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HPCPS_HOME/launcher/slurm/common.sh"
