"""Execute a recorded run again in one process, with the recorded order of events, and compare the records.

- `replayed_run`: the attempts of a run, one after another
- `processes`: the processes of an attempt, with the replacements of lost workers
- `driver`: gives a role its events in the recorded order
- `mail`: delivers each message to the process that got it
"""
