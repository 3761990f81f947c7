"""Docstrings of the reference, in Markdown."""

from typing import Any

import griffe

from roles import markdown


class Markdown(griffe.Extension):
    """Turns roles into links, and marks formulas as such."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
