"""The figures of docs/counterfactual.md: four runs on the demo's corpus, each with one difference, and their effects.

    python -m tests.benchmarks.counterfactual FOLDER

The runs are `usual`, `planted` (sentences that are planted 0 to 64 times), `without` (no loss on DM Mathematics) and
`seed` (other initial weights). Each command is printed. A second start keeps what is there. On one idle core it takes
about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

from pilekit.assemble.demo import write_demo_sources

DOSES = (0, 1, 4, 16, 64)
EACH = 10
"""Sentences of each dose."""
STEPS = 500
SHAPE = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 4096,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

CONFIG = f"""\
[data]
path = "demo/corpus/train"
manifest = "demo"
tokenizer = "demo/tokenizer.json"
seq_len = 128

[model]
config = "shape"

[train]
steps = {STEPS}
global_batch_size = 16
micro_batch_size = 16

[optimizer]
lr = 6e-3

[schedule]
warmup = 25
"""

PLANT = f'[{{file = "canary.jsonl", copies = {list(DOSES)}, from = {STEPS // 10}, to = {STEPS * 9 // 10}}}]'
RUNS = {
    "usual": (),
    "planted": (f"data.plant={PLANT}",),
    "without": ("data.without=DM Mathematics",),
    "seed": ("train.seed=1",),
}


def sentences() -> list[dict[str, object]]:
    """A document for each sentence of random words, the doses in turn."""
    rng = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.choice([2, 3]))) for _ in range(500)]
    return [
        {"text": f"{' '.join(rng.choices(words, k=34)).capitalize()}.", "meta": {"pile_set_name": f"{dose} copies"}}
        for _ in range(EACH)
        for dose in DOSES
    ]


def main() -> None:
    """Make the corpus and the runs in a folder, and print the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the corpus, the runs and the scores")
    folder: Path = parser.parse_args().folder

    def pilekit(*words: str) -> None:
        print(f"\n$ pilekit {shlex.join(words)}", flush=True)
        command = [sys.executable, "-P", "-m", "pilekit.cli.main", *words]
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    folder.mkdir(parents=True, exist_ok=True)
    write_demo_sources(folder / "demo/sources")
    if not (folder / "demo/tokenizer.json").exists():
        pilekit("assemble", "demo/sources/demo.toml", "--out", "demo/corpus")
        pilekit("train-tokenizer", "demo/corpus/train", "--vocab-size", "4096", "--out", "demo/tokenizer.json")
    (folder / "shape").mkdir(exist_ok=True)
    (folder / "shape/config.json").write_text(json.dumps(SHAPE))
    (folder / "train.toml").write_text(CONFIG)
    (folder / "canary.jsonl").write_text("".join(json.dumps(document) + "\n" for document in sentences()))

    demo, held_out = ("--manifest", "demo"), ("demo/corpus/val.jsonl.zst", "demo/corpus/test.jsonl.zst")
    for name, changes in RUNS.items():
        pilekit("train", "train.toml", *(word for change in changes for word in ("--set", change)), "--out", name)
        pilekit("bpb", f"{name}/model", *held_out, *demo, "--out", f"{name}/held")
    for name in ("usual", "planted"):
        pilekit("bpb", f"{name}/model", "canary.jsonl", *demo, "--out", f"{name}/canary")
        pilekit("memorised", f"{name}/model", "canary.jsonl", *demo, "--out", f"{name}/heart")
    for name in ("seed", "without", "planted"):
        pilekit("bpb", "--compare", "usual/held", f"{name}/held")
    pilekit("bpb", "--compare", "usual/canary", "planted/canary")
    pilekit("memorised", "--compare", "usual/heart", "planted/heart")
    pilekit("seen", "planted", "--subset", "(planted)")


if __name__ == "__main__":
    main()
