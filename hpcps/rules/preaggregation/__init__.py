"""What is done with the updates before a rule combines them: each resulting row is a weighted sum of updates."""

from hpcps.rules.preaggregation.arc import Arc
from hpcps.rules.preaggregation.base import PreAggregator
from hpcps.rules.preaggregation.bucketing import Bucketing
from hpcps.rules.preaggregation.clipping import Clipping
from hpcps.rules.preaggregation.nnm import Nnm

__all__ = ["Arc", "Bucketing", "Clipping", "Nnm", "PreAggregator"]
