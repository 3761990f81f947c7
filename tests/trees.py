"""Small data sets on disk, in the layouts that users have."""

import functools
import gzip
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)
P = ParamSpec("P")
T = TypeVar("T")


def seeded(write: Callable[Concatenate[Path, P], T]) -> Callable[Concatenate[Path, P], T]:
    """What is drawn depends on the arguments after the path, not on which tests this process ran before."""

    @functools.wraps(write)
    def wrapped(path: Path, *given: P.args, **named: P.kwargs) -> T:
        own = np.random.default_rng(zlib.crc32(repr((write.__name__, given, named)).encode()))
        RANDOM.bit_generator.state = own.bit_generator.state
        return write(path, *given, **named)

    return wrapped


def image(label: int, size: int, channels: int = 3) -> np.ndarray:
    """Noise with a bright square whose place tells the class."""
    pixels = RANDOM.integers(0, 120, size=(size, size, channels), dtype=np.uint8)
    step = size // 4
    row, column = divmod(label % 16, 4)
    pixels[row * step : (row + 1) * step, column * step : (column + 1) * step] = 255
    return pixels


def save(path: Path, label: int, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image(label, size)).save(path, format="JPEG")


def idx(path: Path, array: np.ndarray, *, compressed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compressed else content)


@seeded
def fashion_mnist(root: Path, train: int = 300, test: int = 40, name: str = "FashionMNIST") -> None:
    for part, count in (("train", train), ("t10k", test)):
        y = np.arange(count) % 10
        x = np.stack([image(k, 28, 1)[..., 0] for k in y])
        idx(root / name / "raw" / f"{part}-images-idx3-ubyte", x)
        idx(root / name / "raw" / f"{part}-labels-idx1-ubyte", y)


