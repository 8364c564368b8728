"""Artefacts for reports, small ones, made by the functions that the commands call; hostile wherever a name is free."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec

from pilekit.corpus import Corpus, load_manifest
from pilekit.cutting.decontaminate import decontaminate_corpus
from pilekit.cutting.substrings import substrings_corpus
from pilekit.dedup.run import dedup_corpus
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.pipeline.cleaning import clean_corpus
from pilekit.shards.read.reader import read
from pilekit.shards.verify.verify import verify_corpus
from pilekit.stats.summary import corpus_stats
from pilekit.trace.count_phrases import count_phrases
from pilekit.trace.trace_texts import trace_texts
from pilekit.train.config.sections import DataConfig, ModelConfig, TrainConfig, TrainSection
from pilekit.train.log.metrics import StepBitsPerByte, StepLog, StepMetrics, StepSample
from pilekit.train.run_folder import open_run
from pilekit.train.start import take_config
from tests.pipeline.making import write_shard
from tests.tiny.models import tiny_model_dir
from tests.train.test_run_folder import checkpoint

SUBSETS = [subset.name for subset in load_manifest("pile").subsets]
HOSTILE = [
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</svg></style></title><script>window.hacked = 1</script>",
    "javascript:window.hacked=1",
    "\x1b[31m\u202eevil\u2066 $\\alpha$ {{ 7 * 7 }} {% raw %}",
    "' onmouseover='window.hacked = 1",
    "<!-- ]]> <![CDATA[ &lt;b&gt;",
]
"""Labels, ends of texts, and names of files (without the slash)."""


def words(generator: random.Random, count: int) -> str:
    """Made-up words between those that Gopher's rules ask for."""
    made = ("".join(generator.choices("etaoinsh", k=generator.randint(3, 8))) for _ in range(count))
    return " ".join(f"{generator.choice(('the', 'of', 'with', 'and', 'to'))} {word}" for word in made)


def hostile_corpus(folder: Path, labels: list[str]) -> Path:
    """Two shards: groups of texts that differ in a word or not at all, each in two subsets, with hostile ends."""
    generator = random.Random(0)
    texts, of = [], []
    for group in range(80):
        text = f"{words(generator, 60)} {HOSTILE[group % len(HOSTILE)]}"
        for copy in range(1 + group % 4):
            texts.append(text if copy == 1 else f"{text} {HOSTILE[copy // 2 * 2]}")
            of.append(labels[(group + copy) % len(labels)])
    texts += [f"## {place} %%" for place in range(6)]  # Gopher's rules drop them.
    of += labels[:6] if len(labels) > 5 else labels[:1] * 6
    half = len(texts) // 2
    write_shard(folder / "00.jsonl.zst", texts[:half], of[:half])
    write_shard(folder / "01.jsonl.zst", texts[half:], of[half:])
    return folder


def run_folder(folder: Path, labels: list[str], steps: int = 60) -> Path:
    """The folder of a run, as the trainer writes it: resumed at steps 20 and 40."""
    data = DataConfig(path="data", tokenizer="tokenizer")
    config = TrainConfig(data=data, model=ModelConfig(preset="pythia-14m"), train=TrainSection(steps=steps))
    for start in (0, 20, 40):
        with open_run(folder, config) as run:
            take_config(run, config, start or None)
            with StepLog(run.metrics_file, StepMetrics, resume_step=start) as log:
                for step in range(start + 1, min(start + 25, steps) + 1):
                    log.write(_step(step, labels))
            with StepLog(run.samples_file, StepSample, resume_step=start) as samples:
                for step in range(start + 10, min(start + 25, steps) + 1, 10):
                    for text in HOSTILE:
                        of = {"prompt": f"prompt {text}", "text": f"{text} at {step}", "model": "run"}
                        samples.write(StepSample(step=step, tokens=2, ended=False, **of))
    return folder


def branch_folder(folder: Path, origin: Path, labels: list[str]) -> Path:
    """The folder of a run that branched from the run of the checkpoint `origin` after step 40, and has two steps."""
    data = DataConfig(path="data", tokenizer="tokenizer")
    config = TrainConfig(data=data, model=ModelConfig(preset="pythia-14m"), train=TrainSection(steps=60))
    checkpoint(origin, config)
    with open_run(folder, config) as run:
        take_config(run, config, 40, origin)
        with StepLog(run.metrics_file, StepMetrics, resume_step=40) as log:
            for step in (41, 42):
                log.write(_step(step, labels))
    return folder


def _step(step: int, labels: list[str]) -> StepMetrics:
    losses = {label: 2 + (8 + place) / (step + 1) for place, label in enumerate(labels) if (step + place) % 3}
    measured = StepBitsPerByte(overall=3 - step / 100, subsets=dict.fromkeys(labels, 4 - step / 50))
    return StepMetrics(
        step=step,
        loss=None if step == 7 else 2 + 8 / (step + 1),
        loss_by_subset=losses,
        lr=1e-3 * min(1, step / 10),
        grad_norm=1.0,
        tokens=2048 * step,
        tokens_per_second=1000.0 + step % 7,
        data_wait=0.1,
        step_seconds=2.0,
        memory_bytes=3 << 30,
        bpb=measured if step % 20 == 0 else msgspec.UNSET,
    )


def held_out(folder: Path) -> Path:
    """A shard named val with 12 documents of each of the 22 subsets, so that published figures stand beside it."""
    generator = random.Random(1)
    labels = [name for name in SUBSETS for _ in range(12)]
    return write_shard(folder / "val.jsonl.zst", [words(generator, 4) for _ in labels], labels)


def artefacts(folder: Path, labels: list[str]) -> Path:
    """A folder with one artefact or more of every kind that a report shows, all of one corpus."""
    corpus = hostile_corpus(folder / "corpus", labels)
    made = folder / 'made <img src=x onerror="window.hacked=1">'
    dedup_corpus(corpus, out=made / "unique", jobs=1)
    clean_corpus(Corpus(corpus), made / "clean", rules=["gopher"], pii="ip", jobs=1)
    quiz = folder / f"quiz {HOSTILE[1]}.jsonl".replace("/", "")
    first = next(iter(read(corpus / "00.jsonl.zst"))).texts[0]
    half = len(first.split()) // 2
    asked = {"text": " ".join(first.split()[:half]), "answer": " ".join(first.split()[half : half + 3])}
    quiz.write_text("".join(json.dumps(record) + "\n" for record in (asked, {"text": "never seen " * 20})))
    decontaminate_corpus(
        corpus, against=str(quiz), question="text", answer="answer", out=made / "decontaminated", jobs=1
    )
    substrings_corpus(corpus, out=made / "substrings", jobs=1)
    (made / "stats.json").write_text(json.dumps(corpus_stats(Corpus(corpus), copies=True).to_dict()))
    (made / "verify.json").write_text(json.dumps(verify_corpus(Corpus(corpus)).to_dict()))
    generated = [f"so {first} {HOSTILE[0]}", first.upper(), "never seen " * 20]
    trace_texts(corpus, generated, made / f"traces {HOSTILE[1]}.parquet".replace("/", ""), words=4, common=30, jobs=1)
    count_phrases(
        corpus, [*HOSTILE, "the", "never seen"], made / f"counts {HOSTILE[1]}.parquet".replace("/", ""), jobs=1
    )
    run_folder(made / "run", labels)
    shard = held_out(folder / "held-out")
    for step, seed in ((10, 0), (20, 1)):
        model = tiny_model_dir(folder / "models" / f"step-{step}", seed=seed)
        bits_per_byte(model, shard, out=made / f"bpb-{step}")
    return made
