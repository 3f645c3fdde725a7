"""The fifteen common corruptions and their four validation companions, batched and reproducible per image."""

from slomofast.corruptions._registry import (
    CANONICAL,
    EXTRA,
    GROUPS,
    Corruption,
    describe_corruption,
    list_corruptions,
)
from slomofast.corruptions.engine import corrupt
from slomofast.corruptions.rng import SampleRng

__all__ = [
    "CANONICAL",
    "EXTRA",
    "GROUPS",
    "Corruption",
    "SampleRng",
    "corrupt",
    "describe_corruption",
    "list_corruptions",
]
