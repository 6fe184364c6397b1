"""Rules that combine or filter updates before they are added to the model."""

from hpcps.numerics.operations import screen
from hpcps.numerics.updates import Combined, NotFiniteError
from hpcps.rules.asynchronous import AsyncRule, DcAsgd, Decision, FedAsync, NaiveAsync, ScalingRule
from hpcps.rules.base import BaseRule, Rule
from hpcps.rules.combining import combine
from hpcps.rules.context import Arrays, AsyncContext, Context
from hpcps.rules.coordinate_wise import Average, Meamed, Mean, Median, Phocas, Rlr, SignMajority, TrimmedMean
from hpcps.rules.preaggregation import Arc, Bucketing, Clipping, Nnm, PreAggregator
from hpcps.rules.selection import Aksel, Bulyan, Cge, Krum, Mda, Monna, MultiKrum, Smea
from hpcps.rules.spectral import Caf, Dnc
from hpcps.rules.trusted import Fltrust, LossScore, Zeno, ZenoPlusPlus
from hpcps.rules.weighted import CenteredClipping, GeometricMedian, NormClipping

__all__ = [
    "Aksel",
    "Arc",
    "Arrays",
    "AsyncContext",
    "AsyncRule",
    "Average",
    "BaseRule",
    "Bucketing",
    "Bulyan",
    "Caf",
    "CenteredClipping",
    "Cge",
    "Clipping",
    "Combined",
    "Context",
    "DcAsgd",
    "Decision",
    "Dnc",
    "FedAsync",
    "Fltrust",
    "GeometricMedian",
    "Krum",
    "LossScore",
    "Mda",
    "Meamed",
    "Mean",
    "Median",
    "Monna",
    "MultiKrum",
    "NaiveAsync",
    "Nnm",
    "NormClipping",
    "NotFiniteError",
    "Phocas",
    "PreAggregator",
    "Rlr",
    "Rule",
    "ScalingRule",
    "SignMajority",
    "Smea",
    "TrimmedMean",
    "Zeno",
    "ZenoPlusPlus",
    "combine",
    "screen",
]
