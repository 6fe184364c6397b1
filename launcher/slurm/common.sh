# shellcheck shell=bash
# The definitions of Slurm for launcher/job.sh. Every job script in this folder sources this file.
# shellcheck disable=SC2034,SC2329  # launcher/job.sh uses all of it

batch=slurm
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}
point=${SLURM_ARRAY_TASK_ID:-}

hosts=$(mktemp)
trap 'rm -f "$hosts"' EXIT
# A slot for each task, if the job asks for a number of tasks: Slurm sets SLURM_TASKS_PER_NODE, such as 2(x3),1, always.
tasks=
if [ -n "${SLURM_NTASKS:-}${SLURM_NTASKS_PER_NODE:-}" ]; then
  tasks=$(tr , '\n' <<<"${SLURM_TASKS_PER_NODE:-}" |
    sed -E 's/\(x([0-9]+)\)/ \1/' | awk '{ for (n = $2 ? $2 : 1; n > 0; n--) print $1 }')
fi
scontrol show hostnames "${SLURM_JOB_NODELIST:?Slurm sets it for a job: the names of its hosts}" |
  paste -d : - <(printf '%s' "${tasks:+$tasks$'\n'}") | sed 's/:$//' >"$hosts"

time_left() {
  local left
  left=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %L) || return 0
  # or UNLIMITED, NOT_SET, INVALID
  [[ $left != *[0-9]* ]] || echo "$left"
}

# Use the options of the site profile or, without one, those of this job. sbatch passes the whole environment to the new
# job, so unset the variables that belong to this job only.
submit() {
  local limit name without=() options=(--parsable --nodes="$SLURM_JOB_NUM_NODES")
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || options+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
  [ -z "${SLURM_NTASKS:-}" ] || options+=(--ntasks="$SLURM_NTASKS")
  [ -z "${SLURM_NTASKS_PER_NODE:-}" ] || options+=(--ntasks-per-node="$SLURM_NTASKS_PER_NODE")
  [ -z "${SLURM_GPUS:-}" ] || options+=(--gpus="$SLURM_GPUS")
  [ -z "${SLURM_GPUS_PER_NODE:-}" ] || options+=(--gpus-per-node="$SLURM_GPUS_PER_NODE")
  [ -z "${SLURM_GPUS_PER_TASK:-}" ] || options+=(--gpus-per-task="$SLURM_GPUS_PER_TASK")
  limit=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %l)
  [[ $limit != *[0-9]* ]] || options+=(--time="$limit")
  if [ -n "${SBATCH_OPTIONS[*]-}" ]; then
    options+=("${SBATCH_OPTIONS[@]}")
  else
    options+=(--partition="$SLURM_JOB_PARTITION")
    [ -z "${SLURM_JOB_ACCOUNT:-}" ] || options+=(--account="$SLURM_JOB_ACCOUNT")
    [ -z "${SLURM_JOB_QOS:-}" ] || options+=(--qos="$SLURM_JOB_QOS")
  fi
  for name in "${!SLURM_@}"; do
    [ "$name" = SLURM_CONF ] || without+=(-u "$name")
  done
  env ${without[@]+"${without[@]}"} sbatch "${options[@]}" "$SCRIPT"
}

# A subjob's successor is no part of the array, so jobs that wait for the array wait for the successor, too.
hand_over() {
  local id now new ends='(:|,|\?|$)' after='(afterok|afterany|afternotok)'
  squeue --noheader --states=PENDING --format '%i %E' | sed 's/([a-z]*)//g' | while read -r id now; do
    new=$(sed -E "s/$after:$job$ends/\1:$1\2/g; s/$after:${SLURM_ARRAY_JOB_ID:-none}_\*$ends/\1:${SLURM_ARRAY_JOB_ID:-}_*,\1:$1\2/g" \
      <<<"$now")
    [ "$new" = "$now" ] || scontrol update JobId="$id" Dependency="$new" >&2 || echo "$id"
  done
}

# shellcheck source-path=SCRIPTDIR source=../job.sh
. "$HPCPS_HOME/launcher/job.sh"
