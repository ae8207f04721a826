"""Data that a job trains on: what a file of samples is read as, and what becomes of the job's lengths."""

from __future__ import annotations

import importlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from estimator import InvalidJob
from estimator.cli.main import main
from estimator.exchange import data as reading
from estimator.exchange import read
from estimator.exchange.data import read_data
from estimator.exchange.found import Found
from estimator.exchange.lengths import buckets, with_data

AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: {}\nmicro_batch_size: {}\nadapter: lora\nlora_r: 8\nsample_packing: {}\n"
TURNS = [{"role": "user", "content": "12345678"}, {"role": "assistant", "content": "12345678"}]
SAMPLES: list[tuple[dict[str, Any], int]] = [
    ({"input_ids": [1, 2, 3]}, 3),
    ({"text": "x" * 40}, 10),
    ({"text": "é" * 5 + "x"}, 6),
    ({"text": ""}, 0),
    ({"messages": TURNS}, 1 + 2 + 3 + 2),
    ({"conversations": [{"from": "human", "value": "1234"}]}, 2 + 1),
    ({"prompt": "1234", "completion": "1234"}, 2),
    ({"prompt": "1234", "chosen": "1" * 40, "rejected": "1" * 80}, 21),
    ({"instruction": "1234", "input": "12345678", "output": "1234"}, 4),
    ({"question": "1234", "answer": "1234", "id": "long" * 99}, 2),
]
WRONG = [
    (b"", "holds no sample"),
    (b"\n\n", "holds no sample"),
    (b"[1]", "is no mapping of columns"),
    (b"{", "is no JSON"),
    (b"[" * 10_000, "is no JSON"),
    (b'[{"text": "a"}, {"text": "b"', "sample 2 is no JSON"),
    (b'{"text": "a"}\n{"words": "b"}', "d.jsonl:2: has no text, which the first sample has"),
    (b"\xff\xfe", "is no JSON"),
    (b"\0" * 10_000_000, "more than 4,194,304 bytes"),
    (b'{"id": 1}', "its columns are id: read are input_ids"),
    (b'{"input_ids": "1"}', "is no list"),
    (b'{"messages": [' + b"[]," * 200_000 + b"[]]}", "parts in a column"),
]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def axolotl(tokens: int, rows: int = 1, packed: bool = False) -> Found:
    return read(AXOLOTL.format(tokens, rows, str(packed).lower()), model=None)


@pytest.mark.parametrize(("row", "tokens"), SAMPLES)
def test_a_sample_is_counted(tmp_path: Path, row: dict[str, Any], tokens: int) -> None:
    assert read_data(jsonl(tmp_path / "d.jsonl", [row])).lengths == [tokens]


def test_a_list_is_read_as_its_samples(tmp_path: Path) -> None:
    path, rows = tmp_path / "d.json", [{"text": "é]" * number} for number in range(300)] * 3
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")
    assert read_data(path).lengths == read_data(jsonl(tmp_path / "d.jsonl", rows)).lengths


@pytest.mark.parametrize(("row", "tokens"), SAMPLES)
def test_parquet_says_the_same(tmp_path: Path, row: dict[str, Any], tokens: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.Table.from_pylist([row]), tmp_path / "d.parquet")
    assert read_data(tmp_path / "d.parquet").lengths == [tokens]


@pytest.mark.parametrize(("content", "says"), WRONG)
def test_what_is_no_data_is_told(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidJob, match=says):
        read_data(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 99 + b"PAR1", b"{}"])
def test_what_is_no_parquet_is_told(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "d.parquet").write_bytes(content)
    with pytest.raises(InvalidJob, match="no Parquet"):
        read_data(tmp_path / "d.parquet")


@pytest.mark.parametrize("path", ["/dev/zero", "/", "nowhere.jsonl", "\0"])
def test_what_is_no_file_is_told(path: str) -> None:
    with pytest.raises(InvalidJob, match="is no file"):
        read_data(path)


def test_of_a_large_file_the_first_part_is_read_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 2)
    found = read_data(jsonl(tmp_path / "d.jsonl", [{"text": "1234"}] * 3))
    assert (found.lengths, found.whole) == ([1, 1], False)
    said = with_data(axolotl(512), found, "d.jsonl").assumed
    assert any("a longer one may follow" in one.why for one in said)


def test_a_tokenizer_counts_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    path = jsonl(tmp_path / "d.jsonl", [{"text": "a a a long word"}])
    assert read_data(path, tmp_path / "tokenizer.json").lengths == [5]
    with pytest.raises(InvalidJob, match=r"no tokenizer\.json"):
        read_data(path, path)


@pytest.mark.parametrize(
    ("limit", "longest"), [(4096, 300), (256, 256)], ids=["as long as the longest", "cut where the file cuts"]
)
def test_memory_is_that_of_the_longest_batch(tmp_path: Path, limit: int, longest: int) -> None:
    data = read_data(jsonl(tmp_path / "d.jsonl", [{"input_ids": [0] * n} for n in (10, 300, 20, 30)]))
    training = with_data(axolotl(limit), data, "d.jsonl").job["training"]
    assert max(bucket["tokens"] for bucket in training["lengths"]) == longest
    assert "sequence_length" not in training


def test_full_rows_stay_as_they_are(tmp_path: Path) -> None:
    data = read_data(jsonl(tmp_path / "d.jsonl", [{"input_ids": [0] * 100}] * 11))
    found = with_data(axolotl(512, packed=True), data, "d.jsonl")
    assert found.job == axolotl(512, packed=True).job
    assert next(one.value for one in found.assumed if one.key == "rows") == 3


@pytest.mark.parametrize(("count", "rows"), list(product([1, 2, 7, 100], [1, 2, 8])))
def test_buckets_are_of_all_batches(count: int, rows: int) -> None:
    """Their shares sum to one, the longest is among them, and the mean is that of a batch's longest sample, or above."""
    lengths = [3 * (i + 1) for i in range(count)]
    found = buckets(lengths, rows)
    assert sum(one["share"] for one in found) == pytest.approx(1, abs=1e-4)
    assert max(one["tokens"] for one in found) == lengths[-1]
    mean = sum(n * (((i + 1) / count) ** rows - (i / count) ** rows) for i, n in enumerate(lengths))
    assert mean - 1 <= sum(one["tokens"] * one["share"] for one in found) <= lengths[-1]


def test_the_command_line_answers_for_the_longest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = jsonl(tmp_path / "d.jsonl", [{"input_ids": [0] * n} for n in (100, 400)])
    file = tmp_path / "train.yaml"
    file.write_text(AXOLOTL.format(4096, 2, "false"), encoding="utf-8")
    assert main([str(file), "--on", "24GB", "--json", "--data", str(data)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["job"]["training"]["sequence_length"] == 400
    assert any("2 samples of d.jsonl (input_ids)" in said for said in answer["assumptions"])
    assert main(["import", str(file), "--json", "--data", str(data)]) == 0
    assert {"data", "tokens", "longest"} <= {one["key"] for one in json.loads(capsys.readouterr().out)["assumed"]}


@pytest.mark.parametrize(
    "words", [["llama-2-7b", "--on", "24GB", "--data", "d.jsonl"], ["import", "{file}", "--tokenizer", "tokenizer.json"]]
)
def test_data_of_nothing_are_refused(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.yaml").write_text(AXOLOTL.format(512, 1, "false"), encoding="utf-8")
    assert main([word.format(file=tmp_path / "train.yaml") for word in words]) == 2
    assert "--data" in capsys.readouterr().err
