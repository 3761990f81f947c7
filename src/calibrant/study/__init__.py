"""Studies: methods x options x seeds, each cell a run folder, and the tables that come out."""

from calibrant.study.execute import State, epochs_done, execute
from calibrant.study.grid import Cell, cells, parse_options
from calibrant.study.table import (
    COSTLY,
    USUAL,
    Summary,
    summarise,
    table_csv,
    table_latex,
    table_markdown,
    table_rich,
)

__all__ = [
    "COSTLY",
    "USUAL",
    "Cell",
    "State",
    "Summary",
    "cells",
    "epochs_done",
    "execute",
    "parse_options",
    "summarise",
    "table_csv",
    "table_latex",
    "table_markdown",
    "table_rich",
]
