"""GPUs without memory, for llama.cpp to lay a model out on: devices that ggml takes for CUDA's, and that compute nothing.

`register(3)` makes ggml find three. They say what ggml-cuda.cu says of itself: tensors aligned to 128 bytes, rows of blocks
filled up to 512 elements, every operation done, products of 32 tokens or more worth sending their weights for. What CUDA adds
to a graph (fused kernels, keys and values in float16) they do not.

After ggml/src/ggml-backend-impl.h of llama.cpp, GGML_BACKEND_API_VERSION 3.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from typing import Any

POINTER, SIZE = c.c_void_p, c.c_size_t
GET_ROWS, MUL_MAT, MUL_MAT_ID, ROPE = "GET_ROWS", "MUL_MAT", "MUL_MAT_ID", "ROPE"
GPU = 1
"""GGML_BACKEND_DEVICE_TYPE_GPU"""
FREE = 10**15
"""Bytes that each GPU says are free."""


class Tensor(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("buffer", POINTER),
        ("ne", c.c_int64 * 4),
        ("nb", SIZE * 4),
        ("op", c.c_int),
    ]


class Props(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("description", c.c_char_p),
        ("free", SIZE),
        ("total", SIZE),
        ("type", c.c_int),
        ("id", c.c_char_p),
        ("caps", c.c_bool * 5),
    ]


def _structure(name: str, fields: str) -> type[c.Structure]:
    return type(name, (c.Structure,), {"_fields_": [(field, POINTER) for field in fields.split()]})


BufferTypeCalls = _structure(
    "BufferTypeCalls", "get_name alloc_buffer alloc_all get_alignment get_max_size get_alloc_size get_all_sizes is_host"
)
BufferCalls = _structure(
    "BufferCalls", "free_buffer get_base init_tensor memset_tensor set_tensor get_tensor set_2d get_2d cpy_tensor clear reset"
)
BackendCalls = _structure(
    "BackendCalls",
    "get_name free set_async get_async set_2d_async get_2d_async cpy_async synchronize plan_create plan_free plan_update "
    "plan_compute compute event_record event_wait optimize",
)
DeviceCalls = _structure(
    "DeviceCalls",
    "get_name get_description get_memory get_type get_props init_backend get_buffer_type get_host_buffer_type from_host_ptr "
    "supports_op supports_buft offload_op event_new event_free event_synchronize",
)
RegistryCalls = _structure("RegistryCalls", "get_name get_device_count get_device get_proc_address")


class BufferType(c.Structure):
    _fields_ = [("calls", BufferTypeCalls), ("device", POINTER), ("context", POINTER)]


class Backend(c.Structure):
    _fields_ = [("guid", POINTER), ("calls", BackendCalls), ("device", POINTER), ("context", POINTER)]


class Device(c.Structure):
    _fields_ = [("calls", DeviceCalls), ("registry", POINTER), ("context", POINTER)]


class Registry(c.Structure):
    _fields_ = [("version", c.c_int), ("calls", RegistryCalls), ("context", POINTER)]


class Event(c.Structure):
    _fields_ = [("device", POINTER), ("context", POINTER)]


KEPT: list[Any] = []
"""What ggml has addresses of."""


def _call(result: Any, arguments: list[Any], does: Callable[..., Any]) -> int:
    made = c.CFUNCTYPE(result, *arguments)(does)
    KEPT.append(made)
    return c.cast(made, POINTER).value or 0


def _at(structure: c.Structure) -> int:
    KEPT.append(structure)
    return c.addressof(structure)


def _text(text: str) -> int:
    made = c.create_string_buffer(text.encode())
    KEPT.append(made)
    return c.addressof(made)


def register(count: int, library: str) -> None:
    """Tell the ggml of a library of so many GPUs."""
    ggml = c.CDLL(library)
    ggml.ggml_backend_buffer_init.restype = POINTER
    ggml.ggml_nbytes.restype = ggml.ggml_row_size.restype = SIZE
    ggml.ggml_op_name.restype = c.c_char_p
    ggml.ggml_nrows.restype = c.c_int64
    ggml.ggml_row_size.argtypes = [c.c_int, c.c_int64]
    ggml.ggml_is_quantized.restype = c.c_bool
    for name in ("ggml_nbytes", "ggml_nrows"):
        getattr(ggml, name).argtypes = [POINTER]
    ggml.ggml_backend_buffer_init.argtypes = [POINTER, BufferCalls, POINTER, SIZE]
    ggml.ggml_backend_register.argtypes = [POINTER]
    registry = Registry(version=3)
    at = _at(registry)
    devices = [_device(ggml, number, at) for number in range(count)]
    registry.calls = RegistryCalls(
        get_name=_call(POINTER, [POINTER], lambda reg: _text("CUDA")),
        get_device_count=_call(SIZE, [POINTER], lambda reg: count),
        get_device=_call(POINTER, [POINTER, SIZE], lambda reg, index: devices[index]),
        get_proc_address=_call(POINTER, [POINTER, c.c_char_p], lambda reg, name: None),
    )
    ggml.ggml_backend_register(at)


def _device(ggml: Any, number: int, registry: int) -> int:
    name, place = _text(f"CUDA{number}"), c.cast(_text(f"0000:{number:02x}:00.0"), c.c_char_p)
    device = Device(registry=registry)
    buffers = BufferType(device=_at(device))
    backend = Backend(guid=_text(f"no GPU, number {number}"), device=c.addressof(device))

    def nothing(*arguments: Any) -> None:
        return None

    def allocated(kind: int, size: int) -> int:
        calls = BufferCalls(
            free_buffer=_call(None, [POINTER], nothing),
            get_base=_call(POINTER, [POINTER], lambda buffer: 2**40 * (number + 1)),
            memset_tensor=_call(None, [POINTER, POINTER, c.c_uint8, SIZE, SIZE], nothing),
            set_tensor=_call(None, [POINTER, POINTER, POINTER, SIZE, SIZE], nothing),
            get_tensor=_call(None, [POINTER, POINTER, POINTER, SIZE, SIZE], nothing),
            clear=_call(None, [POINTER, c.c_uint8], nothing),
        )
        return int(ggml.ggml_backend_buffer_init(kind, calls, None, size))

    def nbytes(kind: int, at: int) -> int:
        tensor = Tensor.from_address(at)
        size = int(ggml.ggml_nbytes(at))
        if ggml.ggml_is_quantized(tensor.type) and tensor.ne[0] % 512:
            size += int(ggml.ggml_row_size(tensor.type, 512 - tensor.ne[0] % 512))
        return size

    def tokens(at: int) -> int:
        tensor = Tensor.from_address(at)
        op = ggml.ggml_op_name(tensor.op).decode()
        if op == GET_ROWS:
            return 0
        return {MUL_MAT: tensor.ne[1], MUL_MAT_ID: tensor.ne[2], ROPE: tensor.ne[2]}.get(op) or int(ggml.ggml_nrows(at))

    def memory(dev: int, free: Any, total: Any) -> None:
        free[0] = total[0] = FREE

    def said(dev: int, props: Any) -> None:
        found = props[0]
        found.name = found.description = c.cast(name, c.c_char_p)
        found.free = found.total = FREE
        found.type, found.id = GPU, place
        for index, able in enumerate((True, True, False, True, True)):
            found.caps[index] = able

    def event(dev: int) -> int:
        return _at(Event(device=dev))

    sizes = c.POINTER(SIZE)
    buffers.calls = BufferTypeCalls(
        get_name=_call(POINTER, [POINTER], lambda kind: name),
        alloc_buffer=_call(POINTER, [POINTER, SIZE], allocated),
        get_alignment=_call(SIZE, [POINTER], lambda kind: 128),
        get_alloc_size=_call(SIZE, [POINTER, POINTER], nbytes),
    )
    backend.calls = BackendCalls(
        get_name=_call(POINTER, [POINTER], lambda it: name),
        free=_call(None, [POINTER], nothing),
        synchronize=_call(None, [POINTER], nothing),
        compute=_call(c.c_int, [POINTER, POINTER], lambda it, graph: 0),
        event_record=_call(None, [POINTER, POINTER], nothing),
        event_wait=_call(None, [POINTER, POINTER], nothing),
    )
    device.calls = DeviceCalls(
        get_name=_call(POINTER, [POINTER], lambda dev: name),
        get_description=_call(POINTER, [POINTER], lambda dev: name),
        get_memory=_call(None, [POINTER, sizes, sizes], memory),
        get_type=_call(c.c_int, [POINTER], lambda dev: GPU),
        get_props=_call(None, [POINTER, c.POINTER(Props)], said),
        init_backend=_call(POINTER, [POINTER, POINTER], lambda dev, params: c.addressof(backend)),
        get_buffer_type=_call(POINTER, [POINTER], lambda dev: c.addressof(buffers)),
        supports_op=_call(c.c_bool, [POINTER, POINTER], lambda dev, op: True),
        supports_buft=_call(c.c_bool, [POINTER, POINTER], lambda dev, kind: kind == c.addressof(buffers)),
        offload_op=_call(c.c_bool, [POINTER, POINTER], lambda dev, op: tokens(op) >= 32),
        event_new=_call(POINTER, [POINTER], event),
        event_free=_call(None, [POINTER, POINTER], nothing),
        event_synchronize=_call(None, [POINTER, POINTER], nothing),
    )
    KEPT.extend((buffers, backend))
    return c.addressof(device)
