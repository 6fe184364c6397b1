import pytest
from threads import Cluster


@pytest.fixture(autouse=True)
def no_cluster_is_left():
    yield
    while Cluster.all:
        Cluster.all.pop().end()
