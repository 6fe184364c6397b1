#!/bin/bash
# A command of hpcps: run, search, launch, replay, evaluate or doctor. Type, in the repository:
#
#   HPCPS_COMMAND="search experiments/mine.toml" sbatch --nodes=18 --cpus-per-task=56 launcher/slurm/command.sh
#   HPCPS_COMMAND="evaluate mine" sbatch launcher/slurm/command.sh
#   HPCPS_COMMAND="replay mine --only 0" sbatch launcher/slurm/command.sh
#   HPCPS_COMMAND="doctor experiments/mine.toml" sbatch launcher/slurm/command.sh
#   HPCPS_COMMAND="launch -n 4 python /path/to/train.py" sbatch --nodes=4 launcher/slurm/command.sh
#
# The options of the command line replace those below. Your site's account, partition and modules: docs/how-to/cluster.md.
#SBATCH --job-name=hpcps_command
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00

SCRIPT=launcher/slurm/command.sh
EXPERIMENT= # HPCPS_COMMAND says what to do

# Slurm runs a copy of this file: the repository is where sbatch was typed, or where HPCPS_HOME says.
HPCPS_HOME=${HPCPS_HOME:-${SLURM_SUBMIT_DIR:?this is a Slurm job script: submit it with sbatch}}
if [ ! -r "$HPCPS_HOME/launcher/slurm/common.sh" ]; then
  echo "$HPCPS_HOME is no hpcps repository: type sbatch there, or HPCPS_HOME=/path/to/it sbatch" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$HPCPS_HOME/launcher/slurm/common.sh"
