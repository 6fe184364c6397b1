#!/bin/bash
# launcher/pbs/submit.sh SCRIPT [OPTION of qsub ...]: qsub with the options of the site profile, from the repository.
set -euo pipefail

if [ $# -eq 0 ]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
script=$(realpath "$1")
shift
cd "$(dirname "$(realpath "$0")")/../.."
mkdir -p logs # for the logs of jobs

QSUB_OPTIONS=()
profile=${HPCPS_SITE:-launcher/pbs/site.sh}
if [ -r "$profile" ]; then
  # shellcheck source=/dev/null
  . "$profile"
elif [ -n "${HPCPS_SITE:-}" ]; then
  echo "there is no site profile $HPCPS_SITE" >&2
  exit 2
else
  echo "no site profile: copy launcher/pbs/site.example.sh to $profile if your site requires an account or a queue" >&2
fi
options=("$@")
if [ -n "${HPCPS_SITE:-}" ]; then
  # The job needs the profile too; qsub takes one -v.
  site=HPCPS_SITE=$(realpath "$HPCPS_SITE")
  for ((i = 0; i < ${#options[@]}; i++)); do
    if [ "${options[i]}" = -v ] && [ -n "${options[i + 1]:-}" ]; then
      options[i + 1]+=,$site
      site=
    fi
  done
  [ -z "$site" ] || options+=(-v "$site")
fi
command -v qsub >/dev/null || {
  echo "there is no qsub here: submit where PBS has it, such as on a login node, or load its module in the site profile" >&2
  exit 127
}
exec qsub ${QSUB_OPTIONS[@]+"${QSUB_OPTIONS[@]}"} ${options[@]+"${options[@]}"} "$script"
