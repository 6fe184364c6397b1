"""A ps-lite cluster of our nodes in the threads of one process."""

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from running_processes import free_port

from hpcps.kvstore import Client, Server
from hpcps.transport.pslite.meta import NodeRole
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.settings import Settings


class Cluster:
    """Settings for all nodes, and threads to run them in."""

    all: ClassVar[list] = []

    def __init__(self, servers=1, workers=1, **options):
        options = {"timeout": 60.0, **options}
        self.common = {"servers": servers, "workers": workers, "root_host": "127.0.0.1", "root_port": free_port()}
        self.common |= options
        self.pool = ThreadPoolExecutor(64)
        self.started = []
        Cluster.all.append(self)

    def end(self):
        """Have the scheduler and servers that still wait for somebody leave."""
        for node in self.started:
            node.abandon()
        self.pool.shutdown()

    def settings(self, role, **changes):
        return Settings(role=role, **{**self.common, **changes})

    def scheduler(self, **changes):
        dropped = []
        node = Node(self.settings(NodeRole.SCHEDULER, **changes), dropped.append)
        self.started.append(node)

        def run():
            node.start()
            node.stop(without_timeout=True)

        return node, self.pool.submit(run)

    def server(self, update=None, **changes):
        server = Server(self.settings(NodeRole.SERVER, **changes), update)
        self.started.append(server.node)
        return server, self.pool.submit(server.run)

    def worker(self, job, **changes):
        """Have a worker do a job with its client."""

        def run():
            split = changes.pop("split_from", 1_000_000)
            sync = changes.pop("sync", True)
            with Client(self.settings(NodeRole.WORKER, **changes), sync=sync, split_from=split) as client:
                return job(client)

        return self.pool.submit(run)

    def run(self, job, **changes):
        """Start everything, have all workers do a job, and return what they did in the order of ranks."""
        scheduler, ended = self.scheduler()
        servers = [self.server() for _ in range(self.common["servers"])]
        jobs = [self.worker(lambda kv: (kv.rank, job(kv)), **dict(changes)) for _ in range(self.common["workers"])]
        results = [each.result(100) for each in jobs]
        for each in [ended, *(done for _, done in servers)]:
            each.result(100)
        self.nodes = [scheduler, *(server.node for server, _ in servers)]
        return [result for _, result in sorted(results)]
