"""Reads what experiment trackers have written, with their own packages."""

import glob
import struct

_BLOCK, _HEADER, _FIRST = 32768, 7, 7
"""A file of wandb has a header, and then blocks of records with a header each, as the log of LevelDB."""


def read_mlflow(folder):
    """Return, by run id, the parameters and the values by tag: (round, value) pairs."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(folder.absolute().as_uri())
    experiments = [each.experiment_id for each in client.search_experiments() if each.name != "Default"]
    found = {}
    for run in client.search_runs(experiments):
        values = {
            tag: sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, tag))
            for tag in run.data.metrics
        }
        assert run.data.tags["hpcps.run_id"] not in found
        found[run.data.tags["hpcps.run_id"]] = run.data.params, values
    return found


def read_trackio(folder):
    """Return the same of a folder of Trackio, which the package must have as its own."""
    from trackio.sqlite_storage import SQLiteStorage

    assert str(SQLiteStorage.get_project_db_path("small")).startswith(str(folder))
    found = {}
    for name in SQLiteStorage.get_runs("small"):
        values = {}
        for line in SQLiteStorage.get_logs("small", name):
            for tag, value in line.items():
                if "/" in tag:
                    values.setdefault(tag, []).append((line["step"], value))
        config = SQLiteStorage.get_run_config("small", name)
        # Names with a line in front are its own: the user, and when the run was written.
        found[name.split()[-1]] = {key: value for key, value in config.items() if key[0] != "_"}, values
    return found


def read_wandb(folder):
    """Return the same of the offline runs of wandb, which it encodes in its own messages."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    found = {}
    for path in glob.glob(f"{folder}/wandb/offline-run-*/*.wandb"):
        config, values, name = {}, {}, ""
        for content in _records(path):
            record = Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                name = record.run.run_id
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for tag, value in items.items():
                if "/" in tag:
                    values.setdefault(tag, []).append((items["round"], value))
        assert name not in found
        found[name] = config, values
    return found


def _records(path):
    with open(path, "rb") as file:
        content = file.read()
    place, whole = _FIRST, b""
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + _HEADER])
        whole += content[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""
