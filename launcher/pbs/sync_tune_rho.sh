#!/bin/bash
# Figure 7: zeno with seven values of rho; 2 servers, 2 validators beside them, 16 workers, 18 nodes; and one process
# that trains alone on the validators' shard ("validation only"). Type, in the repository:
#
#   qsub launcher/pbs/sync_tune_rho.sh              all points not yet done, one after another
#   qsub -v ONLY=0-6 launcher/pbs/sync_tune_rho.sh  some of them
#   qsub -J 0-7 launcher/pbs/sync_tune_rho.sh       a point per subjob (-J 0-7%4: four at a time)
#
# The job books 1008 cores; a process computes on one, or on more with
# -v "ARGS=--set train.threads=8"; docs/how-to/cluster.md says what that brings.
# Your site's account, queue and modules: docs/how-to/cluster.md.
#PBS -N hpcps_fig7
#PBS -S /bin/bash
#PBS -l select=18:ncpus=56
#PBS -l place=scatter
#PBS -l walltime=24:00:00
#PBS -j oe
#PBS -o logs/

SCRIPT=launcher/pbs/sync_tune_rho.sh
EXPERIMENT=experiments/fig7_sync_tune_rho.toml

# PBS runs a copy of this file, in $HOME: the repository is where qsub was typed, or where HPCPS_HOME says.
HPCPS_HOME=${HPCPS_HOME:-${PBS_O_WORKDIR:?this is a PBS job script: submit it with qsub}}
# The folder of the log (-o), which PBS writes when the job has ended.
mkdir -p "${PBS_O_WORKDIR:-$HPCPS_HOME}/logs"
if [ ! -r "$HPCPS_HOME/launcher/pbs/common.sh" ]; then
  echo "$HPCPS_HOME is no hpcps repository: type qsub there, or qsub -v HPCPS_HOME=/path/to/it" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HPCPS_HOME/launcher/pbs/common.sh"
