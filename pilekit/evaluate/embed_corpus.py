"""`embed_corpus`: documents in, a vector for each out, through the machinery that scores documents.

    scoring_run -> records, a vector in each -> one Parquet file

A document is one window: the special tokens that the tokenizer itself puts around a text, and between them as many of
the document's first tokens as fit. Windows of similar length form a batch, padded on the right and masked. While a job
runs, OUT.unfinished/ holds the records, and an interrupted job resumes from it on any number of ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from pilekit.artifacts.atomic_write import check_target
from pilekit.artifacts.folders import refuse_linked_folders
from pilekit.corpus import Corpus, Described
from pilekit.display.progress import Scored
from pilekit.errors import PilekitError, shortened
from pilekit.evaluate.embeddings import Embeddings, write_embeddings
from pilekit.evaluate.results.result_folder import read_numbers, record_key, records_folder
from pilekit.evaluate.score.batching import (
    Float64,
    Row,
    Scoring,
    TokenizedDocument,
    Windows,
    usual_batch_tokens,
)
from pilekit.evaluate.score_plan import Plan, prepare
from pilekit.evaluate.score_ranks import ranks_of_job
from pilekit.evaluate.scoring_run import scoring_run
from pilekit.evaluate.settings import Data, ScoreSettings
from pilekit.models.causal import depends_on_length
from pilekit.models.device import device_of
from pilekit.models.load import CAUSAL, kind_of, load_model, read_config
from pilekit.shards.read.reader import OnError

POOLS = ("mean", "cls", "last")
LOOK_AHEAD = 1 << 18
"""Tokens of documents that are sorted by length together."""


def embed_corpus(
    model: str | Path,
    data: Data = None,
    out: str | Path = "embeddings.parquet",
    *,
    adapter: str | Path | None = None,
    layer: int = -1,
    pool: str = "mean",
    float32: bool = False,
    subsets: Sequence[str] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    manifest: Described = None,
    on_error: OnError = "raise",
    report: Scored | None = None,
) -> Embeddings:
    """Write a vector for each document of a corpus into the Parquet file `out`, made by a causal or masked model.

    model          a folder with config.json, safetensors and tokenizer.json
    data, adapter  as for `bits_per_byte`
    layer          the hidden states that are pooled: 0 the input embeddings, 1 those after the first layer, ..., -1
                   the last, after the final norm
    pool           "mean" over all tokens, "cls": the first token, if the tokenizer puts a special one before a text,
                   "last": the last token
    float32        store float32; else float16, which has half the size and three digits
    subsets, limit, max_length, dtype, device, batch_tokens, manifest, on_error, report   as for `bits_per_byte`. A
                   document has one window, so tokens past `max_length` are not seen

    Several processes share the work, and an interrupted call resumes, as for `bits_per_byte`. If `out` is finished, it
    is returned at once. PilekitError for anything wrong with the arguments, the model or the corpus, and if `out` is
    another file, or was made by other settings.
    """
    ranks = ranks_of_job()
    place = ranks.on_all_ranks(lambda: device_of(device, ranks))
    out, work = Path(out), Path(f"{out}.unfinished")
    item = np.dtype("<f4" if float32 else "<f2")

    def check() -> tuple[Plan, tuple[list[int], list[int]], int, bool]:
        check_target(out, follow_links=True)
        refuse_linked_folders(work)
        kind = kind_of(model)
        config = read_config(model, kind).get_text_config()
        layers, width = int(config.num_hidden_layers), int(config.hidden_size)
        if not -layers - 1 <= layer <= layers:
            raise PilekitError(f"layer is {layer}, but the model has the layers 0 to {layers}, or -1 to {-layers - 1}")
        options = ScoreSettings(
            subsets=subsets,
            limit=limit,
            max_length=max_length,
            prefix="none" if kind is CAUSAL else "auto",
            batch_tokens=batch_tokens,
            on_error=on_error,
        )
        corpus = Corpus.of(data, manifest).only_held_out()
        size = ranks.world_size
        plan = prepare(model, corpus, options, adapter=adapter, dtype=dtype, device=place, world_size=size)
        around = plan.tokenizer.around() or ([], [])
        if pool not in POOLS or (pool == "cls" and not around[0]):
            no_token = "this tokenizer puts no special token before a text"
            why = no_token if pool == "cls" else f"not {shortened(pool, 40)}"
            raise PilekitError(f"pool is mean, last, or cls with a special token before each text: {why}")
        if len(around[0]) + len(around[1]) >= plan.max_length:
            raise PilekitError(f"max_length is {plan.max_length}, which leaves no room for text; give more")
        how = {"layer": layer, "pool": pool, "dtype": item.name, "around": [list(ids) for ids in around]}
        plan.protocol["embedding"] = how
        is_finished = out.exists()
        if is_finished and record_key(Embeddings(out).protocol) != plan.key:
            raise PilekitError(f"{out}: was made with other settings; name another file, or remove it")
        return plan, around, width, is_finished

    plan, around, width, is_finished = ranks.on_rank0(check)
    if is_finished:
        ranks.on_rank0(lambda: shutil.rmtree(work, ignore_errors=True))  # a kill at the end leaves it
        return Embeddings(out)

    def stored(document: TokenizedDocument) -> bytes:
        vector = document.numbers()
        if len(vector) and np.abs(vector).max() > np.finfo(item).max:
            where = f"{shortened(document.shard, 200)}, document {document.number}"
            raise PilekitError(f"{where}: its vector has numbers too large for {item.name}; add --float32")
        return (vector if len(vector) else np.full(width, np.nan)).astype(item).tobytes()

    with scoring_run(plan, ranks, out=work, report=report) as run:
        with run.own_documents() as documents:
            if documents is not None:
                loaded = load_model(model, dtype=plan.dtype, kind=kind_of(model), device=place, adapter=adapter)
                for document in run.score(documents, _pooling(plan, loaded, around, layer, pool)):
                    run.keep(document.record(nll=0.0), stored(document))
        records, _ = run.results()

        def finish() -> None:
            vectors = read_numbers(records_folder(work, plan.key), item, records)
            write_embeddings(out, vectors, width, item, plan.protocol)
            shutil.rmtree(work)

        ranks.on_rank0(finish)
    return Embeddings(out)


def _pooling(plan: Plan, model: PreTrainedModel, around: tuple[list[int], list[int]], layer: int, pool: str) -> Scoring:
    """The scoring in which the numbers of a document are its vector, made by `model`."""
    before, behind = (np.array(ids, dtype=np.int64) for ids in around)
    room = plan.max_length - len(before) - len(behind)

    def windows_of(document: TokenizedDocument) -> Iterator[list[Row]]:
        text = document.ids[:room].astype(np.int64)
        ids = np.concatenate((before, text, behind))
        if len(ids):
            yield [Row(document, ids, len(ids), len(text))]

    mixed, most = not depends_on_length(model), plan.options.batch_tokens or usual_batch_tokens(model.device)
    vectors = partial(_vectors, model, layer, pool)
    return Scoring(windows_of, vectors, lambda length: most // length, mixed, LOOK_AHEAD, noun="hidden state")


@torch.no_grad()
def _vectors(model: PreTrainedModel, layer: int, pool: str, batch: Windows) -> list[Float64]:
    """The vector of each window; the first window is the longest."""
    ids = np.zeros((len(batch), batch[0].length), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, window in enumerate(batch):
        ids[row, : window.length] = window.ids
        mask[row, : window.length] = 1
    input_ids, attention_mask = (torch.from_numpy(array).to(model.device) for array in (ids, mask))
    output = model.base_model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
    states = output.hidden_states[layer].float()
    lengths = attention_mask.sum(dim=1)
    if pool == "mean":
        vectors = (states * attention_mask.unsqueeze(2)).sum(dim=1) / lengths.unsqueeze(1)
    else:
        places = lengths - 1 if pool == "last" else torch.zeros_like(lengths)
        vectors = states[torch.arange(len(batch), device=states.device), places]
    return list(vectors.double().cpu().numpy())
