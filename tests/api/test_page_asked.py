"""What is asked of a page: what an address, a form and a file mean, and what is said of those that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from pydantic import BaseModel

from api.page import PAGES as KINDS
from api.pages.asked import asked
from api.pages.forms import EXAMPLES, FIELDS, METHODS, TASKS
from api.pages.job import job_items, title
from api.pages.of_job import LIMITS
from api.pages.spelled import meant
from api.query import LISTS, NAMES, PARTS, job_mapping, job_query
from estimator import Job, estimate
from estimator.contract.job import read_job
from estimator.planner.ways import slugs
from tests.api.test_page import AXOLOTL, JOB, PAGES, Page, client, page

pytestmark = pytest.mark.slow

QLORA = "task=train&" + urlencode(METHODS["qlora"])
QLORA_IN_FP16 = QLORA.replace("bf16-true", "16-true&training.autocast=true").replace("dtype=bf16", "dtype=fp32")


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("task=train&method=qlora&model=gpt2", f"{QLORA}&model=gpt2"),
        ("task=QLoRA&model=gpt2", f"{QLORA}&model=gpt2"),
        ("method=qlora&model=gpt2&rank=8", f"{QLORA.replace('rank=16', 'rank=8')}&model=gpt2"),
        ("way=qlora&model=gpt2&on=t4", f"{QLORA_IN_FP16}&model=gpt2&on=t4"),
        ("task=serve-4bit&model=gpt2", "task=serve&serving.weights=awq-int4&model=gpt2"),
        (
            "task=serve-4bit&model=gpt2&on=m4-16gb",
            "task=serve&serving.engine=llama.cpp&serving.weights=q4_k_m&model=gpt2&on=m4-16gb",
        ),
        ("way=qlora&model=gpt2&on=2x24GB", f"{QLORA}&parallelism.strategy=ddp&model=gpt2&on=2x24GB"),
        (
            "way=serve&model=llama-3.3-70b&on=8xh100",
            "task=serve&serving.weights=bf16&parallelism.tensor=8&model=llama-3.3-70b&on=8xh100",
        ),
        (
            "way=serve&model=gpt2&on=8xh100",
            "task=serve&serving.weights=bf16&parallelism.tensor=6&model=gpt2&hardware.gpu=h100&hardware.gpus=6",
        ),
        ("method=qlora&model=gpt2&on=2x24GB&tp=2", f"{QLORA}&model=gpt2&on=2x24GB&parallelism.tensor=2"),
        ("model=gpt2&gpu=t4&gpus=2", "model=gpt2&on=2x t4"),
        ("model=gpt2&hardware=24GB", "model=gpt2&on=24GB"),
        ("model=gpt2&on=t4&context=8k", "model=gpt2&on=t4&context=8k"),
        ("task=serve&model=gpt2&context=1k&users=8", "task=serve&model=gpt2&serving.context=1024&serving.concurrency=8"),
        ("task=serve&model=gpt2&tp=2", "task=serve&model=gpt2&parallelism.tensor=2"),
        ("model=gpt2&on=t4&engine=ollama", "model=gpt2&on=t4&engine=ollama"),
        ("task=serve&model=gpt2&on=t4&engine=ollama", "task=serve&model=gpt2&on=t4&serving.engine=ollama"),
        ("model=gpt2&on=t4&training.optimizer=sgd", "task=train&model=gpt2&on=t4&training.optimizer=sgd"),
        ("model=gpt2&task=train&sequence=512&utm_source=x", "model=gpt2&task=train&training.sequence_length=512"),
        ("model=gpt2&task=train&batch=4", "model=gpt2&task=train&training.micro_batch_size=4"),
        ("model=gpt2&task=train&nothing=1", "model=gpt2&task=train&nothing=1"),
    ],
)
def test_what_people_write_by_hand_is_read_as_it_is_meant(written: str, same: str) -> None:
    assert sorted(meant(asked(parse_qsl(written))).items) == sorted(parse_qsl(same))


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/?task=train&method=qlora&model=gpt2&on=24GB", 200, "Fine-tune gpt2 with QLoRA on 24GB: it fits"),
        ("/cost?method=QLoRA&model=gpt2", 200, "Fine-tune gpt2 with QLoRA: what does it cost?"),
        ("/which?method=qlora&model=gpt2&memory=16GB", 200, "Which GPU? Fine-tune gpt2 with QLoRA"),
        ("/?model=gpt2&on=t4&context=1k&colour=red", 200, "not read: 'colour'"),
        ("/?task=finetune&model=gpt2", 422, "'finetune' is no task; write serve, serve-8bit,"),
        ("/?task=serve&method=qlora&model=gpt2", 422, "'qlora' is no way to serve"),
        ("/?task=serve-4bit&model=gpt2&on=mi300x", 422, "no AWQ for AMD"),
    ],
)
def test_a_page_says_what_was_meant(path: str, status: int, said: str) -> None:
    assert said in page(path, status).text


def test_every_list_of_a_job_is_read_from_an_address() -> None:
    """What an address says of a job is the job, also where a value is a list, or a list of what is no single value."""
    assert {name for name, kind in fields_of(Job) if "list[" in kind} <= {*LISTS, *NAMES, PARTS.removesuffix(".")}
    serving = {"engine": "llama.cpp", "override_tensor": ["blk.(1|2){1,3}=CPU", "exps=CPU"], "tensor_split": [3, 1]}
    lengths = [{"tokens": 512, "share": 0.5}, {"tokens": 1024, "share": 0.5}]
    for job in (
        {"model": "gpt2", "task": "serve", "serving": serving},
        {
            "model": "gpt2",
            "task": "serve",
            "serving": {"unquantized": ["lm_head"], "mixed_weights": {"fp8": ["q_proj", "k_proj"]}},
        },
        {"model": "gpt2", "training": {"lengths": lengths, "adapter": {"targets": "[qk]_proj", "layers": [0, 1]}}},
    ):
        whole = read_job(job)
        assert read_job(job_mapping(job_query(whole.model_dump(mode="json")).items())) == whole


def fields_of(part: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a job by their dotted names, with their types in words."""
    for name, field in part.model_fields.items():
        yield f"{prefix}{name}", str(field.annotation)
        for kind in (field.annotation, *get_args(field.annotation)):
            for inner in (kind, *get_args(kind)):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    yield from fields_of(inner, f"{prefix}{name}.")


