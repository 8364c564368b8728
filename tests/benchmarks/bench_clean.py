"""Quality rules beside datatrove's four filters and beside fastokens: MB/s on one core, and how often they agree.

    python tests/benchmarks/bench_clean.py [--shard PATH] [--tokenizer F] [--megabytes 50] [--kilobytes 800]

    rules alone     all rules of gopher, c4 and fineweb-datatrove, on documents that were decoded before
    clean --report  `clean_corpus` of the shard: reading, the same rules, and counting
    fastokens       encoding the same documents, decoded before
    datatrove       GopherQuality, GopherRepetition, C4 and FineWebQuality, each on all of some documents (--kilobytes)

Each measurement is a process of its own, pinned to one core. Not timed: imports, loading, and a first run over a part
of the documents. Then the decision of each rule is compared with that of datatrove's filter with this rule alone: as it
is, with spaCy's words; with `text.split()` in their place; and with our lines and sentences too: white space at the
ends of lines is removed, and a sentence ends in a run of `.?!` before white space. Rules of one reason in datatrove are
one row. Without --shard, text is generated; its agreement says little.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, from any folder
from pilekit import C4, DocumentBatch, FineWeb, read
from pilekit.pipeline.rules.sets import SETS
from tests.benchmarks.generating import generated, trained_tokenizer
from tests.benchmarks.harness import DECODED, FASTOKENS, MEASURE, Figures, options, show, table, take_turns
from tests.benchmarks.peers import peer_environment, run_peer

DATATROVE = ["datatrove[processing]==0.10.1", "spacy==3.8.18", "orjson==3.13.0"]

ARGUMENTS = "SHARD, TOKENIZER, *_ = sys.argv[1:]\n"
OF_BATCHES = "measure(work, batches, amount, batches[:1])\n"

RULES = """
from pilekit.pipeline.cleaner import Cleaner
from pilekit.pipeline.rules.sets import rule_sets
cleaner = Cleaner(rule_sets(["gopher", "c4", "fineweb-datatrove"]))
def work(batches):
    for batch in batches:
        cleaner.judge(batch.take(range(len(batch))))  # a new batch, which has no UTF-8 yet
"""

REPORT = """
from pilekit import clean_corpus
def work(batches):
    return clean_corpus(SHARD, rules=["gopher", "c4", "fineweb-datatrove"], jobs=1)
measure(work, [], work([]).summary["bytes"]["read"], [])
"""

PEER = r"""
import functools, json, re, sys, time
import orjson
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter
from datatrove.pipeline.filters import GopherRepetitionFilter, c4_filters, fineweb_quality_filter
from datatrove.pipeline.filters import gopher_quality_filter, gopher_repetition_filter

texts = [orjson.loads(line) for line in open(sys.argv[1], "rb")]
EVERY = (GopherQualityFilter(), GopherRepetitionFilter(), C4QualityFilter(), FineWebQualityFilter())

def drops(one, text):
    try:
        result = one.filter(Document(text=text, id=""))
    except (ZeroDivisionError, IndexError):  # datatrove 0.10.1 divides by the words and lines of any text
        return None
    return not (result[0] if isinstance(result, tuple) else result)

def work(texts):
    for one in EVERY:
        for text in texts:
            drops(one, text)

work(texts[:5])
started, used = time.perf_counter(), time.process_time()
work(texts)
figures = {"amount": sum(len(text.encode()) for text in texts)}
figures |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}

