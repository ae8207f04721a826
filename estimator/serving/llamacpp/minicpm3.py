"""llama.cpp's graph of MiniCPM 3, which makes keys and values of latents before they are cached.

After src/models/minicpm3.cpp of llama.cpp, as of October 2026.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graph import Builder


class MiniCPM3Builder(Builder):
    """Builds the graph of one batch."""

    def _projected(self, x: Tensor, layer: int) -> list[Tensor]:
        shape, latent, heads, tokens = self.shape, self.shape.unfolded, self.shape.heads, self.tokens
        assert latent is not None
        q = self.norm(self.product("attn_q_a", layer, latent.queries, x), "attn_q_a_norm", layer)
        q = self.view(self.product("attn_q_b", layer, shape.head * heads, q), (shape.head, heads, tokens))
        both = self.product("attn_kv_a_mqa", layer, latent.rank + latent.rotary, x)
        compressed = self.norm(self.part(both, (latent.rank, tokens), tokens), "attn_kv_a_norm", layer)
        made = self.product("attn_kv_b", layer, heads * (latent.plain + shape.values_wide), compressed)
        plain = self.part(made, (latent.plain, heads, tokens), tokens * heads)
        values = self.part(made, (shape.values_wide, heads, tokens), tokens * heads)
        values = self.op("cont", values.shape, values)
        turned = self.unlike("rope", self.part(both, (latent.rotary, 1, tokens), tokens), self.positions)
        turned = self.op("repeat", (latent.rotary, heads, tokens), turned)
        return [self.unlike("rope", q, self.positions), self.op("concat", q.shape, plain, turned), values]
