"""A label that spells a subset otherwise is that subset, in whatever reads labels.

The reference is the same corpus with the exact names in its records: it must give the same results.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PileDocuments, PileStream, select_corpus
from pilekit.corpus import Corpus, Manifest, Subset, SubsetNames, load_manifest, subset_names
from pilekit.corpus.names import LONGEST_SPELLING, MAX_SUBSETS
from pilekit.errors import PilekitError
from pilekit.shards.index.build import index_corpus
from pilekit.shards.read.reader import read
from pilekit.shards.verify.verify import verify_corpus
from pilekit.stats.summary import corpus_stats
from tests.cli.running import refused, run, run_json
from tests.shards.making import as_if_large, record, write_shard
from tests.tiny.models import tiny_tokenizer

SPELLED = {"GitHub": "Github", "github": "Github", "PMC": "PubMed Central", "pile_arxiv": "ArXiv", "arXiv": "ArXiv"}
LABELS = [*SPELLED, "Github", "ArXiv", "Git Hub Gists", "", "…", "Stack\x1b[2JExchange?"]
"""Some that a subset's name or alias spells, some exact names, and some of no subset."""


def spelled(label: str) -> str:
    """The subset of each of `LABELS`, by hand."""
    return SPELLED.get(label, label)


def documents(count: int = 240) -> list[tuple[str, str]]:
    """(text, label); every fifth text occurs twice."""
    texts = [f"document {number} of some words that no other has {number * 7919 % 1000}" for number in range(count)]
    texts = [texts[number - 1] if number % 5 == 4 else text for number, text in enumerate(texts)]
    return [(text, LABELS[number * 7 % len(LABELS)]) for number, text in enumerate(texts)]


def write(folder: Path, pairs: list[tuple[str, str]], form: str) -> Path:
    """Two shards with these texts and labels."""
    folder.mkdir(parents=True)
    for place, name in enumerate(("a", "b")):
        some = pairs[place::2]
        if form == "parquet":
            metas = [{"pile_set_name": label} for _, label in some]
            pq.write_table(pa.table({"text": [text for text, _ in some], "meta": metas}), folder / f"{name}.parquet")
        else:
            write_shard(folder / f"{name}.jsonl.zst", [record(text, label) for text, label in some])
    return folder


