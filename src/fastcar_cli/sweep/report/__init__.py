"""The HTML report of a sweep: one file with data, videos, style and code in it."""

from fastcar_cli.sweep.report.build import write_report
from fastcar_cli.sweep.report.tokens import write_tokens_page

__all__ = ["write_report", "write_tokens_page"]
