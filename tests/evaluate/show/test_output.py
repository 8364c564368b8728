"""The tables of `pilekit bpb` and of a comparison: complete at any width, with everything a reader must know below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.evaluate.results.compare import Comparison, compare
from pilekit.evaluate.results.difference import Against, Difference
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.scores import Score, Weighted
from pilekit.evaluate.show.output import comparison_output, result_output
from pilekit.evaluate.show.tables import verdict
from pilekit.evaluate.training_copies import TrainingCopies
from tests.evaluate.documents import protocol_of

PILE = [subset.name for subset in load_manifest().subsets]
LARGE = Score(54_953_117, 243_872_121_726, 71_000_000_000, 1.2e11, (0.70001, 0.71234))
SMALL = Score(5, 10, 2, 7.0)


def result_of(subsets: dict[str, Score], /, **changes: Any) -> BitsPerByte:
    sums = [sum(getattr(score, name) for score in subsets.values()) for name in ("documents", "bytes", "tokens", "nll")]
    return BitsPerByte(Score(*sums), subsets, protocol_of(**changes))


def printed(result: BitsPerByte, width: int = 80, terminal: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, force_terminal=terminal).print(result_output(result, width))
    return file.getvalue()


def scored(shard: str = "val.jsonl", names: Sequence[str] = PILE, **changes: Any) -> BitsPerByte:
    """A real result of twelve documents of each subset."""
    documents = [
        ScoredDocument(shard, number, number, names[number // 12], 100 + number, 30, 70.0 + number)
        for number in range(12 * len(names))
    ]
    return BitsPerByte.of(Records.of(documents, [shard], load_manifest()), protocol_of(**changes), load_manifest())


def row_of(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).split()


def test_the_whole_pile_fits_into_80_columns_with_nothing_cut() -> None:
    text = printed(replace(result_of(dict.fromkeys(PILE, LARGE)), weighted=Weighted(0.72345, (0.71, 0.73), 1.0)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert row_of(text, "Pile-CC") == ["55.0M", "244G", "71.0G", "0.291", "0.7099", "0.700–0.712", "1.6357"]
    assert row_of(text, "Overall (pooled)") == ["1.21G", "5.37T", "1.56T", "0.291", "0.7099", "–", "1.6357"]
    assert row_of(text, "Overall (Pile mixture)") == ["–", "–", "–", "–", "0.7235", "0.710–0.730", "1.6511"]
    assert [name for line in text.splitlines() for name in PILE if line.startswith(f"{name} ")] == PILE


def test_a_wide_terminal_and_a_notebook_have_every_column() -> None:
    text = printed(scored(), width=220)
    titles = next(line for line in text.splitlines() if line.startswith("Subset"))
    assert titles.split()[:6] == ["Subset", "Documents", "Bytes", "Tokens", "Tok/B", "BPB"]
    assert row_of(text, "ArXiv")[5:] == [
        *("1.1607", "~1.1564–1.1650", "2.2357", "4.1167"),
        *("1.3548", "1.2305", "1.1778", "1.1381", "1.0304", "0.9259", "0.8453", "0.7702", "0.7945"),
    ]
    assert row_of(text, "Overall (Pile mixture)")[-9:] == [
        *("1.2253", "1.0928", "1.0828", "1.0468", "0.9631", "0.8718", "0.7980", "0.7177", "0.9433")
    ]
    assert set(row_of(text, "Overall (pooled)")[-9:]) == {"–"}
    assert "Read in a copy: 1.3B trained on 40 GB of the Pile." in " ".join(text.split())
    shown = scored()._repr_html_()
    for part in ("<th>Documents</th>", "GPT-3 davinci", "<td>ArXiv</td>", "<td>Overall (Pile mixture)</td>"):
        assert part in shown


def test_another_corpus_is_not_called_the_pile() -> None:
    """The demo's labels under the default manifest: two are the Pile's, and would be weighted by its mixture."""
    names = ["Github", "DM Mathematics", "Docstrings", "\x1b[31mevil"]
    result = scored("val.jsonl", names, labels=names)
    text = printed(result, 200)
    assert result.weighted is not None
    assert result.mixture is None
    assert "Overall (pooled)" in text
    assert "mixture)" not in text
    assert "none, as the Pile has no Docstrings, \\x1b[31mevil; describe this corpus with --manifest" in text
    assert "mixture)" not in result._repr_html_()
    assert compare([result, scored("val.jsonl", names, labels=names)]).against[0].weighted is None
    part = scored("val.jsonl", ["Github", "DM Mathematics"], labels=["Github", "DM Mathematics"])
    assert "Overall (Pile mixture)" in printed(part, 200)
    assert part.mixture == part.weighted
    own = scored("val.jsonl", names, labels=names, manifest="mine")
    assert "Overall (mixture)" in printed(own, 200)


def test_notes_stand_below() -> None:
    """What a reader must know about the figures, and the protocol."""
    one = {"A": Score(1, 1, 1, 1.0)}
    fixed = [ScoredDocument("val.jsonl", n, n, "ArXiv" if n else "Github", 100, 30, 70.0 + n) for n in range(4)]
    some = BitsPerByte.of(Records.of(fixed, ["val.jsonl"], load_manifest()), protocol_of(), load_manifest())
    copies = TrainingCopies(3, {"A": 3, "B": 0}, ("00.jsonl",))
    overlapping = "2,048 tokens, overlapping: each token from at least 1,025; not comparable with disjoint windows"
    no_prefix = {"given": "none", "id": None, "token": None}
    cases: list[tuple[BitsPerByte, list[str]]] = [
        (scored(), ["~ approximate, may be too narrow: under 100 documents", "published Table 2 of The Pile paper"]),
        (some, ["weights of 16.6 % of the mixture, renormalised"]),
        (some, ["no documents of Pile-CC, PubMed Central, Books3, OpenWebText2 and 16 more"]),
        (scored(context_len=1025), [overlapping, "2 times the cost"]),
        (scored(kind="masked", mlm_sample=4), ["Pseudo-BPB of a masked model: no code length, and not", "pseudo-BPB"]),
        (scored(kind="masked", mlm_sample=4), ["4 tokens drawn from each window masked one at a time"]),
        (replace(result_of({"A": SMALL, "B": SMALL}), training_copies=copies), ["in train 3 of 10 documents occur"]),
        (replace(result_of(one), warnings=("\x1b[31mred",)), ["warning \\x1b[31mred"]),
        (result_of(one, limit=1, subsets=["A", "B"]), ["limit the first document of each subset", "subsets A, B"]),
        (result_of(one, limit=10, prefix=no_prefix), ["the first 10 documents", "none: the first token of a document"]),
        (result_of(one, skipped_lines=1_234), ["skipped 1,234 bad lines", "model: gpt_neox, 2,775,208,960"]),
        (result_of(one), ["<|endoftext|> (id 0, auto)", "00.jsonl, 01.jsonl, 02.jsonl and 27 more", "UTF-8 bytes of"]),
        (result_of(one, prefix={"given": "310", "id": 310, "token": ""}), ["prefix id 310 bytes"]),
    ]
    for result, parts in cases:
        text = " ".join(printed(result, width=300).split())
        for part in parts:
            assert part in text
    assert "~" not in printed(result_of({"A": Score(100, 100, 10, 70.0, (0.9, 1.1))}))
    assert "published" not in printed(scored("00.jsonl"))
    assert not any(words in printed(cases[4][0], 220) for words in ("prefix", "GPT-2"))
    assert not any(words in printed(result_of(one)) for words in ("limit", "subsets", "skipped"))
    counts = [row_of(printed(cases[6][0]), name)[-1] for name in ("A", "B", "Overall (pooled)")]
    assert counts == ["3", "0", "3"]


def lines(comparison: Comparison, width: int = 80) -> list[str]:
    console = Console(width=width, highlight=False, no_color=True)
    with console.capture() as captured:
        console.print(comparison_output(comparison))
    return [line.rstrip() for line in captured.get().splitlines()]


def difference(low: float, high: float, documents: int = 1234, adjusted: float | None = None) -> Difference:
    """A difference with this interval, of which the p-value follows; `adjusted` stands for Holm's."""
    middle, p = (low + high) / 2, 0.5 if low <= 0 <= high else 0.001
    return Difference(
        documents, 10**6, (1.5, 1.5 + middle), middle, (low, high), p, p if adjusted is None else adjusted
    )