NO_QUALITY = dict.fromkeys(
    ["min_doc_words", "max_doc_words", "min_avg_word_length", "max_avg_word_length", "max_symbol_word_ratio"]
    + ["max_bullet_lines_ratio", "max_ellipsis_lines_ratio", "max_non_alpha_words_ratio", "min_stop_words"]
)
NO_REPETITION = dict.fromkeys(["dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac"])
NO_REPETITION |= {"top_n_grams": (), "dup_n_grams": ()}
NO_C4 = {"min_num_sentences": -1, "filter_lorem_ipsum": False, "filter_curly_bracket": False}
# datatrove looks for these two in the lines that the other rules keep; so here they keep all.
ALL_LINES = {"filter_no_terminal_punct": False, "min_words_per_line": -1, "max_word_length": -1}
ALL_LINES |= {"filter_javascript": False, "filter_policy": False, "remove_citations": False}
NO_FINEWEB = {"line_punct_thr": -1, "short_line_thr": 9, "char_duplicates_ratio": 9e9, "new_line_ratio": 9e9}
SINGLE = {
    "gopher-quality.words": GopherQualityFilter(**NO_QUALITY | {"min_doc_words": 50, "max_doc_words": 100000}),
    "gopher-quality.word_length": GopherQualityFilter(
        **NO_QUALITY | {"min_avg_word_length": 3, "max_avg_word_length": 10}
    ),
    "gopher-quality.hashes gopher-quality.ellipses": GopherQualityFilter(**NO_QUALITY | {"max_symbol_word_ratio": 0.1}),
    "gopher-quality.bullets": GopherQualityFilter(**NO_QUALITY | {"max_bullet_lines_ratio": 0.9}),
    "gopher-quality.end_ellipses": GopherQualityFilter(**NO_QUALITY | {"max_ellipsis_lines_ratio": 0.3}),
    "gopher-quality.letters": GopherQualityFilter(**NO_QUALITY | {"max_non_alpha_words_ratio": 0.8}),
    "gopher-quality.stop_words": GopherQualityFilter(**NO_QUALITY | {"min_stop_words": 2}),
    "gopher-repetition.dup_lines": GopherRepetitionFilter(**NO_REPETITION | {"dup_line_frac": 0.3}),
    "gopher-repetition.dup_line_chars": GopherRepetitionFilter(**NO_REPETITION | {"dup_line_char_frac": 0.2}),
    "gopher-repetition.dup_paragraphs": GopherRepetitionFilter(**NO_REPETITION | {"dup_para_frac": 0.3}),
    "gopher-repetition.dup_paragraph_chars": GopherRepetitionFilter(**NO_REPETITION | {"dup_para_char_frac": 0.2}),
    **{
        f"gopher-repetition.top_{n}gram": GopherRepetitionFilter(**NO_REPETITION | {"top_n_grams": ((n, share),)})
        for n, share in ((2, 0.20), (3, 0.18), (4, 0.16))
    },
    **{
        f"gopher-repetition.dup_{n}grams": GopherRepetitionFilter(**NO_REPETITION | {"dup_n_grams": ((n, share),)})
        for n, share in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    },
    "c4.lorem_ipsum": C4QualityFilter(**NO_C4 | ALL_LINES | {"filter_lorem_ipsum": True}),
    "c4.curly_bracket": C4QualityFilter(**NO_C4 | ALL_LINES | {"filter_curly_bracket": True}),
    "c4.sentences": C4QualityFilter(**NO_C4 | {"min_num_sentences": 5}),
    "fineweb.line_punctuation": FineWebQualityFilter(
        **NO_FINEWEB | {"line_punct_thr": 0.12, "stop_chars": tuple(".!?。！？।")}
    ),
    "fineweb.dup_line_chars": FineWebQualityFilter(**NO_FINEWEB | {"char_duplicates_ratio": 0.01}),
    "fineweb.short_lines": FineWebQualityFilter(**NO_FINEWEB | {"short_line_thr": 0.67}),
    "fineweb.newlines": FineWebQualityFilter(**NO_FINEWEB | {"new_line_ratio": 0.3}),
}
if "agreement" in sys.argv:
    modules = (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter)

    def judged(words, texts):
        for module in modules:
            module.split_into_words = words
        return {rules: [drops(one, text) for text in texts] for rules, one in SINGLE.items()}

    figures["as it is"] = judged(functools.cache(gopher_quality_filter.split_into_words), texts)
    figures["words"] = judged(lambda text, language: text.split(), texts)
    sentence = re.compile(r'''[.?!]+["'”’)\]]*(?=\s|$)''')
    c4_filters.split_into_sentences = lambda line, language: sentence.findall(line) or [line]
    stripped = ["\n".join(line.strip() for line in text.split("\n")) for text in texts]
    figures["lines"] = judged(lambda text, language: text.split(), stripped)
print(json.dumps(figures))
"""


def agreement(texts: list[str], figures: Figures) -> str:
    """A row per rule: documents that we drop, and the share of documents about which datatrove agrees."""
    batch = DocumentBatch(texts, [""] * len(texts), "", np.arange(len(texts)))
    sets = {**SETS, "c4": C4(few_words=3, sentences=5), "fineweb": FineWeb(dup_line_chars=0.01, newlines=0.3)}
    ours = {f"{name}.{rule}": fails for name, rules in sets.items() for rule, fails in rules.judge(batch).items()}
    widths = {"as it is": 10, "words": 14, "lines": 22}
    lines = [f"{'rule':44}{'dropped':>9}{'as it is':>10}{'text.split()':>14}{'lines, sentences too':>22}"]
    for rules in figures["as it is"]:
        drops = sum(ours[rule] for rule in rules.split()) > 0
        line = f"{rules.replace(' gopher-quality.', ' and '):44}{drops.sum():>9,}"
        for kind, width in widths.items():
            pairs = [(a, b) for a, b in zip(drops.tolist(), figures[kind][rules], strict=True) if b is not None]
            line += f"{sum(a == b for a, b in pairs) / len(pairs):{width}.4f}"
        lines.append(line)
    return "\n".join([f"agreement about {len(texts):,} documents", *lines])


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, megabytes=(50, "text to generate"), kilobytes=(800, "text for datatrove"))
    parser.add_argument("--shard", type=Path, help="judge this .jsonl.zst file instead")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: trained on the shard)")
    chosen = parser.parse_args()
    shard = chosen.shard or generated(f"clean-{chosen.megabytes}", chosen.megabytes << 20, 70)
    core = sorted(os.sched_getaffinity(0))[:1]
    peer = peer_environment("datatrove-filters", DATATROVE)
    with read(str(shard)) as batches:
        texts = [text for batch in batches for text in batch.texts]
    # From the whole shard: its first documents may be of one kind.
    texts = texts[:: max(1, sum(map(len, texts)) // (chosen.kilobytes * 1000))]
    with tempfile.TemporaryDirectory(prefix="pilekit-bench-") as folder:
        tokenizer = chosen.tokenizer or trained_tokenizer(shard, Path(folder) / "tokenizer.json")
        given = Path(folder) / "texts.jsonl"
        given.write_text("".join(json.dumps(text) + "\n" for text in texts))

        def run(source: str) -> Figures:
            environment = {"RAYON_NUM_THREADS": "1"}
            script, files = MEASURE + ARGUMENTS + source, (shard.resolve(), tokenizer)
            figures: Figures = run_peer(Path(sys.executable), script, *files, environment=environment, cores=core)
            return figures

        contestants = {
            "rules alone": partial(run, DECODED + RULES + OF_BATCHES),
            "clean --report": partial(run, REPORT),
            "fastokens": partial(run, DECODED + FASTOKENS + OF_BATCHES),
            "datatrove": lambda: run_peer(peer, PEER, given, cores=core),
        }
        measured = take_turns(contestants, chosen.rounds)
        compared = run_peer(peer, PEER, given, "agreement")
    tables = [table("", measured, name) for name in ("datatrove", "fastokens")]
    show(chosen, measured, [*tables, agreement(texts, compared)])


if __name__ == "__main__":
    main()
