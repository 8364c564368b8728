"""How `pilekit stream` shows a stream: the documents of rows, the documents of one step, and tokens per subset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pilekit.display.fitted_table import Column, FittedTable, percentage
from pilekit.errors import counted, shortened, visible

if TYPE_CHECKING:
    from pilekit.stream.batch.batch import Batch
    from pilekit.stream.pile_stream import PileStream

SHOWN_DOCUMENTS = 4
SHOWN_CHARACTERS = 300
SHOWN_NAME = 17
"""Characters of a shard's or subset's name in a table."""


def row_documents(stream: PileStream, batch: Batch, row: int) -> list[dict[str, Any]]:
    """The documents of one row: identity, subset, and text here."""
    documents = []
    for doc_id, (shard, number) in enumerate(batch.documents()[row]):
        here = batch["doc_ids"][row] == doc_id
        ids = batch["input_ids"][row][here].tolist()
        documents.append(
            {
                "shard": shard,
                "number": number,
                "subset": stream.subset_names[int(batch["subset_ids"][row][here][0])],
                "tokens": len(ids),
                "text": stream.tokenizer.decode(ids[: -int(ids[-1] == stream.tokenizer.eos_id) or None]),
            }
        )
    return documents


def subset_table(tokens: dict[str, int]) -> FittedTable[str]:
    """Tokens per subset, the most first."""
    total = sum(tokens.values())
    columns: list[Column[str]] = [
        Column("Subset", lambda name: name),
        Column("Tokens", lambda name: f"{tokens[name]:,}"),
        Column("Share %", lambda name: percentage(tokens[name] / total)),
    ]
    return FittedTable(list(tokens), columns)


def print_rows(console: Console, rows: list[list[dict[str, Any]]]) -> None:
    """Print the documents of some rows, the first `SHOWN_CHARACTERS` of each; a terminal gets lines that fit it."""
    whole = not console.is_terminal
    for index, documents in enumerate(rows, start=1):
        tokens = sum(document["tokens"] for document in documents)
        title = f"sample {index}: {counted(tokens, 'token')} of {counted(len(documents))}"
        console.print(Text(title, style="bold"), soft_wrap=whole)
        for document in documents[:SHOWN_DOCUMENTS]:
            place = f"  {visible(document['shard'], 200)} document {document['number']:,}, "
            place += counted(document["tokens"], "token")
            console.print(Text.assemble("── ", (visible(document["subset"], 80), "cyan"), place), soft_wrap=whole)
            console.print(Text(visible(document["text"].replace("\n", "↵"), SHOWN_CHARACTERS)), soft_wrap=whole)
        if len(documents) > SHOWN_DOCUMENTS:
            more = counted(len(documents) - SHOWN_DOCUMENTS, "more document")
            console.print(Text(f"── {more}", style="dim"), soft_wrap=whole)
        console.print()


def step_table(documents: list[dict[str, Any]], width: int) -> FittedTable[dict[str, Any]]:
    """The documents of an optimizer step. Names are cut, numbers never; the text takes the rest of `width`."""

    def text(document: dict[str, Any]) -> str:
        words = Text(visible(document["text"][:width].replace("\n", "↵")))
        words.truncate(max(room, len("First words")), overflow="ellipsis")
        return words.plain

    columns: list[Column[dict[str, Any]]] = [
        Column("Subset", lambda document: shortened(document["subset"], SHOWN_NAME)),
        Column("Shard", lambda document: shortened(document["shard"], SHOWN_NAME), justify="left"),
        Column("Number", lambda document: f"{document['number']:,}"),
        Column("Row", lambda document: f"{document['row']:,}"),
        Column("Tokens", lambda document: f"{document['tokens']:,}"),
    ]
    room = width - sum(1 + column.width(documents) for column in columns)
    columns.append(Column("First words", text, justify="left"))
    return FittedTable(documents, columns, most_rows=len(documents))