def test_an_address_holds_the_whole_question() -> None:
    jobs: list[dict[str, Any]] = [
        {"model": "gpt2"},
        {"model": "gpt2", "training": {"adapter": {"targets": ["c_attn", "c_proj"]}, "activation_checkpointing": {"every": 2}}},
        {"model": "gpt2", "training": {"adapter": {"targets": ".*c_(attn|fc)", "exclude": ["c_fc"], "modules_to_save": ["wte"]}}},
        {"model": "gpt2", "training": {"adapter": {"type": "dora", "targets": ["c_attn"], "layers": [0, 3], "bias": "all"}}},
        {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"weights": "int8", "hours": 1.5}},
        {"model": "llama-3-8b", "hardware": {"gpus": 4}, "parallelism": {"reshard_after_forward": False}},
        {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 4, "nodes": 2}},
        {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 4}},
    ]
    for job in jobs:
        whole = Job.model_validate(job)
        assert Job.model_validate(job_mapping(job_query(whole.model_dump(mode="json")).items())) == whole
        assert read_job(job_mapping(job_items(job))) == whole


def test_the_form_keeps_what_was_asked() -> None:
    found = page(PAGES["training"] + "&training.loss=fused")
    kept = {a["name"]: a.get("value") for tag, a in found.tags if tag == "input" and a.get("value") and "name" in a}
    assert kept["training.tokens"] == "1e9"
    assert kept["training.loss"] == "fused"
    assert "bf16-true" in [a["value"] for tag, a in found.tags if tag == "option" and "selected" in a]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/?model=lama-2-7b&on=24GB", 404, "llama-2-7b"),
        ("/?model=llama-2-7b&on=", 422, "give the hardware, such as rtx-4090"),
        ("/?on=24GB", 422, "give a model, such as"),
        ("/?model=gpt2&on=24GB&context=many", 422, "write one such as 4096"),
        ("/?model=gpt2&on=24GB&context=٤", 422, "write one such as 4096"),
        ("/?model=%3Cscript%3Ealert(1)%3C/script%3E&on=24GB", 404, "no model is called"),
        ("/?model=config.json&on=24GB", 422, "files cannot be named here"),
        ("/?task=train&model=gpt2&training.precison=x", 422, "Did you mean 'precision'"),
        ("/?task=train&model=gpt2&training=5", 422, "training"),
        ("/?task=train&model=gpt2&training=5&training.precision=x", 422, "training"),
        ("/?task=dance&model=gpt2", 422, "task"),
        ("/timeline?on=t4", 422, "give a model, such as"),
        (f"/what-if?{JOB}&change=1k", 422, "write training.sequence_length=1k..128k"),
        (f"/what-if?{JOB}&change=training.sequence_length=1..1000:1", 422, "more than 48"),
        (f"/limit?{JOB}&field=training.precision", 422, "training.precision"),
        (f"/limit?{JOB}&field=training.micro_batch_size&bound=most", 422, "neither max nor min"),
        ("/cost?model=gpt2&method=prayer", 422, "write qlora"),
        ("/cost?model=gpt2&method=lora&training.tokens=10M&max_cost=much", 422, "write a number such as 500"),
        ("/cost?model=gpt2&method=lora&training.tokens=10M&max_cost=nan", 422, "write a number such as 500"),
        ("/which?model=gpt2&task=dance", 422, "write serve"),
        ("/plan?model=gpt2&method=lora&on=t4&within=soon", 422, "write 24h"),
        ("/plan?model=gpt2&method=prayer", 422, "write qlora"),
        ("/plan?task=serve&model=gpt2", 422, "plans are of training"),
        ("/replicas?model=gpt2", 422, "say how many requests"),
        ("/replicas?model=gpt2&requests=many", 422, "write one such as 10"),
        ("/replicas?model=gpt2&requests=nan", 422, "write one such as 10"),
        ("/replicas?model=bert-base&requests=1", 422, "not modelled"),
        (f"/along?{JOB}&to=nowhere", 422, "write deepspeed"),
        ("/which?model=gpt2&task=train", 422, "'train' is no use of a model; write serve"),
        ("/which?model=gpt2&within=soon", 422, "write 24h"),
        ("/models?task=serve", 422, "give the hardware"),
        (f"/compare?{JOB}&b.on=nothing", 404, "nothing"),
        ("/?model=mine-9b&on=24GB", 404, "It goes into the field Model"),
        ("/?model=gpt2&on=rtx4900", 404, "can be given by its memory"),
        ("/?model={&on=24GB", 422, "model: is not JSON"),
    ],
)
def test_a_bad_question_gets_a_page_that_says_what_to_write(path: str, status: int, says: str) -> None:
    found = page(path, status)
    assert says in found.text
    assert "That could not be read" in found.texts["title"]
    assert [a.get("src") for tag, a in found.tags if tag == "script"] == ["/static/page.js"]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (f"/limit?{JOB}&field=training.precision&bound=min", ("bound", "min")),
        (f"/what-if?{JOB}&field=training.sequence_length&values=1..1000:1", ("values", "1..1000:1")),
        (f"/compare?{JOB}&b.on=nothing", ("b.on", "nothing")),
        (f"/cost?{JOB}&max_cost=much&training.tokens=1M", ("max_cost", "much")),
        (f"/along?{JOB}&to=nowhere", None),
    ],
)
def test_what_was_wrong_is_asked_again_of_the_same_job(path: str, kept: tuple[str, str] | None) -> None:
    found = page(path, 422 if "nothing" not in path else 404)
    assert [href for href in found.links() if urlsplit(href).path == "/timeline"], "the pages of the job are a click away"
    assert len([tag for tag, _ in found.tags if tag == "h1"]) == 1
    if kept is None:
        return
    name, value = kept
    fields = {a.get("name"): a.get("value") for tag, a in found.tags if tag == "input"}
    chosen = [a.get("value") for tag, a in found.tags if tag == "option" and "selected" in a]
    assert fields.get(name) == value or value in chosen


MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.02 GiB is free. "
    "Of the allocated memory 21.30 GiB is allocated by PyTorch, and 812.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    "sent",
    [
        {"text": AXOLOTL, "on": "rtx-4090", "measured": MESSAGE},
        {"task": "train", "model": "llama-3-8b", "on": "rtx-4090", "training.adapter.rank": "16", "measured": MESSAGE},
    ],
)
def test_a_message_is_explained(sent: dict[str, str]) -> None:
    answer = client.post("/explain", content=urlencode(sent))
    found = Page(answer.text)
    assert answer.status_code == 200, answer.text
    assert found.texts["h1"].endswith("on rtx-4090: explained")
    job = client.post("/v1/import", params={"on": "rtx-4090"}, content=AXOLOTL).json()["job"] if "text" in sent else None
    job = job or job_mapping([item for item in sent.items() if item[0] != "measured"])
    said = client.post("/v1/explain", json={"job": job, "measured": MESSAGE}).json()
    assert said["verdict"] == "explained"
    for change in said["changes"]:
        assert change in found.text
    for one in said["hypotheses"]:
        assert one["text"] in found.text


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"text": AXOLOTL, "on": "t4"}, "paste what was measured"),
        ({"measured": MESSAGE}, "give a model, such as"),
        ({"measured": MESSAGE, "text": "adapter: lora\nsequence_len: 512\nflash_attention: true\n"}, "no framework is told"),
        ({"measured": MESSAGE, "text": "adapter: lora\nsequence_len: 512\n", "from": "axolotl"}, "write it into the field Model"),
        ({"measured": "all is well", "model": "gpt2", "on": "t4"}, "That could not be read"),
    ],
)
def test_what_explains_nothing_is_refused_with_what_to_write(sent: dict[str, str], says: str) -> None:
    answer = client.post("/explain", content=urlencode(sent))
    assert answer.status_code == 422
    assert says in answer.text


