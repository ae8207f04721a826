"""A job's sequences, as long as the data that it trains on: the longest batch for memory, all of them for time."""

from __future__ import annotations

from itertools import pairwise

from estimator.contract.errors import InvalidValue
from estimator.exchange.data import Data
from estimator.exchange.found import Assumed, Found, field_of, with_field

LONGEST = "training.sequence_length"
SHARES = (0.5, 0.9, 0.99, 1.0)
"""Up to where a bucket of batches goes, of all batches sorted by length; the last has the length of the longest."""


def with_data(found: Found, data: Data, name: str) -> Found:
    """The job on sequences as long as these data's, cut where its file cuts.

    Where rows are full (packed), the job stays as it is, and how many rows there are is said. Where a micro batch stands in one
    row without padding, that is as long as its longest samples together. Else a batch is padded to its longest sample: of n
    drawn at random it is at most L long with the share of samples that are, to the power of n.
    """
    job = found.job
    if field_of(job, "serving") is not None:
        raise InvalidValue("is of a training: this file serves a model", "--data")
    unread = next((one for one in found.assumed if one.key == "lengths"), None)
    given = field_of(job, LONGEST)
    packed = field_of(job, "training.attention_mask") == "packed" if found.framework == "willitfit" else unread is None
    limit = given if unread is None else unread.value
    cut = [min(tokens, limit) for tokens in data.lengths] if limit else data.lengths
    said = [_distribution(data, name), Assumed(key="tokens", value=sum(data.lengths), why=data.counted)]
    kept = [one for one in found.assumed if one is not unread]
    if packed and given:
        why = f"rows are packed to {given:,} tokens: the data fill so many at least, and memory is that of a full one"
        said.append(Assumed(key="rows", value=-(-sum(cut) // given), why=why))
        return found.model_copy(update={"assumed": [*kept, *said]})
    over = sum(tokens > limit for tokens in data.lengths) if limit else 0
    if over:
        said.append(
            Assumed(key="cut", value=over, why=f"samples that are longer than the {limit:,} tokens at which the file cuts")
        )
    together = given // limit if given and limit else 1
    if together > 1:
        longest = sum(cut[-together:])
        why = f"a row without padding of the {together} longest samples"
        job = with_field(job, LONGEST, max(longest, 1))
    else:
        rows = field_of(job, "training.micro_batch_size") or 1
        job = with_field(job, "training.lengths", buckets(cut, rows))
        job = with_field(job, LONGEST, None)
        longest, why = max(cut[-1], 1), f"the longest sample of {name}, to which its batch is padded"
    said.append(Assumed(key="longest", value=longest, why=why))
    return found.model_copy(update={"job": job, "assumed": [*kept, *said]})


def buckets(lengths: list[int], rows: int) -> list[dict[str, float]]:
    """Lengths of batches of so many random samples, each padded to its longest, and their shares. `lengths` are sorted."""
    count = len(lengths)
    edges = [0, *(min(count, max(1, round(count * share ** (1 / rows)))) for share in SHARES)]
    found: dict[int, float] = {}
    for (low, high), last in zip(pairwise(edges), [False] * (len(SHARES) - 1) + [True], strict=True):
        weight = (high / count) ** rows - (low / count) ** rows
        if weight <= 0:
            continue
        inside = ((lengths[i], ((i + 1) / count) ** rows - (i / count) ** rows) for i in range(low, high))
        mean = lengths[-1] if last else round(sum(tokens * part for tokens, part in inside) / weight)
        found[max(mean, 1)] = found.get(max(mean, 1), 0.0) + weight
    found.setdefault(max(lengths[-1], 1), 1 / count)
    total = sum(found.values())
    return [{"tokens": tokens, "share": round(share / total, 6)} for tokens, share in sorted(found.items())]


def _distribution(data: Data, name: str) -> Assumed:
    count = len(data.lengths)
    part = "" if data.whole else " of its first part, all that is read of a file so large: a longer one may follow"
    shown = ", ".join(f"{label} {data.quantile(share):,}" for label, share in (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99)))
    why = f"{count:,} samples of {name}{part} ({' + '.join(data.columns)}); tokens: {shown}, longest {data.lengths[-1]:,}"
    return Assumed(key="data", value=count, why=why)
