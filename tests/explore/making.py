"""A corpus with hostile texts, labels and names, results of commands about it, and the page of all that."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilekit.cutting.decontaminate import decontaminate_corpus
from pilekit.cutting.substrings import substrings_corpus
from pilekit.dedup.run import dedup_corpus
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.explore.server import serve
from pilekit.explore.sources import Sources
from pilekit.trace.trace_texts import trace_texts
from tests.pipeline.making import write_shard
from tests.tiny.models import tiny_model_dir

SCRIPT = "<script>window.hacked = 1; document.title = 'hacked'</script>"
IMAGE = '"><img src=x onerror="window.hacked = 2">'
CLOSING = "</script></pre><svg onload=window.hacked=3>"
BIDI = "before \u202eesrever\u2069 \x1b[31mred\x07 zero\u200bwidth"
HOSTILE = (SCRIPT, IMAGE, CLOSING, BIDI)
LABELS = ["ArXiv", f"{SCRIPT}", IMAGE, "\u202eGitlab"]
QUIZ = f"a question {SCRIPT}"
NAME = '"><img src=x onerror=hacked=4>.jsonl.zst'


def words(seed: int, count: int = 60) -> str:
    return " ".join(f"word{(seed * 7919 + place * 104729) % 997}" for place in range(count))


def texts() -> list[str]:
    """Plain documents, hostile ones, and copies of both with a changed end."""
    plain = [words(seed) for seed in range(120)]
    hostile = [f"{one} {words(200 + place)} {one}" for place, one in enumerate(HOSTILE)]
    copies = [f"{one} {IMAGE} changed" for one in (*plain[:6], *hostile)]
    return [*plain, *hostile, "Grüße: naïve 日本語 🙂 wording, unique as a ZEBRA", *copies]


def generations() -> list[str]:
    """Texts with passages of documents, which overlap, are common, or are in capitals; one has none."""
    halves = f"{words(5)[:300]} {words(6)[60:]}"
    return [
        "nothing of this is written anywhere in the corpus",
        f"{SCRIPT} begins: {words(7).upper()} {IMAGE} \x1b[31m {CLOSING}",
        f"{words(200)} {IMAGE} between {halves}",
        f"{words(0)} {words(1)} {words(0)}",
    ]


def make(folder: Path) -> None:
    """`corpus/` with one shard, `dedup/`, `dec/`, `sub/`, `model/`, `scores/` and `traces.parquet`."""
    every = texts()
    write_shard(folder / "corpus" / NAME, every, [LABELS[number % 4] for number in range(len(every))])
    dedup_corpus(str(folder / "corpus"), out=folder / "dedup", write=False, jobs=1)
    records = [{"text": f"{QUIZ} {every[3]}"}, {"text": f"{IMAGE} {words(200)} {IMAGE}"}, {"text": words(1)[:300]}]
    (folder / "quiz.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options = {"common": 0, "write": False, "jobs": 1}
    decontaminate_corpus(folder / "corpus", against=folder / "quiz.jsonl", out=folder / "dec", **options)
    substrings_corpus(folder / "corpus", out=folder / "sub", write=False, jobs=1)
    trace_texts(folder / "corpus", generations(), folder / "traces.parquet", words=4, common=3, documents=2, jobs=1)
    tiny_model_dir(folder / "model", max_length=256)
    bits_per_byte(folder / "model", folder / "corpus", out=folder / "scores", per_token=True, limit=10)


@contextmanager
def served(sources: Sources) -> Iterator[str]:
    """The address of the page, which is served until the test's process ends."""
    addresses: list[str] = []
    told = threading.Event()

    def announce(address: str) -> None:
        addresses.append(address)
        told.set()

    threading.Thread(target=serve, args=(sources, announce), daemon=True).start()
    assert told.wait(30)
    yield addresses[0]
