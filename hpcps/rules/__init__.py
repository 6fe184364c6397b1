"""Rules that decide what enters the model; add one with a module here and a line in `AnyRule`."""

from typing import Annotated

from pydantic import Field

from hpcps.rules.average import Average
from hpcps.rules.base import Combined, Rule
from hpcps.rules.phocas import Phocas
from hpcps.rules.screening import screen
from hpcps.rules.trimmed_mean import TrimmedMean
from hpcps.rules.zeno import Zeno

AnyRule = Annotated[Average | TrimmedMean | Phocas | Zeno, Field(discriminator="kind")]

__all__ = ["AnyRule", "Average", "Combined", "Phocas", "Rule", "TrimmedMean", "Zeno", "screen"]
