"""A fresh environment, outside of the clone, into which pip installs packages."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Fresh:
    """A virtual environment that uses the dependencies of the environment of the tests, but not its hpcps.

    A `.pth` file names the folder of the dependencies. Python does not read the `.pth` files of that folder, and one of
    these makes the clone importable.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.bin = folder / "bin"
        paths = {"base": str(folder), "platbase": str(folder)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", paths))
        dependencies = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (self.packages / "dependencies.pth").write_text("\n".join(dependencies))

    def install(self, *requirements):
        """Build and install packages with pip, without a network and without its cache of wheels."""
        options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--ignore-installed")
        self.run("python", "-m", "pip", "--disable-pip-version-check", "install", *options, *requirements)

    def run(self, program, *arguments, expect=0, cwd=None):
        """Run a program of this environment; return what it prints, after checking the exit status."""
        # The MPI of the tests, which is a dependency too.
        path = os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "MPI4PY_LIBMPI": str(Path(sys.prefix, "lib"))}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [shutil.which(program, path=path), *map(str, arguments)],
            capture_output=True, text=True, timeout=200, cwd=cwd or self.folder, env=environment, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == expect, said
        assert "Traceback" not in said, said
        return said


def copy_of_the_clone(folder):
    """Copy the files that git tracks or would add, because a build writes into the folder of the sources."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file() and not name.startswith(("results/", "tests/", "benchmarks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def source_distribution(clone, folder):
    """Build the source distribution of a copy of the clone; return the archive."""
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive
