"""Reports from stored records: tables beside the published numbers, and one page that works offline.

>>> from slomofast.report import build_report
>>> page = build_report("runs", "report")  # doctest: +SKIP
"""

from slomofast.report.build import build_report
from slomofast.report.records import read_store

__all__ = ["build_report", "read_store"]
