"""DeBERTa's attention: its scores are sums over contents and relative positions, which it gathers from a table.

After transformers' modeling_deberta_v2.py (5.23), `DisentangledSelfAttention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.matmul import bmm
from estimator.tape.pointwise import add, add_, add_scalar, dropout, mul_scalar, softmax
from estimator.tape.selection import gather, masked_fill
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import contiguous, expand, permute, repeat, reshape, transpose, unsqueeze

if TYPE_CHECKING:
    from estimator.families.deberta_v2 import DebertaV2Spec


class DisentangledSelfAttention:
    def __init__(self, spec: DebertaV2Spec, build: Builder):
        size, name = spec.hidden_size, "attention.self."
        self.heads, self.kinds = spec.num_attention_heads, spec.pos_att_type
        self.query = build.linear(name + "query_proj", size, size, bias=True)
        self.key = build.linear(name + "key_proj", size, size, bias=True)
        self.value = build.linear(name + "value_proj", size, size, bias=True)
        self.pos_key, self.pos_query = self.key, self.query
        self.shared = spec.share_att_key
        if not self.shared and "c2p" in self.kinds:
            self.pos_key = build.linear(name + "pos_key_proj", size, size, bias=True)
        if not self.shared and "p2c" in self.kinds:
            self.pos_query = build.linear(name + "pos_query_proj", size, size, bias=True)
        self.pos_dropout, self.dropout = spec.hidden_dropout_prob, spec.attention_probs_dropout_prob

    def __call__(self, hidden: Tensor, mask: Tensor, relative: Tensor, table: Tensor) -> Tensor:
        """[batch, tokens, hidden], as `hidden` is; `mask` and `relative` have [..., tokens, tokens], `table` its positions."""
        batch, tokens, size = hidden.shape
        q = self._by_head(self.query(hidden))
        k = self._by_head(self.key(hidden))
        v = self._by_head(self.value(hidden))
        scores = bmm(q, mul_scalar(transpose(k, 1, 2)))
        dropped = dropout(table, self.pos_dropout)
        bias = self._bias(q, k, relative, dropped)
        scores = add(scores, bias)
        scores = reshape(scores, (batch, self.heads, tokens, tokens))
        shown = empty(hidden.tape, mask.shape, dtypes.bool_, "_to_copy")
        scores = masked_fill(scores, empty(hidden.tape, shown.shape, dtypes.bool_, "bitwise_not"))
        weights = softmax(scores)
        weights = dropout(weights, self.dropout)
        out = bmm(reshape(weights, (-1, tokens, tokens)), v)
        out = contiguous(permute(reshape(out, (batch, self.heads, tokens, -1)), (0, 2, 1, 3)))
        return reshape(out, (batch, tokens, size))

    def _by_head(self, x: Tensor) -> Tensor:
        """[batch x heads, tokens, size], copied (`transpose_for_scores`)."""
        batch, tokens, size = x.shape
        split = reshape(x, (batch, tokens, self.heads, size // self.heads))
        return reshape(contiguous(permute(split, (0, 2, 1, 3))), (-1, tokens, size // self.heads))

    def _position(self, project: Module, table: Tensor, times: int) -> Tensor:
        return repeat(self._by_head(project(table)), times)

    def _bias(self, q: Tensor, k: Tensor, relative: Tensor, table: Tensor) -> Tensor:
        """What positions add to the scores (`disentangled_attention_bias`)."""
        times = q.shape[0] // self.heads
        rows = unsqueeze(table, 0)
        pos_key: Tensor | None
        pos_query: Tensor | None
        if self.shared:
            pos_query = self._position(self.pos_query, rows, times)
            pos_key = self._position(self.pos_key, rows, times)
        else:
            pos_key = self._position(self.pos_key, rows, times) if "c2p" in self.kinds else None
            pos_query = self._position(self.pos_query, rows, times) if "p2c" in self.kinds else None
        bias = None
        if "c2p" in self.kinds:
            assert pos_key is not None
            scores = bmm(q, transpose(pos_key, 1, 2))
            places = _clamped(relative, negated=False)
            scores = gather(scores, expand(places, scores.shape[:2] + places.shape[-1:]))
            bias = add_scalar(mul_scalar(scores))
        if "p2c" in self.kinds:
            assert pos_query is not None
            places_k = _clamped(relative, negated=True)
            scores_k = bmm(k, transpose(pos_query, 1, 2))
            scores_k = transpose(gather(scores_k, expand(places_k, scores_k.shape[:2] + places_k.shape[-1:])), 1, 2)
            bias = add_scalar(mul_scalar(scores_k)) if bias is None else add_(bias, mul_scalar(scores_k))
        assert bias is not None
        return bias


def _clamped(relative: Tensor, negated: bool) -> Tensor:
    """Rows of the table: relative positions from 0 on, at most its last."""
    operations = ("neg", "add", "clamp") if negated else ("add", "clamp")
    made = relative
    for operation in operations:
        made = empty(relative.tape, relative.shape, relative.dtype, operation)
    return made


def relative_positions(tape: Tape, tokens: int, bucketed: bool) -> Tensor:
    """[1, tokens, tokens] (`build_relative_position`); far ones share buckets by their logarithm."""
    shape = (tokens, tokens)

    def made(operation: str, dtype: DType = dtypes.int64) -> Tensor:
        return empty(tape, shape, dtype, operation)

    places = [empty(tape, (tokens,), dtypes.int64, "arange") for _ in range(2)]
    relative = made("sub")
    if bucketed:
        sign = made("sign")
        near, nearer, both = (made(operation, dtypes.bool_) for operation in ("lt", "gt", "bitwise_and"))
        del near, nearer
        size = made("abs")
        distance = made("where")
        del both, size
        log = made("div", dtypes.float32)
        for operation in ("log", "div", "mul", "ceil", "add"):
            log = made(operation, dtypes.float32)
        exact = made("le", dtypes.bool_)
        wide = made("_to_copy", dtypes.float32)
        signed = made("mul", dtypes.float32)
        buckets = made("where", dtypes.float32)
        del exact, wide, signed, log, distance, sign
        relative = made("_to_copy")
        del buckets
    del places
    return alias(relative, (1, *shape))
