"""Records that go to plain Python types and come back, and files that hold them."""

import json
import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from calibrant.errors import InputError, MissingDataError, did_you_mean, input_errors, lookup
from calibrant.files import finite, read_json, refuse_existing, replacing, write_json, write_text
from calibrant.records import from_fields, from_plain, to_plain


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True)
class Own:
    """With a form of its own."""

    value: int

    def to_dict(self) -> str:
        return f"<{self.value}>"

    @classmethod
    def from_dict(cls, found: str, where: str = "") -> "Own":
        if not found.startswith("<"):
            raise InputError(f"{where}: expected <...>")
        return cls(int(found[1:-1]))


@dataclass(frozen=True)
class Checked:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must be at least 0")


@dataclass(frozen=True)
class Record:
    name: str
    number: int
    share: float
    point: Point
    points: list[Point]
    by_name: dict[str, list[Point]]
    pair: tuple[int, ...]
    kind: Literal["a", "b"]
    limit: int | None
    either: int | str
    own: Own
    flag: bool
    anything: Any
    maybe: Point | None = None
    owned: dict[str, Own | None] = field(default_factory=dict)
    sequence: Sequence[float] = ()
    mapping: Mapping[str, float] = field(default_factory=dict)


RECORD = Record(
    name="n",
    number=3,
    share=0.5,
    point=Point(1.0, 2.0),
    points=[Point(3.0), Point(4.0, 5.0)],
    by_name={"a": [Point(6.0)], "b": []},
    pair=(1, 2),
    kind="b",
    limit=None,
    either="text",
    own=Own(7),
    flag=True,
    anything={"nested": [1, None]},
    maybe=Point(8.0),
    owned={"c": Own(9), "d": None},
    sequence=[1.0, 2.0],
    mapping={"e": 1.5},
)


def test_nested_records_survive() -> None:
    plain = to_plain(RECORD)
    assert plain["points"] == [{"x": 3.0, "y": 0.0}, {"x": 4.0, "y": 5.0}]
    assert plain["own"] == "<7>"
    assert plain["pair"] == [1, 2]
    again = from_plain(Record, json.loads(json.dumps(plain)))
    assert again == RECORD
    assert type(again.points[0]) is Point
    assert type(again.pair) is tuple


def test_numbers_that_are_none_survive_as_null(tmp_path: Path) -> None:
    values = {"x": math.nan, "y": math.inf}
    write_json(
        tmp_path / "a.json", {"point": to_plain(Point(**values)), "list": [math.nan, 1.0], "deep": {"t": (math.inf,)}}
    )
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    content = read_json(tmp_path / "a.json")
    assert content == {"point": {"x": None, "y": None}, "list": [None, 1.0], "deep": {"t": [None]}}
    point = from_plain(Point, content["point"])
    assert math.isnan(point.x)
    assert math.isnan(point.y)
    assert from_plain(list[float], [1, None])[0] == 1.0
    assert finite({"a": [math.nan, True, "x", 2]}) == {"a": [None, True, "x", 2]}


