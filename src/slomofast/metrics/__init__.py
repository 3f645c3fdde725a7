"""Metrics: what a run's steps say about a method.

`Curve` keeps the raw figures of every step; `summarise` computes all metrics from it. The `Metric` objects do the same
step by step for those who write their own loop.
"""

from slomofast.metrics.base import Metric, list_metrics, make_metric
from slomofast.metrics.curve import Curve
from slomofast.metrics.forgetting import ForgettingProbe, forgetting
from slomofast.metrics.online import (
    AdaptationRate,
    ByCycle,
    ByDomain,
    ByGroup,
    CalibrationError,
    ErrorRate,
    NegativeLogLikelihood,
    OverTime,
    PeakMemory,
    Recovery,
    StepTime,
)
from slomofast.metrics.statistics import Difference, Spread, bootstrap_interval, paired_difference, spread
from slomofast.metrics.step import Step
from slomofast.metrics.summary import moving_error, score, summarise

__all__ = [
    "AdaptationRate",
    "ByCycle",
    "ByDomain",
    "ByGroup",
    "CalibrationError",
    "Curve",
    "Difference",
    "ErrorRate",
    "ForgettingProbe",
    "Metric",
    "NegativeLogLikelihood",
    "OverTime",
    "PeakMemory",
    "Recovery",
    "Spread",
    "Step",
    "StepTime",
    "bootstrap_interval",
    "forgetting",
    "list_metrics",
    "make_metric",
    "moving_error",
    "paired_difference",
    "score",
    "spread",
    "summarise",
]