FEW = Difference(3, 100, (1.5, 1.25), -0.25)


def comparison(*against: Against, cautions: Sequence[str] = (), left_out: Sequence[int] = (0, 0)) -> Comparison:
    models = tuple(f"runs/{number}/model" for number in range(len(against) + 1))
    return Comparison("causal", models, against, tuple(left_out), tuple(cautions))


BETTER = Against(
    difference(-0.03, -0.01, 2345),
    {"ArXiv": difference(-0.3, -0.1), "Github": difference(-0.1, 0.2, 99), "New": difference(0.1, 0.2), "One": FEW},
    difference(0.01, 0.03, 2345),
    0.25,
)


def test_rows_marks_and_notes() -> None:
    found = lines(comparison(BETTER))
    assert max(map(len, found)) <= 80
    rows = {line.split()[0]: line.split() for line in found if line}
    assert rows["ArXiv"] == ["ArXiv", "1,234", "1.5000", "1.3000", "-0.2000", "-0.3000", "to", "-0.1000", "*"]
    assert rows["Github"] == ["Github", "99", "1.5000", "1.5500", "+0.0500", "-0.1000", "to", "+0.2000"]
    assert rows["One"] == ["One", "3", "1.5000", "1.2500", "-0.2500", "–", "few"]
    totals = [line.split() for line in found if line.startswith("Overall")]
    assert totals[0] == ["Overall", "(pooled)", "2,345", "1.5000", "1.4800", "-0.0200", "-0.0300", "to", "-0.0100", "*"]
    assert totals[1][:2] + totals[1][-4:] == ["Overall", "(mixture)", "+0.0100", "to", "+0.0300", "*"]
    assert rows["A"] == ["A", "runs/0/model"]
    assert rows["mixture"][:5] == ["mixture", "weights", "of", "25.0", "%"]
    assert " ".join(rows["few"]).startswith("few under 10 documents with text, or under 4 that differ: no")
    found = lines(comparison(BETTER, BETTER, left_out=(0, 1_000, 0), cautions=["mind the prefix"]))
    titles = [f"BPB on the same documents: {letter} against A" for letter in "BC"]
    assert [line for line in found if line.endswith("against A")] == titles
    assert "C          runs/2/model" in found
    assert "documents  those that all scored; left out: 1,000 of B" in found
    assert "mind       mind the prefix" in found
    rough = replace(BETTER, subsets={name: replace(one, skewness=0.31) for name, one in BETTER.subsets.items()})
    rows = {line.split()[0]: line.split() for line in lines(comparison(rough)) if line}
    assert [rows[name][-1] for name in ("ArXiv", "Github")] == ["*~", "~"]
    assert " ".join(rows["~"]).startswith("~ few documents decide the difference or hold most bytes")
    nothing = Against(Difference(2, 0, None, None, None), {"ArXiv": Difference(2, 0, None, None, None)})
    [row] = [line for line in lines(comparison(nothing)) if line.startswith("ArXiv")]
    assert row.split() == ["ArXiv", "2", "–", "–", "–", "–", "few"]


