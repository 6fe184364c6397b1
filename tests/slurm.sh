#!/bin/sh
# tests/slurm.sh STAMP: install Debian's Slurm for the tests on a real one, if we may; else they are skipped.
# Not slurm-wlm-torque, which comes with another /usr/bin/mpirun. The tests start daemons of their own.
set -eu

if ! { command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch; } >/dev/null; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing slurm-wlm and munge for the tests ..."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
  else
    echo "no Slurm here, and only root can install it: its tests are skipped"
  fi
fi
touch "$1"
