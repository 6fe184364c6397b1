#!/usr/bin/env bash
# ./setup.sh new|add VENV EXTRAS [PIP_ARGUMENT]...: install hpcps with its EXTRAS (torch,digits,…) into the environment
# VENV, at the versions of constraints.txt. `new` creates VENV anew with $PYTHON (default: python3); `add` keeps it.
#
# PyPI's torch brings CUDA libraries of some GB. Where no NVIDIA driver is, the CPU build of torch is installed from
# TORCH_CPU_INDEX (default: PyTorch's package index; empty: from PyPI), if this index answers within seconds.
set -euo pipefail

mode=${1:?new or add} venv=${2:?the folder of the environment} extras=${3:?the extras}
shift 3
case $mode in
  new) python=${PYTHON:-python3} ;;
  add) python=$venv/bin/python ;;
  *)
    echo "setup.sh: not $mode, but new or add" >&2
    exit 2
    ;;
esac
export PIP_DISABLE_PIP_VERSION_CHECK=1

# Find out what cannot work before anything is downloaded.
check() {
  if ! command -v "$python" >/dev/null; then
    echo "setup.sh: there is no $python: install Python 3.11 or later, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
  fi
  # The characters are those that hpcps accepts when it starts an MPI launcher.
  "$python" - <<'CHECK'
import os, re, sys
if sys.version_info < (3, 11):
    sys.exit("setup.sh: hpcps needs Python 3.11 or later, and %s is %d.%d: name another: make PYTHON=python3.13"
             % ((sys.executable,) + sys.version_info[:2]))
if not re.fullmatch(r"[\w./:@%+,=~-]+", os.getcwd()):
    sys.exit("setup.sh: the path of this folder has a blank or a special character: %r. MPI launchers do not pass it on, "
             "so nothing is installed. Move the folder to a path without them, and do not use a symbolic link"
             % os.getcwd())
try:
    import ensurepip, venv
except ImportError:
    sys.exit("setup.sh: %s has no venv module: install it (Debian and Ubuntu: the package python3-venv)" % sys.executable)
CHECK
}

# Run `pip install`; print one line for each download, and the end of pip's output if it fails. Python compiles a module
# when it is first imported; to compile all of torch takes as long as to install it.
pip_install() {
  local log=$venv/install.log
  if ! "$venv/bin/python" -m pip install --no-compile --progress-bar off "$@" | tee "$log" | sed -nu \
    -e '/\.metadata/d' \
    -e 's|^ *Downloading \(.*/\)\{0,1\}\([^/]*\)$|  downloading \2|p' \
    -e 's|^ *Using cached \(.*/\)\{0,1\}\([^/]*\)$|  already downloaded: \2|p' \
    -e 's|^Processing \(.*/\)\([^/]*\.whl\).*|  from \1: \2|p' \
    -e 's|^Installing collected packages.*|  installing the packages ...|p'; then
    echo "setup.sh: pip failed (see the error above); the last lines of $log:" >&2
    tail -n 12 "$log" >&2
    return 1
  fi
}

# The versions of torch that pip finds, a line each.
versions_of_torch() {
  timeout 15 "$venv/bin/python" -m pip index versions torch "$@" 2>/dev/null |
    sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n'
}

# Install the CPU build of torch from its index, or say why pip takes another build afterwards.
cpu_torch() {
  local wanted index other
  wanted=$(sed -n 's/^torch==//p' constraints.txt)
  if [ -z "${TORCH_CPU_INDEX+given}" ]; then
    if nvidia-smi -L >/dev/null 2>&1; then
      echo "  torch with CUDA libraries, because this machine has an NVIDIA driver"
      return
    fi
    # PyPI has no version with a plus sign.
    other=$(versions_of_torch | grep -m 1 "^${wanted//./\\.}+") || true
    if [ -n "$other" ]; then
      echo "  torch $other, from a source that the configuration of pip names"
      return
    fi
  fi
  index=${TORCH_CPU_INDEX-https://download.pytorch.org/whl/cpu}
  [ -n "$index" ] || return 0
  (
    # They replace what the configuration of pip says: the same index again, and an empty folder.
    export PIP_EXTRA_INDEX_URL=$index PIP_FIND_LINKS=$venv/include
    if ! versions_of_torch --index-url "$index" --timeout 5 --retries 0 | grep -q "^${wanted//./\\.}\(+\|$\)"; then
      echo "  torch from PyPI, with CUDA libraries: $index does not answer, or has no torch $wanted for this Python"
    else
      echo "  torch $wanted from $index"
      pip_install --no-deps --index-url "$index" "torch==$wanted" || echo "  torch from PyPI instead, with CUDA libraries"
    fi
  )
}

check
if [ "$mode" = new ]; then
  echo "setting up $venv with $("$python" --version) ..."
  "$python" -m venv --clear "$venv"
  case ,$extras, in *,torch,*) cpu_torch ;; esac
else
  echo "adding packages to $venv ..."
fi
pip_install -c constraints.txt -e ".[$extras]" "$@"
