"""Texts: split, words, vectors and padding, against loops that follow the papers' code."""

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

import trees
from calibrant import data, models
from calibrant.data import Feed, MissingDataError, Texts, newsgroups, texts

#: What Keras' Tokenizer takes out of texts by default, written down from its documentation.
KERAS_FILTERS = set('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n')  # fmt: skip


def keras_words(text: str) -> list[str]:
    """Letter by letter."""
    found, word = [], ""
    for letter in text.lower() + " ":
        if letter == " " or letter in KERAS_FILTERS:
            found += [word] if word else []
            word = ""
        else:
            word += letter
    return found


def keras_sequences(learn: Sequence[str], apply: Sequence[str], num_words: int, maxlen: int) -> list[list[int]]:
    """fit_on_texts, texts_to_sequences and the cut of pad_sequences."""
    counts: dict[str, int] = {}
    for text in learn:
        for word in keras_words(text):
            counts[word] = counts.get(word, 0) + 1
    index = {word: i for i, word in enumerate(sorted(counts, key=lambda word: -counts[word]), 1)}
    found = []
    for text in apply:
        numbers = [index[word] for word in keras_words(text) if word in index]
        kept = [number for number in numbers if number < num_words]
        found.append(kept[max(0, len(kept) - maxlen) :])
    return found


def listed(part: Texts) -> list[list[int]]:
    return [part.tokens[a:b].tolist() for a, b in zip(part.starts[:-1].tolist(), part.starts[1:].tolist(), strict=True)]


def make(bodies: Sequence[str], labels: Sequence[str], **options) -> data.DataSet:
    common = {"validation": 0.1, "test": 0.2, "seed": 0, "vocabulary": 100, "length": 50, "vectors": None}
    return newsgroups.from_texts("mine", bodies, labels, **{**common, **options})


# Split


