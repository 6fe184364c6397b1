"""Programs that stand in for those of PBS: a job is a copy of its script, which begins at once on this machine."""

QSUB = r"""
log=/dev/null
while [ $# -gt 1 ]; do
  case $1 in
    -o) log=$2; shift 2 ;;
    -v | -l | -j | -A | -q) shift 2 ;;
    *) exit 2 ;;
  esac
done
number=$(($(cat "$PBS_FOLDER/count" 2>/dev/null || echo 0) + 1))
echo $number >"$PBS_FOLDER/count"
job=$PBS_FOLDER/$number.server
if [ -e "$PBS_FOLDER/refuse" ] && [ $number -ge "$(cat "$PBS_FOLDER/refuse")" ]; then
  echo "qsub: Unknown queue" >&2
  exit 170
fi
echo localhost >"$job.nodes"
if [ -e "$PBS_FOLDER/lose" ]; then
  rm "$PBS_FOLDER/lose"
  echo "F -3" >"$job.state"
else
  echo R >"$job.state"
  cp "$1" "$job.SC"
  PBS_JOBID=$number.server PBS_NODEFILE=$job.nodes PBS_O_WORKDIR=$PWD setsid bash -c '
    echo $$ >"$0.pid"; bash "$0.SC" >>"$1" 2>&1; echo "F $?" >"$0.state"' "$job" "$log" >/dev/null 2>&1 &
  # What is left in the process group of qsub is killed at its end, so the job has left it by then.
  until [ -s "$job.pid" ]; do sleep 0.02; done
fi
echo "$number.server"
"""

QSTAT = r"""
job=${!#}
if [ -e "$PBS_FOLDER/silent" ]; then echo "qstat: cannot connect to server" >&2; exit 111; fi
[ -e "$PBS_FOLDER/$job.state" ] || { echo "qstat: Unknown Job Id $job" >&2; exit 153; }
read -r state status <"$PBS_FOLDER/$job.state"
printf 'Job Id: %s\n    job_state = %s\n' "$job" "$state"
[ -z "$status" ] || printf '    Exit_status = %s\n' "$status"
"""

QDEL = r"""
[ ! -e "$PBS_FOLDER/$1.pid" ] || kill -TERM -- -"$(cat "$PBS_FOLDER/$1.pid")"
echo "F 271" >"$PBS_FOLDER/$1.state"
"""


def install(folder):
    """Write the programs into a folder; return the variables with which they are found."""
    for name, text in {"qsub": QSUB, "qstat": QSTAT, "qdel": QDEL}.items():
        (folder / name).write_text(f"#!/bin/bash{text}")
        (folder / name).chmod(0o755)
    return {"PBS_FOLDER": str(folder)}
