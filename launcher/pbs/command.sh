#!/bin/bash
# A command of hpcps: run, search, launch, replay, evaluate or doctor. Type, in the repository:
#
#   qsub -l select=18:ncpus=56 -v "HPCPS_COMMAND=search experiments/mine.toml" launcher/pbs/command.sh
#   qsub -v "HPCPS_COMMAND=evaluate mine" launcher/pbs/command.sh
#   qsub -v "HPCPS_COMMAND=replay mine --only 0" launcher/pbs/command.sh
#   qsub -v "HPCPS_COMMAND=doctor experiments/mine.toml" launcher/pbs/command.sh
#   qsub -l select=4:ncpus=8 -v "HPCPS_COMMAND=launch -n 4 python /path/to/train.py" launcher/pbs/command.sh
#
# The options of the command line replace those below. Your site's account, queue and modules: docs/how-to/cluster.md.
#PBS -N hpcps_command
#PBS -S /bin/bash
#PBS -l select=1:ncpus=8
#PBS -l walltime=01:00:00
#PBS -j oe
#PBS -o logs/

SCRIPT=launcher/pbs/command.sh
EXPERIMENT= # HPCPS_COMMAND says what to do

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
