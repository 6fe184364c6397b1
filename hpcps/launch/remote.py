"""The command with which an agent, such as ssh, starts a program on another host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

PASSED = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""The variables without which Python may not find its packages or its library; ssh does not pass them on."""


def remote_command(
    agent: str | Path,
    host: str,
    words: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    silence: float | None = None,
) -> list[str]:
    """Return the command that runs a program on another host.

    Args:
        agent: ssh, or a program that is called like it; it passes the words to a shell of the host.
        host: the host.
        words: the program and its arguments.
        environment: the variables of this process.
        silence: about so many seconds after the host is gone, ssh ends; by default, it may wait for hours.
    """
    # There is no terminal for a password: if ssh needs one, it fails with a message.
    options = ["-o", "BatchMode=yes"]
    if silence is not None:
        every = max(1, round(silence / 3))
        options += ["-o", f"ConnectTimeout={3 * every}", "-o", f"ServerAliveInterval={every}"]
    options = options if Path(agent).name == "ssh" else []
    passed = [f"{name}={environment[name]}" for name in PASSED if environment.get(name)]
    return [str(agent), *options, host, *map(shlex.quote, [*(["env", *passed] if passed else []), *words])]
