"""The SHA-256 of stored files, each read whole: what `sha256sum` prints for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from pilekit.corpus import Corpus, Shard
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob, Share
from pilekit.shards.read.change_check import check_version, version_of
from pilekit.shards.read.open import open_file
from pilekit.shards.read.read_errors import ShardDamage
from pilekit.workers import Advance

_PIECE = 1 << 20


class StoredSum(msgspec.Struct, frozen=True):
    """The size of a file in bytes, and the SHA-256 of its bytes in hexadecimal."""

    bytes: int
    sha256: str


def stored_sums(files: Iterable[Shard], job: CorpusJob) -> dict[str, StoredSum | str]:
    """The sum of each file by its path, or why it has none; they need not be shards.

    job   says how the work runs; its step is "summing"
    """
    shards = list({file.path: file for file in files}.values())
    job = replace(job, corpus=Corpus.of_shards(shards, job.corpus.manifest))
    sums = job.step("summing", job.corpus.size or 0).each(_sum_or_reason, shards)
    return {shard.path: value for shard, value in zip(shards, sums, strict=True)}


def _sum_or_reason(shard: Shard, advance: Advance, *, share: Share) -> StoredSum | str:
    digest, count = hashlib.sha256(), 0
    try:
        version = version_of(shard.path)
        with open_file(shard.path) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                count += len(piece)
                advance(len(piece))
        check_version(shard.path, version)
    except ShardDamage as damage:
        return f"{shard.path}: {damage.reason}"
    except PilekitError as error:
        return str(error)
    return StoredSum(count, digest.hexdigest())