@pytest.fixture(scope="module", params=["lines", "parquet"])
def both(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The corpus with spellings, and the reference: the same with exact names."""
    folder = tmp_path_factory.mktemp(request.param)
    exact = [(text, spelled(label)) for text, label in documents()]
    return write(folder / "spelled", documents(), request.param), write(folder / "exact", exact, request.param)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def without_joined(stats: dict[str, Any]) -> dict[str, Any]:
    rows = {name: {**row, "joined": []} for name, row in stats["subsets"].items()}
    return {**stats, "subsets": rows}


@pytest.mark.parametrize("subsets", [None, ["GitHub"], ["pmc", "ArXiv"]])
@pytest.mark.parametrize("way", ["decoded", "scanned", "tokens", "index"])
def test_stats_by_every_path(tmp_path: Path, tokenizer: Path, way: str, subsets: list[str] | None) -> None:
    exact = [(text, spelled(label)) for text, label in documents()]
    folders = write(tmp_path / "spelled", documents(), "lines"), write(tmp_path / "exact", exact, "lines")
    corpora = [Corpus(folder) if way != "scanned" else as_if_large(Corpus(folder)) for folder in folders]
    if way == "index":
        for folder in folders:
            index_corpus(Corpus(folder))
    options: dict[str, Any] = {"subsets": subsets, "copies": True, "tokenizer": tokenizer if way == "tokens" else None}
    found, reference = (corpus_stats(corpus, jobs=2, **options) for corpus in corpora)
    assert without_joined(found.to_dict()) == reference.to_dict()
    met = {subset.name: set(subset.joined) for subset in found.subsets if subset.joined}
    expected: dict[str, set[str]] = {}
    for label, name in SPELLED.items():
        if subsets is None or name in (found.selected or ()):
            expected.setdefault(name, set()).add(label)
    assert met == expected
    assert ('"GitHub" as Github' in " ".join(str(found).split())) == ("Github" in met)
    assert ("&quot;GitHub&quot; as Github" in found._repr_html_()) == ("Github" in met)


def test_reading_writing_and_counting(tmp_path: Path, both: tuple[Path, Path]) -> None:
    by_subset = Counter(spelled(label) for _, label in documents())
    for folder in both:
        assert Counter(name for batch in read(folder) for name in batch.subsets) == by_subset
        chosen = [text for batch in read(folder, ["git hub"]) for text in batch.texts]
        assert len(chosen) == by_subset["Github"]
        assert len(PileDocuments(folder, subsets=["Pile_GitHub"])) == by_subset["Github"]
        assert {document.subset for document in PileDocuments(folder, subsets=["ARXIV"])} == {"ArXiv"}
        assert len(PileDocuments(folder).labelled("ArXiv")) == by_subset["ArXiv"]
        assert run_json("grep", "document", folder, "--count")["subsets"].keys() == by_subset.keys()
    results = [select_corpus(folder, tmp_path / folder.name, subsets=["GITHUB"]) for folder in both]
    assert results[0].summary == results[1].summary
    assert results[0].summary["documents"] == by_subset["Github"]
    other = Manifest(name="pile", subsets=(Subset(name="Github"), Subset(name="ArXiv")))
    with pytest.raises(PilekitError, match="was made with other settings: spellings is"):
        select_corpus(Corpus(both[0], other), tmp_path / both[0].name, subsets=["GITHUB"])
    assert [run_json("head", folder, "--subsets", "pmc", "-n", 1)["subset"] for folder in both] == [
        "PubMed Central"
    ] * 2
    strange = {'"Git Hub Gists"', '""', '"…"', r'"Stack\x1b[2JExchange?"'}
    for folder in both:
        found = {re.findall(r'labelled (".*?")', finding.problem)[0] for finding in verify_corpus(folder).findings}
        assert found == strange


def test_a_state_from_before_labels_were_joined(tmp_path: Path, both: tuple[Path, Path], tokenizer: Path) -> None:
    """It fits where no label is joined, and is refused where one is."""
    arguments: dict[str, Any] = {"seq_len": 32, "batch_size": 4, "tokenizer": tokenizer, "subsets": ["Github"]}
    fields = {"text_field": "text", "label_path": "meta.pile_set_name"}
    assert PileStream(both[1], **arguments)._fingerprint["record"] == fields
    assert PileStream(both[0], **arguments)._fingerprint["record"] == {**fields, "joined": SPELLED}


def test_a_manifest_that_does_not_join(tmp_path: Path) -> None:
    """Each label is a subset of its own, and names are taken as they are typed."""
    folder = write(tmp_path / "spelled", documents(), "lines")
    (tmp_path / "apart.toml").write_text(
        'name = "apart"\njoin_spellings = false\n'
        '[[subsets]]\nname = "Github"\naliases = ["GitHub", "Git Hub"]\nweight_percent = 100\n'
    )
    counts = Counter(label for _, label in documents())
    for _ in range(2):
        found = run_json("stats", folder, "--manifest", tmp_path / "apart.toml")
        assert {name: row["documents"] for name, row in found["subsets"].items()} == counts
        assert not any(row["joined"] for row in found["subsets"].values())
        for name in ("Github", "GitHub"):
            one = run_json("stats", folder, "--manifest", tmp_path / "apart.toml", "--subsets", name)
            assert {name: counts[name]} == {name: row["documents"] for name, row in one["subsets"].items()}
        run("index", folder, "--manifest", tmp_path / "apart.toml", exit_code=0)
    refused("did you mean Github", "stats", folder, "--manifest", tmp_path / "apart.toml", "--subsets", "Githab")
    # The same indexes serve a manifest that joins.
    assert run_json("stats", folder)["subsets"]["Github"]["documents"] == sum(
        counts[label] for label in ("Github", "GitHub", "github")
    )


letters = st.text(st.sampled_from("aAbB+# ß中_"), max_size=4)


@given(st.lists(st.tuples(letters.filter(bool), st.lists(letters.filter(bool), max_size=3)), max_size=5), letters)
def test_the_rule_against_a_slow_reference(subsets: list[tuple[str, list[str]]], label: str) -> None:
    subsets = list({name: (name, aliases) for name, aliases in subsets}.values())
    manifest = Manifest(name="m", subsets=tuple(Subset(name=name, aliases=tuple(some)) for name, some in subsets))

    def bare(text: str) -> str:
        return "".join(character for character in text.lower() if character.isalnum())

    def found() -> set[str]:
        for rule in (
            lambda name, aliases: name == label,
            lambda name, aliases: label in aliases,
            lambda name, aliases: bare(name) == bare(label) != "",
            lambda name, aliases: bare(label) != "" and bare(label) in map(bare, aliases),
        ):
            if hits := {name for name, aliases in subsets if rule(name, aliases)}:
                return hits
        return set()

    meant = found()
    names = subset_names(manifest)
    assert (names is None) == (not subsets)
    if names is not None:
        for _ in range(2):
            assert names[label] == (next(iter(meant)) if len(meant) == 1 else label)
        assert names["(none)"] == "(none)"


def test_hostile_labels_stay_bounded() -> None:
    names = SubsetNames(load_manifest())
    for number in range(3 * MAX_SUBSETS):
        assert names[f"https://example.org/{number}"] == f"https://example.org/{number}"
        assert names["-" * number + "GitHub"] == (
            "Github" if number + 6 <= LONGEST_SPELLING else names["-" * number + "GitHub"]
        )
    assert len(names) <= MAX_SUBSETS
    long = "git" + "-" * (1 << 20) + "hub"
    assert names[long] == long
    assert long not in dict(names)


def test_one_limit_for_whatever_lists_subsets(tmp_path: Path) -> None:
    """The commands refuse a shard of too many labels with one error, `index` too; reading needs no limit."""
    lines = [record("text", f"https://example.org/{number}") for number in range(MAX_SUBSETS + 1)]
    path = write_shard(tmp_path / "many" / "a.jsonl.zst", lines)
    full = write_shard(tmp_path / "full" / "a.jsonl.zst", lines[1:])
    out = tmp_path / "out"
    for command in (("stats",), ("index",), ("select", "--out", out, "--sample", "1"), ("dedup", "--out", out)):
        match = "more than 4,096 different subset labels; set label_path .* or name the field by --label"
        refused(match, command[0], path, *command[1:])
        assert [file.name for file in path.parent.iterdir()] == ["a.jsonl.zst"]
        if command == ("stats",):
            refused("no record has a label at meta.none", "stats", path, "--label", "meta.none")
        else:
            assert run(command[0], path, *command[1:], "--label", "meta.none", exit_code=0)
        for file in set(path.parent.iterdir()) - {path}:
            file.unlink()
        shutil.rmtree(out, ignore_errors=True)
    run("index", full, exit_code=0)
    assert len(run_json("stats", full)["subsets"]) == MAX_SUBSETS
    assert run("head", path, "-n", 1, exit_code=0).stdout
