"""What a million tokens cost, read and written, on hardware that serves all the time.

input  = price of a second · seconds of a prefill pass / tokens that it reads
output = price of a second · (seconds of a request's share of the hardware - those of its prompt) / tokens that it gets
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from estimator.contract.answer import ServingTime, TokenCost
from estimator.contract.job import Hardware
from estimator.hardware.accelerator import Accelerator
from estimator.pricing.cost import priced
from estimator.pricing.offer import exact
from estimator.timing.run_length import Hours

LONG = 1000.0
"""Hours over which the hardware is paid for, so that no start is billed."""
PLACES = Decimal("0.0001")


def token_cost(hardware: Hardware, card: Accelerator | None, serving: ServingTime, today: date) -> TokenCost | None:
    """By the hardware's cheapest price; None if none is known. The range is that of the time."""
    cost = priced(hardware, card, Hours(LONG, LONG, LONG), today).cost
    if cost is None or cost.total is None:
        return None
    second = Decimal(cost.total) / exact(LONG) / 3600
    reading = 1 / serving.prefill.tokens_per_second
    return TokenCost(
        million_input=_money(second, reading),
        million_output=_money(second, _written(serving, reading, serving.request_seconds)),
        range_million_input=_both(second, [reading * by / serving.prefill.step_seconds for by in serving.prefill.range_seconds]),
        range_million_output=_both(
            second,
            [
                _written(serving, reading * by[0] / serving.prefill.step_seconds, by[1])
                for by in zip(serving.prefill.range_seconds, serving.range_request_seconds, strict=True)
            ],
        ),
        currency=cost.currency,
        price_per_hour=str((second * 3600).quantize(Decimal("0.01"))),
        price_source=cost.price_source,
        price_as_of=cost.price_as_of,
    )


def _written(serving: ServingTime, reading: float, took: float) -> float:
    """Seconds of the hardware for each token written."""
    return (took / serving.sequences - reading * serving.prompt_tokens) / serving.output_tokens


def _money(second: Decimal, seconds: float) -> str:
    return str((10**6 * second * exact(seconds)).quantize(PLACES))


def _both(second: Decimal, seconds: list[float]) -> tuple[str, str]:
    low, high = (_money(second, one) for one in seconds)
    return low, high
