# shellcheck shell=bash
# The body of every job script, which sets EXPERIMENT and HPCPS_HOME and sources this file. It takes from the environment
# (qsub -v): ONLY, the points to run; ARGS, further arguments of `hpcps run`; HPCPS_SITE, another site profile.
set -euo pipefail

cd "$HPCPS_HOME"

profile=${HPCPS_SITE:-launcher/pbs/site.sh}
if [ -r "$profile" ]; then
  # shellcheck source=/dev/null
  . "$profile"
  if declare -F site_setup >/dev/null; then
    # What a site provides, such as `module`, seldom stands these.
    set +eu
    site_setup
    set -eu
  fi
elif [ -n "${HPCPS_SITE:-}" ]; then
  echo "there is no site profile $HPCPS_SITE" >&2
  exit 2
fi

python=${HPCPS_PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  [ ! -x .venv/bin/python ] || python=$PWD/.venv/bin/python
fi

arguments=("$EXPERIMENT" --hostfile "${PBS_NODEFILE:?PBS gives a job its hosts in it}")
only=${ONLY:-}
if [ -n "${PBS_ARRAY_INDEX:-}" ]; then
  if [ -n "$only" ]; then
    echo "ONLY and -J both choose points: give one of them" >&2
    exit 2
  fi
  only=$PBS_ARRAY_INDEX
fi
[ -z "$only" ] || arguments+=(--only "$only")
[ -z "${HPCPS_RESULTS:-}" ] || arguments+=(--results "$HPCPS_RESULTS")
[ -z "${HPCPS_MPIRUN:-}" ] || arguments+=(--mpirun "$HPCPS_MPIRUN")
[ -z "${HPCPS_MPIRUN_OPTIONS:-}" ] || arguments+=("--mpirun-options=$HPCPS_MPIRUN_OPTIONS")
read -r -a more <<<"${ARGS:-}"

# In the background, because bash handles a signal only between commands or in `wait`. PBS sends TERM when the job is
# deleted or out of walltime, and kills what is still there some seconds later.
child=
# shellcheck disable=SC2329  # the traps call it
stop() {
  trap '' TERM INT HUP
  if [ -n "$child" ]; then
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  exit "$1"
}
trap 'stop 143' TERM
trap 'stop 130' INT
trap 'stop 129' HUP

export PYTHONUNBUFFERED=1
echo "$(date -Is) ${PBS_JOBID:-} on $(sort -u "$PBS_NODEFILE" | wc -l) hosts: hpcps run ${arguments[*]} ${more[*]-}"
"$python" -m hpcps run "${arguments[@]}" ${more[@]+"${more[@]}"} &
child=$!
status=0
wait "$child" || status=$?
echo "$(date -Is) ended with status $status"
exit "$status"
