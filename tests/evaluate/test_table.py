from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pilekit.corpus import load_manifest
from pilekit.evaluate.result import BitsPerByte, Score, total
from pilekit.evaluate.table import result_table
from pilekit.stats.table import MOST_ROWS

PROTOCOL: dict[str, Any] = {
    "model": {
        "path": "/models/" + "long/" * 30 + "pythia-2.8b",
        "weights": "xxh3:" + "0" * 32,
        "model_type": "gpt_neox",
        "parameters": 2_775_208_960,
    },
    "tokenizer": {"fingerprint": "sha256:" + "0" * 64, "backend": "fastokens 0.3.5", "special_tokens": "text"},
    "dtype": "float32",
    "max_length": 2048,
    "windows": "disjoint",
    "prefix": {"given": "auto", "id": 0, "token": "<|endoftext|>"},
    "bytes": "UTF-8 bytes of the raw text",
    "data": [{"name": f"{n:02d}.jsonl", "size": 1} for n in range(30)],
    "subsets": None,
    "limit": None,
    "skipped_lines": 0,
}


def result_of(subsets: dict[str, Score], /, **changes: Any) -> BitsPerByte:
    return BitsPerByte(total(subsets.values()), subsets, {**PROTOCOL, **changes})


def printed(result: BitsPerByte, width: int = 80, terminal: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, force_terminal=terminal).print(result_table(result, width))
    return file.getvalue()


def the_pile() -> BitsPerByte:
    score = Score(54_953_117, 243_872_121_726, 71_000_000_000, 1.2e11)
    return result_of({subset.name: score for subset in load_manifest().subsets})


def test_the_whole_pile_fits_into_80_columns_with_nothing_cut() -> None:
    lines = printed(the_pile()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "\n".join(lines)
    rows = [line.split() for line in lines if line.startswith(("Pile-CC", "Overall"))]
    assert rows == [
        ["Pile-CC", "54,953,117", "227", "GiB", "71,000,000,000", "0.2911", "0.7099"],
        ["Overall", "1,208,968,574", "4.88", "TiB", "1,562,000,000,000", "0.2911", "0.7099"],
    ]
    names = [subset.name for subset in load_manifest().subsets]
    assert [name for line in lines for name in names if line.startswith(f"{name} ")] == names


def test_the_protocol_stands_below() -> None:
    text = printed(the_pile(), width=200)
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


def test_what_was_chosen_and_left_out_is_told() -> None:
    one = {"A": Score(1, 1, 1, 1.0)}
    text = printed(result_of(one, limit=1, subsets=["A", "B"], skipped_lines=1_234))
    lines = [line.rstrip() for line in text.splitlines()]
    assert "limit      the first document of each subset" in lines
    assert "subsets    A, B" in lines
    assert "skipped    1,234 bad lines" in lines
    assert "skipped    1 bad line" in [line.rstrip() for line in printed(result_of(one, skipped_lines=1)).splitlines()]


@pytest.mark.parametrize(
    ("given", "token", "shown"),
    [
        ("310", "", "id 310"),
        ("310", " the", " the (id 310)"),
        ("eos", "", "id 310, eos"),
        ("eos", "x", "x (id 310, eos)"),
    ],
)
def test_a_prefix_is_shown_once(given: str, token: str, shown: str) -> None:
    text = printed(result_of({"A": Score(1, 1, 1, 1.0)}, prefix={"given": given, "id": 310, "token": token}))
    assert f"prefix     {shown}" in [line.rstrip() for line in text.splitlines()]


def test_nothing_to_divide_by() -> None:
    [row] = [line for line in printed(result_of({"A": Score(2, 0, 0, 0.0)})).splitlines() if line.startswith("A ")]
    assert row.split() == ["A", "2", "0", "B", "0", "–", "–"]


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


@pytest.mark.parametrize("name", ["x" * 200, "長" * 200])
def test_long_labels_are_cut_and_figures_are_not(name: str) -> None:
    lines = printed(result_of({name: Score(54_953_117, 243_872_121_726, 71_000_000_000, 1.2e11)})).splitlines()
    assert any("…" in line and "71,000,000,000 0.2911 0.7099" in line for line in lines)


def test_many_labels() -> None:
    text = printed(result_of({f"label {n}": Score(1, 1, 1, 1.0) for n in range(MOST_ROWS + 5)}))
    assert "5 further subsets are in the overall figures; --json lists them all." in text
    assert f"label {MOST_ROWS} " not in text
