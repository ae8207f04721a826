"""Limits of jobs that are drawn, beside trying every value: python -m tests.limits --first 100 --number 300 --minutes 14."""

from __future__ import annotations

import argparse
import sys
from time import monotonic

from estimator.contract.errors import InvalidJob, NotModelled
from tests.planner.test_limits import beside_all, drawn


def main() -> int:
    """Compare as many as there is time for; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--number", type=int, default=300, help="how many")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop")
    options = parser.parse_args()
    end, compared, refused, differ = monotonic() + 60 * options.minutes, 0, 0, []
    for seed in range(options.first, options.first + options.number):
        if monotonic() > end:
            break
        try:
            beside_all(seed)
            compared += 1
        except (InvalidJob, NotModelled):
            refused += 1
        except AssertionError:
            differ.append(seed)
            print(seed, *drawn(seed), flush=True)
    print(f"{compared} equal, {refused} refused, {len(differ)} differ: {differ}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
