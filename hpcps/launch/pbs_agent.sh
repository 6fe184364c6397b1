#!/bin/sh
# mpirun calls this like rsh, HOST COMMAND: it starts the command on another host of this PBS job, without ssh.
# mpirun passes text for a remote shell, with quotes in it; pbs_tmrsh runs a program without a shell.
set -eu
while [ "${1#-}" != "$1" ]; do
  case $1 in
    -l) shift 2 ;;
    *) shift ;;
  esac
done
host=$1
shift
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
exec pbs_tmrsh "$host" /bin/sh -c "$*"
