"""Self-contained HTML pages."""

from calibrant.report.audit import write_audit

__all__ = ["write_audit"]
