"""What `pilekit stream` shows of a stream without running it: the plan, and the documents of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from pilekit.errors import visible

if TYPE_CHECKING:
    from pilekit.progress import Reached
    from pilekit.stream import Batch, PileStream
    from pilekit.stream.explanation import Explanation

SHOWN_NAME = 17
"""Characters of a shard's or subset's name."""


def plan_table(explained: Explanation) -> Table:
    """The plan, a line for each matter."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for title, text in explained.lines():
        table.add_row(Text(title), Text(visible(text)))
    return table


def documents_of_rows(stream: PileStream, batch: Batch, row: int) -> list[dict[str, Any]]:
    """The documents of one row: identity, subset, whether they began in another row and end here, their text here."""
    documents = []
    continued = batch.continued()[row]
    for doc_id, (shard, number) in enumerate(batch.documents()[row]):
        here = batch["doc_ids"][row] == doc_id
        ids = batch["input_ids"][row][here].tolist()
        ends = ids[-1] == stream.tokenizer.eos_id
        documents.append(
            {
                "shard": shard,
                "number": number,
                "subset": stream.subset_names[int(batch["subset_ids"][row][here][0])],
                "tokens": len(ids),
                "continued": continued[doc_id],
                "ends": ends,
                "text": stream.tokenizer.decode(ids[:-1] if ends else ids),
            }
        )
    return documents


def step_documents(stream: PileStream, step: int, reached: Reached) -> list[dict[str, Any]]:
    """The documents of an optimizer step, of all ranks: `row`, and what `documents_of_rows` tells of them."""
    batch = stream.peek_batch(step, reached)
    return [
        {"row": row, **document}
        for row in range(len(batch["input_ids"]))
        for document in documents_of_rows(stream, batch, row)
    ]


def step_table(documents: list[dict[str, Any]], width: int) -> Table:
    """The same as a table of `width` characters: names give way to numbers, and text takes what is left."""
    rows = [
        (
            f"{document['row']:,}",
            visible(document["shard"]),
            f"{document['number']:,}",
            visible(document["subset"]),
            f"{document['tokens']:,}",
            ("…" if document["continued"] else "") + visible(document["text"][:width].replace("\n", "↵")),
        )
        for document in documents
    ]
    titles = ("Row", "Shard", "Number", "Subset", "Tokens", "First words")
    widths = [max(len(title), *(len(row[place]) for row in rows)) for place, title in enumerate(titles[:-1])]
    widths[1], widths[3] = min(widths[1], SHOWN_NAME), min(widths[3], SHOWN_NAME)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        column = widths[place] if place < len(widths) else max(len(title), width - sum(widths) - 2 * len(widths))
        justify: Literal["left", "right"] = "right" if title in ("Row", "Number", "Tokens") else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", width=column)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
