"""What the command line prints for people."""

from __future__ import annotations

import io
import json
import os

import pytest

from estimator import __version__
from estimator.cli.main import main
from estimator.cli.questions import asked
from tests.documents import ROOT


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_a_model_is_the_text_of_its_config_and_no_text_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    text = json.dumps(config | {"num_hidden_layers": 2, "vocab_size": 99, "architectures": ["x" * 300]})
    assert printed(capsys, text, "--on", "t4", "--task", "serve").startswith("inline model on t4: 94,912 parameters")
    assert main(["a" * 300, "--on", "t4"]) == 3


def test_the_headline_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "llama-2-13b", "--on", "2x24GB").splitlines()
    assert lines[0].startswith("llama-2-13b on 2x24GB: 13,015,864,320 parameters")
    rows = {line.split("  ")[0]: line for line in lines[3 : lines.index("Assumptions") - 1]}
    assert list(rows) == [
        "serve bf16",
        "serve fp8",
        "serve 4-bit (AWQ)",
        "serve q4_k_m, llama.cpp",
        "QLoRA (nf4)",
        "LoRA (bf16)",
        "full, pure bf16",
        "full, mixed",
    ]
    for way, verdict, change in (
        ("serve bf16", "  fits  ", ""),
        ("QLoRA (nf4)", "  fits  ", ""),
        ("full, pure bf16", "  does not fit  ", "such GPUs"),
        ("full, mixed", "  does not fit  ", "such GPUs"),
    ):
        assert verdict in rows[way]
        assert change in rows[way]
    assert len(lines) - lines.index("Assumptions") > 5


def test_the_same_hardware_however_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["2 nodes of 8xA100-80GB", "2x8xa100-80gb", "2 nodes x 8 x A100-80GB"]
    tables = {printed(capsys, "llama-3.1-70b", "--on", text).partition("parameters")[2] for text in asked}
    assert len(tables) == 1


