"""Formulas as MathML, which browsers render by themselves."""

import re
from typing import Final

import latex2mathml.converter

#: Letters of a word that was set upright, such as ``\mathrm{softmax}``.
LETTERS: Final = re.compile(r'(?:<mi mathvariant="normal">\w</mi>){2,}')
#: Functions written as words, which need a thin space where no bracket or sign stands beside them.
WORD: Final = re.compile(r"(?P<before></(?:mi|mn|msub|msup|mfrac|mrow)>)?<mi>(?P<word>\w{2,})</mi>(?P<after><(?!mo|/))?")
SPACE: Final = '<mspace width="0.167em" />'


class FormulaError(ValueError):
    """A formula has something that cannot be rendered."""


def mathml(text: str, display: str) -> str:
    """A formula in LaTeX, as MathML.

    Args:
        text: The formula; lines of an ``aligned`` environment are aligned at ``&``.
        display: ``"block"`` or ``"inline"``.

    Raises:
        FormulaError: If something in it is not known.
    """
    text = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", text)
    try:
        found: str = latex2mathml.converter.convert(text, display=display)
    except Exception as error:
        raise FormulaError(repr(error)) from error
    if "<mi>&</mi>" in found or "\\" in found:
        raise FormulaError("it has a command or an & that is not rendered")
    found = LETTERS.sub(lambda match: f"<mi>{re.sub('<[^>]*>', '', match[0])}</mi>", found)
    found = WORD.sub(_spaced, found)
    # Browsers align columns by style sheets only. A cell that begins with an empty mi is what follows an &.
    found = found.replace('columnalign="right"', 'style="text-align: right; padding-right: 0"')
    found = found.replace('columnalign="left"><mi />', 'style="text-align: left; padding-left: 0"><mi />')
    return found.replace('columnalign="left"', 'style="text-align: left"')


def _spaced(match: re.Match[str]) -> str:
    before, after = (f"{match['before']}{SPACE}" if match["before"] else ""), match["after"]
    return f"{before}<mi>{match['word']}</mi>{f'{SPACE}{after}' if after else ''}"
