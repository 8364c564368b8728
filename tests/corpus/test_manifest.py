"""Manifests: the published figures agree with each other, and errors name file and field."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from pilekit.corpus import BUNDLED, PublishedTable, load_manifest
from pilekit.errors import PilekitError
from tests.refusing import refused

PILE = load_manifest()


def table(title: str) -> PublishedTable:
    (found,) = (table for table in PILE.tables if table.title == title)
    return found


def test_sizes_of_the_22_subsets_follow_from_bytes_documents_and_epochs() -> None:
    assert len(PILE.subsets) == 22
    assert sum(subset.raw_bytes or 0 for subset in PILE.subsets) == PILE.totals.raw_bytes == 886_034_435_430
    assert sum(subset.documents or 0 for subset in PILE.subsets) == PILE.totals.documents == 146_340_692
    assert sum(subset.weight_percent or 0 for subset in PILE.subsets) == pytest.approx(100, abs=0.06)
    assert sum(subset.effective_gib or 0 for subset in PILE.subsets) == pytest.approx(1254.20, abs=0.06)
    for subset in PILE.subsets:
        row = msgspec.structs.asdict(subset)
        gib = row["raw_bytes"] / 2**30
        assert row["raw_gib"] == pytest.approx(gib, abs=0.0051)
        assert row["effective_gib"] == pytest.approx(gib * row["epochs"], abs=0.0051)
        assert row["weight_percent"] == pytest.approx(100 * gib * row["epochs"] / 1254.20, abs=0.0051)
        assert row["mean_kib"] == pytest.approx(row["raw_bytes"] / row["documents"] / 1024, abs=0.0051)
        assert row["availability"]


def test_bits_per_byte_are_tokens_per_byte_times_log2_of_the_perplexity() -> None:
    bits, perplexity = table("Table 2"), table("Table 8")
    assert bits.models == perplexity.models
    assert len(bits.models) == 8
    assert len(bits.subsets) == len(perplexity.subsets) == 22
    for name, row in bits.subsets.items():
        subset = PILE.subset(name)
        assert subset is not None
        assert subset.tokens_per_byte is not None
        for model, published in enumerate(row):
            ours = subset.tokens_per_byte * math.log2(perplexity.subsets[name][model])
            assert published == pytest.approx(ours, abs=0.0003), (name, model)
    assert PILE.totals.tokens_per_byte == 0.29335
    for published, ppl in zip(bits.overall, perplexity.overall, strict=True):
        assert published == pytest.approx(0.29335 * math.log2(ppl), abs=0.00006)
    assert bits.overall[0] == 1.2253


def test_published_results_are_columns_of_the_tables() -> None:
    results = {(result.model, result.title): result for result in PILE.published}
    assert len(PILE.published) == sum(len(table.models) for table in PILE.tables)
    small = results["GPT-2 small", "Table 2"]
    assert (small.metric, small.overall, small.subsets["Github"]) == ("bits_per_byte", 1.2253, 1.7912)
    davinci = results["GPT-3 davinci", "Table 8"]
    assert (davinci.metric, davinci.overall, davinci.subsets["Enron Emails"]) == ("token_perplexity", 5.4508, 9.7655)
    assert results["1.3B trained on 40 GB of the Pile", "Table 4"].certainty == "secondary"
    assert all(result.measured_on and result.source for result in PILE.published)
    files = PILE.release.files
    assert [file.name for file in files[:30]] == [f"train/{shard:02}.jsonl.zst" for shard in range(30)]
    assert sum(file.sha256 is not None for file in files) == 6


def test_the_uncopyrighted_variant_has_17_subsets_of_the_pile_with_weights_of_their_own() -> None:
    variant = load_manifest("pile-uncopyrighted")
    gone = {"Books3", "BookCorpus2", "OpenSubtitles", "YoutubeSubtitles", "OpenWebText2"}
    assert {subset.name for subset in variant.subsets} == {subset.name for subset in PILE.subsets} - gone
    effective = {subset.name: (subset.raw_bytes or 0) * (subset.epochs or 0) for subset in variant.subsets}
    for subset in variant.subsets:
        original = PILE.subset(subset.name)
        assert original is not None
        for field in ("aliases", "raw_bytes", "raw_gib", "documents", "epochs", "mean_kib", "tokens_per_byte"):
            assert getattr(subset, field) == getattr(original, field)
        share = 100 * effective[subset.name] / sum(effective.values())
        assert subset.weight_percent == pytest.approx(share, abs=0.0051)
    assert variant.totals.raw_bytes == sum(subset.raw_bytes or 0 for subset in variant.subsets)
    assert variant.totals.documents == sum(subset.documents or 0 for subset in variant.subsets)
    assert {result.title for result in variant.published} == {"Table 2", "Table 4", "Table 8", "Table 9"}
    assert all(result.overall is None and len(result.subsets) == 17 for result in variant.published)


def test_bundled_manifests_load_and_are_named_like_their_files() -> None:
    for name in BUNDLED:
        manifest = load_manifest(name)
        assert manifest.name == name
        assert (manifest.text_field, manifest.label_path) == ("text", "meta.pile_set_name")
        assert load_manifest(name) is manifest


def test_a_manifest_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ntext_field = "content"\nlabel_path = "source"\n[[subsets]]\nname = "Mail"\nepochs = 2\n'
    )
    manifest = load_manifest(path)
    assert (manifest.text_field, manifest.label_path) == ("content", "source")
    assert load_manifest(str(path)) == manifest
    subset = manifest.subset("Mail")
    assert subset is not None
    assert (subset.epochs, subset.raw_bytes, subset.aliases) == (2.0, None, ())
    assert manifest.subset("mail") is None
    assert manifest.published == ()


X = 'name = "x"\n'
TABLE = X + '[[tables]]\ntitle = "t"\nsource = "s"\nmeasured_on = "d"\nmetric = "bits_per_byte"\nmodels = ["m"]\n'

WRONG: list[tuple[str | bytes, str]] = [
    ("", "toml: name is missing"),
    (X + 'label_path = "meta..set"', r'label_path = "meta\.\.set": must be the path of a field'),
    (
        X + '[[subsets]]\nname = "a"\nraw_bytes = -1',
        r"subsets\[0\]\.raw_bytes = -1: must be a whole number",
    ),
    (X + '[[subsets]]\nname = "a"\nepochs = nan', r"subsets\[0\]\.epochs = NaN: must be a number from 0 to 1,000"),
    (X + '[[subsets]]\nname = "a"\n[[subsets]]\nname = "a"', "`subsets` names 'a' twice"),
    *(
        (X + f"[[release.files]]\nname = '{name}'", r"release\.files\[0\]: .*relative and without ")
        for name in ("../a", "/etc/passwd", "C:/b", "..\\b")
    ),
    (X + '[release]\nfiles = [{name = "a"}, {name = "a"}]', "release: `files` names 'a' twice"),
    (TABLE + "[tables.subsets]\na = [1, 2]", r"tables\[0\]: `subsets.a` has 2 values for 1 model"),
    (TABLE + "[tables.subsets]\na = [1]", "table 't': 'a' is not a subset of this manifest"),
    (X + "b = ,", "is not TOML: .*line 2"),
    (b"name = '\xff'", "is not TOML"),
    (X + "b = " + "[" * 100_000, "is not TOML"),
    (X + "".join(f"[[subsets]]\nname = 's{number % 49_999}'\n" for number in range(50_000)), "names 's0' twice"),
    (X + '"\\u001b[31m" = 1', r'unknown field, "\\x1b\[31m"; there are name, '),
]


def test_errors_name_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for text, message in WRONG:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(PilekitError, match=message) as failure:
            load_manifest(path)
        assert str(failure.value).startswith(f"{path}: ")
        assert str(failure.value).isprintable()
    for missing, message in [
        ("piel", r"no manifest is called piel: the bundled ones are pile, pile-uncopyrighted, demo"),
        (tmp_path / "none.toml", r"none\.toml: no such manifest"),
        (tmp_path, "cannot be read: Is a directory"),
    ]:
        with pytest.raises(PilekitError, match=message):
            load_manifest(missing)


def test_what_is_no_manifest_is_one_line() -> None:
    refused("manifest is a name, the path of a TOML file, or a Manifest, not 5", load_manifest, 5)


def test_a_device_is_no_manifest() -> None:
    refused("/dev/zero: is longer than 64 MiB, which no manifest is", load_manifest, Path("/dev/zero"))
