"""Rules that combine or filter updates before they are added to the model."""

from hpcps.numerics.updates import NotFiniteError
from hpcps.rules.average import Average
from hpcps.rules.base import AsyncRule, BaseRule, Decision, Rule
from hpcps.rules.combined import Combined
from hpcps.rules.context import Arrays, AsyncContext, Context
from hpcps.rules.fed_async import FedAsync
from hpcps.rules.median import Median
from hpcps.rules.naive_async import NaiveAsync
from hpcps.rules.phocas import Phocas
from hpcps.rules.screening import combine, screen
from hpcps.rules.trimmed_mean import TrimmedMean
from hpcps.rules.zeno import Zeno
from hpcps.rules.zeno_plus_plus import ZenoPlusPlus

__all__ = [
    "Arrays",
    "AsyncContext",
    "AsyncRule",
    "Average",
    "BaseRule",
    "Combined",
    "Context",
    "Decision",
    "FedAsync",
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
