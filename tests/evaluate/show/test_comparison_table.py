"""The table of a comparison: its content, its width, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console

from pilekit.evaluate.results.compare import Comparison
from pilekit.evaluate.results.difference import Against, Difference
from pilekit.evaluate.show.output import comparison_output
from pilekit.evaluate.show.tables import verdict


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
