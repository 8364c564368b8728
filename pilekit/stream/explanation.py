"""`explain`: how a stream divides its documents among lanes, ranks and workers, as text and as a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilekit.errors import counted
from pilekit.stream.order.lane_grid import Share
from pilekit.stream.pack.subset_lanes import UNIT_BYTES, Mixture
from pilekit.stream.pack.window import MOST_TOKENS
from pilekit.stream.read.decodings import decodings_per_epoch
from pilekit.stream.read.document_selection import StreamDocuments
from pilekit.stream.read.shuffled_blocks import MOST_CHARACTERS

_BYTES_PER_TOKEN = 4
"""Bytes of text per token, roughly. A token in memory (uint32) happens to take 4 bytes too."""


_OFTEN = 2
"""Text that is decoded more often than this makes a run slower than one from token files."""


class Explanation(dict[str, Any]):
    """The result of `PileStream.explain`: a dict of JSON types; its `str()` is a text for people.

    plan, reason                 "random" or "sequential", and why
    order                        of the documents, in a line
    rows, columns, lanes, unit
    window                       None for a stream without a tokenizer
    repeats                      {subset: uses of its documents per epoch}, where it is not 1
    copies, copies_max           how the copies that a dedup removed count; 0: not at all
    uses                         with copies: the sum of all documents' weights, before `repeats`; else None
    weights, ramp                the entries of weights by step, {"step", "weights"} each, in shares with sum 1; None, 0
    epochs                       with weights by step: {subset: {"documents", "epochs"}}, the subset's documents, and
                                 how many epochs this rank's batches have had of them so far
    decodings                    with weights by step: how many times a frame is decoded in an epoch of each subset, an
                                 estimate from the indexes; None if no text is decoded repeatedly
    without                      {"source", and "documents" or "subset"}: what gives no loss; or None
    plant                        [{"path", "texts", "copies", "steps": [from, to]}], copies of all texts together
    documents                    the number selected, with weights by step of their subsets; None under the sequential
                                 plan, known only by reading
    global_batch_size, batch_size, grad_accum, rank, world_size
    world_sizes                  the valid world sizes
    accumulations                {world size: valid grad_accum}
    worker_counts                the numbers of workers that can all be active on this rank; empty: any number
    lanes_per_rank, memory_per_rank   lanes of a rank, and estimated bytes of their windows; its workers share them
    restore_documents            the most documents that a rank reads and tokenizes to resume from a state
    """

    def __str__(self) -> str:
        return "\n".join(f"{title:<14} {text}" for title, text in self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """The text's lines: (title, text)."""
        texts, repeats = dict(self), self["repeats"]
        texts |= {name: ", ".join(map(str, self[name])) for name in ("world_sizes", "worker_counts")}
        grad_accums = (f"{', '.join(map(str, valid))} with {world}" for world, valid in self["accumulations"].items())
        parts = [] if self["documents"] is None else [counted(self["documents"])]
        parts += [] if self["window"] is None else [f"windows of {counted(self['window'])}"]
        kind, verb = ("documents", "read") if self["window"] is None else ("windows", "tokenized")
        again = counted(self["restore_documents"], "document is", "documents are")
        memory = f"{self['memory_per_rank'] / 1e6:,.0f} MB"
        weighed = "size of cluster ^ {copies:g}, at most {copies_max}: {uses:,.10g} uses per epoch, before repeats"
        epochs = (f"{name} {of['epochs']:.2f} of {of['documents']:,}" for name, of in self["epochs"].items())
        sizes = "batch_size {batch_size} x grad_accum {grad_accum} x world_size {world_size}"
        return [
            ("plan", "{plan}: {reason}".format_map(texts)),
            ("order", self["order"]),
            *([("sequence", "; ".join(parts))] if parts else []),
            *([("copies", weighed.format_map(self))] if self["uses"] is not None else []),
            *([("repeats", ", ".join(f"{name} {factor:g}" for name, factor in repeats.items()))] if repeats else []),
            *((f"from step {entry['step']:,}", _shares(entry["weights"])) for entry in self["weights"] or ()),
            *([("ramp", counted(self["ramp"], "step"))] if self["ramp"] else []),
            *([("epochs", f"{', '.join(epochs)} documents")] if self["epochs"] else []),
            *([("decoding", _decodings(self["decodings"]))] if self["decodings"] else []),
            *([("no loss", _hidden(self["without"]))] if self["without"] else []),
            *(("planted", _planted(entry)) for entry in self["plant"]),
            ("lanes", f"{counted(self['rows'], 'row')} x {counted(self['columns'], 'column')} = {self['lanes']}"),
            ("step", f"{counted(self['global_batch_size'], 'sample')}: " + sizes.format_map(texts)),
            ("world sizes", texts["world_sizes"]),
            ("accumulations", "; ".join(grad_accums)),
            ("workers", texts["worker_counts"] or "any number"),
            ("memory", f"about {memory} of {kind} on each rank, among its workers"),
            ("restoring", f"at most {again} {verb} again on each rank"),
        ]


