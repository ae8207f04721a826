"""What may be said beside a model and its hardware: a context, users, a way of storing weights, an engine, tokens."""

from __future__ import annotations

import re

from estimator.questions.asked import Details

LLAMA_CPP, TENSORRT = "llama.cpp", "tensorrt-llm"
_COUNT = r"(?P<value>\d[\d,]*(\.\d+)?[km]?)"
_CONTEXT = r"(context|ctx|seq(uence)?)"
_EACH = "( (each|per (user|request|person|sequence)))?(?= |$)"
_LENGTH = r"([- ](length|len|window|size))?"
_DETAILS = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "concurrency",
            r"(^| )((for|with|to( serve)?|and) )?(?P<value>\d+) ((concurrent|parallel|simultaneous) )?"
            r"(users|people|requests|sequences|clients|sessions)( (at once|concurrently))?(?= |$)",
        ),
        ("tokens", r" (on|with|for|over) (?P<value>[\d.]+[kmbt]?) tokens(?! (of|each|per))"),
        ("batch", r",? ((with|at|and|using) )?(an? )?batch([- ]size)?( of)? (?P<value>\d+)(?=,? |$)"),
        ("context", rf"(^|,? )((with|at|and|for|using) )?(an? )?{_COUNT}( tokens)?( of)?[- ]{_CONTEXT}{_LENGTH}{_EACH}"),
        ("context", rf"(^|,? )((with|at|and|for|using) )?(an? )?{_CONTEXT}{_LENGTH}( of)? {_COUNT}( tokens)?{_EACH}"),
        ("context", rf",? ((at|with) )?(?P<value>\d+k)( tokens)?{_EACH}"),
        ("task", r",? (with|using|by|in) (?P<value>qlora|lora)(?= |$)"),
        ("task", r"(^| )(a )?(?P<value>full|qlora|lora)y?(?= (fine|train))"),
    )
)
"""In which words each is said; what is found is taken out of the question."""
_BITS = re.compile(
    r"(?<!mlx)(?<!bnb),? ((at|in|with|as|using|quantized (to|in|at)) )?((?P<bits>[48])[- ]?bits?|int(?P<whole>[48]))"
    r"( (quant|quants|quantized|quantization))?"
    r"(?= |$)",
    re.IGNORECASE,
)
_KIND = re.compile(
    r",? (at|in|as|using|with|quantized (to|in)) (a )?(?P<kind>(iq|q)\d(_\w+)?|gguf|fp8|fp16|bf16|awq|gptq|nvfp4|mxfp4|int4-awq)"
    r"( quant)?(?= |$)",
    re.IGNORECASE,
)
_ENGINE = re.compile(
    r",? ((with|in|on|using|under|via|by) )?"
    r"(?P<name>llama\.?cpp|ollama|lm studio|koboldcpp|vllm|sglang|tensorrt([- ]llm)?|trt-?llm)(?= |$)",
    re.IGNORECASE,
)
_ENGINES = {"llamacpp": LLAMA_CPP, "lm studio": LLAMA_CPP, "koboldcpp": LLAMA_CPP, "tensorrt": TENSORRT, "trt-llm": TENSORRT}
_ENGINES |= {"tensorrt llm": TENSORRT, "trtllm": TENSORRT}
"""What people call engines, and what they are here; Ollama's kin run llama.cpp."""
_PRETRAINS = re.compile(r"\bfrom scratch\b|\bpre-?train", re.IGNORECASE)
TRAINS = re.compile(r"\b((pre-?)?train|fine|lora|qlora|sft)", re.IGNORECASE)
TRAINING = ("qlora", "lora", "full", "full-mixed")
"""Ways of training, by which a question may be limited."""


def details(text: str) -> tuple[str, str, Details]:
    """A question without what is said beside; the kind of stored weights that it names, which is part of a model's name; and what
    was said beside, by name."""
    found: Details = {}
    for name, pattern in _DETAILS:
        if name not in found and (said := pattern.search(text)) is not None:
            found[name] = said["value"].replace(",", "").lower() if name == "task" else said["value"].replace(",", "")
            text = _without(text, said)
    if "task" not in found and _PRETRAINS.search(text):
        found["task"] = "full-mixed"
    trains = TRAINS.search(text) is not None or found.get("task") in TRAINING
    kind = ""
    if not trains and (said := _KIND.search(text)):
        kind, text = said["kind"], _without(text, said)
    elif (said := _BITS.search(text)) and (task := _in_few_bits(found.get("task"), trains, said["bits"] or said["whole"])):
        found["task"], text = task, _without(text, said)
    if said := _ENGINE.search(text):
        name = said["name"].lower()
        if (engine := _ENGINES.get(name, name)) != "vllm":  # which serves where nothing else is said
            found["engine"] = engine
        text = _without(text, said)
    if "batch" in found and not trains and "concurrency" not in found:  # as engines' users call it
        found["concurrency"] = found.pop("batch")
    return text, kind, found


def _in_few_bits(task: str | None, trains: bool, bits: str) -> str | None:
    """The way of using a model whose weights have so few bits; None where none of the usual ones has."""
    if not trains:
        return task or f"serve-{bits}bit"
    return "qlora" if bits == "4" and task in (None, "lora", "qlora") else None


def for_training(said: Details, trains: bool) -> Details:
    """What was said, with the name that a length has in training: beside a context where a question lists both."""
    if "context" not in said or "sequence" in said or not (trains or said.get("task") in TRAINING):
        return said
    return {"sequence" if name == "context" else name: value for name, value in said.items()} | (
        {} if "task" in said else {"context": said["context"]}
    )


def _without(text: str, found: re.Match[str]) -> str:
    return (text[: found.start()] + text[found.end() :]).lstrip(", ")