def test_names_of_several_words_need_no_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [["llama 3 8b", "--on", "rtx 4090"], ["llama", "3", "8b", "--on", "rtx", "4090"]]
    assert len({printed(capsys, *words, "--task", "qlora") for words in asked}) == 1
    questions = ["will 13B fit on 2x24GB?", "13B on 2x24GB", "can I fine tune 13B with 2x24GB", "13B --on 2x24GB"]
    questions += ["can 2x24GB train 13B?", "is 2x24GB enough to fine-tune 13B"]
    assert len({printed(capsys, *text.split(), "--task", "qlora") for text in questions}) == 1
    assert printed(capsys, "--on", "24GB", "llama-3-8b", "--task", "qlora").startswith("llama-3-8b on 24GB")
    assert printed(capsys, *["qlora", "llama", "3", "8b", "on", "24GB"]).startswith("llama-3-8b on 24GB")


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("how fast is 70B on 8xH100 for 20 users?", ["70B", "--on", "8xH100", "--concurrency", "20"]),
        ("how many tokens per second does qwen3 8b run on a 3090", ["qwen3 8b", "--on", "a 3090"]),
        (
            "kimi k2 on 8xH200 with 50 users at 32k context",
            ["kimi k2", "--on", "8xH200", "--concurrency", "50", "--context", "32k"],
        ),
        ("can a 4090 run gemma 3 27b with a context of 8k", ["gemma 3 27b", "--on", "a 4090", "--context", "8k"]),
        ("how many H100 for kimi k2.5", ["kimi k2.5", "--on", "H100"]),
        ("how many rtx 4090s do I need to run llama 3 70b?", ["llama 3 70b", "--on", "rtx 4090"]),
        ("which gpu for llama 3 70b", ["which", "llama 3 70b"]),
        ("what GPU do I need to fine-tune llama 3 8b?", ["which", "llama 3 8b", "--task", "qlora"]),
        ("how much vram does qwen3 32b need with 32k context", ["which", "qwen3 32b", "--context", "32k"]),
        ("how many GPUs would it take to train 70B with lora", ["which", "70B", "--task", "lora"]),
        ("what is the cheapest card to run gpt-oss-120b", ["which", "gpt-oss-120b"]),
        ("what is the max context for llama 3.1 8b on a 3060", ["llama 3.1 8b", "--on", "a 3060"]),
        ("what models fit on 24gb", ["models", "--fits", "--on", "24gb"]),
        ("which models can I run on my laptop?", ["models", "--fits", "--on", "here"]),
        ("will 8B run on this machine", ["8B", "--on", "here"]),
        ("qwen3-32b q4 on 24gb at 32k", ["qwen3-32b q4", "--on", "24gb", "--context", "32k"]),
        (
            "how much does it cost to fine-tune llama 3 8b on 100M tokens",
            ["which", "llama 3 8b", "--task", "qlora", "--tokens", "100M"],
        ),
        (
            "how long does it take to fine-tune llama 3 8b on 8xH100 with 100M tokens?",
            ["llama 3 8b", "--on", "8xH100", "--tokens", "100M"],
        ),
        (
            "how many users can 8xH100 serve with llama 3.3 70b",
            ["max", "llama 3.3 70b", "serving.concurrency", "--task", "serve", "--on", "8xH100"],
        ),
        (
            "how many people at once can qwen3 8b serve on a 4090?",
            ["max", "qwen3 8b", "serving.concurrency", "--task", "serve", "--on", "a 4090"],
        ),
        ("how many GPU(s) do I need to run 70B, please?", ["which", "70B"]),
        ("how many h100s to serve 20 users with 70B", ["70B", "--on", "h100", "--concurrency", "20"]),
        ("could I serve 70B to 20 users on 8xH100", ["70B", "--on", "8xH100", "--concurrency", "20"]),
        ("how much gpu memory to fine-tune 8B with lora", ["which", "8B", "--task", "lora"]),
        ("how much vram for 70B at 4 bit", ["which", "70B", "--task", "serve-4bit"]),
        ("can I do a full fine-tune of 8B on 80GB", ["8B", "--on", "80GB", "--task", "full"]),
        ("cheapest gpu for running 13B", ["which", "13B"]),
        ("what do I need to run 70B", ["which", "70B"]),
        ("how many 4090s for a 70B model with an 8k context window", ["70B", "--on", "4090", "--context", "8k"]),
        ("what can I run 70B on?", ["which", "70B"]),
        ("do I need an H100 for 70B", ["70B", "--on", "an H100"]),
        ("I have a 4090, can I run 13B?", ["13B", "--on", "a 4090"]),
        ("does 13B fit 24GB", ["13B", "--on", "24GB"]),
        ("what context can I get with 8B on 24GB", ["8B", "--on", "24GB"]),
        ("how long would training 70B on 8xH100 take", ["70B", "--on", "8xH100"]),
        ("what is the largest model I can run on 24GB", ["models", "--fits", "--on", "24GB"]),
        (
            "how many users can I serve with 8B on a 4090",
            ["max", "8B", "serving.concurrency", "--task", "serve", "--on", "a 4090"],
        ),
        *(
            (asking, ["max", "70B", "serving.concurrency", "--task", "serve", "--on", "8xH100", "--context", "32k"])
            for asking in (
                "how many users can 8xH100 serve with 70B at 32k context",
                "how many users with 32k tokens each can 8xH100 handle running 70B?",
                "how many people can run 70B on 8xH100 with 32k of context each",
                "how many concurrent users for 70B on 8xH100 at 32k",
                "70B on 8xH100 with 32k context, how many users?",
            )
        ),
        ("how many users can 8xH100 serve with 70B with 100M tokens", None),
        ("llama 3 8b", None),
        ("which 70B", None),
        ("on " * 200, None),
    ],
)
def test_a_question_is_read_with_its_numbers(question: str, arguments: list[str] | None) -> None:
    assert asked(question) == arguments


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["llama", "3", "8b"], "willitfit 'llama 3 8b' --on"),
        (["estmate", "job.yaml"], "did you mean willitfit estimate job.yaml?"),
        (["wich", "gpu", "for", "13B"], "did you mean willitfit which gpu for 13B?"),
        (["waht", "about", "4090s"], "not understood: 'waht about 4090s'. Ask "),
        (["whisper", "large", "v3"], "willitfit 'whisper large v3' --on"),
        ([""], "say what it is to run on"),
        (["how", "many", "4090s"], "not understood: 'how many 4090s'. Ask 'will 13B fit on 2x24GB'"),
    ],
)
def test_a_name_without_hardware_is_told_how_to_go_on(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_question_of_an_unknown_model_says_how_it_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wil", "13B", "fit", "on", "24GB"]) == 3
    assert "The question was read as: willitfit 'wil 13B' --on 24GB" in capsys.readouterr().err


def test_a_usual_way_of_using_a_model_is_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    on = ["--task", "qlora", "--on", "24GB"]
    answer = json.loads(printed(capsys, "estimate", "gpt2", "--json", *on))
    (row,) = json.loads(printed(capsys, "gpt2", "--json", *on))["rows"]
    assert answer["memory"]["total_bytes"] == row["total_bytes"]
    assert "training.sequence_length: 1,024" in printed(capsys, "max", "gpt2", "training.sequence_length", *on)
    assert main(["estimate", str(ROOT / "docs" / "examples" / "qlora.yaml"), *on]) == 2
    assert "qlora.yaml says its task itself" in capsys.readouterr().err


def test_a_file_of_a_framework_is_answered_with_and_without_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", str(ROOT / "docs" / "examples" / "axolotl.yaml"), "--json"]
    whole, none = (json.loads(printed(capsys, *asked, *on))["memory"] for on in (["--on", "80GB"], []))
    assert whole["total_bytes"] > 0
    assert none["capacity_bytes"] is None


def test_a_model_alone_is_told_what_to_say_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2"]) == main(["estimate", "gpt2", "--task", "qlora"]) == 2
    said = capsys.readouterr().err
    assert "say it beside the name, `--task qlora --on rtx-4090`" in said
    assert "say with --on what it is to run on" in said


def test_a_card_by_name_is_what_it_can_allocate_not_what_it_is_sold_with(capsys: pytest.CaptureFixture[str]) -> None:
    named = json.loads(printed(capsys, "llama-3-8b", "--on", "rtx-4090", "--json"))
    sold = json.loads(printed(capsys, "llama-3-8b", "--on", "24GB", "--json"))
    assert named["capacity_bytes"] == pytest.approx(sold["capacity_bytes"], rel=0.002)
    assert named["capacity_bytes"] < 24 * 2**30


def test_the_tensors_at_the_peak_are_named_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "docs" / "examples" / "qlora.yaml")
    short, long = printed(capsys, "estimate", example), printed(capsys, "estimate", example, "--explain")
    assert "Alive at the peak" not in short
    table = long.partition("Alive at the peak\n")[2].partition("\n\n")[0]
    assert "mlp.gate_proj.weight" in table
    assert set(short.splitlines()) < set(long.splitlines())


