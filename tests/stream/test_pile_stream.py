"""PileStream on small shards: equal to a plain reading, resumable at every batch, the same through a DataLoader."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import zstandard
from torch.utils.data import DataLoader

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.stream import PileStream
from pilekit.tokenize import load_tokenizer
from tests.stream.old_reference import Document, reference_rows, rows_of
from tests.tokenize.making import byte_level_bpe

LABELS = ["Pile-CC", "Github", "ArXiv", "Recipes", None]
WORDS = ["the", "quick", "brown fox", "läuft über die Straße\n\t", "12345", "日本語", "<|endoftext|>"]


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level_bpe(600).save(str(file))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards with blank lines, empty texts, long texts, unlabelled documents and labels the manifest lacks."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    for shard in range(3):
        lines = []
        for _ in range(25):
            text = " ".join(rng.choices(WORDS, k=rng.choice([0, 1, 5, 20, 90])))
            label = rng.choice(LABELS)
            lines.append(json.dumps({"text": text, "meta": {} if label is None else {"pile_set_name": label}}))
            lines += [""] * (rng.random() < 0.1)
        data = ("\n".join(lines) + "\n").encode()
        if shard == 1:
            (folder / "01.jsonl").write_bytes(data)
        else:
            (folder / f"{shard:02d}.jsonl.zst").write_bytes(zstandard.compress(data))
    return folder


def documents_of(folder: Path, tokenizer_file: Path, subsets: Sequence[str] | None = None) -> list[Document]:
    """The corpus read with nothing but json and tokenizers, one document at a time."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.encode_special_tokens = True
    documents = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().decompress(data)
        for number, line in enumerate(data.decode().split("\n")):
            if line:
                record = json.loads(line)
                subset = record["meta"].get("pile_set_name", "(none)")
                if subsets is None or subset in subsets:
                    ids = tokenizer.encode(record["text"], add_special_tokens=False).ids
                    documents.append(Document(path.name.removesuffix(".zst"), number, subset, tuple(ids)))
    return documents


@pytest.fixture(scope="module")
def make(folder: Path, tokenizer_file: Path) -> Callable[..., PileStream]:
    tokenizer = load_tokenizer(tokenizer_file)

    def make(data: Any = folder, **changes: Any) -> PileStream:
        return PileStream(data, **{"tokenizer": tokenizer, "seq_len": 64, "batch_size": 3, **changes})

    return make


