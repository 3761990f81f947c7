"""Every metric once more, with loops over samples, straight from its definition."""

import itertools
import math

import numpy as np


def softmax(row: np.ndarray) -> np.ndarray:
    e = np.exp(row - row.max())
    return e / e.sum()


def outcomes(logits: np.ndarray, target: np.ndarray) -> tuple[list[float], list[int]]:
    rows = [softmax(row) for row in logits.astype(np.float64)]
    return [float(p.max()) for p in rows], [int(p.argmax() == y) for p, y in zip(rows, target, strict=True)]


def binned(confidence: list[float], correct: list[int], edges: list[float]) -> list[list[tuple[float, int]]]:
    bins: list[list[tuple[float, int]]] = [[] for _ in range(len(edges) + 1)]
    for c, a in zip(confidence, correct, strict=True):
        bins[sum(c > edge for edge in edges)].append((c, a))
    return bins


def gaps(bins: list[list[tuple[float, int]]]) -> list[tuple[float, float]]:
    """Weight and mean confidence minus accuracy of each bin that is not empty."""
    n = sum(map(len, bins))
    return [(len(b) / n, sum(c for c, _ in b) / len(b) - sum(a for _, a in b) / len(b)) for b in bins if b]


def width_edges(m: int) -> list[float]:
    return [k / m for k in range(1, m)]


def mass_edges(confidence: list[float], m: int) -> list[float]:
    n = len(confidence)
    return list(np.interp(np.linspace(0, n, m + 1), np.arange(n), sorted(confidence)))[1:-1]


def ece(logits, target, m=15, norm=1):
    return sum(w * abs(g) ** norm for w, g in gaps(binned(*outcomes(logits, target), width_edges(m)))) ** (1 / norm)


def mce(logits, target, m=15):
    return max(abs(g) for _, g in gaps(binned(*outcomes(logits, target), width_edges(m))))


def overconfidence(logits, target, m=15):
    return sum(w * max(0, g) for w, g in gaps(binned(*outcomes(logits, target), width_edges(m))))


def underconfidence(logits, target, m=15):
    return sum(w * max(0, -g) for w, g in gaps(binned(*outcomes(logits, target), width_edges(m))))


def adaptive_ece(logits, target, m=15, norm=1):
    confidence, correct = outcomes(logits, target)
    return sum(w * abs(g) ** norm for w, g in gaps(binned(confidence, correct, mass_edges(confidence, m)))) ** (1 / norm)


def classwise_ece(logits, target, m=15, norm=1, binning="width"):
    probabilities = np.array([softmax(row) for row in logits.astype(np.float64)])
    errors = []
    for k in range(logits.shape[1]):
        confidence = probabilities[:, k].tolist()
        edges = width_edges(m) if binning == "width" else mass_edges(confidence, m)
        bins = binned(confidence, [int(y == k) for y in target], edges)
        errors.append(sum(w * abs(g) ** norm for w, g in gaps(bins)) ** (1 / norm))
    return sum(errors) / len(errors)


def brier_calibration(logits, target, m=15):
    return logits.shape[1] * sum_of_squares(logits, target, m)


def sum_of_squares(logits, target, m):
    probabilities = np.array([softmax(row) for row in logits.astype(np.float64)])
    total = 0.0
    for k in range(logits.shape[1]):
        bins = binned(probabilities[:, k].tolist(), [int(y == k) for y in target], width_edges(m))
        total += sum(w * g**2 for w, g in gaps(bins))
    return total / logits.shape[1]


def debiased_ece(logits, target, m=15, binning="mass", norm=1):
    confidence, correct = outcomes(logits, target)
    if binning == "width":
        edges = width_edges(m)
    else:
        parts = np.array_split(np.sort(confidence), min(m, len(confidence)))
        edges = sorted({(a[-1] + b[0]) / 2 for a, b in itertools.pairwise(parts)})
    n, total, square = len(confidence), 0.0, 0.0
    for b in binned(confidence, correct, edges):
        if not b:
            continue
        c, a = sum(c for c, _ in b) / len(b), sum(a for _, a in b) / len(b)
        if len(b) > 1:
            square += len(b) / n * ((c - a) ** 2 - a * (1 - a) / (len(b) - 1))
        sigma, mu = math.sqrt(a * (1 - a) / len(b)), c - a
        folded = abs(mu)
        if sigma > 0:
            folded = sigma * math.sqrt(2 / math.pi) * math.exp(-(mu**2) / (2 * sigma**2))
            folded += mu * math.erf(mu / (sigma * math.sqrt(2)))
        total += len(b) / n * (2 * abs(mu) - folded)
    return max(0.0, total) if norm == 1 else math.sqrt(max(0.0, square))


