"""The result of a study, in plain words."""

from collections.abc import Sequence

from calibrant.runs import Summary


def headline(summaries: Sequence[Summary]) -> list[str]:
    """Which method is best calibrated, by how much, and what that costs."""
    first = summaries[0]
    if len(summaries) == 1:
        runs = f" ({len(first.seeds)} runs)" if len(first.seeds) > 1 else ""
        off = f"The confidence of {first.method} is off by {100 * first.mean('ece'):.1f} points on average{runs}."
        return [off, f"Its accuracy is {100 * first.mean('accuracy'):.1f}%."]
    best = min(summaries, key=lambda row: row.mean("ece"))
    ece, accuracy = 100 * best.mean("ece"), 100 * best.mean("accuracy")
    runs = f"{len(first.seeds)} runs each" if len(first.seeds) > 1 else "one run each"
    off = f"its confidence is off by {ece:.1f} points on average ({runs})"
    lead = f"{best.method} is best calibrated: {off}."
    if best.method == first.method:
        return [lead, "No other method in this study is better calibrated."]
    more = f"{first.method} is off by {100 * first.mean('ece'):.1f}."
    found = best.differences.get("ece")
    if found:
        low, high = 100 * found["low"], 100 * found["high"]
        several = len(best.seeds) > 1
        more += f" The gap is {100 * found['difference']:.1f} points (95% interval {low:.1f} to {high:.1f}"
        more += ", over seeds)," if several else ", over test samples),"
        if best.p_values["ece"] < 0.05:
            more += " more than chance explains." if several else " more than the choice of test samples explains."
        else:
            lead = f"{best.method} comes first, though perhaps by chance: {off}."
            more += " which chance could explain."
        if not several:
            more += " With one run each, this compares these two networks, not the methods."
    gain = accuracy - 100 * first.mean("accuracy")
    change = "the same as" if abs(gain) < 0.05 else f"{abs(gain):.1f} points {'higher' if gain > 0 else 'lower'} than"
    return [lead, more, f"Its accuracy, {accuracy:.1f}%, is {change} that of {first.method}."]