@pytest.mark.parametrize("subsets", [None, ["Github"], ["ArXiv", "Pile-CC"]])
def test_a_pass_is_the_reference(
    make: Callable[..., PileStream], folder: Path, tokenizer_file: Path, subsets: list[str] | None
) -> None:
    stream = make(subsets=subsets)
    batches = list(stream)
    tokenizer = load_tokenizer(tokenizer_file)
    assert tokenizer.eos_id is not None
    assert tokenizer.pad_id is not None
    names = [subset.name for subset in stream.corpus.manifest.subsets]
    documents = documents_of(folder, tokenizer_file, subsets)
    assert rows_of(batches) == reference_rows(documents, 64, tokenizer.eos_id, tokenizer.pad_id, names)
    assert [len(batch["input_ids"]) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    assert list(batches[0]) == ["input_ids", "labels", "doc_ids", "position_ids", "subset_ids"]
    if subsets is None:
        assert stream.subset_names[len(names) :] == tuple(
            dict.fromkeys(d.subset for d in documents if d.subset not in names)
        )


def test_data_may_be_a_path_a_list_or_a_corpus(make: Callable[..., PileStream], folder: Path) -> None:
    expected = rows_of(make())
    assert rows_of(make(str(folder))) == expected
    assert rows_of(make(sorted(folder.iterdir()))) == expected
    assert rows_of(make(Corpus(folder))) == expected
    assert rows_of(make(folder / "01.jsonl")) != expected


def test_held_out_shards_are_streamed_only_on_purpose(
    make: Callable[..., PileStream], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("train/00.jsonl", "val.jsonl", "test.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n")
    assert [shard.name for shard in make(tmp_path).corpus] == ["train/00.jsonl"]
    assert [shard.name for shard in make(tmp_path / "val.jsonl").corpus] == ["val.jsonl"]
    caplog.clear()
    assert len(make(Corpus(tmp_path)).corpus) == 3
    assert "test.jsonl, val.jsonl; give corpus.without_held_out()" in caplog.text
    caplog.clear()
    for corpus in (Corpus(tmp_path).split("train"), Corpus(tmp_path).split("val")):
        assert make(corpus).corpus is corpus
    assert not caplog.text


def test_the_tokenizer_may_be_a_path(make: Callable[..., PileStream], tokenizer_file: Path) -> None:
    assert rows_of(make(tokenizer=str(tokenizer_file))) == rows_of(make())
    assert make(tokenizer=tokenizer_file.parent).state_dict() == make().state_dict()


def test_subsets_go_by_any_of_their_names(make: Callable[..., PileStream]) -> None:
    assert rows_of(make(subsets=["GitHub", "pile_cc"])) == rows_of(make(subsets=["Pile-CC", "Github"]))
    assert rows_of(make(subsets="GitHub")) == rows_of(make(subsets=("Github",)))


@pytest.mark.parametrize("changed_batch_size", [3, 1, 5])
def test_resume_after_every_batch(make: Callable[..., PileStream], changed_batch_size: int) -> None:
    stream = make()
    rows = rows_of(make())
    done = 0
    for batch in stream:
        done += len(batch["input_ids"])
        state = json.loads(json.dumps(stream.state_dict()))
        assert len(json.dumps(state)) < 2000
        resumed = make(batch_size=changed_batch_size)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert rows_of(resumed) == rows[done:]


def test_resuming_again_and_again(make: Callable[..., PileStream]) -> None:
    batches = list(make())
    states = [make().state_dict()]
    rows = []
    for _ in batches:
        stream = make()
        stream.load_state_dict(json.loads(json.dumps(states[-1])))
        rows += rows_of([next(iter(stream))])
        states.append(stream.state_dict())
    assert rows == rows_of(batches)


def test_the_state_follows_what_was_handed_out(make: Callable[..., PileStream]) -> None:
    stream = make()
    whole = list(make())
    iterator = iter(stream)
    for batch in whole:
        assert next(iterator).stream_state == batch.stream_state
        assert batch.stream_state.items() <= stream.state_dict().items()


def test_the_end_of_a_pass(make: Callable[..., PileStream]) -> None:
    stream = make()
    rows = rows_of(stream)
    after_the_end = stream.state_dict()
    assert rows_of(stream) == rows, "a finished stream starts over"
    for _batch in stream:
        on_the_last_batch = stream.state_dict()
    resumed = make()
    resumed.load_state_dict(on_the_last_batch)
    assert list(resumed) == []
    assert rows_of(resumed) == rows
    resumed.load_state_dict(after_the_end)
    assert rows_of(resumed) == rows


def test_iter_begins_a_new_pass(make: Callable[..., PileStream]) -> None:
    stream = make()
    first = rows_of([next(iter(stream))])
    assert rows_of([next(iter(stream))]) == first
    stream.load_state_dict(stream.state_dict())
    assert rows_of([next(iter(stream))]) != first
    assert rows_of([next(iter(stream))]) == first, "only the first iter() after loading resumes"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_dataloader_gives_the_same_batches(make: Callable[..., PileStream], workers: int) -> None:
    expected = list(make())
    stream = make()
    loader = DataLoader(stream, batch_size=None, num_workers=workers)
    batches = list(loader)
    assert rows_of(batches) == rows_of(expected)
    assert [batch.stream_state for batch in batches] == [batch.stream_state for batch in expected]
    assert rows_of(loader) == rows_of(expected)


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 4}, {"num_workers": 1}], ids=str)
def test_a_dataloader_that_would_batch_again_is_refused(
    make: Callable[..., PileStream], arguments: dict[str, int]
) -> None:
    with pytest.raises(PilekitError, match=r"write DataLoader\(stream, batch_size=None\)"):
        list(DataLoader(make(), **arguments))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_resuming_through_a_dataloader(make: Callable[..., PileStream], workers: int) -> None:
    rows = rows_of(make())
    stream = make()
    done = 0
    for batch in itertools.islice(DataLoader(stream, batch_size=None, num_workers=workers), 4):
        stream.advance(batch)
        done += len(batch["input_ids"])
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    loader = DataLoader(resumed, batch_size=None, num_workers=workers)
    rest = []
    for batch in loader:
        resumed.advance(batch)
        rest.append(batch)
    assert rows_of(rest) == rows[done:]
    assert resumed.subset_names == tuple(dict.fromkeys([*make().subset_names, *rest[-1].stream_state["new_subsets"]]))
    assert rows_of(loader) == rows, "the pass after a resumed one is whole"


@pytest.mark.slow
def test_a_spawned_worker_gives_the_same_batches(make: Callable[..., PileStream]) -> None:
    loader = DataLoader(make(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert rows_of(loader) == rows_of(make())


def test_advance_wants_the_batch_itself(make: Callable[..., PileStream]) -> None:
    stream = make()
    batch = next(iter(stream))
    with pytest.raises(PilekitError, match="before converting"):
        stream.advance(dict(batch))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("seq_len", {"seq_len": 32}),
        ("subsets", {"subsets": ["Github"]}),
        ("seed", {"seed": 1}),
        ("tokenizer", {"tokenizer": "other"}),
        ("backend", {"tokenizer": "slow"}),
        ("special_tokens", {"tokenizer": "parse"}),
        ("shards", {"data": "fewer"}),
        ("shards", {"data": "resized"}),
    ],
)
def test_a_state_of_another_sequence_is_refused(
    make: Callable[..., PileStream],
    folder: Path,
    tokenizer_file: Path,
    tmp_path: Path,
    field: str,
    change: dict[str, Any],
) -> None:
    state = make(tokenizer=load_tokenizer(tokenizer_file, backend="fastokens")).state_dict()
    if change.get("tokenizer") == "other":
        change = {"tokenizer": tmp_path / "tokenizer.json"}
        byte_level_bpe(500).save(str(change["tokenizer"]))
    elif change.get("tokenizer") == "slow":
        change = {"tokenizer": load_tokenizer(tokenizer_file, backend="tokenizers")}
    elif change.get("tokenizer") == "parse":
        change = {"tokenizer": load_tokenizer(tokenizer_file, special_tokens="parse")}
    elif change.get("data") == "fewer":
        change = {"data": sorted(folder.iterdir())[:2]}
    elif change.get("data") == "resized":
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        with (tmp_path / "01.jsonl").open("a") as file:
            file.write("\n")
        change = {"data": tmp_path}
    with pytest.raises(PilekitError, match=f"does not fit: its {field} is"):
        make(**change).load_state_dict(state)


