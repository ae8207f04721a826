"""Time in an answer: of a step, of a whole run, of a request that is served. Seconds and hours are floats."""

from __future__ import annotations

from estimator.contract.answer.part import AnswerPart


class TimePart(AnswerPart):
    """What a part of a step's time goes to: a kind of kernel, an exchange that nothing hides, the pipeline's bubble. Without it a
    step would be so much shorter."""

    name: str
    seconds: float
    share: float


class Time(AnswerPart):
    """One optimizer step; or of a served model, one token of each sequence (decode) or the reading of prompts (prefill)."""

    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    flops_per_step: int
    """Floating-point operations of one GPU in a step, recomputation included."""
    tflops_per_gpu: float
    """TFLOP/s of one GPU, recomputation included."""
    mfu: float
    """Model FLOPs utilisation, 0 to 1: FLOP/s without what is recomputed, over the GPU's dense peak."""
    hfu: float
    """Hardware FLOPs utilisation, 0 to 1: FLOP/s with what is recomputed, over the GPU's dense peak."""
    bottleneck: str
    """The name of the largest of `parts`."""
    parts: list[TimePart]
    """What the time goes to, largest first; the seconds sum to `step_seconds`."""
    range_seconds: tuple[float, float]
    range_reason: str


class TokenCost(AnswerPart):
    """What a million tokens cost, as decimal text, on hardware that is always busy."""

    million_input: str
    million_output: str
    range_million_input: tuple[str, str]
    range_million_output: tuple[str, str]
    """Lowest and highest cost of a million output tokens over the range of the time, at the one hourly price."""
    currency: str
    price_per_hour: str
    """Price of all instances for an hour, as decimal text in `currency`."""
    price_source: str
    price_as_of: str | None


class ServingTime(AnswerPart):
    """How fast requests are answered, each replica with as many sequences at a time as the job says."""

    prompt_tokens: int
    output_tokens: int
    sequences: int
    """Sequences that are served at the same time, on all replicas together."""
    prefill: Time
    """Reading a prompt (or those of a batch, in transformers) with nothing else running."""
    decode: Time
    """A decoding step, when half of each answer is written: one token for each sequence, or, with guesses, those that it verifies
    and all passes that guess them. Its rates count one token of each sequence."""
    tokens_per_step: float
    """Tokens of a sequence that a decoding step writes: 1, or more where tokens are guessed ahead and it is known how many are
    accepted."""
    time_to_first_token_seconds: float
    """Seconds to the first token of a request that arrives while nothing else runs."""
    time_to_first_token_queued_seconds: float
    """Seconds to the first token of the request that is read last, where as many as are served at a time arrive at once."""
    time_per_output_token_seconds: float
    """Seconds from one output token to the next on average, with the prompts of other requests that are read meanwhile."""
    range_time_per_output_token_seconds: tuple[float, float]
    request_seconds: float
    range_request_seconds: tuple[float, float]
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    output_tokens_per_second_per_gpu: float
    cost: TokenCost | None
    """What tokens cost; null where no price is known."""


class Course(AnswerPart):
    """The whole run, if the job says how much it processes."""

    steps: int
    """Optimizer steps of the whole run."""
    tokens: int
    """Tokens of the data that the run learns from, each epoch counted, padding left out."""
    computed_tokens: int
    """Tokens that all batches have room for: `tokens`, padding, and what the last batch of an epoch lacks."""
    epochs: float | None
    hours: float | None
    """Duration of the whole run in hours, everything in `parts` included; null where the time of a step is not known."""
    range_hours: tuple[float, float] | None
    parts: dict[str, float]
    """Hours by what they go to: training, set_up, evaluation, saving, restarts."""
    gpu_hours: float | None
    """`hours` times the number of GPUs."""