def test_a_file_is_read_with_the_defaults_of_its_release() -> None:
    text = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: lora\ncutoff_len: 2048\n"
    for release in ("", "0.9.1"):
        answer = client.post("/file", content=urlencode({"text": text, "on": "rtx-4090", "release": release, "do": "fix"}))
        assert answer.status_code == 200, answer.text
        assert ("0.9.1" in Page(answer.text).texts.get("ul", "")) is bool(release)
        params = {"on": "rtx-4090"} | ({"release": release} if release else {})
        fixes = client.post("/v1/fix", params=params, content=text).json()
        assert all(one["patch"].splitlines()[-1] in Page(answer.text).text for one in fixes["fixes"])
    refused = client.post("/file", content=urlencode({"text": text, "on": "rtx-4090", "release": "soon"}))
    assert refused.status_code == 422


def test_a_file_is_read_and_answered() -> None:
    sent = {"text": AXOLOTL, "on": "rtx-4090", "model": ""}
    answer = client.post("/file", content=urlencode(sent))
    found = Page(answer.text)
    assert answer.status_code == 200
    assert found.texts["h1"].endswith(" with LoRA on rtx-4090 (a file of axolotl): it does not fit")
    assert "micro_batch_size: 4" in found.texts["textarea"]
    read = client.post("/v1/import", params={"on": "rtx-4090"}, content=AXOLOTL).json()["job"]
    same = [href for href in found.links() if urlsplit(href).path == "/timeline"]
    assert estimate(job_mapping(parse_qsl(urlsplit(same[0]).query))).memory == estimate(read).memory


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"text": "", "model": "gpt2"}, "paste what your file says"),
        ({}, "Read my file"),
        ({"text": "adapter: qlora\nmicro_batch_size: 2\n"}, "model"),
        ({"text": "{"}, "That could not be read"),
        ({"text": '{"hidden_size": 8, "model_type": "llama"}'}, "paste it into the field Model"),
        ({"text": AXOLOTL, "on": "rtx-4099"}, "rtx-4090"),
        ({"text": "\x00\ud800"}, "That could not be read"),
    ],
)
def test_what_is_no_file_is_refused_with_what_to_write(sent: dict[str, str], says: str) -> None:
    answer = client.post("/file", content=urlencode(sent, errors="surrogatepass"))
    assert answer.status_code == (200 if not sent else 422 if "on" not in sent else 404)
    assert says in answer.text


def test_a_form_of_too_many_fields_is_refused() -> None:
    answer = client.post("/file", content=urlencode([(f"a{i}", "1") for i in range(500)]))
    assert answer.status_code == 422
    assert "100 fields at most" in answer.text


def test_edits_of_a_file_are_shown_when_they_are_asked_for() -> None:
    text = "model: gpt2\nhardware: {gpu: rtx-4090}\ntraining:\n  micro_batch_size: 256\n"
    answer = client.post("/file", content=urlencode({"text": text, "do": "fix"}))
    assert "What to edit" in answer.text
    assert "-  micro_batch_size: 256" in answer.text


def test_what_the_forms_offer_is_known() -> None:
    assert set(TASKS) == set(slugs())
    assert set(METHODS) <= set(TASKS)
    for fields in METHODS.values():
        read_job(job_mapping([("model", "gpt2"), *fields.items()]))
    for task, each in FIELDS.items():
        for field in each:
            for option in filter(None, field.options):
                read_job(job_mapping([("model", "gpt2"), ("task", task), ("training.adapter.rank", "8"), (field.name, option)]))
    assert set(LIMITS) == set(FIELDS)
    for name, _, given in EXAMPLES:
        assert name in {"", *KINDS}
        assert given


def test_words_of_a_question_that_are_not_understood_are_named() -> None:
    answer = client.get("/", params={"model": "dpo on qwen2.5 7b with 2 A100s"})
    assert answer.status_code == 422
    assert "not understood beside" in answer.text
    assert client.get("/oembed", params={"url": "/?model=dpo+on+qwen2.5+7b+with+2+A100s"}).status_code == 404


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"model": "gpt2"}, "Train gpt2"),
        ({"model": {"model_type": "llama"}, "training": {"adapter": {"type": "dora"}}}, "Fine-tune llama with DORA"),
        ({"model": "a", "training": {"adapter": {"rank": 1}, "quantization": "nf4"}}, "Fine-tune a with QLoRA"),
        ({"model": "a", "task": "serve", "serving": {"weights": "fp8", "engine": "vllm"}}, "Serve a in fp8 with vLLM"),
        ({"model": "a", "hardware": {"gpu": "h100", "gpus": 8, "nodes": 2}}, "Train a on 2 nodes of 8 × h100"),
        ({"model": "a", "hardware": {"memory": "24GB"}}, "Train a on 24GB"),
    ],
)
def test_a_question_in_words(job: dict[str, Any], said: str) -> None:
    assert title(job) == said
