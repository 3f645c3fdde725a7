"""Continual test-time adaptation: a deployed classifier that keeps learning while it predicts."""

__version__ = "0.1.0"
