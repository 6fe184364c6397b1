"""Launchers: one file for each, or for each family, with its commands, files and variables.

Other modules of `launch/` know the rest: `batch` the batch systems; `guard` and `supervise` the proxies of Hydra, their
file and their messages, because these concern processes that run. The job scripts are in `launcher/`.
"""

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.hydra import Hydra, Intel
from hpcps.launch.launchers.job import Job, Launch
from hpcps.launch.launchers.kubernetes import Kubernetes
from hpcps.launch.launchers.openmpi import OpenMpi
from hpcps.launch.launchers.pals import Pals
from hpcps.launch.launchers.plain import Plain
from hpcps.launch.launchers.slurm import Slurm

__all__ = ["Hydra", "Intel", "Job", "Kubernetes", "Launch", "Launcher", "OpenMpi", "Pals", "Plain", "Slurm"]