def test_what_is_no_state_is_refused(make: Callable[..., PileStream]) -> None:
    stream = make()
    good = stream.state_dict()
    for bad in (
        {},
        {**good, "version": 2},
        {key: value for key, value in good.items() if key != "token"},
        {**good, "token": -1},
        {**good, "document": "3"},
        {**good, "shard": "other.jsonl"},
        {**good, "fingerprint": {**good["fingerprint"], "packing": "best_fit"}},
    ):
        with pytest.raises(PilekitError):
            stream.load_state_dict(bad)
    state = stream.state_dict()
    state["fingerprint"]["special_tokens"]["eos_id"] = -1  # a caller's change must not reach the stream
    assert stream.state_dict() == good


def test_a_changed_document_at_the_place_of_resuming_is_an_error(
    make: Callable[..., PileStream], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    long, short = json.dumps({"text": "a b c d e f g h " * 50}), json.dumps({"text": "a"})
    path.write_text(long + "\n")
    stream = make(path, batch_size=1)
    next(iter(stream))
    state = stream.state_dict()
    path.write_text(short.ljust(len(long)) + "\n")
    changed = make(path)
    changed.load_state_dict(state)
    with pytest.raises(PilekitError, match=r"cannot resume inside document 0 of a\.jsonl"):
        next(iter(changed))


def test_a_selection_without_documents_is_an_error(make: Callable[..., PileStream], tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match="no documents of Enron Emails"):
        list(make(subsets=["Enron Emails"]))
    with pytest.raises(PilekitError, match="subsets is empty"):
        make(subsets=[])
    (tmp_path / "blank.jsonl").write_text("\n\n")
    with pytest.raises(PilekitError, match="no documents in"):
        list(make(tmp_path))


def test_wrong_arguments(make: Callable[..., PileStream], tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match='only packing="concat" exists'):
        make(packing="best_fit")
    with pytest.raises(PilekitError, match="a subset is named by text"):
        make(subsets=5)
    with pytest.raises(PilekitError, match=r"a tokenizer is a tokenizer\.json, .* not 5"):
        make(tokenizer=5)
    with pytest.raises(PilekitError, match="seq_len"):
        make(seq_len=0)
    with pytest.raises(PilekitError, match="batch_size"):
        make(batch_size=0)
    without_eos = byte_level_bpe(500).to_str().replace("<|endoftext|>", "<|nothing|>")
    (tmp_path / "tokenizer.json").write_text(without_eos)
    with pytest.raises(PilekitError, match="no end-of-document token"):
        make(tokenizer=tmp_path / "tokenizer.json")


def test_a_bad_line_is_named(make: Callable[..., PileStream], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "good"}) + "\nnot json\n")
    for batches in (make(tmp_path), DataLoader(make(tmp_path), batch_size=None, num_workers=1)):
        with pytest.raises(PilekitError, match="line 2"):
            list(batches)


def test_a_job_of_several_processes_is_refused(
    make: Callable[..., PileStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make()
    monkeypatch.setenv("WORLD_SIZE", "1")
    make()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(PilekitError, match="4 processes"):
        make()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(PilekitError, match="2 processes"):
        iter(stream)


def test_real_text_loses_no_token(real_corpus: Path) -> None:
    tokenizer = load_tokenizer(real_corpus / "20B_tokenizer.json")
    shard = real_corpus / "val.jsonl.zst"
    stream = PileStream(shard, tokenizer=tokenizer, seq_len=2048, batch_size=4)
    with shard.open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    texts = [json.loads(line)["text"] for line in data.split(b"\n") if line.strip()]
    ids = [[*tokenizer.encode_batch([text])[0].tolist(), tokenizer.eos_id] for text in texts]
    batches = list(stream)
    flat = torch.cat([batch["input_ids"][batch["doc_ids"] >= 0] for batch in batches])
    assert flat.tolist() == list(itertools.chain.from_iterable(ids))
    assert set(stream.subset_names) == {subset.name for subset in stream.corpus.manifest.subsets}
    middle = list(itertools.islice(stream, len(batches) // 2))[-1]
    resumed = PileStream(shard, tokenizer=tokenizer, seq_len=2048, batch_size=4)
    resumed.load_state_dict(stream.state_dict())
    assert middle.stream_state == batches[len(batches) // 2 - 1].stream_state
    assert rows_of(resumed) == rows_of(batches[len(batches) // 2 :])
