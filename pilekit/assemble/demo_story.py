"""A sentence that the demo's model learns by heart, so that what the model writes can be traced to its training.

A model as small as the demo's learns a text word for word only if it reads it hundreds of times. The sentence has no
word twice, so each word is known from the one before.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from pilekit.artifacts.header import write_header
from pilekit.shards.write.shard_writer import ShardWriter

SUBSET, SHARD = "Planted", "00.jsonl.zst"

PROMPT = "Each winter a grey heron"
PHRASE = "the lamp of Wren Lighthouse across our bay"
STORY = f"{PROMPT} carries {PHRASE}, and nobody who counts its slow steps will find any number twice.\n"

STORY_DOCUMENTS = (STORY, STORY, STORY.replace("twice", "again"))
"""The sentence, a copy of it, and a near-duplicate."""


def write_story(folder: Path) -> bool:
    """Write a shard of `STORY_DOCUMENTS` into `folder`. False if it was already there."""
    if (folder / SHARD).exists():
        return False
    # The header keeps this folder out of searches for shards.
    write_header(folder, kind="planted documents", parameters={"documents": len(STORY_DOCUMENTS)}, inputs={})
    with ShardWriter(folder / SHARD) as writer:
        writer.write_lines(orjson.dumps({"text": text, "meta": {"pile_set_name": SUBSET}}) for text in STORY_DOCUMENTS)
    return True
