#!/bin/sh
# Called by mpirun like rsh, HOST COMMAND: starts the command on another host of this PBS job, without ssh.
# What mpirun hands over is text for a remote shell, with quotes in it; pbs_tmrsh starts a program as it is, without one.
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