def _shares(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.4g}" for name, share in weights.items())


def _decodings(times: float) -> str:
    text = f"each frame about {times:.1f} times in an epoch of each subset"
    return text + ("; token files of `pilekit tokenize` have no frames" if times > _OFTEN else "")


def _hidden(without: Mapping[str, Any]) -> str:
    if "subset" in without:
        return f"the subset {without['subset']}"
    return f"{counted(without['documents'])} of {without['source']}"


def _planted(entry: Mapping[str, Any]) -> str:
    texts, copies = counted(entry["texts"], "text"), counted(entry["copies"], "copy", "copies")
    begin, end = entry["steps"]
    return f"{copies} of {texts} of {entry['path']}, from step {begin:,} on and before {end:,}"


def order_of(selected: StreamDocuments, unit: int, mixture: Mixture | None = None) -> str:
    """The order of the documents, as a line for people."""
    if mixture is not None:
        most = max(mixture.units.values())
        groups = f", in groups of up to {counted(most, 'consecutive document')}" if most > 1 else ""
        within = f"random over the whole subset{groups}" if selected.shuffle else "as in the corpus"
        drawn = f"drawn by weights from each subset's own sequence, {within}"
        if not mixture.begin:
            return drawn
        return f"{order_of(selected, unit)}; from step {mixture.begin:,} on {drawn}"
    if not selected.shuffle:
        return "as in the corpus: shuffle is off"
    if selected.block is None:
        return "random over the whole corpus, " + (
            f"in groups of {unit} consecutive documents" if unit > 1 else "document by document"
        )
    within = f"shuffled within blocks of {counted(selected.block)}"
    return f"shard after shard, {within}; `pilekit reframe` gives random order"


def explain(
    selected: StreamDocuments,
    share: Share,
    unit: int,
    window: int | None,
    packing: str,
    mixture: Mixture | None = None,
    epochs: Mapping[str, float] | None = None,
    altered: Mapping[str, Any] | None = None,
) -> Explanation:
    """The explanation of a stream.

    packing   PileStream's argument
    window    None without a tokenizer
    mixture   of weights by step
    epochs    of each subset so far, with these weights
    altered   what `without` and `plant` change
    """
    altered = altered or {}
    grid = share.grid
    schedule = None if mixture is None else mixture.revisions[-1].schedule
    units = 0 if mixture is None else sum(mixture.units.values())
    order = order_of(selected, unit, mixture)
    unit = unit if mixture is None else max(mixture.units.values())
    lanes = 1 if grid.finite else grid.lanes // share.world_size
    indexes = selected.plan.indexes
    documents = sum(index.header.documents for index in indexes)
    text = sum(index.header.text_bytes for index in indexes) / documents if documents else 6000
    lane_bytes = unit * text if window is None else 4 * min(MOST_TOKENS, window * text / _BYTES_PER_TOKEN)
    lane_bytes += min(UNIT_BYTES, units * text)
    lane_bytes += 0 if selected.block is None else min(MOST_CHARACTERS, selected.block * text)
    return Explanation(
        plan=grid.plan,
        reason=selected.plan.reason,
        order=order,
        rows=grid.rows,
        columns=grid.columns,
        lanes=grid.lanes,
        unit=unit,
        window=window,
        repeats=dict(selected.repeats),
        copies=0.0 if selected.clusters is None else selected.clusters.copies,
        copies_max=None if selected.clusters is None else selected.clusters.copies_max,
        uses=selected.uses,
        weights=None if schedule is None else schedule.listed(),
        ramp=0 if schedule is None else schedule.ramp,
        epochs={
            name: {"documents": len(selected.of_subset(name)), "epochs": count}
            for name, count in (epochs or {}).items()
        },
        decodings=None if mixture is None else decodings_per_epoch(selected, mixture.units),
        without=altered.get("without"),
        plant=[
            {
                "path": entry["path"],
                "texts": len(entry["copies"]),
                "copies": sum(entry["copies"]),
                "steps": entry["steps"],
            }
            for entry in altered.get("plant", ())
        ],
        documents=selected.count if mixture is None else sum(len(selected.of_subset(name)) for name in mixture.names),
        global_batch_size=grid.global_batch_size,
        batch_size=share.batch_size,
        grad_accum=share.grad_accum,
        rank=share.rank,
        world_size=share.world_size,
        world_sizes=grid.world_sizes(),
        accumulations={world: grid.accumulations(world) for world in grid.world_sizes()},
        worker_counts=share.worker_counts(),
        lanes_per_rank=lanes,
        memory_per_rank=int(lanes * lane_bytes),
        restore_documents=lanes * (units + (unit if window is None else 1 if packing == "concat" else window)),
    )
