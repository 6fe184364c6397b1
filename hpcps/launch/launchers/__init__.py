"""Launchers: one file for each, with the commands, files and variables of it.

Three things stand elsewhere: Hydra's proxies and their file in `launch/guard.py`, because a guard imports nothing; what
batch systems say of a job in `launch/doctor/batch.py`; and the job scripts in `launcher/`.
"""

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.hydra import Hydra
from hpcps.launch.launchers.intel import Intel
from hpcps.launch.launchers.job import Job, Launch
from hpcps.launch.launchers.openmpi import OpenMpi
from hpcps.launch.launchers.pals import Pals
from hpcps.launch.launchers.plain import Plain
from hpcps.launch.launchers.slurm import Slurm

__all__ = ["Hydra", "Intel", "Job", "Launch", "Launcher", "OpenMpi", "Pals", "Plain", "Slurm"]
