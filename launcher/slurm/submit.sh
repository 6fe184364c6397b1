#!/bin/bash
# launcher/slurm/submit.sh SCRIPT [OPTION of sbatch ...]: sbatch with the options of the site profile, from the repository.
set -euo pipefail

if [ $# -eq 0 ]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
script=$(realpath "$1")
shift
cd "$(dirname "$(realpath "$0")")/../.."

SBATCH_OPTIONS=()
profile=${HPCPS_SITE:-launcher/slurm/site.sh}
if [ -r "$profile" ]; then
  # shellcheck source=/dev/null
  . "$profile"
elif [ -n "${HPCPS_SITE:-}" ]; then
  echo "there is no site profile $HPCPS_SITE" >&2
  exit 2
else
  echo "no site profile: copy launcher/slurm/site.example.sh to $profile if your site requires an account or a partition" >&2
fi
if [ -n "${HPCPS_SITE:-}" ]; then
  # The job needs the profile too; sbatch passes its environment to the job.
  HPCPS_SITE=$(realpath "$HPCPS_SITE")
  export HPCPS_SITE
fi
command -v sbatch >/dev/null || {
  echo "there is no sbatch here: submit where Slurm has it, such as on a login node, or load its module in the site profile" >&2
  exit 127
}
exec sbatch ${SBATCH_OPTIONS[@]+"${SBATCH_OPTIONS[@]}"} "$@" "$script"
