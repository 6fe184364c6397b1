"""Hosts, placement, launchers and supervision: from a run to its processes.

- `prepare`: turns the points of an experiment into launches
- `hostfile`: host files: machines, processes on each, GPUs of each
- `batch`: batch systems: the job of this process, its hosts and walltime, and its successors
- `placement`: places roles on hosts
- `plan`: the plan of a launch, which every rank reads
- `launchers/`: one file for each launcher
- `starter`: starts the processes of a configfile without an MPI launcher
- `script`: turns a person's own program into a launch
- `supervise`: runs a launcher to its end and explains a failure
- `guard`: the parent process of every rank, which reports how the rank ended
- `signs_of_life`: which processes give none, as the others see it
- `unreachable`: hosts that do not answer
- `arrivals`: the files by which the processes of a script find out that one ends before it joins
- `cause`: finds the process that failed first
- `exit_status`: the exit statuses of the commands, and the messages of errors
- `stop`: the signals and the file that ask a launch to stop
- `local_rank`: a process and its entry in the plan: rank, GPU, and a check of its role and host
- `ancestry`: which variables of a launcher a process inherits, and the task of an MPI launcher that it is
- `detect`: detects the launcher on this machine
- `doctor/`: the diagnosis of this machine
- `bounded`: runs a command that may hang or crash, with a deadline
- `processes`: the processes of this machine
- `limits`: the cores and the open files that a process may use
- `dev_shm`: the space of `/dev/shm`, and what MPI needs of it
- `gpu_mpi`: MPI that sends device memory: UCX from PyPI, and a trial of two ranks
- `cuda`: CUDA's driver, without a framework
- `mps`: several processes share a GPU
"""
