"""A served model, loaded on a tape, whose passes can be played."""

from __future__ import annotations

from collections.abc import Callable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families import build_model
from estimator.families.build import Builder
from estimator.families.heads import CausalLM
from estimator.families.kernels import EAGER, Kernels
from estimator.families.protocols import Cache, Quantization
from estimator.families.spec import DecoderSpec
from estimator.quantization.formats import FORMATS, check_group
from estimator.quantization.packed import Packed
from estimator.serving.engine import compute_type
from estimator.tape.gpu import Gpu
from estimator.tape.tape import Tape
from estimator.training.quantization import BITSANDBYTES, TRAINED, storage


def built(
    job: Job, shard: DecoderSpec, gpu: Gpu, cache: Callable[[Tape], Cache], kernels: Kernels = EAGER
) -> tuple[Builder, CausalLM]:
    """The model that one rank serves, loaded on a new tape. `cache`: makes that of a layer."""
    asked = job.serving
    tape = Tape(gpu)
    tape.begin("load")
    build = Builder(
        tape,
        compute_type(asked),
        attention="sdpa" if kernels is EAGER else "flash_attention_2",
        kernels=kernels,
        quantization=_quantization(asked, kernels),
        whole=tuple(asked.unquantized or ()),
        served=True,
        cache=lambda: cache(tape),
    )
    model = build_model(shard, build, "causal-lm")
    assert isinstance(model, CausalLM)
    return build, model


def _quantization(serving: Serving, kernels: Kernels) -> Quantization | None:
    """How the weights are stored: as bitsandbytes and HQQ unpack them, or as a server's kernels read them."""
    name, group = serving.weights, serving.weights_group
    if name not in FORMATS:
        if group or serving.unquantized:
            raise Contradiction(f"nothing is quantized in {name}: leave groups and exceptions out", "serving.weights_group")
        return None
    check_group(name, group, "serving.weights_group")
    if not FORMATS[name].linears:
        raise Contradiction(
            f"{name} stores a mixture's experts, and these models have none: write nvfp4 or fp8", "serving.weights"
        )
    transformers = kernels is EAGER
    if name in BITSANDBYTES or (transformers and name in TRAINED and name.startswith("hqq")):
        return storage(name, group, "serving.weights_group")
    if transformers:
        raise NotModelled(f"{name} in transformers is not modelled yet; bitsandbytes and HQQ are", "serving.weights")
    if name.startswith(("hqq", "eetq")):
        raise Contradiction(f"vLLM loads no weights in {name}; write engine transformers, or gptq-int4", "serving.weights")
    return Packed(name, group)
