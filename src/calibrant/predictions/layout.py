"""What the columns of a table are: scores of classes, labels, and anything else."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from calibrant.errors import InputError, did_you_mean
from calibrant.predictions.labels import LABELS, plain

Kind = Literal["logits", "probs"]
#: What a column holds: numbers, integers that count the rows, lists of numbers, numbers and text, or anything else.
Content = Literal["numbers", "counter", "lists", "mixed", "other"]

#: Prefixes and suffixes of the names of scores; None stands for scores of either kind.
STEMS: dict[str, Kind | None] = {
    r"log[ _.-]?its?|log[ _.-]?p(?:rob(?:s|a|abilit(?:y|ies))?)?|log[ _.-]?softmax": "logits",
    r"p(?:rob(?:s|a|abilit(?:y|ies))?)?|softmax": "probs",
    r"scores?|outputs?": None,
}
BETWEEN = r"[ _.:\-]+"
#: Names of numbers that are not scores, in the form of :func:`calibrant.predictions.labels.plain`.
BESIDE = {
    *("", "index", "level0", "id", "ids", "idx", "row", "rowid", "rowindex", "sampleid", "imageid", "uid"),
    *("prediction", "predictions", "pred", "preds", "predicted", "predictedlabel", "predictedclass", "predlabel"),
    *("predclass", "ypred", "yhat", "correct", "iscorrect", "confidence", "conf", "loss", "weight", "fold", "epoch"),
}
UNNAMED = re.compile(r"unnamed:? ?\d+(_level_\d+)?|__index_level_\d+__", re.IGNORECASE)


class Part(NamedTuple):
    """The parts of a column's name.

    Attributes:
        family: What it has in common with the columns of the other classes.
        kind: The kind of score, if the name says.
        name: Name of the class; empty if the column's name is only about the kind.
    """

    family: str
    kind: Kind | None
    name: str


@dataclass(frozen=True)
class Layout:
    """How a table's columns were understood.

    Attributes:
        scores: Columns of scores, one for each class; or a single one, of lists or of the positive class.
        classes: Names of the classes; None if a column holds lists.
        kind: Kind of the scores, if their names say.
        label: The column of labels, if there is one.
        aside: Columns that are neither.
    """

    scores: list[str]
    classes: list[str] | None
    kind: Kind | None
    label: str | None
    aside: list[str]


def clean(column: str) -> str:
    """A name without surrounding blanks, and without the mark that numpy.savetxt puts before a header."""
    return column.strip().removeprefix("# ")


def take_apart(column: str) -> Part | None:
    """What a column's name says if it is named like a score, such as prob_cat, cat_prob, p0, P(cat) or logits."""
    for stem, kind in STEMS.items():
        before = re.fullmatch(rf"({stem})(?:{BETWEEN}(.+)|(\d+)|\((.+)\))?", clean(column), re.IGNORECASE)
        if before:
            name = next((found for found in before.groups()[1:] if found is not None), "")
            return Part(plain(before[1]) + ("_" if name else ""), kind, name)
        after = re.fullmatch(rf"(.+?){BETWEEN}({stem})", clean(column), re.IGNORECASE)
        if after:
            return Part("_" + plain(after[2]), kind, after[1])
    return None


def find_label(where: str, columns: Sequence[str], label: str | None, what: str) -> str | None:
    """The column or array of labels: the given one, or the only one with a usual name."""
    if label is not None:
        if label not in columns:
            raise InputError(
                f"{where} has no {what} {label!r}; it has {listed_names(columns)}{did_you_mean(label, columns)}"
            )
        return label
    usual = [name for name in columns if plain(name) in LABELS]
    if len(usual) > 1:
        raise InputError(f"{where}: the labels may be in {' or '.join(usual)}; choose one with `label`")
    return usual[0] if usual else None


def understand(
    where: str,
    contents: Mapping[str, Content],
    *,
    kind: Kind | None,
    columns: Sequence[str] | None,
    label: str | None,
    index: Sequence[str] = (),
) -> Layout:
    """Decide what each column is, or refuse and name the argument that resolves it.

    Args:
        where: The file, for messages.
        contents: What each column holds, in order.
        kind: What the user says the scores are.
        columns: Columns of scores given by the user, or shell patterns of their names.
        label: The column of labels given by the user.
        index: Columns known to number or name the rows.
    """
    if columns is not None and label is None:
        named = set(columns)
        label = find_label(where, [name for name in contents if name not in named], None, "column")
    else:
        label = find_label(where, list(contents), label, "column")
    others = [name for name in contents if name != label]
    if columns is not None:
        chosen = _named(where, columns, others)
    else:
        chosen = _found(where, {name: contents[name] for name in others if name not in index}, kind)
    for name in chosen:
        if contents[name] == "other":
            raise InputError(
                f"{where}: column {name!r} must hold numbers; if it is the label, pass `label={name}`, "
                "or name the columns of scores with `columns`"
            )
    lists = len(chosen) == 1 and contents[chosen[0]] == "lists"
    if not lists and any(contents[name] == "lists" for name in chosen):
        raise InputError(f"{where}: `columns` must name a column for each class, or one that holds lists")
    parts, taken = _parts(chosen), set(chosen)
    repeated = first_repeated([part.name for part in parts])
    if repeated is not None:
        raise InputError(f"{where} has two columns of class {repeated!r}; name the right ones with `columns`")
    return Layout(
        chosen,
        None if lists else [part.name for part in parts],
        parts[0].kind,
        label,
        [name for name in others if name not in taken],
    )


