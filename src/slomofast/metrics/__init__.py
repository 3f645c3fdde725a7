"""Metrics: what a run's steps say about a method."""

from slomofast.metrics.curve import Curve
from slomofast.metrics.step import Step

__all__ = ["Curve", "Step"]
