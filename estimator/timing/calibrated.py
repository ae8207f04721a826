"""Time by constants of one's own machine (`job.calibration`): its kernels and its links, for each second that is reckoned."""

from __future__ import annotations

from estimator.contract.job import Calibration
from estimator.timing.passes import Case


def calibrated(case: Case, measured: Calibration | None) -> Case:
    """A case with the machine's own factors."""
    if measured is None:
        return case
    factors = {kind: factor * measured.kernels for kind, factor in case.factors.items()}
    return case._replace(factors=factors, exchange=case.exchange * measured.exchanges)