def _parts(columns: Sequence[str]) -> list[Part]:
    """Names of classes from those of their columns: without the common part, if that is usual or leaves numbers."""
    parts = [take_apart(name) for name in columns]
    known = [part for part in parts if part is not None]
    if len(known) == len(columns) and len({part.family for part in known}) == 1:
        return known
    numbered = [re.fullmatch(r"(.*?)(\d+)", clean(name)) for name in columns]
    found = [match for match in numbered if match]
    if len(found) == len(columns) and len({match[1] for match in found}) == 1:
        return [Part(match[1], None, match[2]) for match in found]
    return [Part("", None, clean(name)) for name in columns]


def _named(where: str, columns: Sequence[str], others: Sequence[str]) -> list[str]:
    found: list[str] = []
    known = set(others)
    for wanted in columns:
        own = [wanted] if wanted in known else [name for name in others if fnmatchcase(name, wanted)]
        if not own:
            raise InputError(
                f"{where} has no column {wanted!r} besides the label; it has {listed_names(others)}"
                f"{did_you_mean(wanted, others)}"
            )
        found += own
    repeated = first_repeated(found)
    if repeated is not None:
        raise InputError(f"{where}: `columns` names {repeated!r} twice")
    return found


def _found(where: str, contents: Mapping[str, Content], kind: Kind | None) -> list[str]:
    """Columns of scores: those with a usual name; if there are none, all other columns of numbers."""
    families: dict[str, list[str]] = {}
    for name, content in contents.items():
        part = take_apart(name)
        if part is not None and (content != "lists" or not part.name):
            families.setdefault(f"{name}[]" if content == "lists" else part.family, []).append(name)
    usual = {name for own in families.values() for name in own}
    several = [own for key, own in families.items() if len(own) > 1 or key.endswith("[]")]
    single = [own for own in families.values() if own not in several and contents[own[0]] == "numbers"]
    rest = [] if several else _rest(where, contents, usual)
    lists = [name for name, content in contents.items() if content == "lists"]
    choices = (
        [own for own in several if _kind(own) is not None],
        several,
        [*single, rest] if single and len(rest) > 1 else single,
        [rest] if rest else [],
        [lists] if len(lists) == 1 else [],
    )
    for options in choices:
        told = [own for own in options if kind is None or _kind(own) in (kind, None)] or options
        if len(told) > 1:
            both = {"logits", "probs"} <= {*map(_kind, told)}
            more = ', or give their kind with `kind="logits"` or `kind="probs"`' if both else ""
            listed = " or in ".join(listed_names(own, 4) for own in told)
            raise InputError(f"{where}: the scores may be in {listed}; name their columns with `columns`{more}")
        if told:
            return told[0]
    raise InputError(
        f"{where} has no columns of scores, one for each class such as prob_cat or logit_cat; it has "
        f"{listed_names(list(contents)) or 'none'}; name them with `columns`"
    )


def _kind(columns: Sequence[str]) -> Kind | None:
    return _parts(columns)[0].kind


def _rest(where: str, contents: Mapping[str, Content], named: set[str]) -> list[str]:
    """Columns of numbers without usual names; if some are named by numbers only, those."""
    beside = {name for name in contents if plain(name) in BESIDE or UNNAMED.fullmatch(name)}
    rest = [
        name
        for name, content in contents.items()
        if content in ("numbers", "mixed") and name not in named and name not in beside
    ]
    numbered = [name for name in rest if name.strip().isdigit()]
    rest = numbered if len(numbered) > 1 else rest
    mixed = next((name for name in rest if contents[name] == "mixed"), None)
    if mixed is not None and not named:
        raise InputError(
            f"{where}: column {mixed!r} holds numbers and text; repair it, or name the columns of scores with `columns`"
        )
    return [name for name in rest if contents[name] == "numbers"]


def listed_names(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence, without the middle of a long list."""
    shown = [name or "(unnamed)" for name in names]
    return ", ".join(shown) if len(shown) <= most else f"{', '.join(shown[: most - 1])}, ..., {shown[-1]}"


def first_repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs twice, None if all differ."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]
