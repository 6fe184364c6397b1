"""A launcher of your own: name this file in an experiment, `plugins = ["./my_launcher.py"]`.

`hpcps run FILE --mpirun myrun` recognises it then, and `launcher/configgen.py FILE --dialect my_launcher` writes for it
on any machine.
"""

import re
from typing import Literal

from hpcps.launch.launchers import Job, Launch, Launcher


class MyLauncher(Launcher):
    """The launcher of our cluster: `myrun --app conf`; a line of its file is `-np count -on host program`."""

    executable = "myrun"
    version = re.compile(r"^myrun \d")
    rank_variables = ("MYRUN_RANK",)
    name: Literal["my_launcher"] = "my_launcher"

    def render(self, job: Job) -> Launch:
        """Write a line for each role on a host."""
        conf = self.text(job, "-np {count} -on {host} {program}")
        return Launch(job, {job.configfile: conf}, (str(job.mpirun), *job.options, "--app", str(job.configfile)))