@seeded
def cifar(root: Path, classes: int, train: int = 300, test: int = 40) -> None:
    folder = root / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    folder.mkdir(parents=True, exist_ok=True)

    def batch(count: int) -> dict[str, object]:
        y = (np.arange(count) % classes).tolist()
        x = np.stack([image(k, 32).transpose(2, 0, 1).reshape(-1) for k in y])
        return {"data": x, "labels" if classes == 10 else "fine_labels": y}

    names = [f"data_batch_{i}" for i in range(1, 6)] if classes == 10 else ["train"]
    for name in names:
        (folder / name).write_bytes(pickle.dumps(batch(train // len(names))))
    (folder / ("test_batch" if classes == 10 else "test")).write_bytes(pickle.dumps(batch(test)))
    key, meta = ("label_names", "batches.meta") if classes == 10 else ("fine_label_names", "meta")
    (folder / meta).write_bytes(pickle.dumps({key: [f"class {k}" for k in range(classes)]}))


@seeded
def tiny_imagenet(root: Path, classes: int = 3, train: int = 6, test: int = 4) -> None:
    folder = root / "tiny-imagenet-200"
    names = [f"n{1000 + k}" for k in range(classes)]
    for k, name in enumerate(names):
        for i in range(train):
            save(folder / "train" / name / "images" / f"{name}_{i}.JPEG", k, 64)
    rows = []
    for i in range(test * classes):
        save(folder / "val" / "images" / f"val_{i}.JPEG", i % classes, 64)
        rows.append(f"val_{i}.JPEG\t{names[i % classes]}\t0\t0\t63\t63")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    (folder / "wnids.txt").write_text("\n".join(reversed(names)) + "\n")
    (folder / "words.txt").write_text("".join(f"{name}\tthing {name}, other name\n" for name in names))


@seeded
def class_tree(folder: Path, parts: dict[str, int], classes: int = 3, size: int = 48) -> None:
    for part, count in parts.items():
        for k in range(classes):
            for i in range(count):
                save(folder / part / f"n{1000 + k}" / f"{part}_{k}_{i}.JPEG", k, size + 8 * (i % 3))


def imagenet(root: Path) -> None:
    class_tree(root / "imagenet", {"train": 6, "val": 10})
    for part, source, counts in (("train", "train", (6, 3, 1)), ("val", "train", (2, 2, 2)), ("test", "val", (5, 5, 5))):
        lines = [f"{source}/n{1000 + k}/{source}_{k}_{i}.JPEG {k}" for k, n in enumerate(counts) for i in range(n)]
        (root / "imagenet" / f"ImageNet_LT_{part}.txt").write_text("\n".join(lines) + "\n")


#: Words that tell the groups of :func:`newsgroups` from each other, and words that all of them use.
TOPICS = ("orbit launch shuttle", "goalie puck skates", "engine brakes tyres", "cipher keys secrets")
COMMON = ["the", "of", "and", "to", "in", "is", "it", "you", "that", "was", "for", "on", "are", "with", "as"]


def article(group: int, number: int, words: int = 12) -> str:
    """A header, a blank line, and a body of common words with those of the group among them."""
    own = TOPICS[group % len(TOPICS)].split()
    body = [str(RANDOM.choice(own if i % 3 == 0 else COMMON)) for i in range(words + number % 7)]
    lines = [" ".join(body[i : i + 6]) for i in range(0, len(body), 6)]
    return f"From: writer{number}@example.org\nSubject: heading{group}\n\n" + "\n\n".join(lines) + ".\n"


@seeded
def newsgroups(root: Path, groups: int = 4, articles: int = 25, layout: tuple[str, ...] = ("20_newsgroups",)) -> None:
    for folder in layout:
        for k in range(groups):
            own = root / folder / f"group.{k}"
            own.mkdir(parents=True, exist_ok=True)
            for i in range(articles):
                (own / str(10_000 + i)).write_text(article(k, i), "latin-1")


@seeded
def vectors(path: Path, words: list[str], dim: int = 10) -> dict[str, list[float]]:
    """A file in GloVe's format; what it holds."""
    found = {word: [round(float(x), 5) for x in RANDOM.normal(size=dim)] for word in words}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in found.items()), "utf-8")
    return found


#: A colour for each class, far from the others.
COLOURS = np.array([(20, 20, 20), (230, 40, 40), (40, 230, 40), (40, 40, 230), (230, 230, 40)], dtype=np.uint8)


def scene(height: int, width: int, classes: int, void: int = 255) -> tuple[np.ndarray, np.ndarray]:
    """Squares of 16 pixels in the colours of their classes, with noise, and a mask whose upper left corner is void."""
    squares = RANDOM.integers(0, classes, size=(-(-height // 16), -(-width // 16)))
    mask = squares.repeat(16, axis=0).repeat(16, axis=1)[:height, :width].astype(np.uint8)
    pixels = COLOURS[mask] + RANDOM.integers(0, 20, size=(height, width, 3), dtype=np.uint8)
    mask[:3, :5] = void
    return pixels, mask


@seeded
def voc(
    root: Path,
    lists: dict[str, int],
    *,
    name: str = "VOCdevkit/VOC2012",
    classes: int = 4,
    sizes: tuple[tuple[int, int], ...] = ((40, 56), (48, 40)),
    named: bool = True,
) -> None:
    """``lists`` says how many images each list of names has."""
    folder = root / name
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for part, count in lists.items():
        names = [f"{part}_{i:03}" for i in range(count)]
        for i, own in enumerate(names):
            pixels, mask = scene(*sizes[i % len(sizes)], classes)
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{own}.jpg", quality=95)
            drawn = Image.fromarray(mask)
            drawn.putpalette(COLOURS.tobytes().ljust(768, b"\xff"))  # as VOC's masks are: class numbers with a palette
            drawn.save(folder / "SegmentationClass" / f"{own}.png")
        (folder / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names) + "\n")
    if named:
        (folder / "classes.txt").write_text("".join(f"thing {k}\n" for k in range(classes)))