def sweep_ece(logits, target, binning="mass", norm=1):
    confidence, correct = outcomes(logits, target)
    order = sorted(range(len(confidence)), key=confidence.__getitem__)
    n = len(order)

    def split(b: int) -> list[list[tuple[float, int]]]:
        if binning == "width":
            return binned(confidence, correct, width_edges(b))
        bins: list[list[tuple[float, int]]] = [[] for _ in range(b)]
        for rank, i in enumerate(order):
            bins[rank * b // n].append((confidence[i], correct[i]))
        return bins

    chosen = 1
    for b in range(2, n):
        accuracies = [sum(a for _, a in part) / len(part) for part in split(b) if part]
        if any(low > high for low, high in itertools.pairwise(accuracies)):
            break
        chosen = b
    return sum(w * abs(g) ** norm for w, g in gaps(split(chosen))) ** (1 / norm)


def smooth_ece(logits, target, points=2000):
    """Direct evaluation of the reflected kernel at many points, and bisection for the width."""
    confidence, correct = outcomes(logits, target)
    x, residual = np.array(confidence), (np.array(correct) - np.array(confidence)) / len(confidence)
    t = np.linspace(0, 1, points + 1)

    def smoothed(sigma: float) -> float:
        images = [x + 2 * m for m in range(-4, 5)] + [-x + 2 * m for m in range(-4, 5)]
        density = sum(np.exp(-((t[:, None] - image) ** 2) / (2 * sigma**2)) @ residual for image in images)
        return float(np.trapezoid(np.abs(density) / (sigma * math.sqrt(2 * math.pi)), t))

    low, high = 1e-6, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if smoothed(middle) > middle else (low, middle)
    return low


def nll(logits, target):
    return -sum(math.log(softmax(row.astype(np.float64))[y]) for row, y in zip(logits, target, strict=True)) / len(target)


def brier_score(logits, target):
    total = 0.0
    for row, y in zip(logits.astype(np.float64), target, strict=True):
        total += sum((p - (k == y)) ** 2 for k, p in enumerate(softmax(row)))
    return total / len(target)


def accuracy(logits, target):
    return sum(int(row.argmax() == y) for row, y in zip(logits, target, strict=True)) / len(target)


def top_k_accuracy(logits, target, k):
    hits = 0
    for row, y in zip(logits, target, strict=True):
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))
        hits += int(y in order[:k])
    return hits / len(target)


def aurc(logits, target):
    confidence, correct = outcomes(logits, target)
    order = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    errors, total = 0, 0.0
    for n, i in enumerate(order, 1):
        errors += 1 - correct[i]
        total += errors / n
    return total / len(order)


def coverage_at_risk(logits, target, risk=0.05):
    """Try every confidence that occurs as the threshold."""
    confidence, correct = outcomes(logits, target)
    kept = [[a for c, a in zip(confidence, correct, strict=True) if c >= threshold] for threshold in set(confidence)]
    return max((len(part) for part in kept if part.count(0) / len(part) <= risk), default=0) / len(correct)


def mean_iou(logits, target, rule="standard"):
    prediction = logits.argmax(1)
    values = []
    for k in range(logits.shape[1]):
        union = ((prediction == k) | (target == k)).sum()
        if union:
            values.append(((prediction == k) & (target == k)).sum() / union)
        elif rule == "released":
            values.append(0.0)
        else:
            values.append(None)
    if rule == "released":
        return float(np.mean(values[1:]))
    return float(np.mean([v for v in values if v is not None]))


def uncertainty(logits, score):
    rows = [softmax(row.astype(np.float64)) for row in logits]
    if score == "entropy":
        return [float(-sum(p * math.log(p) for p in row if p > 0)) for row in rows]
    if score == "max_prob":
        return [1 - float(row.max()) for row in rows]
    return [-float(np.log(np.exp(row.astype(np.float64)).sum())) for row in logits]


def ood_auroc(known, unknown, score="entropy"):
    a, b = uncertainty(known, score), uncertainty(unknown, score)
    return sum((v > u) + 0.5 * (v == u) for u in a for v in b) / (len(a) * len(b))


def ood_fpr95(known, unknown, score="entropy"):
    a, b = sorted(uncertainty(known, score)), uncertainty(unknown, score)
    threshold = next(t for t in a if sum(u <= t for u in a) >= 0.95 * len(a))
    return sum(v <= threshold for v in b) / len(b)
