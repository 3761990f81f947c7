"""Which class each label of a file stands for: one rule for all formats, decided once from all labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrant.errors import InputError, did_you_mean

Meaning = Literal["names", "numbers"]

#: Usual names of labels, in lower case, letters and digits only.
LABELS = {
    *("target", "targets", "label", "labels", "y", "ytrue", "true", "truth", "truelabel", "truelabels", "trueclass"),
    *("class", "classlabel", "classid", "labelid", "targetid", "gt", "groundtruth", "gold", "goldlabel"),
    *("actual", "actuallabel", "actualclass", "category"),
}


#: What to do about labels that count from 1.
FROM_ONE = "labels seem to count from 1: subtract 1, or name the classes after them, such as columns prob_1, prob_2"


def plain(name: str) -> str:
    """A name without case, blanks and punctuation, which people write differently."""
    return "".join(c for c in name.lower() if c.isalnum())


def text_of(value: Any) -> str | None:
    """A label as text, the same whether it was written 3, 3.0, "3" or " 3"; None for anything that is not a label."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if not isinstance(value, str) and not np.isscalar(value):
        return None
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.capitalize()
    number = as_number(text)
    return str(int(number)) if number is not None and number.is_integer() and abs(number) < 2**53 else text


def as_number(text: str) -> float | None:
    """A text as a number, None if it is not one."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Labels:
    """Which class each label stands for.

    Attributes:
        numbers: Class index by the label's text; ignored labels stand for themselves.
        meaning: How they were understood, in words; empty if there is only one way.
        classes: Names of two classes that share a single score, which only the labels reveal.
    """

    numbers: dict[str, int]
    meaning: str = ""
    classes: list[str] | None = None


@dataclass(frozen=True)
class LabelReader:
    """What is known about the labels before they are read.

    Attributes:
        where: The file, for messages.
        num_classes: Number of classes K.
        classes: Their names, if they have any.
        ignore_index: The label of samples to ignore.
        labels_are: Whether they are names or indices of classes, if the user said so.
        positive: The label of the second of two classes, if the user said so.
        score: Name of the single score of two classes; None if every class has one.
    """

    where: str
    num_classes: int
    classes: Sequence[str] | None
    ignore_index: int
    labels_are: Meaning | None = None
    positive: str | None = None
    score: str | None = None

    @property
    def most(self) -> int:
        """Number of distinct labels beyond which they are clearly something else."""
        return 2 * self.num_classes + 1000

    def decide(self, seen: Mapping[str, int]) -> Labels:
        """Decide which class each label stands for, from all labels, each with the first row that has it.

        Labels are class names if all of them are names of classes, and class indices, counted from 0, if all of them are
        such indices. If both hold and differ, as for classes 1, 2, 3 and labels 1, 2, the user has to decide; except that
        for classes named 0 to K - 1, in any order, labels are names.
        """
        ignored = {text: self.ignore_index for text in seen if text == str(self.ignore_index)}
        kept = {text: row for text, row in seen.items() if text not in ignored}
        if len(kept) > self.most:
            raise InputError(
                f"{self.where} has more than {self.most} different labels for {self.num_classes} classes; if the labels are "
                "elsewhere, pass `label` with their name"
            )
        found = self._two(kept) if self.score is not None or self.positive is not None else self._of_classes(kept)
        return Labels(found.numbers | ignored, found.meaning, found.classes)

    def _of_classes(self, kept: Mapping[str, int]) -> Labels:
        if self.labels_are == "names" and not self.classes:
            raise InputError(f"{self.where} has no class names, so its labels are class indices")
        names = self._by_name(kept)
        numbers = {text: number for text in kept if (number := self._as_class(text)) is not None}
        if self.labels_are is None and len(names) == len(numbers) == len(kept) and names != numbers and not self._digits:
            example = next(text for text in kept if names[text] != numbers[text])
            raise InputError(
                f"{self.where}: a label such as {example} may be the name of a class or its number, counted from 0; pass "
                '`labels_are="names"` or `labels_are="numbers"`'
            )
        if self.labels_are != "numbers" and len(names) == len(kept) and self.classes:
            in_order = self._digits and list(self.classes) == [str(k) for k in range(self.num_classes)]
            return Labels(names, "" if in_order else "class names")
        if self.labels_are != "names" and len(numbers) == len(kept):
            return Labels(numbers, "class numbers, counted from 0" if self.classes else "")
        raise self._refusal(kept, names, numbers)

    @property
    def _digits(self) -> bool:
        """Whether the classes are called 0 to K - 1, in any order."""
        return {text_of(name) for name in self.classes or []} == {str(k) for k in range(self.num_classes)}

    def _by_name(self, kept: Mapping[str, int]) -> dict[str, int]:
        known = {name.strip(): k for k, name in enumerate(self.classes or [])}
        alike = {text_of(name): k for k, name in enumerate(self.classes or [])}
        if len(alike) == len(known):  # otherwise some differ only in spelling, such as 1 and 01
            known = {str(text): k for text, k in alike.items()} | known
        if self._digits and self.num_classes == 2:
            known |= {"False": known["0"], "True": known["1"]}
        return {text: known[text] for text in kept if text in known}

    def _as_class(self, text: str) -> int | None:
        """A text as a class index; of two classes, True is the second."""
        if self.num_classes == 2 and text in ("False", "True"):
            return int(text == "True")
        number = as_number(text)
        fits = number is not None and number.is_integer() and 0 <= number < self.num_classes
        return int(number) if number is not None and fits else None

    def _refusal(self, kept: Mapping[str, int], names: Mapping[str, int], numbers: Mapping[str, int]) -> InputError:
        """An error about the first label that the best-fitting rule does not explain."""
        by_name = self.labels_are == "names" or (self.labels_are is None and any(as_number(text) is None for text in kept))
        unknown = [text for text in kept if text not in (names if by_name else numbers)]
        text = min(unknown, key=lambda text: kept[text])
        row, number = kept[text], as_number(text)
        if by_name or number is None:
            known = ", ".join(list(self.classes or [])[:5]) + (", ..." if len(self.classes or []) > 5 else "")
            close = did_you_mean(text, self.classes or [])
            two = self.num_classes == 2 and len(kept) == 2
            cure = "; if it is the label of the second class, pass `positive=" + text + "`" if two and not close else close
            classes = known or f"0, ..., {self.num_classes - 1}"
            return InputError(f"{self.where}, row {row}: label {text!r} is not one of the classes {classes}{cure}")
        if not number.is_integer():
            return InputError(f"{self.where}, row {row}: has a label that is not an integer: {text}")
        from_one = {as_number(other) for other in kept} <= {*range(1, self.num_classes + 1)}
        cure = FROM_ONE if from_one else f"if it marks samples to ignore, pass `ignore_index={text}`"
        return InputError(
            f"{self.where}, row {row}: has label {text}, but there are {self.num_classes} classes "
            f"(0..{self.num_classes - 1}); {cure}"
        )

    def _two(self, kept: Mapping[str, int]) -> Labels:
        """Two classes, of which the second is positive."""
        shown = ", ".join(map(repr, list(kept)[:4])) + (", ..." if len(kept) > 4 else "")
        if self.num_classes != 2:
            raise InputError(f"{self.where}: `positive` applies to two classes, but there are {self.num_classes}")
        if len(kept) > 2:
            raise InputError(
                f"{self.where}: a single score is for two classes, but the labels are {shown}; "
                "give every class a score, or name the label to ignore with `ignore_index`"
            )
        positive = text_of(self.positive) if self.positive is not None else self._usual_positive(kept)
        if positive is None:
            raise InputError(
                f"{self.where}: it is unclear which of the labels {shown} the score is for; "
                "pass " + " or ".join(f"`positive={text}`" for text in sorted(kept)[:2])
            )
        if self.score is None and positive in {text_of(name) for name in self.classes or []} - {"0", "1"}:
            raise InputError(f"{self.where}: `positive` is only for classes without names, but these columns have them")
        if positive not in kept and len(kept) == 2:
            raise InputError(f"{self.where}: `positive` is {positive!r}, but the labels are {shown}")
        other = next(
            (text for text in kept if text != positive), {"1": "0", "True": "False"}.get(positive, f"not {positive}")
        )
        numbers = {text: int(text == positive) for text in kept}
        return Labels(numbers, f"{positive} is positive, {other} negative", [other, positive])

    def _usual_positive(self, kept: Mapping[str, int]) -> str | None:
        """The positive label if the score is named after it, or by convention: 1, or True."""
        named = text_of(self.score or "")
        if named in kept:
            return named
        for pair in (("0", "1"), ("False", "True"), ("-1", "1")):
            if set(kept) <= set(pair):
                return pair[1]
        return None
