"""Live bytes, storage by storage, of whatever torch runs on fake tensors."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from estimator.tape.gpu import AMPERE, Gpu
from estimator.verify import kernels, known
from estimator.verify.attention import KERNELS, workspaces

aten = torch.ops.aten
ASKS = torch.ops.prim.device.default
"""Where a tensor lies, which is asked more often than anything is computed."""
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

REFERENCES = 4
"""Of Python to a gradient that nothing but the engine holds, while it is being added to."""
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
        self.knowing_all = False
        """Whether masks of one number throughout are known, too."""
        self.adds_in_place = False
        """Whether what is added now is added in place, where torch does so unless somebody looks on."""
        self.hosting = False
        """Whether the model computes on the host."""
        self.picked = 1
        """How many places of each row a mask of [sequences, tokens] picks, of which fake tensors have no numbers to count."""
        self.pictures = 1
        """Of how many images each sequence has so many tokens, where a mask of [sequences, tokens, width] picks these."""
        self.routed: frozenset[int] = frozenset()
        """How many experts there are, of which each is taken to be chosen by equally many tokens."""

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
        self.knowing = self.knowing or self.knowing_all or known.any_known(args)
        if self.knowing and known.computable(func, args, kwargs or {}, self.knowing_all):
            return self._known(func, args, kwargs or {})
        if self.in_backward and not torch.is_grad_enabled():
            if func is aten.add.Tensor and _is_last_reference(args[0]):
                func = aten.add_.Tensor
            if func is not aten.index_put.default or args[3:] == (True,):  # else it copies the gradient of what was written to
                func = IN_PLACE.get(func, func)
        if self.adds_in_place and func is aten.add.Tensor:
            with self:
                return aten.alias(aten.add_.Tensor(*args))
        if func is aten._grouped_mm.default:
            product = kernels.grouped_mm(*args)
            self.track(product)
            return product
        if func in kernels.TEMPORARIES:
            partial = kernels.TEMPORARIES[func](args[0])  # alive until this call ends
            self.track(partial)
        if func in kernels.WRITTEN_OUT:
            with self:
                return kernels.WRITTEN_OUT[func](*args)
        if func is aten.index.Tensor and args[1][0] is not None and args[1][0].dtype == torch.bool:
            args = (args[0], self._picks(args[1][0]))
            partial = args[1][0]._base
            if partial is not None:
                self.track(partial)
        if func is aten.masked_select.default:
            func, args = aten.index.Tensor, (args[0], self._picks(args[1]))
        copies = []
        if func in kernels.DENSE:
            with self:
                copies = [a.contiguous() for a in args[: kernels.DENSE[func]] if not a.is_contiguous()]
        self.operation = func.name()
        result = kernels.all_of(args[0]) if func is aten.nonzero.default else func(*args, **(kwargs or {}))
        result = self._of_cuda(func, result)
        if func in known.CHOOSING and self.routed:
            known.choose_evenly(func, args, result, self.routed)
        if func is aten.convolution_backward.default:  # the gradient's copy is let go before the bias's gradient is made
            for gradient in _tensors(result[:2]):
                self.track(gradient)
            if not args[0].is_contiguous():
                del copies[0]
        keep = self._keep(func, args)
        for tensor in _tensors(result):
            keep(tensor)
        if func is aten.masked_scatter.default or func in KERNELS:
            with self:
                if func is aten.masked_scatter.default:
                    held = kernels.counts(*args[:2])
                else:
                    held = workspaces(self.gpu.capability, func, args)
            del held  # as a kernel does when it is done
        return result

    def _of_cuda(self, func: Any, result: Any) -> Any:
        """An operation's result as CUDA's kernel makes it."""
        if func is aten._scaled_dot_product_efficient_attention.default:  # its random numbers' state (attention.cu)
            for tensor in result[2:]:
                self._leave_out(tensor)
        if func is aten.log_sigmoid_forward.default:  # CUDA's kernel needs no buffer (Activation.cpp)
            return (result[0], result[1].new_empty(0))
        if func is aten.native_layer_norm.default:  # CUDA keeps the statistics of bf16 rows in float32
            return (result[0], *(t.float() for t in result[1:]))
        return result

    def _keep(self, func: Any, args: Any) -> Callable[[torch.Tensor], None]:
        """How what an operation makes of `args` is counted: on the GPU, as the host's, or not."""
        if self.offloaded and self._computes_on_host(args):
            return self._put_on_host
        hosted = (func is aten.lift_fresh.default and not args[0].dim()) or self._of_host(args)
        return self._leave_out if hosted else self.track

    def _known(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation on tensors whose numbers are known."""
        result = known.compute(func, args, kwargs)
        number = (func is aten.lift_fresh.default and not args[0].dim()) or self._of_host(args)
        for tensor in _tensors(result):
            tensor.hosted = self.hosting or known.lies_on_host(tensor)  # type: ignore[attr-defined]
            (self._leave_out if number or known.lies_on_host(tensor) else self.track)(tensor)
        return result

    def _computes_on_host(self, args: Any) -> bool:
        """Whether an operation runs on the CPU: its tensors lie there."""
        given = [a for a in _tensors(args) if a.dim()]
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


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results, in whatever lists they lie."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _tensors(each)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that lies on this rank."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_last_reference(gradient: torch.Tensor) -> bool:
    """Whether the engine, which adds gradients in backward, holds the only reference to this one.

    Then it adds in place (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), but never while a dispatch mode
    is active. The counts include those of this call. What Python alone refers to, as a hook that waits for other gradients does
    (`register_multi_grad_hook`), the tensor counts once, however many hold it.
    """
    if sys.getrefcount(gradient) > REFERENCES or not is_non_overlapping_and_dense_or_false(gradient):
        return False
    storage, count = gradient.untyped_storage(), gradient._use_count  # type: ignore[attr-defined]
    return count() == 4 and torch._C._storage_Use_Count(storage._cdata) == 2
