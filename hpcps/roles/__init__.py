"""Roles as state machines without I/O: an event in, effects out. They know no MPI, socket, file or clock.

"Following an update" in CONTRIBUTING.md lists the files that take an update from one worker to another, in order.

- `events`: events and effects
- `stages`: the stages of each role, and what leads from one to the next
- `messaging_role`: what all roles that exchange messages have in common
- `training_role`: a role that trains: what workers and validators have in common
- `local_training`: the way of a training role from one model to the next
- `local_steps`: how many local steps a role takes, and in which groups
- `model_inbox`: the model that comes from the servers
- `worker`: what the workers of both modes have in common
- `update/`: how a worker makes its update of its local steps: memory, attack, partitions, encoding
- `sync/`: server, validator, worker and adversary with rounds; partitions; quorums
- `asynchronous/`: server, validator, worker and adversary without rounds; the log of the servers
- `collective/`: workers without servers: a ring, or Allreduce
- `losses`: how a role goes on without a lost process, and has its replacement take part
- `replacement`: how the replacement of a lost process begins
- `checks`: checks that a message must pass
- `resources`: the part of a machine that a role may use
- `checkpointing`: how the processes of a run write a checkpoint
- `evaluation`: when the coordinator evaluates a model, or has the evaluator do it
- `evaluation_job`: a model to evaluate, and its evaluation
- `evaluator`: the evaluator, and how the coordinator gives it the models
- `weights`: how much the updates of workers count
- `queries`: a role asks how many local steps it may take, and server 0 answers
- `adversary`: the adversary, in both modes of training, and how a worker shows its updates to it
- `knowledge`: what the adversary knows of a run
- `single_process`: the single-process baseline
"""
