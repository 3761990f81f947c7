"""Texts: 20 Newsgroups as in the papers, and any folder or csv of texts."""

import csv
import hashlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import torch
from torch import Tensor

from calibrant.checks import in_range, whole
from calibrant.data.dataset import DataSet
from calibrant.data.places import data_root, locate
from calibrant.data.texts import encode, learn_vocabulary, words
from calibrant.errors import MissingDataError

#: Fractions of the 19,997 articles that the papers hold out for validation and test.
VALIDATION, TEST = 900 / 19_997, 0.2
#: The "bydate" version on scikit-learn's mirror, and its SHA-256. scikit-learn's own fetcher would cache it as a pickle in
#: the data folder, and run whatever is there under that name.
ARCHIVE: Final = "https://ndownloader.figshare.com/files/5975967"
CHECKSUM: Final = "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610"
BY_DATE: Final = ("20news-bydate-train", "20news-bydate-test")


def newsgroups20(
    root: str | Path | None = None,
    *,
    validation: float = VALIDATION,
    test: float = TEST,
    seed: int = 0,
    vocabulary: int = 20_000,
    length: int = 1000,
    vectors: str | None = None,
    download: bool = False,
) -> DataSet:
    """20 Newsgroups without the articles' headers, split as in the papers: 15,098 / 900 / 3,999 of the 19,997 articles.

    The "bydate" version, of 18,846 articles, is split in the same proportions. The vocabulary is that of the training part;
    the released code builds it from all articles.

    Args:
        root: Data folder; the articles are in ``20_newsgroups/GROUP/*``, or ``20news-bydate-{train,test}/GROUP/*``.
        validation: Articles held out for validation, a number or a fraction.
        test: Articles held out for the test, a number or a fraction.
        seed: Seed of the split.
        vocabulary: Size of the vocabulary, including padding; 2,000 in MbLS.
        length: Words kept of an article, from its end.
        vectors: File of word vectors, such as ``glove.6B.100d.txt``; vectors are trained if not given.
        download: Download the "bydate" version if there is none.
    """
    folder = data_root(root)
    layouts = (("20_newsgroups",), BY_DATE, ("20news-18828",))
    found = next((names for names in layouts if all((folder / name).is_dir() for name in names)), None)
    if found is None and not download:
        raise MissingDataError(
            f"20 Newsgroups is not in {folder}: expected {folder / '20_newsgroups'} with a folder for each group and a file "
            "for each article; pass `data.download=True` to fetch it"
        )
    if found is None:
        _fetch(folder)
    parts = [_folder(folder / name, "latin-1") for name in found or BY_DATE]
    articles, labels = (list(chain.from_iterable(column)) for column in zip(*parts, strict=True))
    if not articles:
        raise MissingDataError(f"{folder / (found or BY_DATE)[0]} holds no articles: expected GROUP/ARTICLE there")
    bodies = [without_header(article) for article in articles]
    return from_texts(
        "newsgroups20",
        bodies,
        labels,
        validation=validation,
        test=test,
        seed=seed,
        vocabulary=vocabulary,
        length=length,
        vectors=find_vectors(vectors, root),
    )


def text_files(
    path: str | Path,
    root: str | Path | None = None,
    *,
    validation: float = 0.1,
    test: float = TEST,
    seed: int = 0,
    vocabulary: int = 20_000,
    length: int = 1000,
    vectors: str | None = None,
) -> DataSet:
    """Your own texts: a folder ``CLASS/*``, or a csv with the columns ``text`` and ``label``.

    Held-out texts are drawn at random, unless the folder is ``{train,validation,test}/CLASS/*``, or the csv has a column
    ``part`` with these words.

    Args:
        path: Folder or csv, as given or under ``root``.
        root: Data folder.
        validation: Texts held out for validation, a number or a fraction.
        test: Texts held out for the test, a number or a fraction.
        seed: Seed of the split.
        vocabulary: Size of the vocabulary, including padding.
        length: Words kept of a text, from its end.
        vectors: File of word vectors, such as ``glove.6B.100d.txt``; vectors are trained if not given.
    """
    found = locate(path, root)
    if found is None:
        raise MissingDataError(
            f"{path} does not exist, neither as given nor under {data_root(root)}: expected CLASS/TEXT files or a csv"
        )
    texts, labels, parts = read_texts(found)
    return from_texts(
        found.stem,
        texts,
        labels,
        validation=validation,
        test=test,
        seed=seed,
        vocabulary=vocabulary,
        length=length,
        vectors=find_vectors(vectors, root),
        parts=parts,
    )


