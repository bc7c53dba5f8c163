"""HTML reports of runs, with plots."""

from lightning_pac.report.page import page_environment, summarize, write_report
from lightning_pac.report.runs import Run, Series, find_runs, left_out

__all__ = ["Run", "Series", "find_runs", "left_out", "page_environment", "summarize", "write_report"]
