"""Sweeps held against estimates, point by point: `python -m tests.sweeps --minutes 10`, over the judged jobs of all families."""
