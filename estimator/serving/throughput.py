"""What a server makes of its passes: how fast answers come, and how many at once.

Continuous batching reads the prompts of new requests between decoding steps. With C sequences at a time, P prompts to a prefill
pass and answers of n tokens, all C requests take

    T = C/P · prefill + (n - 1) · decode

    time per output token = decode + (C/P - 1) · prefill / (n - 1),  requests per second = C / T

each replica alike. The first token comes from the prefill.
"""

from __future__ import annotations

from estimator.contract.answer import ServingTime, Time
from estimator.contract.job import Job
from estimator.parallel.topology import Topology
from estimator.serving.speed import prompts


def throughput(job: Job, place: Topology, prefill: Time, decode: Time) -> ServingTime:
    """From the times of a prefill pass and a decoding step."""
    serving = job.serving
    prompt, output = serving.lengths
    passes = serving.concurrency / prompts(serving)

    def each(reading: float, step: float) -> float:
        return step if output == 1 else step + (passes - 1) * reading / (output - 1)

    def round_trip(reading: float, step: float) -> float:
        return reading + (output - 1) * each(reading, step)

    low, high = zip(prefill.range_seconds, decode.range_seconds, strict=True)
    took = round_trip(prefill.step_seconds, decode.step_seconds)
    rate = place.data * serving.concurrency / took
    return ServingTime(
        prompt_tokens=prompt,
        output_tokens=output,
        sequences=place.data * serving.concurrency,
        prefill=prefill,
        decode=decode,
        time_to_first_token_seconds=prefill.step_seconds,
        time_to_first_token_queued_seconds=passes * prefill.step_seconds,
        time_per_output_token_seconds=each(prefill.step_seconds, decode.step_seconds),
        range_time_per_output_token_seconds=(each(*low), each(*high)),
        request_seconds=took,
        range_request_seconds=(round_trip(*low), round_trip(*high)),
        requests_per_second=rate,
        input_tokens_per_second=rate * prompt,
        output_tokens_per_second=rate * output,
        output_tokens_per_second_per_gpu=rate * output / place.gpus,
        cost=None,
    )
