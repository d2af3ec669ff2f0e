"""The HTML report of a sweep: one file with data, videos, style and code in it."""

from fastcar_cli.analysis.report.build import write_report

__all__ = ["write_report"]
