#!/usr/bin/env bash
# launcher/containers/install.sh [EXTRAS]: what Dockerfile and hpcps.def do in a new Debian, as root, from Debian and PyPI
# alone. The clone is in /usr/src/hpcps; hpcps is installed into the environment /opt/hpcps.
set -euo pipefail

extras=${1:-torch,digits,kernels,pslite,report,mpich}
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# ssh starts processes on other hosts, and its server lets them in where hosts are pods of Kubernetes. hwloc and numactl
# are not needed: MPIs of PyPI bring theirs.
apt-get install -y -qq --no-install-recommends ca-certificates openssh-client openssh-server python3 python3-venv
rm -rf /var/lib/apt/lists/*
cd /usr/src/hpcps
PIP_NO_CACHE_DIR=1 ./setup.sh new /opt/hpcps "$extras"
case ,$extras, in
  # The kernels are compiled for the processor that builds the image; another one compiles its own at the first run.
  *,kernels,*) /opt/hpcps/bin/python -m hpcps.numerics.kernels ;;
esac
/opt/hpcps/bin/python -m hpcps --version
