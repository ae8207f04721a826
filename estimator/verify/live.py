"""Live bytes, storage by storage, of whatever torch runs on fake tensors."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any
from unittest import mock

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from estimator.tape.gpu import AMPERE, Gpu
from estimator.verify import known
from estimator.verify.attention import KERNELS, workspaces

aten = torch.ops.aten
ASKS = torch.ops.prim.device.default
"""Where a tensor lies, which is asked more often than anything is computed."""
CHUNK = 65536
"""Elements that one block of CUDA's `_foreach_norm` reduces (`kChunkSize`, MultiTensorApply.cuh)."""
ALLOCATION_STEP = 512
"""Bytes: CUDA's caching allocator rounds up to a multiple."""
IN_PLACE: dict[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten.logical_and.default: aten.logical_and_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
}
"""What formulas of gradients write in place, into zeros that they have just made, but not where a tensor is a subclass, as fake
ones are: index_backward and clamp_backward (FunctionsManual.cpp), value_selecting_reduction_backward (ReduceOps.cpp),
gather_backward (TensorAdvancedIndexing.cpp)."""

DENSE = {
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten.cumsum.default: 1,
    aten.native_layer_norm.default: 1,
    aten.native_layer_norm_backward.default: 2,
    aten.convolution.default: 1,
    aten.convolution_backward.default: 2,
    aten.avg_pool2d_backward.default: 1,
    aten.im2col.default: 1,
    aten.col2im.default: 1,
}
"""Operations that copy tensors that are not contiguous, within, and how many of their arguments they do this to.

(aten/src/ATen/native: Convolution.cpp, cudnn/ConvShared.cpp, cuda/SoftMax.cu, cuda/ScanUtils.cuh, cuda/layer_norm_kernel.cu,
cuda/AveragePool2d.cu, cuda/Im2Col.cu, cuda/Col2Im.cu.)
"""

WRAPPERS = ("Float8TrainingTensor", "Float8Tensor", "Int8Tensor")
"""Tensors of torchao's that are others, of which each has a storage."""