@pytest.mark.parametrize("what", ["models", "gpus", "nodes"])
def test_listings(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, what, "--json"))
    lines = printed(capsys, what).splitlines()
    assert len(lines) == len(rows) + 1
    assert [line.split()[0] for line in lines[1:]] == [row["name"] for row in rows]


@pytest.mark.parametrize("asked", ["gpus rtx-4090", "gpus RTX 4090", "nodes p5.48xlarge", "gpus h100"])
def test_all_about_one(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is named is shown in full, even where other names have its name in them."""
    about = json.loads(printed(capsys, *asked.split(), "--json"))
    text = printed(capsys, *asked.split())
    assert text.startswith(f"{about['name']}\n")
    assert about["name"] == "-".join(asked.lower().split()[1:])
    assert "second" in text


@pytest.mark.parametrize("asked", ["--help", "estimate --help", "serve --help", "models --help", "gpus --help", "--version"])
def test_help(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(asked.split())
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "usage: willitfit" in out or out == f"willitfit {__version__}\n"


def test_nothing_asked_is_answered_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "willitfit MODEL --on HARDWARE" in capsys.readouterr().err


def test_an_option_is_a_setting_of_the_service_only_where_that_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """`which` takes --memory, too."""
    monkeypatch.delenv("WILLITFIT_MEMORY", raising=False)
    assert main(["which", "gpt2", "--memory", "40GB..80GB"]) == 0
    assert "WILLITFIT_MEMORY" not in os.environ


@pytest.mark.parametrize("command", ["estimate -", "import -", "ask - --as slurm"])
def test_standard_input_that_is_too_long_is_refused_rather_than_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = b"model: gpt2\n" + b"#" * (1 << 20) + b"\ntraining: {micro_batch_size: 64}\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(command.split()) == 2
    assert "standard input: has more than 1,048,576 bytes" in capsys.readouterr().err
