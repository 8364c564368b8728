"""The steps of a deduplication, each of which takes what an earlier run of it left."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pilekit.artifacts.atomic_write import write_atomically
from pilekit.artifacts.job_folder import Output
from pilekit.corpus import Corpus, Manifest, Shard
from pilekit.corpus.shard import is_url
from pilekit.dedup.bits import Bits, get_bits
from pilekit.dedup.compare.resolve import Counts, resolve
from pilekit.dedup.compare.second_pass import store_shingles
from pilekit.dedup.deduplication import REMOVED, SUMMARY
from pilekit.dedup.match.candidates import find_candidates
from pilekit.dedup.match.exact import find_exact
from pilekit.dedup.match.population import Population, ids_of
from pilekit.dedup.output.apply import clean_shard, mask_shard
from pilekit.dedup.output.merge_removals import Decisions, choose
from pilekit.dedup.output.removed_table import write_removed
from pilekit.dedup.output.summary import summarize
from pilekit.dedup.previous_runs import DONE, MASKS, RECORDS, SKETCHES, EarlierRun
from pilekit.dedup.scratch_space import (
    STORED_BYTES_PER_DOCUMENT,
    check_free_disk,
    clean_bytes,
    match_bytes,
    set_bytes,
    sketch_bytes,
)
from pilekit.dedup.sketch.bands import Bands
from pilekit.dedup.sketch.sketch_format import SUFFIX as SKETCH_SUFFIX
from pilekit.dedup.sketch.sketch_format import ShardSketch
from pilekit.dedup.sketch.sketch_shard import is_fresh, sketch_shard
from pilekit.engine import Advance, map_shards, usable_cpus
from pilekit.pipeline.selecting import stem
from pilekit.shards.fingerprint import Inputs
from pilekit.shards.keep_mask import SUFFIX as MASK_SUFFIX
from pilekit.shards.processes import STORED_BYTES_PER_PROCESS
from pilekit.shards.read.damage import LISTED_BAD_LINES
from pilekit.shards.read.reader import OnError

CLEAN, SCRATCH = "clean", "scratch"

_PAIR_BYTES = 16

Report = Callable[[str, int, int], None]
"""Called with the name of the step, a further amount that is done of it, and how much there is to do; from any thread.
Amounts are bytes: of shards as stored, or of what is read on disk."""


@dataclass(frozen=True)
class Steps:
    """The steps."""

    corpus: Corpus
    output: Output
    bands: Bands
    parameters: dict[str, Any]
    inputs: Inputs
    on_error: OnError
    memory: int
    jobs: int | None
    advance: Report | None

    @property
    def scratch(self) -> Path:
        """Folder of what is gone in the end."""
        return self.output.folder / SCRATCH

    def check_free_disk(self) -> None:
        """Raise PilekitError if the disk has no room for sketches, scratch files and clean shards."""
        documents = sketched = 0
        for name, (size, _) in self.inputs.fingerprints.items():
            documents += size // STORED_BYTES_PER_DOCUMENT
            if not (self.output.folder / SKETCHES / f"{name}{SKETCH_SUFFIX}").exists():
                sketched += sketch_bytes(size // STORED_BYTES_PER_DOCUMENT, self.bands.bands)
        scratch = match_bytes(documents) if self.output.result(RECORDS) is None else 0
        check_free_disk(self.output.folder, sketched + max(scratch, self._clean_bytes()), "deduplicating")

    def _clean_bytes(self) -> int:
        """What the clean shards that are still to be written will take; scratch files are gone by then."""
        if not self.parameters["write"]:
            return 0
        return sum(
            clean_bytes(size)
            for name, (size, _) in self.inputs.fingerprints.items()
            if self.output.result(name) is None
        )

    def _check_scratch(self, needed: int, what: str) -> None:
        check_free_disk(self.output.folder, needed, what)
        check_free_disk(self.output.folder, self._clean_bytes(), "writing clean shards")

    def sketch(self) -> list[ShardSketch]:
        """A sketch of every shard; what was made of sketches that are missing or older than their shards goes."""
        folder = self.output.folder / SKETCHES
        if not all(is_fresh(folder / f"{shard.name}{SKETCH_SUFFIX}", shard) for shard in self.corpus.shards):
            shutil.rmtree(self.scratch, ignore_errors=True)
        work = functools.partial(
            sketch_shard,
            bands=self.bands,
            ngram=self.parameters["ngram"],
            subsets=self.parameters["subsets"],
            manifest=self.corpus.manifest,
            on_error=self.on_error,
            folder=folder,
            inputs=self.inputs,
            threads=self._threads(self.corpus.shards),
        )
        progress = self._progress("sketching", sum(size for size, _ in self.inputs.fingerprints.values()))
        return map_shards(work, self.corpus.shards, jobs=self._jobs(self.corpus.shards), on_progress=progress)

    def population(
        self, sketches: Sequence[ShardSketch], before: Sequence[EarlierRun]
    ) -> tuple[Population, Sequence[Shard]]:
        """All documents that are compared, and the shards that they lie in."""
        against = (
            (sketch, mask.unpacked())
            for run in before
            for sketch, mask in zip(run.sketches(), run.masks(), strict=True)
        )
        population = Population(sketches, self.parameters["keep"], against)
        return population, [*(shard for run in before for shard in run.shards), *self.corpus.shards]

    def decide(self, population: Population, shards: Sequence[Shard]) -> tuple[Decisions, Counts]:
        """Find out which documents go, and why."""
        memory, jobs, documents = self.memory, self.jobs, population.documents
        self._check_scratch(match_bytes(documents), "matching")
        copies = find_exact(population, self.scratch / "exact", memory)
        keys = self._progress("matching", 2 * 8 * documents * self.bands.bands, 8)
        candidates = find_candidates(
            population, self.bands, copies.bits(), self.scratch / "match", memory, jobs=jobs, advance=keys
        )
        flagged = candidates.bits()
        self._check_scratch(set_bytes(*_text_of(population, flagged)), "comparing")
        stored = self._progress("reading candidates", sum(sketch.header.size for sketch in population.sketches))
        store = store_shingles(
            population, shards, flagged, self.scratch / "sets", jobs=self._jobs(shards), advance=stored
        )
        pairs = self._progress("comparing", _PAIR_BYTES * candidates.pairs.count, _PAIR_BYTES)
        resolved = resolve(
            candidates, store, self.parameters["threshold"], self.scratch / "resolve", memory, advance=pairs
        )
        return choose(resolved.edges.chunks(), copies, self.scratch / "choose", memory), resolved.counts

    def record(
        self, population: Population, decisions: Decisions, compared: Counts, sketches: Sequence[ShardSketch]
    ) -> dict[str, Any]:
        """Write `removed.parquet` and the masks, and note the summary, which is checked."""
        folder = self.output.folder
        repeated = {subset.name for subset in self.corpus.manifest.subsets if (subset.epochs or 0) > 1}
        train = {shard.name for shard in self.corpus.shards if shard.split in ("train", None)}
        removed = write_removed(
            folder / REMOVED,
            population,
            decisions,
            self.scratch,
            self.memory,
            header={"parameters": self.parameters, "inputs": self.inputs.fingerprints},
            is_repeated=lambda shard, subset: subset in repeated and shard in train,
        )
        kept: dict[str, tuple[int, int]] = {}
        masks, bits = [], decisions.bits()
        own = len(population.sketches) - len(sketches)
        for shard, sketch, first in zip(self.corpus.shards, sketches, population.base[own:-1].tolist(), strict=True):
            masks.append(mask_file(self.output, shard))
            counts = mask_shard(
                masks[-1], shard, sketch, first, bits, only=self.parameters["only"], manifest=self.corpus.manifest
            )
            for name, (documents, size) in counts.items():
                before = kept.get(name, (0, 0))
                kept[name] = (before[0] + documents, before[1] + size)
        summary = summarize(
            sketches,
            kept,
            removed,
            only=self.parameters["only"],
            bands=self.bands,
            threshold=self.parameters["threshold"],
            compared=compared,
        )
        bad_lines = [[place, *example] for place, sketch in enumerate(sketches) for example in sketch.header.examples]
        records = {"summary": summary, "bad_lines": bad_lines[:LISTED_BAD_LINES]}
        self.output.note(RECORDS, records, folder / REMOVED, *masks)
        return records

    def write_clean(self) -> None:
        """Write the clean shards, if asked for, and note of each shard where it was read.

        Scratch files are removed first: nothing is decided any more, and the shards may need their room.
        """
        shutil.rmtree(self.scratch, ignore_errors=True)
        waiting = [shard for shard in self.corpus.shards if self.output.result(shard.name) is None]
        work = functools.partial(
            _finish_shard,
            output=self.output,
            inputs=self.inputs,
            write=self.parameters["write"],
            threads=self._threads(waiting),
            manifest=self.corpus.manifest,
        )
        if not self.parameters["write"]:
            map_shards(work, waiting, jobs=1)
            return
        total = sum(size for size, _ in self.inputs.fingerprints.values())
        progress = self._progress("writing", total)
        progress(total - sum(self.inputs.fingerprints[shard.name][0] for shard in waiting))
        map_shards(work, waiting, jobs=self._jobs(waiting), on_progress=progress)

    def finish(self, summary: dict[str, Any], before: Sequence[EarlierRun]) -> None:
        """Write the summary, and note where the earlier run was."""
        with write_atomically(self.output.folder / SUMMARY) as file:
            file.write(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        against = str(before[-1].folder.absolute()) if before else None
        self.output.note(DONE, {"against": against}, self.output.folder / SUMMARY)

    def _jobs(self, shards: Sequence[Shard]) -> int:
        if any(shard.path.startswith("memory://") for shard in shards):
            return 1  # Only this process has it.
        jobs = self.jobs
        if jobs is None:
            # The threads of a process keep two CPUs busy, and start at once.
            worth = 1 + sum(shard.size or 0 for shard in shards) // STORED_BYTES_PER_PROCESS
            jobs = min(usable_cpus() // 2, worth)
        return max(1, min(jobs, len(shards)))

    def _threads(self, shards: Sequence[Shard]) -> int:
        return max(1, usable_cpus() // self._jobs(shards))

    def _progress(self, step: str, total: int, unit: int = 1) -> Advance:
        advance = self.advance
        return (lambda amount: None) if advance is None else lambda amount: advance(step, unit * amount, total)


def _finish_shard(
    shard: Shard,
    advance: Advance,
    *,
    output: Output,
    inputs: Inputs,
    write: bool,
    threads: int,
    manifest: Manifest,
) -> None:
    files: list[Path] = []
    if write:
        path, mask = output.path(f"{CLEAN}/{stem(shard)}", ".jsonl.zst"), mask_file(output, shard)
        files = clean_shard(shard, advance, path=path, mask=mask, inputs=inputs, threads=threads, manifest=manifest)
    output.note(shard.name, {"path": shard.path if is_url(shard.path) else str(Path(shard.path).absolute())}, *files)


def mask_file(output: Output, shard: Shard) -> Path:
    """Where the mask of a shard is."""
    return output.path(f"{MASKS}/{shard.name}", MASK_SUFFIX)


def _text_of(population: Population, flagged: Bits) -> tuple[int, int]:
    """(bytes of text, number) of the flagged documents."""
    size = documents = 0
    for ranks, columns in population.chunks(["text_bytes"]):
        chosen = columns["text_bytes"][get_bits(flagged, ids_of(ranks))]
        size, documents = size + int(chosen.sum(dtype="int64")), documents + len(chosen)
    return size, documents
