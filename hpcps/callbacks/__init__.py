"""Callbacks: what is told of a run's rounds and evaluations, and to whom, with their keys."""

from hpcps.callbacks.base import Callback, Callbacks, EvaluationReport, RoundReport
from hpcps.callbacks.model_norm import ModelNorm

__all__ = ["Callback", "Callbacks", "EvaluationReport", "ModelNorm", "RoundReport"]
