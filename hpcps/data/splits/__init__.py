"""Splits: how the training samples are assigned to shards, by the names that `data.split` accepts."""

from hpcps.data.splits.base import Dealing, Split
from hpcps.data.splits.by_class import ByClass
from hpcps.data.splits.dirichlet import Dirichlet
from hpcps.data.splits.gamma_similarity import GammaSimilarity
from hpcps.data.splits.iid import Iid
from hpcps.data.splits.log_normal import LogNormal
from hpcps.data.splits.pathological import Pathological

__all__ = ["ByClass", "Dealing", "Dirichlet", "GammaSimilarity", "Iid", "LogNormal", "Pathological", "Split"]
