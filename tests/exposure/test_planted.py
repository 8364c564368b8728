"""A model knows by heart what it has read often: documents planted 1, 4, 16 and 64 times, and others never, as control.

Real training: the table by copies rises, and nothing of the control is memorised.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import GPTNeoXConfig

from pilekit import Memorised, Trainer, dedup_corpus, load_config, memorised, train_tokenizer
from tests.evaluate.documents import write

TIMES = {1: "1", 4: "3-4", 16: "9-16", 64: "33-64"}
"""How often a document is planted, and the class that it is in."""
EACH = 16
STEPS = 115
"""About one pass through all documents."""
SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Memorised]:
    """The folder of the experiment, and the result for one document of each text, and for the control."""
    folder, rng = tmp_path_factory.mktemp("planted"), random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.choice([2, 3]))) for _ in range(500)]

    def document() -> tuple[str, str]:
        return "ArXiv", " ".join(rng.choices(words, k=66))

    texts = [(document(), times) for times in TIMES for _ in range(EACH)]
    repeats = [text for text, times in texts for _ in range(times - 1)]
    rng.shuffle(repeats)
    first = write(folder / "data/00.jsonl", [text for text, _ in texts])
    write(folder / "data/01.jsonl", repeats)
    control = write(folder / "data/val.jsonl", [document() for _ in range(4 * EACH)])

    train_tokenizer(folder / "data/01.jsonl", 1024, folder / "tokenizer.json")
    positions = {"vocab_size": 1024, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 0}
    GPTNeoXConfig(**SHAPE, **positions).save_pretrained(folder / "shape")
    config = {
        "data": {"path": folder / "data", "tokenizer": folder / "tokenizer.json", "seq_len": 256, "window": 32},
        "model": {"config": folder / "shape"},
        "train": {"steps": STEPS, "global_batch_size": 4, "micro_batch_size": 4},
        "optimizer": {"lr": 6e-3},
        "schedule": {"warmup": 5},
    }
    Trainer(load_config(config), folder / "run").fit()
    dedup_corpus(folder / "data", folder / "unique", write=False, jobs=1)
    joined = {"copies": folder / "unique", "seen": folder / "run"}
    return folder, memorised(folder / "run/model", [first, control], **joined, out=folder / "out")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_was_planted_often_is_memorised_and_the_control_is_not(planted: tuple[Path, Memorised]) -> None:
    _, result = planted
    by_copies = result.groups["copies"]
    shares = [by_copies[name] for name in TIMES.values()]
    assert list(by_copies) == [*TIMES.values(), "not compared"]
    assert [share.sequences for share in shares] == [EACH] * 4
    memorised = [share.memorised for share in shares]
    assert memorised == sorted(memorised)
    assert memorised[0] == 0
    assert memorised[-1] > 0.9 * EACH
    runs = [share.mean_run or 0.0 for share in shares]
    assert runs[2] > 5 * runs[0]
    never, most = result.groups["times_seen"]["0"], by_copies["33-64"]
    for control in (never, result.groups["steps_since_seen"]["never"], by_copies["not compared"]):
        assert (control.sequences, control.memorised) == (4 * EACH, 0)
        assert control.interval is not None
        assert most.interval is not None
        assert control.interval[0] == 0
        assert control.interval[1] < most.interval[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_documents_were_seen_as_often_as_they_were_planted(planted: tuple[Path, Memorised]) -> None:
    """About: the steps are not exactly one pass, and a document may be in the next one already."""
    folder, _ = planted
    rows = pq.read_table(folder / "out/sequences.parquet").to_pylist()
    for row in rows:
        copies, times = row["copies"], row["times_seen"]
        assert (copies is None) == (row["shard"] == "val.jsonl") == (times == 0)
        if copies is not None:
            assert copies / 2 <= times <= 2 * copies + 1
