"""What a server's fused layers hold at most while a pass runs through them."""

from __future__ import annotations

from estimator.families.spec import ModelSpec
from estimator.serving.tensors import COMPRESSOR, GROUPED, Held

HEADS = 64
"""Heads that FlashMLA's kernels for compressed keys take (vllm/models/deepseek_v4/nvidia/flashmla.py)."""


def widest_layer(spec: ModelSpec, parts: list[Held], tokens: int, itemsize: int, experts: int, met: int | None = None) -> int:
    """The widest layer where its feed-forward part is activated: what attention gave, the residual (or all its streams) before
    and after it, and what the two products around the activation give and take; or a mixture's workspaces, `experts` bytes.
    Bytes, of a pass of so many tokens, in numbers of `itemsize` bytes. `met`: tokens of all ranks that meet for that part, whose
    hidden states are gathered beside this rank's own."""
    fed_tokens, streams = tokens if met is None else met, int(getattr(spec, "hc_mult", getattr(spec, "altup_num_inputs", 1)))
    gathered = (fed_tokens - tokens) * spec.hidden_size * itemsize
    widest = 0
    for layer in {each.layer for each in parts if each.layer is not None}:
        linears = [each for each in parts if each.layer == layer and each.kind == "linear"]
        attended = max(
            (each.shape[1] for each in linears if each.end in ("o_proj", "out_proj", "dense")), default=spec.hidden_size
        )
        wide = [
            each.shape[0] for each in linears if each.end == "gate_proj+up_proj" or each.end in ("gate_up_proj", "input_linear")
        ]
        apart = any(each.end == "gate_proj" for each in linears)
        plain = [each.shape[0] for each in linears if each.end in ("up_proj", "fc1", "c_fc", "dense_h_to_4h", "fc_in", "in_proj")]
        fed = max([n + n // 2 for n in wide] + [(3 if apart else 2) * n for n in plain], default=0)
        mixed = any(each.kind == "experts" and each.layer == layer for each in parts)
        more = max(fed * fed_tokens * itemsize, experts if mixed else 0)
        attending = _in_grouped_attention(linears, spec, streams) * tokens * itemsize
        widest = max(widest, attending, (attended + 2 * streams * spec.hidden_size) * tokens * itemsize + more)
    return widest + gathered


def _in_grouped_attention(linears: list[Held], spec: ModelSpec, streams: int) -> int:
    """Numbers of a token in attention whose output is made in groups of heads: the streams, what is collapsed of them, queries,
    and what attention gives, in heads that are filled up to `HEADS`; 0 where there is none."""
    if not any(each.end == GROUPED for each in linears):
        return 0
    size = int(getattr(spec, "head_dim", 1))
    queries = next(each.shape[0] for each in linears if each.end == "q_b_proj" and COMPRESSOR not in each.name)
    return (streams + 1) * spec.hidden_size + queries + -(-queries // (HEADS * size)) * HEADS * size


def expert_workspaces(parts: list[Held], tokens: int, itemsize: int) -> int:
    """Bytes of a mixture's fused kernels: for every token and expert that it goes to, what the first product gives or the second,
    and what the activation gives or the second; the widest layer's."""
    sizes = []
    for each in parts:
        if each.kind == "experts" and each.end == "gate_up_proj" and len(each.shape) == 3:
            _, wide, hidden = each.shape
            sizes.append(tokens * each.used * (max(wide, hidden) + max(wide // 2, hidden)) * itemsize)
    return max(sizes, default=0)