def test_missing_fields_take_their_defaults_and_unknown_ones_are_left_out() -> None:
    assert from_plain(Point, {"x": 1, "z": 3}) == Point(1.0, 0.0)
    found = from_plain(Point, {"x": 1})
    assert type(found.x) is float
    with pytest.raises(InputError, match="Point: x is missing"):
        from_plain(Point, {"y": 1})
    with pytest.raises(InputError, match="here.json: x is missing"):
        from_plain(Point, {"y": 1}, "here.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "f.json.name: expected str, got 3"),
        ({"number": 3.5}, "f.json.number: expected int, got 3.5"),
        ({"number": True}, "f.json.number: expected int, got True"),
        ({"number": None}, "f.json.number: expected int, got None"),
        ({"share": "half"}, "f.json.share: expected a number, got 'half'"),
        ({"share": True}, "f.json.share: expected a number, got True"),
        ({"flag": 1}, "f.json.flag: expected bool, got 1"),
        ({"point": [1, 2]}, r"f.json.point: expected an object, got \[1, 2\]"),
        ({"point": {"x": "left"}}, "f.json.point.x: expected a number, got 'left'"),
        ({"points": {"x": 1}}, "f.json.points: expected a list, got {'x': 1}"),
        ({"points": [{"x": 1}, {}]}, r"f.json.points\[1\]: x is missing"),
        ({"by_name": {"a": [{"x": 1}, {"x": []}]}}, r"f.json.by_name.a\[1\].x: expected a number, got \[\]"),
        ({"by_name": []}, r"f.json.by_name: expected an object, got \[\]"),
        ({"pair": [1, "2"]}, r"f.json.pair\[1\]: expected int, got '2'"),
        ({"kind": "c"}, "f.json.kind: expected one of 'a', 'b', got 'c'"),
        ({"limit": "none"}, "f.json.limit: expected int, got 'none'"),
        ({"either": 2.5}, "f.json.either: expected int, got 2.5"),
        ({"own": "7"}, "f.json.own: expected <...>"),
        ({"owned": {"c": "9"}}, "f.json.owned.c: expected <...>"),
        ({"maybe": 3}, "f.json.maybe: expected an object, got 3"),
        ({"name": list(range(100))}, r"f.json.name: expected str, got \[0, 1, .*\.\.\.$"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        from_plain(Record, {**to_plain(RECORD), **change}, "f.json")


def test_unions_take_what_fits() -> None:
    assert from_plain(int | str, 3) == 3
    assert from_plain(int | str, "3") == "3"
    assert from_plain(Point | None, None) is None
    assert from_plain(float | None, None) is None  # and not NaN, where null is allowed
    assert from_plain(dict[str, int | str], {"a": 1, "b": "c"}) == {"a": 1, "b": "c"}


def test_what_a_record_refuses_itself_is_named_too() -> None:
    with pytest.raises(InputError, match="f.json: size must be at least 0"):
        from_plain(Checked, {"size": -1}, "f.json")
    with pytest.raises(InputError, match=r"f.json.a\[0\]: size must be at least 0"):
        from_plain(dict[str, list[Checked]], {"a": [{"size": -1}]}, "f.json")


def test_fields_without_the_form_of_their_own() -> None:
    assert from_fields(Own, {"value": 3}) == Own(3)
    with pytest.raises(InputError, match="value: expected int, got 'x'"):
        from_fields(Own, {"value": "x"})


# Errors


def test_errors_about_values_become_sentences() -> None:
    with pytest.raises(InputError, match="^here: x must be 3$"), input_errors("here"):
        raise ValueError("x must be 3")
    with pytest.raises(InputError, match="^x must be a number$"), input_errors():
        raise TypeError("x must be a number")
    with pytest.raises(InputError, match="^here.x: wrong$"), input_errors("here"):
        raise InputError("here.x: wrong")  # it says so already
    with pytest.raises(KeyError), input_errors("here"):
        raise KeyError("x")
    with pytest.raises(MissingDataError, match="^here: gone$") as caught, input_errors("here"):
        raise MissingDataError("gone")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, InputError)


def test_what_is_not_in_a_table() -> None:
    table = {"temperature": 1, "vector": 2}
    assert lookup("vector", table, "calibrator") == 2
    with pytest.raises(
        InputError, match="^calibrator must be one of temperature, vector, got 'vectr'; did you mean 'vector'"
    ):
        lookup("vectr", table, "calibrator")
    with pytest.raises(InputError, match=r"got \[\]"):
        lookup([], table, "calibrator")  # type: ignore[arg-type]
    assert did_you_mean("zzz", table) == ""


# Files


def write_half(path: Path) -> None:
    with replacing(path, force=True) as temporary:
        temporary.write_text("sec")
        raise RuntimeError("half way")


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_text(path, "first")
    assert stat.S_IMODE(path.stat().st_mode) & 0o044  # as any new file
    with pytest.raises(RuntimeError, match="half way"):
        write_half(path)
    assert path.read_text() == "first"
    with pytest.raises(InputError, match="a.txt already exists; choose another name, or pass `force=True` to replace it"):
        refuse_existing(path)
    with pytest.raises(InputError, match="already exists"), replacing(path):
        pytest.fail("it was opened")
    write_text(path, "second")
    assert path.read_text() == "second"
    assert [other.name for other in path.parent.iterdir()] == ["a.txt"]


def test_json_files(tmp_path: Path) -> None:
    assert read_json(tmp_path / "nowhere.json") == {}
    for content, message in (("{", "a.json is not valid JSON"), ("3", "a.json should hold a JSON object, but holds int")):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(InputError, match=message):
            read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="a.json is not valid JSON"):
        read_json(tmp_path / "a.json")