def test_the_sentence_says_which_is_better() -> None:
    more, less = "(95 %: 0.0100 to 0.0300)", "it needs 0.0200 bits per byte"
    for overall, said in (
        (difference(-0.03, -0.01), f"B is better than A: {less} less over all {more}"),
        (difference(0.01, 0.03), f"B is worse than A: {less} more over all {more}"),
        (difference(-0.01, 0.03), "B and A are not told apart over all, as the interval holds 0"),
        (Difference(1, 5, (1.0, 2.0), 1.0), "Under 10 documents with text say too little about others"),
        (Difference(2, 0), "nothing to compare"),
    ):
        assert said in verdict(Against(overall, BETTER.subsets), "B")
    counted = "of the subsets, better in 1, worse in 1, not told apart in 1, too few documents in 1."
    assert verdict(BETTER, "B").endswith(f"; weighted by the mixture: worse; {counted}")
    # An interval beyond 0 is no verdict by itself if there are many subsets.
    many = Against(difference(-0.03, -0.01), {"ArXiv": difference(-0.3, -0.1, adjusted=0.2)})
    assert verdict(many, "B").endswith("; of the subsets, better in 0, worse in 0, not told apart in 1.")


def test_names_are_cut_to_the_width() -> None:
    wide = Against(BETTER.overall, {"日" * 60: BETTER.overall})
    shown = lines(Comparison("masked", ("a", "b"), (wide,), (0, 0), ()))
    assert shown[0].startswith("pseudo-BPB")
    assert max(map(cell_len, shown)) <= 80
