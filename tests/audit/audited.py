"""Small runs with audits, in one process, and what their validators recorded of the audits."""

from executed import lines, run_here
from installed import BACKEND

from hpcps.spec.schema import Run


def audited(share=0.5, workers=4, validators=1, **tables):
    """Return a small run with audits; `tables` change it."""
    run = {
        "name": "audited",
        "topology": {"workers": workers, "validators": validators},
        "transport": {"kind": "inproc"},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 480, "test_limit": 32},
        "train": {"epochs": 3, "batch_size": 16, "local_steps": 2, "device": "cpu"},
        "validation": {"audit": {"share": share}},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values} if isinstance(values, dict) else values
    return Run.model_validate(run)


def audits_of(directory, validators=1):
    """Return the audits of a run, (round, worker), and the exclusions, {worker: (round, proof)}."""
    audits, excluded = [], {}
    for v in range(validators):
        for line in lines(directory.path, f"validator-{v}", "audits"):
            audits += [(line["of"], worker) for worker in line["workers"]]
        for line in lines(directory.path, f"validator-{v}", "excluded"):
            excluded[line["worker"]] = line["of"], line["proof"]
    return audits, excluded


def play_audited(run, folder):
    """Execute a run; return its audits and exclusions."""
    return audits_of(run_here(run, folder), run.topology.validators)
