#!/bin/sh
# tests/debian_packages.sh STAMP: install Debian's Slurm and Chromium for the tests that need them, if we may; else they are
# skipped. Not slurm-wlm-torque, which comes with another /usr/bin/mpirun. The tests start daemons of their own.
set -eu

missing=
{ command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch; } >/dev/null || missing="slurm-wlm munge"
{ command -v chromium || command -v google-chrome; } >/dev/null || missing="$missing chromium"
if [ -n "$missing" ]; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing $missing for the tests ..."
    apt-get update -qq
    # shellcheck disable=SC2086 # names of packages
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
  else
    echo "not installed, and only root can install it: $missing. Their tests are skipped"
  fi
fi
touch "$1"
