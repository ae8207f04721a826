"""Ring attention: keys and values go round the context-parallel ranks, each of which keeps its own queries.

Transformer Engine 2.11, attention/dot_product_attention/context_parallel.py, `AttnFuncWithCPAndKVP2P`, causal. Of c ranks the
last is simulated, which in forward holds most: its queries see the keys of all others, so that the result of every step is whole.
Tokens are this rank's: the first dimension where cuDNN attends, the second where FlashAttention does.
"""

from __future__ import annotations

from math import prod

from estimator.tape import dtypes
from estimator.tape.attention import CUDNN, FLASH
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.collectives import Group, receive
from estimator.tape.tensor import Tensor, alias, empty, unary
from estimator.tape.views import narrow, permute


def ring(q: Tensor, k: Tensor, v: Tensor, ranks: Group, fused: bool) -> Tensor:
    """[tokens, sequences, heads, size] of queries and of what comes out if cuDNN attends (`fused`); else sequences come first.

    Saves q, its result, a float32 log-sum-exp per query, the state of random numbers of every step, and keys and values as the
    last step got them. Forward holds the keys and values of all steps, and their results, until these are added up.
    """
    tape, steps, shapes, order = q.tape, ranks.size, (k.shape, v.shape), (1, 2, 0, 3) if fused else (0, 2, 1, 3)
    kernel, dim = (CUDNN, 0) if fused else (FLASH, 1)
    batch, heads, tokens, size = (q.shape[i] for i in order)
    scores, weighted = (2 * batch * heads * tokens * k.shape[dim] * width for width in (size, v.shape[3]))
    result = (*q.shape[:3], v.shape[3])
    form = (batch * heads, tokens, k.shape[dim], size, 1), q.dtype  # a step's queries see half of its keys, or half of them all
    read = q.nbytes + k.nbytes + v.nbytes + prod(result) * q.dtype.itemsize

    def received(nbytes: int) -> None:
        tape.communicate("receive", ranks.name, ranks.size, nbytes)

    def backward(g: Tensor, q: Tensor, kv: Tensor, *rest: Tensor) -> list[Gradient]:
        dq = unary("empty_like", q)
        buffers = [empty(tape, (2, *kv.shape), kv.dtype, "p2p_comm_buffers") for _ in range(2)]
        for step in range(steps):
            received(kv.nbytes * (1 if step in (0, steps - 1) else 2))  # keys and values; their gradients; between, both
            tape.compute(kernel.name + "_backward", 3 * scores + 2 * weighted, 2 * read, form)
            whole = [alias(kv, shape) for shape in shapes]
            part = whole if step == steps - 1 else [narrow(t, dim, t.shape[dim] // 2) for t in whole]
            gradients = [empty(tape, t.shape, t.dtype, kernel.name + "_backward") for t in (q, *part)]
            held = kernel.held(permute(q, order), permute(part[0], order), permute(rest[-1], order))
            del held, gradients
        return [dq, *[alias(buffers[steps % 2], shape) for shape in shapes]]

    node = record("AttnFuncWithCPAndKVP2P", (q, k, v), (q,), backward)
    around = [empty(tape, (k.numel + v.numel,), k.dtype, "cat")]
    partial, statistics, random = [], [], []
    for step in range(steps):
        if step + 1 < steps:
            around.append(receive(unary("empty_like", around[-1]), ranks))
        tape.compute(kernel.name, scores + weighted, read, form)
        partial.append(empty(tape, result, q.dtype, kernel.name))
        statistics.append(empty(tape, (batch, heads, tokens), dtypes.float32, kernel.name))
        random.append(empty(tape, (2,), dtypes.int64, kernel.name))
        if step == 1:
            lse = unary("clone", statistics[0])
    out = empty(tape, result, q.dtype, "out_correction")
    if node is not None:
        node.save((around[-1], lse, *random))
    return attach(node, out, save=True)
