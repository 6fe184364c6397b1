"""What several tests of launching share."""

import pytest
from mps_machine import machine_with, make_driver


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Return the folder of what NVIDIA's driver brings along, or looks like it."""
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def machine(driver):
    """Make a machine with that driver, on which ranks share GPUs."""
    with machine_with(driver) as machine:
        yield machine
