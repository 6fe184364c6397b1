# shellcheck shell=bash
# The common part of all jobs, for every batch system. launcher/pbs/common.sh and launcher/slurm/common.sh source this
# file. They define
#
#   batch       the batch system, as the folder in launcher/ is called
#   job         the job's id
#   hosts       a file with the job's hosts
#   point       the point of a subjob of an array, or nothing
#   time_left   a function: print the remaining time of the job in the format of `hpcps run --walltime`, or nothing
#   submit      a function: submit $SCRIPT with the options of this job and the variables named as arguments; print its id
#   hand_over   a function: let the jobs that wait for the end of this job wait for the job named as its argument; print
#               the ids of those of which it could not change the dependency
#
# The job script defines SCRIPT, EXPERIMENT and HPCPS_HOME. Without an EXPERIMENT, the user sets HPCPS_COMMAND, a command
# of hpcps with its arguments. The user may set ONLY, the points to run; ARGS, further arguments of the command, or @FILE
# with them; CONTAINER, an image in which all processes run; HPCPS_SITE, another site profile.
# shellcheck disable=SC2154  # variables that those scripts define

complain() {
  echo "$batch job $job: $*" >&2
}

# Read the site profile: modules and paths.
read_profile() {
  local profile=${HPCPS_SITE:-launcher/$batch/site.sh} status
  if [ ! -r "$profile" ]; then
    [ -n "${HPCPS_SITE:-}" ] || return 0
    complain "there is no site profile $profile"
    exit 2
  fi
  # shellcheck source=/dev/null
  . "$profile"
  declare -F site_setup >/dev/null || return 0
  # Commands of a site, such as `module`, often fail with these options.
  set +eu
  site_setup
  status=$?
  set -eu
  [ "$status" -eq 0 ] && return
  complain "site_setup in $profile failed with status $status; its last command failed"
  exit 2
}

