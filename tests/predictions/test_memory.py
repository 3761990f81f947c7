"""Large files are read in parts: memory does not grow with their length, whatever their format."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from processes import PEAK

K = 20
DRAWS = np.random.default_rng(0)
LOGITS = DRAWS.permuted(np.tile(np.arange(K, dtype=np.float32), (5000, 1)), axis=1)
TARGET = LOGITS.argmax(1)
KINDS = ("parquet", "csv", "jsonl", "npz", "compressed.npz", "npy")

#: Reads files with smaller parts than usual, so that they need not be large.
READ = """
import re, sys
from pathlib import Path
from calibrant.predictions import base, open_predictions, tables
base.CHUNK, tables.BLOCK = 2**18, 2**16
def held():  # megabytes, without files that are mapped, whose pages the system takes back when it needs them
    return int(re.search("RssAnon:(.*) kB", Path("/proc/self/status").read_text())[1]) / 1024
def read(path):
    file = open_predictions(path, kind="logits", label=path.replace("npy", "y.npy") if path.endswith("npy") else None)
    file.understood()
    correct, most = 0, held()
    for chunk in file.chunks():
        correct, most = correct + int((chunk.logits.argmax(1) == chunk.target).sum()), max(most, held())
    return correct, most
kinds = sys.argv[1].split()
for kind in kinds:
    read(f"small.{kind}")
for kind in kinds:
    before = held()
    correct, most = read(f"large.{kind}")
    print(kind, correct, most - before)
"""


def write(path: Path, times: int) -> None:
    logits, target = np.tile(LOGITS, (times, 1)), np.tile(TARGET, times)
    kind = path.name.partition(".")[2]
    if kind in ("parquet", "csv"):
        table = pa.table({**{f"logit_{k}": logits[:, k] for k in range(K)}, "label": target})
        if kind == "csv":
            pa.csv.write_csv(table, path)
        else:  # one row group, which a reader that buffers these holds whole
            pa.parquet.write_table(table, path, row_group_size=len(table), use_dictionary=False, compression="none")
    elif kind == "jsonl":
        rows = zip(LOGITS.tolist(), TARGET.tolist(), strict=True)
        path.write_text("".join(json.dumps({"logits": z, "label": y}) + "\n" for z, y in rows) * times)
    elif kind == "npy":
        np.save(path, np.asfortranarray(logits))
        np.save(path.with_suffix(".y.npy"), target)
    else:
        save = np.savez_compressed if "compressed" in kind else np.savez
        save(path, logits=np.asfortranarray(logits), target=target)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Files of 15 to 30 MB, of arrays of 22 MB in Fortran order, take no more than a few MB above those a tenth as long."""
    for kind in KINDS:
        write(tmp_path / f"small.{kind}", 5)
        write(tmp_path / f"large.{kind}", 50)
    run = [sys.executable, "-c", READ, " ".join(KINDS)]
    # Arrow's own allocator keeps between 3 and 14 MB of what it was given back, and glibc's a heap for each thread.
    plain = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    result = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path, env=plain)
    for line, kind in zip(result.stdout.splitlines(), KINDS, strict=True):
        assert line.split()[:2] == [kind, str(50 * len(LOGITS))]
        # Parquet takes 10; a whole file takes its bytes and its arrays, 35 or more.
        size = (tmp_path / f"large.{kind}").stat().st_size / 2**20
        assert float(line.split()[2]) < 20, f"a file of {size:.0f} MB: {line}"


TIED = """
from calibrant.cli import main
main(["evaluate", "few.npz", "--resamples", "200"])
before = peak()
for distinct in (1, 3):
    main(["evaluate", f"many{distinct}.npz", "--output", f"{distinct}.json", "--resamples", "200"])
print("grown", peak() - before)
"""


@pytest.mark.slow
def test_few_distinct_confidences_take_no_more_memory(tmp_path: Path) -> None:
    """Any number of bins keeps such accuracies in order: the sweep once made as many bins as there were samples."""
    gaps = {}
    for name, rows, distinct in (("few", 1000, 3), ("many1", 200_000, 1), ("many3", 200_000, 3)):
        row = np.arange(rows)
        logits = np.stack([row % distinct, 0 * row, 0 * row], axis=1).astype(np.float32)
        target = np.where(row // distinct % 10 < 5 + row % distinct, 0, 1)  # the more confident, the more often correct
        np.savez(tmp_path / f"{name}.npz", logits=logits, target=target)
        gaps[distinct] = np.mean([abs(np.exp(k) / (np.exp(k) + 2) - (5 + k) / 10) for k in range(distinct)])
    result = subprocess.run([sys.executable, "-c", PEAK + TIED], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert float(re.search(r"grown (\S+)", result.stdout)[1]) < 150
    for distinct, gap in gaps.items():
        found = json.loads((tmp_path / f"{distinct}.json").read_text())["files"][0]
        for key in ("ece", "sweep_ece", "adaptive_ece"):
            assert found[key] == pytest.approx(gap, abs=1e-3), (distinct, key)
