"""The table of `pilekit bpb`: complete at any width, with everything a reader must know below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte, Score, Weighted
from pilekit.evaluate.results.tabulate import tabulate
from pilekit.evaluate.show.table import result_table
from pilekit.evaluate.training_copies import TrainingCopies

PROTOCOL: dict[str, Any] = {
    "model": {
        "path": "/models/" + "long/" * 30 + "pythia-2.8b",
        "weights": "xxh3:" + "0" * 32,
        "model_type": "gpt_neox",
        "parameters": 2_775_208_960,
    },
    "tokenizer": {"fingerprint": "sha256:" + "0" * 64, "backend": "fastokens 0.3.5", "special_tokens": "text"},
    "kind": "causal",
    "dtype": "float32",
    "max_length": 2048,
    "context_len": 1,
    "windows": "disjoint",
    "prefix": {"given": "auto", "id": 0, "token": "<|endoftext|>"},
    "bytes": "UTF-8 bytes of the raw text",
    "data": [{"name": f"{n:02d}.jsonl", "size": 1} for n in range(30)],
    "subsets": None,
    "limit": None,
    "manifest": "pile",
    "skipped_lines": 0,
    "paper": False,
    "labels": [subset.name for subset in load_manifest().subsets],
}


def result_of(subsets: dict[str, Score], /, **changes: Any) -> BitsPerByte:
    overall = Score(
        sum(score.documents for score in subsets.values()),
        sum(score.bytes for score in subsets.values()),
        sum(score.tokens for score in subsets.values()),
        sum(score.nll for score in subsets.values()),
    )
    return BitsPerByte(overall, subsets, {**PROTOCOL, **changes})


def printed(result: BitsPerByte, width: int = 80, terminal: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, force_terminal=terminal).print(result_table(result, width))
    return file.getvalue()


SCORE = Score(54_953_117, 243_872_121_726, 71_000_000_000, 1.2e11, (0.70001, 0.71234))


def the_pile(**changes: Any) -> BitsPerByte:
    """A result as if the whole Pile had been scored."""
    result = result_of({subset.name: SCORE for subset in load_manifest().subsets}, **changes)
    return replace(result, weighted=Weighted(0.72345, (0.71, 0.73), 1.0))


def scored(shard: str = "val.jsonl", subsets: Sequence[str] | None = None, **changes: Any) -> BitsPerByte:
    """A real result of two documents of each subset."""
    manifest = load_manifest()
    names = [subset.name for subset in manifest.subsets] if subsets is None else subsets
    documents = [
        ScoredDocument(shard, number, number, names[number // 2], 100 + number, 30, 70.0 + number)
        for number in range(2 * len(names))
    ]
    return tabulate(Records.of(documents, [shard], manifest), {**PROTOCOL, **changes}, manifest)


def row_of(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).split()


def test_the_whole_pile_fits_into_80_columns_with_nothing_cut() -> None:
    lines = printed(the_pile()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "\n".join(lines)
    text = "\n".join(lines)
    assert row_of(text, "Pile-CC") == ["55.0M", "227G", "71.0G", "0.291", "0.7099", "0.700–0.712", "1.6357"]
    assert row_of(text, "Overall (pooled)") == ["1.21G", "4.88T", "1.56T", "0.291", "0.7099", "–", "1.6357"]
    assert row_of(text, "Overall (Pile mixture)") == ["–", "–", "–", "–", "0.7235", "0.710–0.730", "1.6511"]
    names = [subset.name for subset in load_manifest().subsets]
    assert [name for line in lines for name in names if line.startswith(f"{name} ")] == names


def test_a_wide_terminal_has_every_column_in_full() -> None:
    text = printed(scored(), width=220)
    titles = [line for line in text.splitlines() if line.startswith("Subset")]
    assert titles[0].split()[:6] == ["Subset", "Documents", "Bytes", "Tokens", "Tok/B", "BPB"]
    for model in ("small", "medium", "large", "XL", "ada", "babbage", "curie", "davinci"):
        assert model in titles[0]
    assert row_of(text, "ArXiv")[5:] == [
        *("1.0438", "~1.0419–1.0456", "2.0616", "2.6167"),
        *("1.3548", "1.2305", "1.1778", "1.1381", "1.0304", "0.9259", "0.8453", "0.7702", "0.7945"),
    ]
    assert row_of(text, "Overall (Pile mixture)")[-9:] == [
        *("1.2253", "1.0928", "1.0828", "1.0468", "0.9631", "0.8718", "0.7980", "0.7177", "0.9433")
    ]
    assert set(row_of(text, "Overall (pooled)")[-9:]) == {"–"}


def test_figures_are_never_cut_and_lines_fit() -> None:
    result = scored()
    for width in (24, 41, 42, 79, 80, 150, 240):
        lines = printed(result, width=width).splitlines()
        assert max(map(len, lines)) <= width
        [line] = [line for line in lines if line.startswith("ArXiv")]
        assert "1.0438" in line
        assert ("~1.042–1.046" in line or "~1.0419–1.0456" in line) == (width >= 42), width
        assert "…" not in line


def test_80_columns_hold_one_published_column() -> None:
    text = printed(scored())
    assert row_of(text, "Github") == ["2", "221", "60", "0.271", "1.0510", "~1.049–1.053", "2.0720", "1.7912"]
    assert "GPT-2" in text
    assert "Table 2 of The Pile paper" in text
    assert "Here: 44 documents of val" in " ".join(text.split())
    assert "Read in a copy" not in text
    assert "Read in a copy: 1.3B trained on 40 GB of the Pile." in " ".join(printed(scored(), width=220).split())


def test_few_documents_are_marked_and_explained() -> None:
    text = printed(scored(), width=200)
    assert "~          approximate, may be too narrow: under 100 documents" in text
    many = printed(result_of({"A": Score(100, 100, 10, 70.0, (0.9, 1.1))}), width=200)
    assert "0.9000–1.1000" in many
    assert "~" not in many


def test_the_mixture_names_what_it_misses_and_what_it_holds_fixed() -> None:
    manifest = load_manifest()
    documents = [ScoredDocument("val.jsonl", n, n, "ArXiv" if n else "Github", 100, 30, 70.0 + n) for n in range(4)]
    records = Records.of(documents, ["val.jsonl"], manifest)
    text = " ".join(printed(tabulate(records, PROTOCOL, manifest), width=300).split())
    assert "weights of 16.6 % of the mixture, renormalised" in text
    assert "no documents of Pile-CC, PubMed Central, Books3, OpenWebText2 and 16 more" in text
    assert "one document of Github: adds nothing to the interval" in text


def test_why_no_published_column_is_there() -> None:
    text = printed(scored(context_len=1025))
    assert "published  not shown: these windows overlap, and those of the published" in text
    text = printed(scored(subsets=["ArXiv"], labels=["ArXiv", "Mine"]))
    assert "published  not shown: these shards have a label that is none of the Pile's: Mine" in text
    assert "published" not in printed(scored("00.jsonl"))


def test_overlapping_windows_are_marked_and_stand_alone() -> None:
    text = printed(scored(context_len=1025), width=220)
    assert "GPT-2" not in text
    flat = " ".join(text.split())
    assert "2,048 tokens, overlapping: each token from at least 1,025; not comparable with disjoint windows" in flat
    assert "2 times the cost" in flat


def test_a_masked_model_has_a_table_of_its_own() -> None:
    text = printed(scored(kind="masked", mlm_sample=4), width=220)
    assert text.startswith("Pseudo-BPB of a masked model: no code length, and not comparable")
    assert "pseudo-BPB" in text
    assert "GPT-2" not in text
    assert "4 tokens drawn from each window masked one at a time" in text
    assert "prefix" not in text


def test_copies_in_training_have_a_column_and_a_line() -> None:
    result = result_of({"A": Score(5, 10, 2, 7.0), "B": Score(4, 10, 2, 7.0)})
    text = printed(replace(result, training_copies=TrainingCopies(3, {"A": 3, "B": 0}, ("00.jsonl",))))
    assert "in train   3 of 9 documents occur word for word in the training shards" in text
    assert row_of(text, "A")[-1] == "3"
    assert row_of(text, "B")[-1] == "0"
    assert row_of(text, "Overall (pooled)")[-1] == "3"


def test_warnings_stand_below() -> None:
    text = printed(replace(result_of({"A": Score(5, 10, 2, 7.0)}), warnings=("\x1b[31mred",)))
    assert "warning    \\x1b[31mred" in text


def test_the_protocol_stands_below() -> None:
    text = " ".join(printed(the_pile(), width=200).split())
    for part in (
        "2,775,208,960 parameters, float32",
        "fastokens 0.3.5",
        "2,048 tokens",
        "<|endoftext|> (id 0, auto)",
        "UTF-8 bytes of the raw text",
        "00.jsonl, 01.jsonl, 02.jsonl and 27 more",
    ):
        assert part in text
    assert text.index("Overall") < text.index("parameters")
    for absent in ("limit", "subsets", "skipped"):
        assert absent not in text
    limited = result_of({"A": Score(1, 1, 1, 1.0)}, limit=10, prefix={"given": "none", "id": None, "token": None})
    assert "the first 10 documents of each subset" in printed(limited)
    assert "none: the first token of a document is not predicted" in printed(limited)


def test_choices_and_skipped_lines_are_named() -> None:
    one = {"A": Score(1, 1, 1, 1.0)}
    text = printed(result_of(one, limit=1, subsets=["A", "B"], skipped_lines=1_234))
    lines = [line.rstrip() for line in text.splitlines()]
    assert "limit      the first document of each subset" in lines
    assert "subsets    A, B" in lines
    assert "skipped    1,234 bad lines" in lines
    assert "skipped    1 bad line" in [line.rstrip() for line in printed(result_of(one, skipped_lines=1)).splitlines()]


def test_a_prefix_is_shown_once() -> None:
    for given, token, shown in (
        ("310", "", "id 310"),
        ("310", " the", " the (id 310)"),
        ("eos", "", "id 310, eos"),
        ("eos", "x", "x (id 310, eos)"),
    ):
        text = printed(result_of({"A": Score(1, 1, 1, 1.0)}, prefix={"given": given, "id": 310, "token": token}))
        assert f"prefix     {shown}" in [line.rstrip() for line in text.splitlines()]


def test_figures_that_do_not_exist_are_dashes() -> None:
    [row] = [line for line in printed(result_of({"A": Score(2, 0, 0, 0.0)})).splitlines() if line.startswith("A ")]
    assert row.split() == ["A", "2", "0", "B", "0", "–", "–", "–", "–", "–"]


def test_a_label_and_a_path_are_text() -> None:
    hostile = "\x1b]0;title\x07[red]"
    result = result_of(
        {hostile: Score(1, 4, 1, 1.0)},
        model={**PROTOCOL["model"], "path": hostile},
        data=[{"name": hostile, "size": 1}],
        prefix={"given": "auto", "id": 0, "token": hostile},
    )
    text = printed(result, width=300, terminal=True)
    assert text.count("\\x1b]0;title\\x07[red]") == 4
    assert "\x1b]" not in text
    assert "\x07" not in text


def test_long_labels_are_cut_and_figures_are_not() -> None:
    for name in ("x" * 200, "長" * 200):
        lines = printed(result_of({name: SCORE})).splitlines()
        assert any("…" in line and "55.0M  227G  71.0G 0.291 0.7099" in line for line in lines)
        assert max(map(cell_len, lines)) <= 80


def test_a_notebook_shows_all_columns() -> None:
    shown = scored()._repr_html_()
    assert shown.startswith("<table>")
    for text in ("<th>Documents</th>", "GPT-3 davinci", "<td>ArXiv</td>", "<td>Overall (Pile mixture)</td>"):
        assert text in shown
