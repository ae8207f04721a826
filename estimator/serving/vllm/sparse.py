"""What an indexer that chooses tokens takes in vLLM beside its weights and its cache.

After model_executor/models/deepseek_v2.py (`topk_indices_buffer`), layers/sparse_attn_indexer.py, config/vllm.py, envs.py and,
of v1/attention/backends/mla, indexer.py (`get_max_prefill_buffer_size`) and flashmla_sparse.py (`get_prefill_workspace_size`) of
0.33.
"""

from __future__ import annotations

from estimator.contract.job import Serving
from estimator.contract.units import KIB, MIB
from estimator.families.cache_layers import indexer_bytes
from estimator.families.spec import ModelSpec
from estimator.tape import dtypes

LONG = 256 * KIB
"""Tokens of a context up to which workspaces have room for `MANY` contexts, and else for `FEW`."""
MANY, FEW = 5, 2
WIDE = 576 * 2
"""Bytes of a latent in 16 bits."""
PROMPTS, PLACES = 4, 128
"""Prompts whose compressed keys are gathered at once; what the places that a token looks at are a multiple of."""
TOPK = MIB
"""Bytes of the workspace of what finds the best."""
LOGITS = 512 * MIB
"""Bytes that are set aside for sums of scores while a layer runs (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB)."""


def chosen_bytes(serving: Serving, spec: ModelSpec) -> int:
    """Places of the tokens that are chosen for each token of a pass, which all layers share; made with the model."""
    chosen = max((layer.tokens or 0 for layer in spec.cache_layers if layer.kind in ("latent", "compressed")), default=0)
    return (serving.max_num_batched_tokens or 0) * chosen * dtypes.int32.itemsize


def workspace_bytes(serving: Serving, spec: ModelSpec, scaled: bool) -> int:
    """The workspace that stays: keys of as many tokens as would fill what latents in 16 bits fill; or these, where the cache is
    in FP8 with scales."""
    keys = next((layer for layer in spec.cache_layers if layer.kind == "indexer" and layer.scaled), None)
    if keys is None:
        return 0
    contexts = serving.context * (MANY if serving.context <= LONG else FEW)
    gathered = contexts * (WIDE // indexer_bytes(keys)) // keys.rate * indexer_bytes(keys) + TOPK
    if keys.rate > 1:
        return max(gathered, _prompts_bytes(serving, spec, keys.rate))
    return max(gathered, contexts * WIDE if scaled and serving.kv_cache == "fp8" else 0)


def _prompts_bytes(serving: Serving, spec: ModelSpec, rate: int) -> int:
    """What prompts' attention gathers of compressed keys: of `PROMPTS` of them in 16 bits all, with the last tokens and those of
    the pass, and the places of what each token looks at (models/deepseek_v4/nvidia/flashmla.py, `forward_mqa`)."""
    window = next(layer for layer in spec.cache_layers if layer.kind == "window")
    tokens, looks = serving.max_num_batched_tokens or 0, window.tokens or 0
    keys = -(-serving.context // rate) + looks + tokens
    chosen = max(layer.tokens or 0 for layer in spec.cache_layers if layer.kind == "compressed") + looks
    places = -(-chosen // PLACES) * PLACES + 1
    return PROMPTS * keys * window.key_size * dtypes.bfloat16.itemsize + tokens * places * dtypes.int32.itemsize
