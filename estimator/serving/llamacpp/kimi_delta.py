"""Kimi Linear's delta attention in llama.cpp's graph: a gate for each channel, and convolutions apart.

After llama.cpp's src/models/kimi-linear.cpp (`causal_conv1d`), as of October 2026, with the fused kernel of delta nets.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.recurrent import Recurrent


def kimi_delta(of: Recurrent, x: Tensor, layer: int) -> Tensor:
    """x [width, tokens of all sequences] -> the same."""
    build, state, heads, inner = of.build, of.state, of.state.heads, of.state.inner
    size, tokens, sequences = state.size, (of.each, of.sequences), of.sequences
    begun, held = of.begun(state.convolved, layer)
    parts = []
    for name in "qkv":
        before = build.view(begun, (state.kernel - 1, inner, sequences), dense=False)
        made = build.view(build.product(f"attn_{name}", layer, inner, x), (inner, *tokens))
        joined = of.joined(before, held, made, inner)
        out = build.op("ssm_conv", (inner, *tokens), joined, build.weight(f"ssm_conv1d_{name}", layer))
        parts.append(build.view(build.unlike("unary", out), (size, heads, *tokens)))
    gate = build.product("ssm_f_b", layer, inner, build.product("ssm_f_a", layer, size, x))
    gate = build.view(
        build.unlike("unary", build.unlike("add", gate, build.weight("ssm_dt.bias", layer))), (size, heads, build.tokens)
    )
    gate = build.view(build.unlike("mul", gate, build.weight("ssm_a", layer)), (size, heads, *tokens))
    beta = build.unlike("unary", build.view(build.product("ssm_beta", layer, heads, x), (1, heads, *tokens)))
    kept = of.held(layer)
    first = build.view(of.states(kept, state.numbers), (size, size, heads, sequences))
    q, k = (build.unlike("scale", build.unlike("rms_norm", part)) for part in parts[:2])
    rows = (of.each + size) * sequences
    made = build.op("gated_delta_net", (inner, rows), q, k, parts[2], gate, beta, first)
    seen = build.unlike("cont", build.view(made, (size, heads, *tokens)))
    of.keep(build.view(made, (size, size, heads, sequences)), kept)
    opened = build.product("ssm_g_b", layer, inner, build.product("ssm_g_a", layer, size, x))
    opened = build.unlike("unary", build.view(opened, (size, heads, build.tokens)))
    normed = build.norm(build.view(seen, opened.shape), "ssm_norm", layer)
    out = build.op("cont", (inner, build.tokens), build.unlike("mul", normed, opened))
    return build.product("attn_output", layer, build.shape.hidden, out)
