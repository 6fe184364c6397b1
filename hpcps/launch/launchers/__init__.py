"""Launchers: one file for each, with everything that hpcps knows about it."""

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.hydra import Hydra
from hpcps.launch.launchers.intel import Intel
from hpcps.launch.launchers.job import Job, Launch
from hpcps.launch.launchers.openmpi import OpenMpi
from hpcps.launch.launchers.pals import Pals
from hpcps.launch.launchers.plain import Plain
from hpcps.launch.launchers.slurm import Slurm

__all__ = ["Hydra", "Intel", "Job", "Launch", "Launcher", "OpenMpi", "Pals", "Plain", "Slurm"]