def from_texts(
    name: str,
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    validation: float,
    test: float,
    seed: int,
    vocabulary: int,
    length: int,
    vectors: Path | None,
    parts: Sequence[str] = (),
) -> DataSet:
    """Split, learn the vocabulary from the training part, and encode."""
    whole("vocabulary", vocabulary, 2)
    whole("length", length, 1)
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise ValueError(f"texts of at least 2 classes are needed, but all {len(texts)} are of class {classes[0]!r}")
    number = {label: k for k, label in enumerate(classes)}
    y = torch.tensor([number[label] for label in labels])
    split = _split(len(texts), validation, test, seed, parts)
    documents = [words(text) for text in texts]
    known = learn_vocabulary((documents[i] for i in split["train"].tolist()), vocabulary)
    everything = encode(documents, known, y, length)
    learn, held, rest = (everything.subset(split[part]) for part in ("train", "validation", "test"))
    table = None if vectors is None else read_vectors(vectors, known)
    return DataSet(name, classes, learn, held, rest, split=split, vocabulary=known, vectors=table)


def _split(count: int, validation: float, test: float, seed: int, parts: Sequence[str]) -> dict[str, Tensor]:
    """Indices of the samples of each part: as given by ``parts``; the parts it does not name come from one shuffle."""
    in_range("validation", validation, 0)
    in_range("test", test, 0)
    given = {name: [i for i, part in enumerate(parts) if part == name] for name in ("train", "validation", "test")}
    pool = torch.tensor(given["train"] if parts else range(count), dtype=torch.int64)
    if not len(pool):
        raise ValueError("there are no texts to train on: none is of the part train")
    order = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))]
    split = {name: torch.tensor(own) for name, own in given.items() if name != "train" and own}
    for name, held in (("test", test), ("validation", validation)):  # in this order, as in the released code
        if name in split:
            continue
        number = round(held * len(pool)) if held < 1 else int(held)
        if not 0 < number < len(order):
            raise ValueError(f"cannot hold out {held} of {len(pool)} texts for {name}")
        split[name], order = order[:number].sort().values, order[number:]
    return {"train": order.sort().values, **split}


def without_header(article: str) -> str:
    """What follows the first blank line."""
    end = article.find("\n\n")
    return article[end:] if end > 0 else article


def find_vectors(path: str | None, root: str | Path | None) -> Path | None:
    """The file of word vectors, as given or under the root."""
    if path is None:
        return None
    found = locate(path, root) or locate(Path("glove") / path, root)
    if found is None:
        raise MissingDataError(
            f"the word vectors {path} are not in {data_root(root)}: expected {data_root(root) / path}, "
            "a word and its numbers on each line, as in glove.6B.zip of the GloVe project; pass "
            "`data.options.vectors=null` to train vectors instead"
        )
    return found


