"""Confidence intervals of proportions."""

import math


def _tail(hits, trials, share):
    """The probability of at most this many hits."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(hits >= trials)

    def log(k):
        ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return ways + k * math.log(share) + (trials - k) * math.log1p(-share)

    return sum(math.exp(log(k)) for k in range(hits + 1))


def _where(falls_to, of):
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) > falls_to else (low, middle)
    return low


def clopper_pearson(hits, trials):
    """The 95 % interval (Clopper and Pearson) of a proportion, from hits in trials."""
    low = 0.0 if hits == 0 else _where(1 - 0.025, lambda share: _tail(hits - 1, trials, share))
    high = 1.0 if hits == trials else _where(0.025, lambda share: _tail(hits, trials, share))
    return low, high
