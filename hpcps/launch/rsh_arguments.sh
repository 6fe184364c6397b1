# shellcheck shell=sh
# What agents begin with: take the arguments of rsh, [-l USER] [OPTION]... HOST COMMAND. It sets `host`, and leaves the
# command in the arguments.
while [ "${1#-}" != "$1" ]; do
  case $1 in
    -l) shift 2 ;;
    *) shift ;;
  esac
done
# shellcheck disable=SC2034 # the agent reads it
host=$1
shift
