"""What the documents say about cost is what was measured."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_cost_of_losses() -> None:
    measured = json.loads((ROOT / "benchmarks/losses.json").read_text())["rows"]
    ratios = {(tuple(row["shape"]), row["loss"], row["mode"]): row["ratio"] for row in measured}
    text = (ROOT / "docs/losses.md").read_text().partition("## Cost")[2]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line)
    checked = 0
    for shape, *cells in rows:
        size = tuple(int(number) for number in re.findall(r"\d+", shape))
        for column, cell in zip(head[1:], cells, strict=True):
            key, _, mode = column.replace("`", "").partition(" ")
            assert cell == f"{ratios[size, key, mode or 'eager']:.1f}", (shape, column)
            checked += 1
    assert checked >= 10
    # And which losses cost more than three times as much on pixels, with how much.
    pixels = {key: ratio for (size, key, mode), ratio in ratios.items() if mode == "eager" and len(size) == 4}
    expensive = {key: f"{ratio:.2g}" for key, ratio in pixels.items() if ratio > 3}
    assert dict(re.findall(r"`([a-z-]+)` \(([\d.]+)\)", text)) == expensive


def test_the_cost_of_structured_scaling() -> None:
    times = json.loads((ROOT / "benchmarks/posthoc.json").read_text())["times_temperature"]
    assert f"{times['svs']:.0f} and {times['sms']:.0f} times as long as" in (ROOT / "docs/posthoc.md").read_text()
