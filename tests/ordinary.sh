#!/usr/bin/env bash
# tests/ordinary.sh COMMAND...: run a command with few open files, and with the few variables of the environment that the
# tests may depend on.
# The others differ between machines: PYTHONUNBUFFERED, say, hides mistakes in the order of output. LD_LIBRARY_PATH stays,
# because a Python of one's own may not start without it.
set -eu

names=$(awk 'BEGIN { for (name in ENVIRON) print name }')
for name in $names; do
  case $name in
    *[!A-Za-z0-9_]*) ;;
    HOME | PATH | LD_LIBRARY_PATH | TMPDIR | CI | HPCPS_* | PIP_* | UV_* | TORCH_CPU_INDEX | *_proxy | *_PROXY | SSL_CERT_* | *_CA_BUNDLE | MAKEFLAGS | MAKELEVEL)
      eval "set -- \"$name=\$$name\" \"\$@\""
      ;;
  esac
done
# An ordinary user's soft limit is 1,024.
ulimit -Sn 512
exec env -i "$@"
