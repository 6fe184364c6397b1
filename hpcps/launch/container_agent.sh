#!/bin/bash
# mpirun calls this like rsh, HOST COMMAND: it starts the command on another host of this job, in the job's container.
set -eu
# shellcheck source=hpcps/launch/rsh_arguments.sh
. "$(dirname "$0")/rsh_arguments.sh"
# HPCPS_CONTAINER is the folder of the scripts that launcher/job.sh has written; `enter` enters the container.
command="${HPCPS_CONTAINER:?launcher/job.sh sets it}/enter /bin/sh -c $(printf %q "$*")"
if [ -n "${PBS_NODEFILE:-}" ] && [ -x "${PBS_EXEC:-/opt/pbs}/bin/pbs_tmrsh" ]; then
  exec "$(dirname "$0")/pbs_agent.sh" "$host" "$command"
fi
exec ssh -o BatchMode=yes "$host" "$command"