def published(path: Path, train: int = 300, test: int = 200) -> str:
    """An archive like the published one; its checksum."""
    with tarfile.open(path, "w:gz") as archive:
        for part, count in (("train", train), ("test", test)):
            for i in range(count):
                content = f"Subject: {part}head\n\n{part} body{i % 20} w{i}".encode("latin-1")
                entry = tarfile.TarInfo(f"20news-bydate-{part}/group {i % 20:02}/{i}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_all_articles_are_split_as_in_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """19,997 articles: those of one group are three short of a thousand."""
    (tmp_path / "20_newsgroups").mkdir()
    groups = [k for k in range(20) for _ in range(1000 if k != 15 else 997)]
    files = [f"Subject: s\n\nbody{k}" for k in groups], [f"group.{k:02}" for k in groups]
    monkeypatch.setattr(newsgroups, "_folder", lambda *_: files)  # writing so many takes a minute on a busy disk
    found = data.create("newsgroups20", root=tmp_path, vocabulary=100)
    parts = [found.train, found.validation, found.test]
    assert [len(part) for part in parts] == [15_098, 900, 3_999]
    assert list(found.classes) == [f"group.{k:02}" for k in range(20)]
    words = ["padding", *found.vocabulary]
    for part in parts:  # labels stay with their texts
        assert [words[t] for t in part.tokens.tolist()] == [f"body{k}" for k in part.y.tolist()]
    assert torch.bincount(torch.cat([part.y for part in parts])).tolist() == [1000] * 15 + [997] + [1000] * 4


def test_articles_are_fetched_once_and_split_in_the_same_proportions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = published(tmp_path / "published.tar.gz")
    monkeypatch.setattr(newsgroups, "ARCHIVE", (tmp_path / "published.tar.gz").as_uri())
    monkeypatch.setattr(newsgroups, "CHECKSUM", checksum)
    root = tmp_path / "data"
    found = data.create("newsgroups20", root=root, download=True, vocabulary=20_000)
    assert [len(part) for part in (found.train, found.validation, found.test)] == [377, 23, 100]
    assert found.num_classes == 20
    assert {"train", "test", "body3"} < set(found.vocabulary)
    assert not {"trainhead", "testhead", "subject"} & set(found.vocabulary)
    words = ["padding", *found.vocabulary]
    for text, k in zip(listed(found.test), found.test.y.tolist(), strict=True):
        assert f"body{int(found.classes[k].removeprefix('group '))}" in [words[t] for t in text]
    assert sorted(path.name for path in root.iterdir()) == ["20news-bydate-test", "20news-bydate-train"]
    (tmp_path / "published.tar.gz").unlink()
    assert data.create("newsgroups20", root=root).test.checksum() == found.test.checksum()


def test_what_cannot_be_fetched_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path / "published.tar.gz")
    monkeypatch.setattr(newsgroups, "ARCHIVE", (tmp_path / "published.tar.gz").as_uri())
    with pytest.raises(MissingDataError, match="is not 20 Newsgroups as published: its SHA-256 is"):
        data.newsgroups20(tmp_path / "data", download=True)
    monkeypatch.setattr(newsgroups, "ARCHIVE", (tmp_path / "nowhere.tar.gz").as_uri())
    with pytest.raises(MissingDataError, match=r"20 Newsgroups could not be fetched from .* into .* \(.*No such file"):
        data.newsgroups20(tmp_path / "data", download=True)
    assert not list((tmp_path / "data").iterdir())


def test_splits_follow_the_seed_and_share_nothing() -> None:
    splits = [newsgroups._split(200, 0.1, 0.25, seed, ()) for seed in (3, 3, 4)]
    for split in splits:
        assert [len(split[part]) for part in ("train", "validation", "test")] == [130, 20, 50]
        assert sorted(i for own in split.values() for i in own.tolist()) == list(range(200))
    assert all(torch.equal(splits[0][part], splits[1][part]) for part in splits[0])
    assert not torch.equal(splits[0]["test"], splits[2]["test"])
    numbers = newsgroups._split(200, 20, 50, 3, ())
    assert all(torch.equal(numbers[part], splits[0][part]) for part in numbers)
    with pytest.raises(ValueError, match="cannot hold out 0.99 of 20 texts for validation"):
        newsgroups._split(20, 0.99, 0.5, 0, ())
    with pytest.raises(ValueError, match="validation must be at least 0"):
        newsgroups._split(20, -0.1, 0.5, 0, ())


def test_what_is_held_out_does_not_depend_on_the_seed_of_anything_else() -> None:
    """The test part is drawn first: holding out more for validation leaves it as it is."""
    few, many = (newsgroups._split(100, held, 0.2, 1, ())["test"] for held in (0.05, 0.4))
    assert torch.equal(few, many)


# Words


@pytest.mark.parametrize(
    ("article", "body"),
    [
        ("From: a\nSubject: b\n\nOne.\n\nTwo.", "\n\nOne.\n\nTwo."),
        ("no header here\njust text", "no header here\njust text"),
        ("\n\nstarts with a blank line", "\n\nstarts with a blank line"),
        ("From: a\n\n", "\n\n"),
    ],
)
def test_the_header_ends_at_the_first_blank_line(article: str, body: str) -> None:
    assert newsgroups.without_header(article) == body


def test_windows_line_ends_are_line_ends(tmp_path: Path) -> None:
    trees.newsgroups(tmp_path, 2, 5)
    for path in (tmp_path / "20_newsgroups").rglob("1*"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    found = data.newsgroups20(tmp_path, validation=1)
    assert not {"from", "subject", "heading0", "example"} & set(found.vocabulary)


letters = st.text(alphabet="aAbB'é\u0130ÉΣß09 \t\n" + "".join(sorted(KERAS_FILTERS)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    learn=st.lists(letters, min_size=1, max_size=6),
    others=st.lists(letters, max_size=4),
    size=st.integers(2, 12),
    length=st.integers(1, 9),
)
def test_words_are_numbered_as_by_keras(learn: list[str], others: list[str], size: int, length: int) -> None:
    everything = [*learn, *others]
    documents = [texts.words(text) for text in everything]
    known = texts.learn_vocabulary(documents[: len(learn)], size)
    assert len(known) <= size - 1
    found = texts.encode(documents, known, torch.zeros(len(everything), dtype=torch.int64), length)
    assert listed(found) == keras_sequences(learn, everything, size, length)
    assert found.length == length


def test_words_by_hand() -> None:
    text = "Don't PANIC: 42_times -- don't [panic]!\tÉté\n"
    assert texts.words(text) == ["don't", "panic", "42", "times", "don't", "panic", "été"]
    assert texts.learn_vocabulary([texts.words(text), ["x", "panic"]], 4) == ["panic", "don't", "42"]
    assert texts.words("form\x0cfeed, hard\xa0space") == ["form", "feed", "hard", "space"]  # where Keras sees two words


def test_the_vocabulary_is_that_of_the_training_part() -> None:
    bodies = ["apple apple pear", "pear apple plum", "kiwi kiwi kiwi kiwi pear", "fig fig fig apple"]
    found = make(bodies, list("abab"), parts=["train", "train", "validation", "test"], vocabulary=3)
    assert found.vocabulary == ["apple", "pear"]
    assert listed(found.train) == [[1, 1, 2], [2, 1]]
    assert listed(found.validation) == [[2]]
    assert listed(found.test) == [[1]]
    assert found.facts == {"vocabulary": 3}
    assert models.create("gpool-cnn", 2, **found.facts).embedding.weight.shape == (3, 100)


def test_texts_without_a_known_word_are_padding() -> None:
    found = make(["apple", "apple", "kiwi", "..."], list("abab"), parts=["train", "train", "validation", "test"])
    assert found.train.lengths.tolist() == [1, 1]
    for part in (found.validation, found.test):
        assert part.lengths.tolist() == [0]
        assert not part.padded(torch.tensor([0]), padding=21).any()
    assert found.test.padded(torch.tensor([0]), padding=21).shape == (1, 21)


# Vectors


def test_vectors_are_those_of_the_file(tmp_path: Path) -> None:
    trees.newsgroups(tmp_path)
    held = trees.vectors(tmp_path / "glove" / "small.txt", ["puck", "the", "elsewhere", "orbit", "été"])
    found = data.newsgroups20(tmp_path, vectors="small.txt")
    assert found.vectors is not None
    assert found.vectors.shape == (len(found.vocabulary) + 1, 10)
    assert not found.vectors[0].any()
    for i, word in enumerate(found.vocabulary, 1):
        assert found.vectors[i].tolist() == pytest.approx(held.get(word, [0.0] * 10))
    assert found.facts["vectors"] is found.vectors
    network = models.create("gpool-cnn", found.num_classes, **found.facts)
    assert torch.equal(network.embedding.weight, found.vectors)


@pytest.mark.parametrize("place", ["here.txt", "glove/here.txt"])
def test_vectors_are_found_under_the_root(tmp_path: Path, place: str) -> None:
    trees.vectors(tmp_path / place, ["a", "b"])
    assert newsgroups.find_vectors("here.txt", tmp_path) == tmp_path / place
    assert newsgroups.find_vectors(str(tmp_path / place), "nowhere") == tmp_path / place
    assert newsgroups.find_vectors(None, tmp_path) is None


def test_vectors_of_words_with_spaces_are_passed_over(tmp_path: Path) -> None:
    """As in glove.840B.300d, which has a vector of ``at name@domain.com``."""
    (tmp_path / "v.txt").write_text("at 1 2\nat name@domain.com 3 4\nis 5 6\n")
    assert newsgroups.read_vectors(tmp_path / "v.txt", ["is", "at"]).tolist() == [[0, 0], [5, 6], [1, 2]]


def test_missing_vectors_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        MissingDataError, match="word vectors glove.9B.txt are not in .*pass `data.options.vectors=null`"
    ) as caught:
        newsgroups.find_vectors("glove.9B.txt", tmp_path)
    assert str(tmp_path / "glove.9B.txt") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2 3\nx 1 2\nb 1 2\n", "line 3: 2 numbers, but the lines before have 3"),
        (b"x 1 2 3\nb 1 zwei 3\n", "line 2: expected a word and numbers, got 'b 1 zwei 3"),
        (b"x 1 2 3\ny 1 2 3\n", "has no vector for any of the 2 words; is it a file of word vectors?"),
        (b"PK\x03\x04\xff\xfe\x00\x80 binary \x81\n", "has no vector for any of the 2 words; is it a file of word vectors?"),
        (b"", "has no vector for any of the 2 words"),
    ],
    ids=["ragged", "no number", "other words", "binary", "empty"],
)
def test_bad_vectors_are_refused_by_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        newsgroups.read_vectors(tmp_path / "v.txt", ["a", "b"])
    assert str(tmp_path / "v.txt") in str(caught.value)


# Files


@pytest.mark.parametrize("layout", [("20_newsgroups",), ("20news-bydate-train", "20news-bydate-test"), ("20news-18828",)])
def test_newsgroups_in_their_layouts(tmp_path: Path, layout: tuple[str, ...]) -> None:
    trees.newsgroups(tmp_path, groups=3, articles=20, layout=layout)
    found = data.create("newsgroups20", root=tmp_path)
    count = 60 * len(layout)
    assert [len(found.validation), len(found.test)] == [round(count * 900 / 19_997), count // 5]
    assert list(found.classes) == ["group.0", "group.1", "group.2"]
    assert sum(found.train_counts) == len(found.train)
    assert not {"from", "heading0", "example"} & set(found.vocabulary)
    words = ["", *found.vocabulary]
    for text, k in zip(listed(found.train), found.train.y.tolist(), strict=True):
        assert set(trees.TOPICS[k].split()) & {words[t] for t in text}


def test_a_csv_of_texts(tmp_path: Path) -> None:
    rows = [f'"text {i}, with ""quotes""\nand a line",{"even" if i % 2 == 0 else "odd"}' for i in range(40)]
    (tmp_path / "mine.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    found = data.create("texts", path="mine.csv", root=tmp_path, validation=0.1, test=8)
    assert [len(part) for part in (found.train, found.validation, found.test)] == [28, 4, 8]
    assert (found.name, list(found.classes)) == ("mine", ["even", "odd"])
    assert torch.equal(found.test.y, found.split["test"] % 2)
    assert {"quotes", "line", "text"} < set(found.vocabulary)
    excel = tmp_path / "excel.csv"
    excel.write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8-sig")  # Excel begins with a mark of byte order
    assert len(data.create("texts", path=excel).train) == 28


def test_a_csv_may_say_its_parts(tmp_path: Path) -> None:
    names = ["train"] * 20 + ["test"] * 5 + ["validation"] * 3
    lines = [f"{part} w{i},{'ab'[i % 2]},{part}" for i, part in enumerate(names)]
    (tmp_path / "mine.csv").write_text("text,label,part\n" + "\n".join(lines) + "\n")
    found = data.create("texts", path=tmp_path / "mine.csv")
    assert {part: own.tolist() for part, own in found.split.items()} == {
        "train": list(range(20)),
        "test": list(range(20, 25)),
        "validation": list(range(25, 28)),
    }
    assert {"validation", "test"}.isdisjoint(found.vocabulary)
    (tmp_path / "two.csv").write_text("text,label,part\n" + "\n".join(lines[:25]) + "\n")
    found = data.create("texts", path=tmp_path / "two.csv", validation=0.25)
    assert [len(part) for part in (found.train, found.validation, found.test)] == [15, 5, 5]
    assert found.split["test"].tolist() == list(range(20, 25))
    assert set(found.split["validation"].tolist()) < set(range(20))


@pytest.mark.parametrize("parts", [("",), ("train", "test"), ("train", "validation", "test"), ("train", "val", "test")])
def test_a_folder_of_texts(tmp_path: Path, parts: tuple[str, ...]) -> None:
    trees.newsgroups(tmp_path, groups=2, articles=10, layout=tuple(f"mine/{part}" for part in parts))
    found = data.create("texts", path="mine", root=tmp_path)
    counts = [len(part) for part in (found.train, found.validation, found.test)]
    assert counts == {1: [14, 2, 4], 2: [18, 2, 20], 3: [20, 20, 20]}[len(parts)]
    assert list(found.classes) == ["group.0", "group.1"]
    assert found.test.y.tolist() == sorted(found.test.y.tolist())
    assert "heading0" in found.vocabulary  # these are texts as they are, not articles with a header


def test_missing_texts_are_named_with_their_place_and_layout(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="20 Newsgroups is not in .*pass `data.download=True`"):
        data.create("newsgroups20", root=tmp_path)
    (tmp_path / "20_newsgroups" / "sci.med").mkdir(parents=True)
    with pytest.raises(MissingDataError, match="20_newsgroups holds no articles: expected GROUP/ARTICLE"):
        data.create("newsgroups20", root=tmp_path)
    with pytest.raises(MissingDataError, match="mine does not exist, neither as given nor under .*: expected CLASS/TEXT"):
        data.create("texts", path="mine", root=tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(MissingDataError, match="mine holds no texts: expected CLASS/TEXT files"):
        data.create("texts", path="mine", root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text,label\n", "holds no texts"),
        (b"", "has no column 'text'"),
        (b"body,label\na,b\n", "has no column 'text'; it has body, label"),
        (b"text,class\na,b\n", "has no column 'label'; it has text, class"),
        (b"text,label,part\na,b,train\nc,d,dev\n", "part must be train, validation or test, got 'dev'"),
        (b"text,label,part\na,b,train\nc,d,\n", "part must be train, validation or test, got ''"),
        (b"text,label,part\na,b,train\nc,d\n", "part must be train, validation or test, got ''"),
        (b"text,label\na,b\nc\n", "line 3: .* no label"),
        (b"text,label\na,b\nc,\n", "line 3: .* no label"),
        (
            b"text,label\na,b\nbad, really bad,b\n",
            "line 3: more fields than the header has; quote texts that contain commas",
        ),
        (b"text,label\na,b\nc,b\n", "at least 2 classes are needed, but all 2 are of class 'b'"),
        (b"text,label\ncaf\xe9,b\n", "cannot be read as a csv in UTF-8"),
        (b"text,label,part\na,b,test\nc,d,validation\n", "no texts to train on: none is of the part train"),
    ],
)
def test_bad_csvs_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises((ValueError, MissingDataError), match=message) as caught:
        data.create("texts", path=tmp_path / "mine.csv")
    assert str(tmp_path / "mine.csv") in str(caught.value) or "to train on" in message or "2 classes" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [({"vocabulary": 1}, "vocabulary must be at least 2"), ({"length": 0}, "length must be at least 1")],
)
def test_bad_options(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(["a"] * 20, ["x", "y"] * 10, **options)


def test_texts_that_are_too_short_for_the_network_are_refused() -> None:
    found = make(["a"] * 20, ["x", "y"] * 10, length=20)
    first = next(found.train.read([torch.tensor([0])], Feed(padding=20)))[0]
    assert first.shape == (1, 20)
    with pytest.raises(ValueError, match="the network needs texts of at least 21 words, but `data.options.length` is 20"):
        next(found.train.read([torch.tensor([0])], Feed(padding=21)))


# Padding


def of(lists: Sequence[Sequence[int]], length: int) -> Texts:
    sizes = torch.tensor([0, *(len(own) for own in lists)])
    tokens = torch.tensor([t for own in lists for t in own], dtype=torch.int32)
    return Texts(tokens, sizes.cumsum(0), torch.arange(len(lists)), length)


@settings(max_examples=150, deadline=None)
@given(lists=st.lists(st.lists(st.integers(1, 9), max_size=40), min_size=1, max_size=8), draw=st.data())
def test_subset_and_padding_by_hand(lists: list[list[int]], draw) -> None:
    longest = max(map(len, lists))
    length = longest + draw.draw(st.integers(1 if longest == 0 else 0, 50))
    part = of(lists, length)
    assert part.lengths.tolist() == [len(own) for own in lists]
    chosen = draw.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=10))
    for padding in (21, 3, None):
        width = length if padding is None else min(length, max(len(lists[i]) for i in chosen) + padding)
        expected = [[0] * (width - len(lists[i])) + lists[i] for i in chosen]
        found = part.padded(torch.tensor(chosen), padding=padding)
        assert found.tolist() == expected
        assert found.dtype == torch.int64
    small = part.subset(torch.tensor(chosen))
    assert listed(small) == [lists[i] for i in chosen]
    assert small.y.tolist() == chosen
    assert (len(small), small.length) == (len(chosen), length)


def test_nothing_chosen_is_an_empty_batch() -> None:
    """The share of a process of a last batch that is smaller than the number of processes."""
    none = torch.zeros(0, dtype=torch.int64)
    assert of([[1, 2], [3]], 50).padded(none, padding=21).shape == (0, 21)
    assert len(of([[1, 2], [3]], 50).subset(none)) == 0


def test_the_fingerprint_sees_words_order_and_labels() -> None:
    part = of([[1, 2], [3]], 50)
    others = [of([[1], [2, 3]], 50), of([[1, 2], [4]], 50), part.subset(torch.tensor([1, 0]))]
    others.append(Texts(part.tokens, part.starts, part.y + 1, 50))
    assert len({part.checksum(), *(other.checksum() for other in others)}) == 5
    assert part.subset(torch.tensor([0, 1])).checksum() == part.checksum()


@pytest.mark.parametrize("longest", [0, 1, 5, 39, 40, 59, 60])
def test_padding_does_not_change_logits(longest: int) -> None:
    """Padded to the longest text of the batch or to 60 words, of which one that is all padding is the hard case."""
    random = torch.Generator().manual_seed(longest)
    for seed in range(4):
        torch.manual_seed(seed)
        network = models.GPoolCNN(5, vectors=torch.randn(30, 6), width=16).double()
        sizes = [longest, longest // 2, longest // 3, 0]
        lists = [torch.randint(1, 30, (size,), generator=random).tolist() for size in sizes]
        part, everything = of(lists, 60), torch.arange(4)
        trimmed, full = (part.padded(everything, padding=padding) for padding in (models.needs(network).padding_words, None))
        with torch.no_grad():
            torch.testing.assert_close(network(trimmed), network(full), rtol=0, atol=1e-10)
        assert trimmed.shape[1] == min(60, longest + 21)
        assert full.shape[1] == 60


def test_texts_of_ones_own_are_in_utf_8_or_latin_1(tmp_path: Path) -> None:
    for name, content in (("a/1", "Größe".encode()), ("b/2", "Größe".encode("latin-1"))):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(content)
    assert newsgroups.read_texts(tmp_path)[0] == ["Größe", "Größe"]
