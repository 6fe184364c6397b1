"""A data set of your own; `own_data.toml` beside this file uses it."""

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data import Data, Facts, InMemory, Samples


class MyData(Data):
    """Points in 20 dimensions around the centre of their class."""

    name: Literal["my_data"] = "my_data"
    noise: float = Field(1.0, gt=0, le=100, description="Standard deviation around a centre.")
    facts = Facts(shape=(20,), classes=4, train=1200, test=400)

    def open(self):
        """Return the training part and the test part: float32 samples (or bytes) and int64 labels."""
        random = np.random.default_rng(0)
        labels = random.integers(0, 4, 1600)
        points = random.normal(size=(4, 20))[labels] + self.noise * random.normal(size=(1600, 20))
        samples = Samples(points.astype(np.float32), labels)
        return InMemory(samples.take(slice(0, 1200))), InMemory(samples.take(slice(1200, None)))
