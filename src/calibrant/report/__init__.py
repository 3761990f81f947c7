"""Self-contained HTML pages."""

from calibrant.report.page import collect, write_report

__all__ = ["collect", "write_report"]
