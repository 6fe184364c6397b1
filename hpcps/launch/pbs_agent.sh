#!/bin/sh
# mpirun calls this like rsh, HOST COMMAND: it starts the command on another host of this PBS job, without ssh.
# mpirun passes text for a remote shell, with quotes in it; pbs_tmrsh runs a program without a shell.
set -eu
# shellcheck source=hpcps/launch/rsh_arguments.sh
. "$(dirname "$0")/rsh_arguments.sh"
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
exec pbs_tmrsh "$host" /bin/sh -c "$*"
