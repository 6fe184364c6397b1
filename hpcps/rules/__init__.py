"""Rules that combine or filter updates before they are added to the model."""

from hpcps.numerics.destination import Combined, NotFiniteError
from hpcps.numerics.operations import screen
from hpcps.rules.asynchronous import AsyncRule, Decision, ScalingRule
from hpcps.rules.average import Average, Mean
from hpcps.rules.base import BaseRule, Rule
from hpcps.rules.bulyan import Bulyan
from hpcps.rules.clipping import CenteredClipping, NormClipping
from hpcps.rules.context import Arrays, AsyncContext, Context
from hpcps.rules.dc_asgd import DcAsgd
from hpcps.rules.fed_async import FedAsync
from hpcps.rules.fltrust import Fltrust
from hpcps.rules.geometric_median import GeometricMedian
from hpcps.rules.krum import Krum, MultiKrum
from hpcps.rules.loss_score import LossScore
from hpcps.rules.meamed import Meamed
from hpcps.rules.median import Median
from hpcps.rules.naive_async import NaiveAsync
from hpcps.rules.nearest import Aksel, Cge, Monna
from hpcps.rules.phocas import Phocas
from hpcps.rules.preaggregation import Arc, Bucketing, Clipping, Nnm, PreAggregator
from hpcps.rules.screening import combine
from hpcps.rules.signs import Rlr, SignMajority
from hpcps.rules.spectral import Caf, Dnc
from hpcps.rules.subsets import Mda, Smea
from hpcps.rules.trimmed_mean import TrimmedMean
from hpcps.rules.zeno import Zeno
from hpcps.rules.zeno_plus_plus import ZenoPlusPlus

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
