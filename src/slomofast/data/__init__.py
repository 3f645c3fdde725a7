"""Data sets: official layouts, clean images corrupted on the fly, and letters made by code."""

from slomofast.data.catalog import Catalog, DataSet
from slomofast.data.corrupted import CorruptedImages
from slomofast.data.home import data_home
from slomofast.data.open import DataInfo, check_data, list_data, open_data
from slomofast.data.pack import Arrays, write_pack

__all__ = [
    "Arrays",
    "Catalog",
    "CorruptedImages",
    "DataInfo",
    "DataSet",
    "check_data",
    "data_home",
    "list_data",
    "open_data",
    "write_pack",
]