# Write the scripts that enter the container of this job, on any of its hosts, into a folder that all of them see; set
# `python` to one of them, and `hosts` to a file in that folder.
use_container() {
  local engine folder name more options=()
  if ! engine=$(command -v apptainer || command -v singularity); then
    complain "CONTAINER=$CONTAINER needs apptainer or singularity on every host: load its module in site_setup"
    exit 2
  fi
  if [ ! -r "$CONTAINER" ]; then
    complain "there is no image CONTAINER=$CONTAINER: build it with launcher/containers/hpcps.def"
    exit 2
  fi
  folder=$(realpath -m "${HPCPS_RESULTS:-results}")/containers/${job//[^[:alnum:]._-]/-}
  mkdir -p "$folder"
  cp "$hosts" "$folder/hosts"
  hosts=$folder/hosts
  for name in "$PWD" "${folder%/containers/*}" "${HPCPS_DATA:-}"; do
    [ ! -d "$name" ] || options+=(--bind "$(realpath "$name")")
  done
  read -r -a more <<<"${HPCPS_CONTAINER_OPTIONS:-}"
  cat >"$folder/enter" <<ENTER
#!/bin/bash
# Run a command in the container of job $job: a launcher may start it outside, or inside.
[ ! -d /.singularity.d ] || exec "\$@"
options=($(printf '%q ' "${options[@]}" ${more[@]+"${more[@]}"}))
[ ! -e /dev/nvidiactl ] || options+=(--nv)
[ ! -d $(printf %q "${PBS_EXEC:-/opt/pbs}") ] || options+=(--bind $(printf %q "${PBS_EXEC:-/opt/pbs}"))
exec $(printf '%q exec' "$engine") "\${options[@]}" $(printf %q "$(realpath "$CONTAINER")") "\$@"
ENTER
  printf '#!/bin/bash\nexec %q %q "$@"\n' "$folder/enter" "${HPCPS_PYTHON:-/opt/hpcps/bin/python}" >"$folder/python"
  chmod 755 "$folder/enter" "$folder/python"
  [ -z "${PBS_NODEFILE:-}" ] || export PBS_NODEFILE=$hosts
  export HPCPS_CONTAINER=$folder
  python=$folder/python
}

# Set `python` and `arguments`, the command to run.
compose() {
  local left more words site points why
  python=${HPCPS_PYTHON:-}
  if [ -n "${CONTAINER:-}" ]; then
    use_container
  elif [ -z "$python" ]; then
    python=python3
    [ ! -x .venv/bin/python ] || python=$PWD/.venv/bin/python
  fi
  # A profile may set its variables without `export`.
  export "${!HPCPS_@}"
  if ! why=$("$python" -m hpcps --version 2>&1); then
    complain "$python cannot run hpcps: ${why##*$'\n'}"
    if [ -n "${CONTAINER:-}" ]; then
      complain "the image CONTAINER=$CONTAINER needs ${HPCPS_PYTHON:-/opt/hpcps/bin/python} with the packages of hpcps" \
        "(docs/how-to/containers.md)"
      exit 2
    fi
    complain "on a login node, in $PWD, type: python3 -m venv .venv && .venv/bin/pip install -e '.[torch,kernels]'" \
      "(docs/how-to/cluster.md); or set HPCPS_PYTHON in launcher/$batch/site.sh to a Python that has hpcps"
    exit 2
  fi
  # Some versions of qsub keep the inner quotes of -v "ONLY='0,3'".
  ONLY=${ONLY:-}
  ONLY=${ONLY#\'}
  ONLY=${ONLY%\'}
  if [ -n "$point" ] && [ -n "$ONLY" ]; then
    complain "ONLY and an array both choose points: give one of them"
    exit 2
  fi
  ONLY=${ONLY:-$point}
  words=(run "$EXPERIMENT")
  [ -n "$EXPERIMENT" ] || read -r -a words <<<"${HPCPS_COMMAND:-}"
  site=(--hostfile "$hosts")
  points=(${ONLY:+--only "$ONLY"})
  [ -z "${HPCPS_MPIRUN:-}" ] || site+=(--mpirun "$HPCPS_MPIRUN")
  [ -z "${HPCPS_MPIRUN_OPTIONS:-}" ] || site+=("--mpirun-options=$HPCPS_MPIRUN_OPTIONS")
  left=$(time_left)
  [ -z "$left" ] || site+=(--walltime "$left")
  case ${words[0]:-} in
    run | search) arguments=("${words[@]}" "${site[@]:0:2}" ${points[@]+"${points[@]}"} "${site[@]:2}") ;;
    evaluate) arguments=("${words[@]}" ${points[@]+"${points[@]}"} ${left:+--walltime "$left"}) ;;
    replay) arguments=("${words[@]}" ${points[@]+"${points[@]}"}) ;;
    doctor) arguments=("${words[@]}") ;;
    launch)
      arguments=("${words[0]}" "${site[@]}" "${words[@]:1}") # its options come before the program
      [[ $python != */* ]] || PATH=$(dirname "$python"):$PATH # `python` is that of the environment
      ;;
    *)
      complain "HPCPS_COMMAND=${HPCPS_COMMAND:-} is no command for a job: give run, search, launch, replay, evaluate or" \
        "doctor with its arguments (docs/how-to/cluster.md)"
      exit 2
      ;;
  esac
  if [ -n "$ONLY" ] && [[ ${words[0]} =~ ^(launch|doctor)$ ]]; then
    complain "hpcps ${words[0]} has no points to choose: leave out ONLY, and submit no array"
    exit 2
  fi
  read -r -a more <<<"${ARGS:-}"
  arguments+=(${more[@]+"${more[@]}"})
}

# shellcheck disable=SC2329  # the traps call it
stop() {
  trap '' TERM INT HUP
  if [ -n "$child" ]; then
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  exit "$1"
}

# Submit a successor job: this one stopped because its time is nearly over. Jobs that wait for this one wait for it.
succeed() {
  local became left name names=()
  HPCPS_SUCCESSOR=$((${HPCPS_SUCCESSOR:-0} + 1))
  for name in ONLY ARGS CONTAINER "${!HPCPS_@}"; do
    [ -z "${!name:-}" ] || names+=("$name")
  done
  export "${names[@]}"
  if ! became=$(submit "${names[@]}"); then
    complain "it stopped before the end of its walltime, but its successor could not be submitted (see above); to continue, submit" \
      "$SCRIPT again${ONLY:+ with ONLY=$ONLY}"
    exit 1
  fi
  # One job at a time: others may change the dependencies of the same jobs.
  left=$({ flock -w 60 9 || true; hand_over "$became"; } 9<launcher/job.sh)
  [ -z "$left" ] || complain "${left//$'\n'/, } still wait for the end of this job only: let them wait for $became"
  echo "$(date -Is) $job stopped before the end of its walltime, continues as $became (number $HPCPS_SUCCESSOR after the first job)"
  exit 0
}

set -euo pipefail
cd "$HPCPS_HOME"
read_profile
compose

# In the background, because bash handles a signal only between commands or in `wait`. The batch system sends TERM when
# the job is deleted or exceeds its walltime, and kills the remaining processes some seconds later.
child=
trap 'stop 143' TERM
trap 'stop 130' INT
trap 'stop 129' HUP

export PYTHONUNBUFFERED=1
echo "$(date -Is) $job on $(sort -u "$hosts" | wc -l) hosts: hpcps ${arguments[*]}"
"$python" -m hpcps "${arguments[@]}" &
child=$!
status=0
wait "$child" || status=$?
child=
echo "$(date -Is) ended with status $status"
# REFUSED in hpcps/launch/exit_status.py; the message above shows the argument as it arrived here.
case "$status ${ARGS:-${HPCPS_COMMAND:-}}" in
  "2 @"*) ;;
  "2 "*[\"\'\{\[,]*)
    complain "if the mistake is in ARGS: qsub removes quotes, and commas and blanks separate; put arguments with quotes," \
      "commas or blanks into a file and give ARGS=@FILE (docs/how-to/cluster.md)"
    ;;
esac
# SUSPENDED in hpcps/launch/exit_status.py
[ "$status" -ne 75 ] || succeed
exit "$status"
