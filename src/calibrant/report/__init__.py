"""Self-contained HTML pages."""

from calibrant.report.page import Report, write_report

__all__ = ["Report", "write_report"]
