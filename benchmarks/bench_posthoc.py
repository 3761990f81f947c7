"""Cost of fitting a temperature, in passes of ``torch.logsumexp`` over the same validation logits.

python benchmarks/bench_posthoc.py [--json benchmarks/posthoc.json] [--repeats 5]
"""

import json

import torch
from rich.console import Console
from rich.table import Table

from calibrant import posthoc
from measuring import arguments, environment, medians, peak_memory

SHAPE = (50_000, 1000)
LIMIT = 25.0


def main() -> None:
    options = arguments(__doc__, "posthoc.json", 5)
    torch.manual_seed(0)
    logits = 3 * torch.randn(SHAPE)
    target = torch.distributions.Categorical(logits=logits / 1.7).sample()
    steps = {
        "logsumexp": lambda: torch.logsumexp(logits, 1),
        "temperature": lambda: posthoc.TemperatureScaling().fit(logits, target),
    }
    seconds = medians(steps, options.repeats, f"{SHAPE}")
    ratio = seconds["temperature"] / seconds["logsumexp"]
    memory = peak_memory(steps["temperature"]) / 1e6
    table = Table("step", "ms", "x logsumexp", "at most", "MB beyond the logits", title=f"logits {SHAPE}")
    table.add_row("logsumexp", f"{1e3 * seconds['logsumexp']:.0f}", "1.0", "", "")
    colour = "[red]" if ratio > LIMIT else ""
    table.add_row(
        "temperature", f"{1e3 * seconds['temperature']:.0f}", f"{colour}{ratio:.1f}", f"{LIMIT:.0f}", f"{memory:.0f}"
    )
    Console().print(table)
    temperature = float(posthoc.TemperatureScaling().fit(logits, target).temperature_)
    result = {
        "environment": environment(),
        "shape": SHAPE,
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": ratio,
        "limit": LIMIT,
        "megabytes": memory,
        "temperature": temperature,
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"temperature {temperature:.4f} (1.7 in truth); written to {options.json}")


if __name__ == "__main__":
    main()
