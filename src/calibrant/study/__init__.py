"""Studies: methods x seeds, each cell a run folder, and the table that comes out."""

from calibrant.study.grid import Cell, cells
from calibrant.study.table import Summary, summarise, table_csv, table_markdown, table_rich

__all__ = ["Cell", "Summary", "cells", "summarise", "table_csv", "table_markdown", "table_rich"]
