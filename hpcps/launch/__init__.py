"""Hosts, placement, launchers and supervision: from a run to its processes.

- `ancestry`: which variables of a launcher a process inherits, and the task of an MPI launcher that it is
- `arrivals`: the files by which the processes of a script find out that one ends before it joins
- `batch`: batch systems: the job of this process, its hosts and walltime, and its successors
- `bounded`: runs a command that may hang or crash, with a deadline
- `cause`: finds the process that failed first
- `cuda`: CUDA's driver, without a framework
- `detect`: detects the launcher on this machine
- `dev_shm`: the space of `/dev/shm`, and what MPI needs of it
- `doctor/`: the diagnosis of this machine
- `exit_status`: the exit statuses of the commands, and the messages of errors
- `gpu_mpi`: MPI that sends device memory: UCX from PyPI, and a trial of two ranks
- `guard`: the parent process of every rank, which reports how the rank ended
- `hostfile`: host files: machines, processes on each, GPUs of each
- `launchers/`: one file for each launcher
- `limits`: the cores and the open files that a process may use
- `local_rank`: a process and its entry in the plan: rank, GPU, and a check of its role and host
- `mps`: several processes share a GPU
- `placement`: places roles on hosts
- `plan`: the plan of a launch, which every rank reads
- `prepare`: turns the points of an experiment into launches
- `processes`: the processes of this machine
- `script`: turns a person's own program into a launch
- `signs_of_life`: which processes give none, as the others see it
- `starter`: starts the processes of a configfile without an MPI launcher
- `stop`: the signals and the file that ask a launch to stop
- `supervise`: runs a launcher to its end and explains a failure
- `unreachable`: hosts that do not answer
"""
