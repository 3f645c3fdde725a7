"""Source networks: built by name, filled with published weights, normalised inside."""

from slomofast.models.load import load_source
from slomofast.models.normalise import NORMALISATIONS, NormalisationReport, Normalised, check_normalisation
from slomofast.models.registry import ModelInfo, describe_model, list_models
from slomofast.models.weights import model_fingerprint, read_weights, save_weights

__all__ = [
    "NORMALISATIONS",
    "ModelInfo",
    "NormalisationReport",
    "Normalised",
    "check_normalisation",
    "describe_model",
    "list_models",
    "load_source",
    "model_fingerprint",
    "read_weights",
    "save_weights",
]
