"""`DMLC_ROLE=scheduler python -m hpcps.kvstore` (or `server`): a scheduler or server of the key-value store."""

import logging
import os
import signal
import sys

from hpcps.errors import HpcpsError, LaunchError
from hpcps.kvstore.server import Server
from hpcps.transport.pslite.component import keep_freed_memory
from hpcps.transport.pslite.meta import NodeRole
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.settings import Settings


def main() -> int:
    """Run the node that the environment describes until the workers leave; return the exit status."""
    logging.basicConfig(format="hpcps: %(message)s", level=logging.WARNING)
    try:
        settings = Settings.from_environment(os.environ)
        keep_freed_memory()
        if settings.role == NodeRole.SCHEDULER:
            if not settings.root_port:
                raise LaunchError("DMLC_PS_ROOT_PORT is 0; set it to a whole number from 1 to 65535 on all nodes")
            node = Node(settings, lambda delivery: node.dropped.drop("unexpected", "data at a scheduler"))
            node.start()
            node.stop(without_timeout=True)
        else:
            Server(settings).run()
    except HpcpsError as error:
        print(f"hpcps: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
