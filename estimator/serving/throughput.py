"""What a server makes of its passes: how fast answers come, and how many at once.

Continuous batching reads the prompts of new requests between decoding steps. With C sequences at a time, P prompts to a prefill
pass and answers of n tokens, all C requests take

    T = C/P · prefill + (n - 1) · decode

    time per output token = decode + (C/P - 1) · prefill / (n - 1),  requests per second = C / T

each replica alike. The first token comes from the prefill. Of k tokens that are guessed ahead, each accepted with the
probability a if those before it were, a decoding step writes

    1 + a + a² + … + a^k = (1 - a^(k+1)) / (1 - a)  tokens

(Leviathan, Kalman and Matias, Fast Inference from Transformers via Speculative Decoding, 2023, equation 1). Where a is not
known, a step writes one token, and the range reaches to a step of which all guesses are right.

SGLang hands tokens out through one process, which takes f for each (managers/tokenizer_manager.py, `tokenizer_worker_num` 1):
all C requests take no less than C · n · f, however fast the GPUs are.
"""

from __future__ import annotations

from estimator.contract.answer import ServingTime, Time
from estimator.contract.job import Job
from estimator.parallel.topology import Topology
from estimator.serving.speed import prompts


def tokens_per_step(guessed: int, acceptance: float) -> float:
    """Tokens that a decoding step writes of a sequence, of which so many were guessed ahead."""
    return sum(acceptance**power for power in range(guessed + 1))


def throughput(
    job: Job,
    place: Topology,
    prefill: Time,
    decode: Time,
    guessed: int = 0,
    engaged: float = 1.0,
    handed: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> ServingTime:
    """From the times of a prefill pass and a decoding step, before which so many tokens of a sequence are `guessed`. `engaged`:
    the part of a prefill pass after which the next can begin, less than all over the stages of a pipeline. `handed`: seconds that
    handing out a token takes at least, is expected to, and takes at most."""
    serving = job.serving
    prompt, output = serving.lengths
    passes, accepted = serving.concurrency / prompts(serving), serving.speculative_acceptance
    written = tokens_per_step(guessed, accepted or 0.0)
    most = written if accepted is not None else tokens_per_step(guessed, 1.0)

    def each(reading: float, step: float) -> float:
        return step if output == 1 else step + (passes - 1) * engaged * reading / (output - 1)

    def round_trip(reading: float, step: float, handed: float) -> float:
        return max(reading + (output - 1) * each(reading, step), serving.concurrency * output * handed)

    def between(reading: float, step: float, handed: float) -> float:
        handing = serving.concurrency * output * handed - reading
        return step if output == 1 else max(each(reading, step), handing / (output - 1))

    seconds = decode.step_seconds / written
    low = prefill.range_seconds[0], decode.range_seconds[0] / most, handed[0]
    high = prefill.range_seconds[1], decode.range_seconds[1] / written, handed[2]
    took = round_trip(prefill.step_seconds, seconds, handed[1])
    rate = place.data * serving.concurrency / took
    return ServingTime(
        prompt_tokens=prompt,
        output_tokens=output,
        sequences=place.data * serving.concurrency,
        tokens_per_step=written,
        prefill=prefill,
        decode=decode,
        time_to_first_token_seconds=prefill.step_seconds,
        time_to_first_token_queued_seconds=(1 + (passes - 1) * engaged) * prefill.step_seconds,
        time_per_output_token_seconds=between(prefill.step_seconds, seconds, handed[1]),
        range_time_per_output_token_seconds=(between(*low), between(*high)),
        request_seconds=took,
        range_request_seconds=(round_trip(*low), round_trip(*high)),
        requests_per_second=rate,
        input_tokens_per_second=rate * prompt,
        output_tokens_per_second=rate * output,
        output_tokens_per_second_per_gpu=rate * output / place.gpus,
        cost=None,
    )
