"""Rules that decide what enters the model; add one with a module here and a line below."""

from typing import Annotated

from pydantic import Field

from hpcps.rules.average import Average
from hpcps.rules.base import AsyncRule, Judged, Rule
from hpcps.rules.combined import Combined
from hpcps.rules.fed_async import FedAsync
from hpcps.rules.median import Median
from hpcps.rules.naive_async import NaiveAsync
from hpcps.rules.phocas import Phocas
from hpcps.rules.screening import combine, screen
from hpcps.rules.trimmed_mean import TrimmedMean
from hpcps.rules.zeno import Zeno
from hpcps.rules.zeno_plus_plus import ZenoPlusPlus
from hpcps.updates import NotFiniteError

AnySyncRule = Average | TrimmedMean | Median | Phocas | Zeno
AnyAsyncRule = NaiveAsync | FedAsync | ZenoPlusPlus
AnyRule = Annotated[AnySyncRule | AnyAsyncRule, Field(discriminator="kind")]

__all__ = [
    "AnyAsyncRule",
    "AnyRule",
    "AnySyncRule",
    "AsyncRule",
    "Average",
    "Combined",
    "FedAsync",
    "Judged",
    "Median",
    "NaiveAsync",
    "NotFiniteError",
    "Phocas",
    "Rule",
    "TrimmedMean",
    "Zeno",
    "ZenoPlusPlus",
    "combine",
    "screen",
]
