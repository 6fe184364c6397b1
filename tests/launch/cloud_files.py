"""Compares the files of launcher/cloud with the schemas of the packages that read them; `.venv-clouds` has these.

`python tests/launch/cloud_files.py parallelcluster FILE` or `skypilot FILE` prints the mistakes, and ends with status 1
if there are any. Nothing is asked of a cloud.
"""

import os
import sys

import yaml


def parallelcluster(content):
    """Return the mistakes of a configuration of AWS ParallelCluster."""
    os.environ.setdefault("AWS_DEFAULT_REGION", content.get("Region", "us-east-2"))
    from marshmallow import ValidationError
    from pcluster.schemas.cluster_schema import ClusterSchema

    try:
        ClusterSchema(cluster_name="hpcps").load(content)
    except ValidationError as error:
        return [str(error)]
    return []


def skypilot(content):
    """Return the mistakes of a task of SkyPilot."""
    import jsonschema
    from sky.utils.schemas import get_task_schema

    found = jsonschema.Draft7Validator(get_task_schema()).iter_errors(content)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def main(kind, path):
    """Print the mistakes of a file; return the exit status."""
    with open(path, encoding="utf-8") as file:
        content = yaml.safe_load(file)
    mistakes = {"parallelcluster": parallelcluster, "skypilot": skypilot}[kind](content)
    print("\n".join(mistakes) or "valid")
    return int(bool(mistakes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
