"""What tests of other projects ask: that the jobs of their files fit, in pytest's own words where they do not."""

from __future__ import annotations

from estimator.testing.fits import DoesNotFit, NotKnown, assert_fits

__all__ = ["DoesNotFit", "NotKnown", "assert_fits"]