def read_vectors(path: Path, vocabulary: Sequence[str]) -> Tensor:
    """Vectors ``(len(vocabulary) + 1, dim)`` from GloVe's text format; zero for padding and words without one."""
    number = {word: i for i, word in enumerate(vocabulary, 1)}
    table: Tensor | None = None
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line_number, line in enumerate(lines, 1):
            word, _, rest = line.partition(" ")
            place = number.get(word)
            if place is None:
                continue
            values = rest.split()
            try:
                row = torch.tensor([float(value) for value in values])
            except ValueError as error:
                if table is not None and len(values) > table.shape[1]:
                    continue  # a word with a space in it, as in glove.840B.300d
                raise ValueError(f"{path}, line {line_number}: expected a word and numbers, got {line[:40]!r}") from error
            if table is None:
                table = torch.zeros(len(vocabulary) + 1, len(row))
            if len(row) != table.shape[1]:
                raise ValueError(
                    f"{path}, line {line_number}: {len(row)} numbers, but the lines before have {table.shape[1]}"
                )
            table[place] = row
    if table is None:
        raise ValueError(f"{path} has no vector for any of the {len(vocabulary):,} words; is it a file of word vectors?")
    return table


# Files


def read_texts(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Texts, classes and, if given, parts of a folder or csv."""
    if path.is_dir():
        names = [name for name in ("train", "validation", "val", "test") if (path / name).is_dir()]
        names = names if "train" in names else []
        trees = [_folder(path / name) for name in names] or [_folder(path)]
        texts, labels = (list(chain.from_iterable(column)) for column in zip(*trees, strict=True))
        called = ["validation" if name == "val" else name for name in names]
        parts = [name for name, (own, _) in zip(called, trees, strict=False) for _ in own]
    else:
        texts, labels, parts = _read_csv(path)
    if not texts:
        raise MissingDataError(f"{path} holds no texts: expected CLASS/TEXT files, or a csv with the columns text and label")
    return texts, labels, parts


def _folder(folder: Path, encoding: str | None = None) -> tuple[list[str], list[str]]:
    """Texts and classes of ``CLASS/*``; without an encoding, in UTF-8, or else latin-1."""
    files = [path for own in sorted(folder.iterdir()) if own.is_dir() for path in sorted(own.rglob("*")) if path.is_file()]
    return [_read(path, encoding) for path in files], [path.relative_to(folder).parts[0] for path in files]


def _read(path: Path, encoding: str | None) -> str:
    try:
        text = path.read_text(encoding or "utf-8")
    except UnicodeDecodeError:
        text = path.read_text("latin-1")
    if "\0" in text:
        raise ValueError(f"{path} is not a text file")
    return text


def _fetch(folder: Path) -> None:
    """Download the published archive, verify it and unpack it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".calibrant-") as temporary:
        archive = Path(temporary) / "20news-bydate.tar.gz"
        try:
            with urlopen(ARCHIVE, timeout=60) as source, archive.open("wb") as file:
                shutil.copyfileobj(source, file)
        except OSError as error:
            raise MissingDataError(f"20 Newsgroups could not be fetched from {ARCHIVE} into {folder} ({error})") from error
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != CHECKSUM:
            raise MissingDataError(f"the file at {ARCHIVE} is not 20 Newsgroups as published: its SHA-256 is {found}")
        with tarfile.open(archive) as packed:
            packed.extractall(temporary, filter="data")
        for name in BY_DATE:
            if not (folder / name).exists():
                (Path(temporary) / name).replace(folder / name)


def _read_csv(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Columns text, label and optionally part."""
    csv.field_size_limit(sys.maxsize)
    rows: list[tuple[str, str, str]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("text", "label") if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"{path} has no column {missing[0]!r}; it has {', '.join(reader.fieldnames or ())}")
            for row in reader:
                if None in row:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: more fields than the header has; quote texts that contain commas"
                    )
                if row["text"] is None or not row["label"]:
                    lost = "text" if row["text"] is None else "label"
                    raise ValueError(f"{path}, line {reader.line_num}: the row has no {lost}")
                rows.append((row["text"], row["label"], row.get("part") or ""))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a csv in UTF-8 ({error})") from error
    parts = [part for _, _, part in rows]
    strange = set(parts) - {"train", "validation", "test"}
    if any(parts) and strange:
        raise ValueError(f"{path}: part must be train, validation or test, got {min(strange)!r}")
    return [text for text, _, _ in rows], [label for _, label, _ in rows], parts if any(parts) else []