def rounded(nbytes: int) -> int:
    """The bytes of one allocation on CUDA."""
    return -(-nbytes // ALLOCATION_STEP) * ALLOCATION_STEP


class Live(TorchDispatchMode):
    """Counts the storages that are born while it is active, from birth to the last reference; views add nothing.

    `log` has an entry per change: bytes (negative if freed) and the operation during which it happened.
    """

    def __init__(self, gpu: Gpu = AMPERE) -> None:
        super().__init__()
        self.gpu = gpu
        self.bytes = 0
        self.sizes: dict[int, int] = {}
        self.host: set[int] = set()
        self.offloaded: dict[int, int] = {}
        """Bytes of each storage that lies in the host's memory because the job says so."""
        self.entered = True
        """Whether what is made is counted."""
        self.host_bytes = 0
        self.host_log: list[int] = []
        self.log: list[tuple[int, str]] = []
        self.operation = ""
        self.in_backward = False
        self.guessed: set[str] = set()
        """Functions of models that were answered what they asked about numbers that fake tensors do not have."""
        self.knowing = False
        """Whether numbers of some tensors are known, so that those of others are computed along."""
        self.adds_in_place = False
        """Whether what is added now is added in place, where torch does so unless somebody looks on."""
        self.hosting = False
        """Whether the model computes on the host."""
        self.picked = 1
        """How many places of each row a mask of [sequences, tokens] picks, of which fake tensors have no numbers to count."""
        self.pictures = 1
        """Of how many images each sequence has so many tokens, where a mask of [sequences, tokens, width] picks these."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether each operation turns torch's compiler off and on, which nothing here is compiled by."""
        return False

    def started(self, model: Any) -> None:
        """A step of this model begins."""

    def lapped(self, phase: str) -> None:
        """A phase of the step, or a micro-batch's part of it, has ended."""

    def settled(self, optimizer: Any) -> None:
        """The optimizer has its states."""

    @contextmanager
    def outside_backward(self) -> Iterator[None]:
        """What runs within backward without being part of it: hooks."""
        before, self.in_backward = self.in_backward, False
        try:
            yield
        finally:
            self.in_backward = before

    def track(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage from now on."""
        if type(tensor).__name__ in WRAPPERS:
            names: list[str] = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
            for name in names:
                self.track(getattr(tensor, name))
            return
        storage = _local(tensor).untyped_storage()
        if storage._cdata not in self.sizes:
            self.measure(storage)

    def measure(self, storage: torch.UntypedStorage) -> None:
        """Count a storage with the bytes that it has now."""
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = 0
            weakref.finalize(storage, self._freed, storage._cdata)
        self._set(storage._cdata, rounded(storage.nbytes()))

    def _leave_out(self, tensor: torch.Tensor) -> None:
        """Never count a tensor: on a machine with a GPU it lies in the host's memory."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = 0
            self.host.add(storage._cdata)
            weakref.finalize(storage, self._freed, storage._cdata)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that was left out."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.host:
            self.host.discard(storage._cdata)
            self.measure(storage)

    def empty_on_host(self, like: torch.Tensor, pinned: bool) -> torch.Tensor:
        """A new tensor in the host's memory."""
        before, self.entered = self.entered, False  # what is made here is nobody's on the GPU
        try:
            made = torch.empty(like.shape, dtype=like.dtype)
        finally:
            self.entered = before
        self._put_on_host(made, pinned)
        return made

    def _put_on_host(self, tensor: torch.Tensor, pinned: bool = False) -> None:
        """Count a new tensor as one of the host's memory; pinned memory comes in powers of two (CachingHostAllocator.h)."""
        tensor = _local(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in self.offloaded:
            if storage._cdata not in self.sizes:
                self._leave_out(tensor)
            nbytes = storage.nbytes()
            self.offloaded[storage._cdata] = 1 << (nbytes - 1).bit_length() if pinned else -(-nbytes // 64) * 64
            self._host_changes(self.offloaded[storage._cdata])

    def lies_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether the job put the tensor into the host's memory."""
        return _local(tensor).untyped_storage()._cdata in self.offloaded

    def _host_changes(self, nbytes: int) -> None:
        self.host_bytes += nbytes
        self.host_log.append(nbytes)

    def highest_on_host(self, since: int) -> int:
        """The highest count of the host's memory from entry `since` of its log on, and just before it."""
        changes = self.host_log[since:]
        return max(accumulate(changes, initial=self.host_bytes - sum(changes)))

    def highest(self, since: int) -> int:
        """The highest count from log entry `since` on, and just before it."""
        changes = [change for change, _ in self.log[since:]]
        return max(accumulate(changes, initial=self.bytes - sum(changes)))

    def forget(self, tensor: torch.Tensor, offloaded: bool = False) -> None:
        """Stop counting a tensor: on a machine with a GPU it lies in the host's memory, which is counted if the job says so."""
        self._set(tensor.untyped_storage()._cdata, 0)
        if offloaded:
            self._put_on_host(tensor)

    def _set(self, key: int, nbytes: int) -> None:
        change, self.sizes[key] = nbytes - self.sizes[key], nbytes
        if change:
            self.bytes += change
            self.log.append((change, self.operation))

    def _freed(self, key: int) -> None:
        self._set(key, 0)
        del self.sizes[key]
        self.host.discard(key)
        if key in self.offloaded:
            self._host_changes(-self.offloaded.pop(key))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASKS and isinstance(args[0], FakeTensor) and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device
        if not self.entered or func is ASKS:
            return func(*args, **(kwargs or {}))
        if any(issubclass(kind, DTensor) for kind in types):  # what it does to its parts comes here next
            if not self.in_backward:
                return NotImplemented
            with self.outside_backward(), self:
                return func(*args, **(kwargs or {}))
        if any(kind.__name__ in WRAPPERS for kind in types):
            return NotImplemented  # the wrapper runs it on what it wraps, which comes here again
        self.operation = func.name()
        if func is torch.ops._c10d_functional.wait_tensor.default:  # makes a new tensor of fake ones only
            return args[0]
        partial = None
        self.knowing = self.knowing or known.any_known(args)
        if self.knowing and known.computable(func, args, kwargs or {}):
            return self._known(func, args, kwargs or {})
        if self.in_backward and not torch.is_grad_enabled():
            if func is aten.add.Tensor and _is_last_reference(args[0]):
                func = aten.add_.Tensor
            func = IN_PLACE.get(func, func)
        if self.adds_in_place and func is aten.add.Tensor:
            with self:
                return aten.alias(aten.add_.Tensor(*args))
        if func is aten._grouped_mm.default:
            product = _grouped_mm(*args)
            self.track(product)
            return product
        if func is aten._foreach_norm.Scalar:
            partial = _partial_norms(args[0])  # alive until this call ends
            self.track(partial)
        if func is aten.multinomial.default:  # divided by random numbers (Distributions.cpp, `multinomial_out`)
            partial = torch.empty_like(args[0])
            self.track(partial)
        if func is aten.logsumexp.default:  # what is summed is a tensor of its own (ReduceOps.cpp, `logsumexp_out_impl`)
            partial = torch.empty_like(args[0], memory_format=torch.contiguous_format)
            self.track(partial)
        if func is aten._safe_softmax.default:
            with self:
                return _safe_softmax(*args)
        if func is aten.isinf.default:  # sizes are compared (TensorCompare.cpp, `isinf`)
            with self:
                return args[0].abs() == torch.inf
        if func is aten.index.Tensor and args[1][0] is not None and args[1][0].dtype == torch.bool:
            args = (args[0], self._picks(args[1][0]))
            partial = args[1][0]._base
            if partial is not None:
                self.track(partial)
        if func is aten.masked_scatter_backward.default:
            with self:
                return _scattered(*args)
        if func is aten.masked_select.default:
            func, args = aten.index.Tensor, (args[0], self._picks(args[1]))
        copies = []
        if func in DENSE:
            with self:
                copies = [a.contiguous() for a in args[: DENSE[func]] if not a.is_contiguous()]
            self.operation = func.name()
        result = _all_of(args[0]) if func is aten.nonzero.default else func(*args, **(kwargs or {}))
        if func is aten._scaled_dot_product_efficient_attention.default:  # its random numbers' state (attention.cu)
            for tensor in result[2:]:
                self._leave_out(tensor)
        if func is aten.log_sigmoid_forward.default:  # CUDA's kernel needs no buffer (Activation.cpp)
            result = (result[0], result[1].new_empty(0))
        if func is aten.native_layer_norm.default:  # CUDA keeps the statistics of bf16 rows in float32
            result = (result[0], *(t.float() for t in result[1:]))
        if func is aten.convolution_backward.default:  # the gradient's copy is let go before the bias's gradient is made
            tree_map_only(torch.Tensor, self.track, result[:2])
            if not args[0].is_contiguous():
                del copies[0]
        hosted = (func is aten.lift_fresh.default and not args[0].dim()) or self._of_host(args)
        keep = self._leave_out if hosted else self.track
        if self.offloaded and self._computes_on_host(args):
            keep = self._put_on_host
        tree_map_only(torch.Tensor, keep, result)
        if func is aten.masked_scatter.default or func in KERNELS:
            with self:
                held = _counts(*args[:2]) if func is aten.masked_scatter.default else workspaces(self.gpu.capability, func, args)
            del held  # as a kernel does when it is done
        return result

    def _known(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation on tensors whose numbers are known."""
        result = known.compute(func, args, kwargs)
        number = (func is aten.lift_fresh.default and not args[0].dim()) or self._of_host(args)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                tensor.hosted = self.hosting or known.lies_on_host(tensor)  # type: ignore[attr-defined]
                (self._leave_out if number or known.lies_on_host(tensor) else self.track)(tensor)
        return result

    def _computes_on_host(self, args: Any) -> bool:
        """Whether an operation runs on the CPU: its tensors lie there."""
        given = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor) and a.dim()]
        return bool(given) and all(map(self.lies_on_host, given))

    def _picks(self, mask: torch.Tensor) -> list[torch.Tensor]:
        """A mask as the indices that it stands for: classification by the last token picks one of each sequence."""
        found = known.picks(mask)
        if found is None and mask.dim() > 2:
            found = mask.shape[0] * self.pictures * self.picked * mask.shape[-1]
            return list(torch.empty((mask.dim(), found), dtype=torch.int64).unbind())
        count = mask.shape[0] * self.picked if found is None else found
        return [torch.empty(count, dtype=torch.int64) for _ in mask.shape]

    def _of_host(self, args: Any) -> bool:
        """Whether an operation computes with Python's numbers alone, as tensors (`torch.tensor(3)`).

        A list that indexes lies where the tensor lies that it indexes (python_variable_indexing.cpp, `sequenceToVariable`).
        """
        given = [a for a in args if isinstance(a, torch.Tensor)]
        return bool(given) and all(t.dim() == 0 and t.untyped_storage()._cdata in self.host for t in given)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that lies on this rank."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_last_reference(gradient: torch.Tensor) -> bool:
    """Whether the engine, which adds gradients in backward, holds the only reference to this one.

    Then it adds in place (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), but never while a dispatch mode
    is active. The counts include those of this call.
    """
    if not is_non_overlapping_and_dense_or_false(gradient):
        return False
    storage, count = gradient.untyped_storage(), gradient._use_count  # type: ignore[attr-defined]
    return count() == 4 and torch._C._storage_Use_Count(storage._cdata) == 2


def _partial_norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """What CUDA reduces each chunk of each tensor to (aten/src/ATen/native/cuda/ForeachReduceOp.cu)."""
    longest = max(t.numel() for t in tensors)
    return torch.zeros(len(tensors) * -(-longest // CHUNK))


def _counts(x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """What CUDA's `masked_scatter` holds beside its result: the places before each, and a mask row by row
    (cuda/IndexKernel.cpp, `masked_scatter__cuda`; IndexKernel.cu, `launch_masked_scatter_kernel`)."""
    counts, expanded = torch.empty(x.shape, dtype=torch.int64), mask.expand(x.shape)
    return [counts] if expanded.is_contiguous() else [counts, torch.empty(x.shape, dtype=torch.bool)]


def _scattered(gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """What a mask picks of a gradient, as CUDA finds it: by the places of what is not zero (FunctionsManual.cpp,
    `masked_scatter_backward_symint`; cuda/IndexKernel.cpp, `masked_select_out_cuda_impl`; cuda/Nonzero.cu)."""
    dense = mask.expand(gradient.shape).contiguous()
    places = torch.empty((gradient.dim(), math.prod(sizes)), dtype=torch.int64)
    del dense
    made = gradient.new_empty(sizes)
    del places
    return made


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """What the fused name runs (aten/src/ATen/native/SoftMax.cpp), so that its temporaries are seen."""
    out = torch.softmax(x, dim, dtype)
    masked = torch.isneginf(x)
    return torch.where(masked.all(dim, keepdim=True), torch.scalar_tensor(0.0, dtype=out.dtype), out, out=out)


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The result of CUDA's kernel, which takes every floating-point type, while the one for fake tensors takes bfloat16 only.

    Rows are padded to 16 bytes (aten/src/ATen/native/GroupedMMUtils.h, `create_grouped_gemm_output_tensor`).
    """
    columns, alignment = b.shape[-1], 16 // a.element_size()
    for matrix in (a, b):
        row = max(matrix.stride()[-2:])
        if row % alignment:
            raise ValueError(f"strides should be multiple of 16 bytes, got {row} elements")
    padded = -(-columns // alignment) * alignment
    if b.dim() == 3:
        return a.new_empty_strided((len(a), columns), (padded, 1))
    return a.new_empty_strided((len(offsets), len(a), columns), (len(a) * padded, padded, 1))


def _all_of(mask: torch.Tensor) -> torch.Tensor:
    """The places of what is not zero, where nothing is (labels of a batch: all are given)."""
    return torch.empty((mask.shape[0], mask.dim()), dtype=torch.int64)


@contextmanager
def shapes_unseen(live: Live) -> Iterator[None]:
    """DTensor asks for the shapes of results by making them on fake tensors, which take nothing on a GPU."""
    plain = ShardingPropagator._propagate_tensor_meta_non_cached

    def propagated(*args: Any) -> Any:
        before, live.entered = live.entered, False
        try:
            return plain(*args)
        finally:
            live.entered = before

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagated):
        yield


@contextmanager
def numbers_seen(live: Live) -> Iterator[None]:
    """Let `live` count single numbers that are made for a device, `torch.tensor(3, device=x.device)`; others lie on the host."""
    plain = torch.tensor

    def tensor(data: Any, **settings: Any) -> torch.Tensor:
        made = plain(known.as_numbers(data), **settings)
        if settings.get("device") not in (None, "cpu") and live.entered:
            live.count(made)
        return made

    with mock.patch.object(torch, "tensor", tensor):
        yield


@contextmanager
def resizes_seen(live: Live) -> Iterator[None]:
    """Let `live` see what FSDP2 frees and refills in place."""
    plain = torch.UntypedStorage.resize_

    def resize(storage: Any, nbytes: int) -> Any:
        result = plain(storage, nbytes)
        live.operation = "resize_"
        live.measure(storage)
        return result

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain  # type: ignore[method-assign]
