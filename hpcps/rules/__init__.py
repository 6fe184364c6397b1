"""Rules that combine or filter updates before they are added to the model.

- `stage`: a pre-aggregator or a rule, and how many updates it needs
- `base`: the base classes, and the way of the updates of a round to a rule
- `context`: what a rule may use in addition to the updates
- `preaggregation`: what is done with the updates before a rule combines them
- `coordinate_wise`: means of all values of a coordinate, or of some of them; votes on the sign
- `weighted`: the base class of weighted sums, and rules that weigh all updates
- `selection`: averages of a selection of the updates
- `geometric_median`: the geometric median, from the inner products of the updates alone
- `spectral`: rules that look for the direction in which the updates differ most
- `clustering`: rules that average the largest cluster of the updates
- `layers`: a rule that decides on each block after it has bounded whole updates
- `similarity`: a rule that gives less weight to workers whose updates resemble those of others
- `trusted`: rules that compare updates with the validator's own, or measure the loss on its data
- `asynchronous`: the base class of rules that decide on one update at a time, and rules by staleness
"""

from hpcps.numerics.operations import screen
from hpcps.numerics.updates import Combined, NotFiniteError
from hpcps.rules.asynchronous import AsyncRule, DcAsgd, Decision, FedAsync, NaiveAsync, ScalingRule
from hpcps.rules.base import BaseRule, Rule, combine_finite
from hpcps.rules.clustering import Flame, SignGuard
from hpcps.rules.context import Arrays, AsyncContext, Context
from hpcps.rules.coordinate_wise import Average, Meamed, Mean, Median, Phocas, Rlr, SignMajority, TrimmedMean
from hpcps.rules.geometric_median import GeometricMedian
from hpcps.rules.layers import Lasa
from hpcps.rules.preaggregation import Arc, Bucketing, Clipping, Foundation, Nnm, PreAggregator
from hpcps.rules.selection import Aksel, Bulyan, Cge, Krum, Mda, Monna, MultiKrum, Smea
from hpcps.rules.similarity import FoolsGold
from hpcps.rules.spectral import Caf, Dnc
from hpcps.rules.trusted import Fltrust, LossScore, Zeno, ZenoPlusPlus
from hpcps.rules.weighted import CenteredClipping, NormClipping

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
    "Flame",
    "Fltrust",
    "FoolsGold",
    "Foundation",
    "GeometricMedian",
    "Krum",
    "Lasa",
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
    "SignGuard",
    "SignMajority",
    "Smea",
    "TrimmedMean",
    "Zeno",
    "ZenoPlusPlus",
    "combine_finite",
    "screen",
]
