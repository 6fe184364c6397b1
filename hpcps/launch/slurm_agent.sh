#!/bin/sh
# HOST COMMAND, as for ssh: it starts the command on another host of this Slurm job.
set -eu
host=$1
shift
# The step shares the cores of the job with others: the job may have few.
exec srun --quiet --overlap --overcommit --cpu-bind=none --nodes=1 --ntasks=1 --nodelist="$host" /bin/sh -c "$*"
