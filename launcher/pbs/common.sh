# shellcheck shell=bash
# The definitions of PBS for launcher/job.sh. Every job script in this folder sources this file.
# shellcheck disable=SC2034,SC2329  # launcher/job.sh uses all of it

batch=pbs
job=${PBS_JOBID:-}
hosts=${PBS_NODEFILE:?PBS sets it for a job: the file of its hosts}
point=${PBS_ARRAY_INDEX:-}

# The attributes of this job in PBS; qstat wraps long values and starts the wrapped lines with a tab.
attributes=$(qstat -f "$job" 2>/dev/null | awk '/^\t/ { printf "%s", substr($0, 2); next } { printf "\n%s", $0 }') || true

attribute() {
  sed -n "s/^ *$1 = //p" <<<"$attributes"
}

time_left() {
  local now walltime began
  now=$(date +%s)
  # HH:MM:SS, or seconds
  walltime=$(attribute Resource_List.walltime | awk -F: '{ for (i = 1; i <= NF; i++) s = 60 * s + $i; print s }')
  began=$(attribute stime)
  [ -z "$began" ] || began=$(date -d "$began" +%s) || began=
  [ -z "$walltime" ] || echo $((walltime - now + ${began:-$now}))
}

# Use the options of the site profile or, without one, those of this job.
submit() {
  local key value options=() names
  for key in select place walltime; do
    value=$(attribute "Resource_List.$key")
    [ -z "$value" ] || options+=(-l "$key=$value")
  done
  if [ -n "${QSUB_OPTIONS[*]-}" ]; then
    options+=("${QSUB_OPTIONS[@]}")
  else
    [ -z "${PBS_O_QUEUE:-}" ] || options+=(-q "$PBS_O_QUEUE")
    value=$(attribute Account_Name)
    [ -z "$value" ] || options+=(-A "$value")
    value=$(attribute project)
    [ -z "$value" ] || [ "$value" = _pbs_project_default ] || options+=(-P "$value")
  fi
  # Only the names: qsub reads the values from its environment, including commas and quotes.
  names=$(IFS=, && echo "$*")
  qsub "${options[@]}" -v "$names" "$SCRIPT"
}

# The attribute `depend` of a job, without the names of servers.
dependencies() {
  qstat -f "$1" 2>/dev/null | awk '/^\t/ { printf "%s", substr($0, 2); next } { printf "\n%s", $0 }' |
    sed -nE 's/@[^:,]*//g; s/^ *depend = //p' || true
}

# PBS lists the jobs that wait for this one in its own attribute: beforeok:15.server:16.server,beforeany:17.server. A
# subjob's successor is no part of the array, so jobs that wait for the array wait for the successor, too.
hand_over() {
  local own=${PBS_ARRAY_ID:-$job} id now new=$1
  [ -z "${PBS_ARRAY_ID:-}" ] || new=$own:$1
  for id in $(dependencies "$own" | tr , '\n' | grep -E '^before(ok|any|notok):' | tr : '\n' | grep -v ^before); do
    now=$(dependencies "$id")
    # If other jobs wait for that one, PBS would register their dependencies anew, and refuse that.
    if [ -z "$now" ] || [[ $now == *before* ]] || ! qalter -W "depend=${now//":$own"/:$new}" "$id" >&2; then
      echo "$id"
    fi
  done
}

# shellcheck source-path=SCRIPTDIR source=../job.sh
. "$HPCPS_HOME/launcher/job.sh"
