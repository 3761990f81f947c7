"""Audits of predictions: measures with confidence intervals, as tables, text and figures."""

from calibrant.audit.measuring import audit, compare, short_names
from calibrant.audit.model_card import card
from calibrant.audit.record import Audit, PairedComparison
from calibrant.audit.tables import figure, tables

__all__ = ["Audit", "PairedComparison", "audit", "card", "compare", "figure", "short_names", "tables"]
