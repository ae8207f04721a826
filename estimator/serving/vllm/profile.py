"""The highest of torch's memory in the pass that vLLM runs to see what is left, beside the weights.

After v1/worker/gpu_model_runner.py (`profile_run`, `_dummy_run`, `_dummy_sampler_run`), v1/sample/sampler.py and
ops/topk_topp_sampler.py; of the second runner v1/worker/gpu/model_runner.py, sample/sampler.py and sample/penalties.py, and
FlashInfer's `top_k_top_p_sampling_from_logits`; of mixtures fused_moe/modular_kernel.py and fused_moe.py (`workspace_shapes`).

The pass has `max_num_batched_tokens` tokens; then `max_num_seqs` of them are sampled, with hidden states of all tokens alive:

    activations = max(one layer, sampling) + workspaces that stay
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from estimator.families.spec import ModelSpec
from estimator.serving.activations import expert_workspaces, widest_layer
from estimator.serving.tensors import Held, Stage
from estimator.serving.vllm.encoder import given, pixels, tower
from estimator.serving.vllm.settings import PERSISTENT_WORKSPACES, SECOND_RUNNER, TRITON_SAMPLER, Release, facts
from estimator.serving.vllm.sparse import LOGITS as INDEXED
from estimator.serving.vllm.speculation import NOTHING, Guessing
from estimator.tape import dtypes

LOGITS = dtypes.float32.itemsize
SORTED, CUT = 9, 3
"""Tensors of the size of float32 logits at the peak of sampling. Sorted: the logits in float32; sorted values, and their indices,
which are twice as wide; and of torch's segmented sort indices before it, twice as wide, and a second buffer of both for CUB
(aten/src/ATen/native/cuda/Sort.cu, SortStable.cu): 1 + 1 + 2 + 2 + 3. Cut by a kernel: logits, probabilities and the noise
that they are divided by; of the second runner logits, those that top-k leaves, and probabilities."""
COUNTS = LOGITS + 1 / 8
"""Bytes that the second runner keeps for each sequence and token of the vocabulary: how often it was written, and if read."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The pass that is run: `tokens`, of which `rows` are sampled, in numbers of `plain` bytes; `workspace`: of cuBLAS; `sees`:
    images, too, where the model does; `gathered`: ranks whose tokens meet at the experts; `indexed`: bytes of an
    indexer's workspace, 0 without one; `context`: of a sequence, as long as which a clip may be."""

    tokens: int
    rows: int
    plain: int
    release: Release
    workspace: int
    sees: bool = True
    gathered: int = 1
    indexed: int = 0
    context: int = 0


def activation_bytes(
    spec: ModelSpec,
    run: Pass,
    tensors: Iterable[Held],
    weights: str,
    stage: Stage = (0, 1),
    guessing: Guessing = NOTHING,
) -> int:
    """Bytes of one rank, which holds `tensors`; `weights`: the type or format that its weights are in.

    Of a pipeline's stages the first alone reads images, all but the first keep a place for what they are sent (hidden states and
    residual), and the last alone samples.
    """
    tensors = list(tensors)
    parts = [each for each in tensors if not each.seen]
    first, last = stage[0] == 0, stage[0] == stage[1] - 1
    experts = _workspaces(parts, run, weights)
    stays = max(experts, run.indexed) if run.release >= PERSISTENT_WORKSPACES else run.indexed
    if not first:
        stays += 2 * run.tokens * spec.language_model.hidden_size * run.plain
    layer = widest_layer(spec.language_model, parts, run.tokens, run.plain, experts if run.release < PERSISTENT_WORKSPACES else 0)
    if run.indexed:
        layer = max(layer, 2 * run.tokens * spec.language_model.hidden_size * run.plain + INDEXED)
    sees = run.sees and first
    looking = run.workspace + tower(spec, tensors, run.tokens, run.context) * run.plain if sees else 0
    beside = run.workspace + stays + (_pictures(spec, run) if sees else 0)
    if not last:
        return max(looking, beside + layer)
    beside += _counts(spec.language_model, run) + guessing.kept
    return max(looking, beside + max(layer, guessing.peak, _sampling(spec.language_model, run)))


def _vocabulary(spec: ModelSpec) -> int:
    return int(getattr(spec, "vocab_size", 0))


def _sampling(spec: ModelSpec, run: Pass) -> int:
    """Hidden states of the pass, those of what is sampled twice, its logits, and what sampling makes of them."""
    vocabulary = _vocabulary(spec)
    hidden = (run.tokens + 2 * run.rows) * spec.hidden_size * run.plain
    logits = run.rows * (-(-vocabulary // 64) * 64) * run.plain
    made = SORTED if run.release < TRITON_SAMPLER else CUT
    buffer = 0
    if TRITON_SAMPLER <= run.release < SECOND_RUNNER:
        buffer = min(int(facts()["multiprocessors"].value), run.rows) * vocabulary * LOGITS
    return hidden + logits + made * run.rows * vocabulary * LOGITS + buffer


def _counts(spec: ModelSpec, run: Pass) -> int:
    return round(run.rows * _vocabulary(spec) * COUNTS) if run.release >= SECOND_RUNNER else 0


def _pictures(spec: ModelSpec, run: Pass) -> int:
    """What the tower gave of as many images as a pass has tokens for, which stays until the end; before the second runner also
    the images."""
    kept = pixels(spec, run.tokens, run.context) if run.release < SECOND_RUNNER else 0
    return (given(spec, run.tokens, run.context) + kept) * run.plain


def _workspaces(parts: list[Held], run: Pass, weights: str) -> int:
    """Of a mixture's fused kernels: for every token and expert that it goes to, what the first product gives or the second, and
    what the activation gives or the second. gpt-oss's kernels for MXFP4 have none of them; Marlin's, with which
    DeepSeek V4 is run on Hopper, have."""
    if weights == "mxfp4" and not run.indexed:
        return 0
    return expert_workspaces(parts, run.tokens * run.gathered, run.plain)
