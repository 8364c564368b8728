"""The table of `pilekit bpb`: a row per subset, all together last, and below it how the figures came about.

It fits into 80 columns. Labels come from the corpus, which may be hostile: they are shown as rich `Text`, so markup in
them is just text, with control characters made visible; so is what comes from a model's folder.
"""

from __future__ import annotations

from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilekit.errors import visible
from pilekit.evaluate.result import BitsPerByte, Score
from pilekit.stats.table import DASH, LONGEST_NAME, MOST_ROWS, SHORTEST_NAME, rounded_bytes

TITLES = ("Documents", "Bytes", "Tokens", "Tok/B", "BPB")


def result_table(result: BitsPerByte, width: int) -> RenderableType:
    """What `pilekit bpb` prints; `width` in terminal cells."""
    shown = list(result.subsets.items())[:MOST_ROWS]
    names = [visible(name, LONGEST_NAME) for name, _ in shown]
    cells = [_cells(score) for _, score in shown]
    overall = _cells(result.overall)
    widths = [max(map(len, column)) for column in zip(TITLES, overall, *cells, strict=True)]
    left = width - sum(1 + column for column in widths)
    name_width = min(max(map(cell_len, ["Subset", "Overall", *names])), max(left, SHORTEST_NAME))

    table = Table(box=box.SIMPLE, padding=0, show_edge=False, show_footer=True, header_style="bold")
    table.add_column(Text("Subset"), Text("Overall"), width=name_width, no_wrap=True, overflow="ellipsis")
    for title, cell, column in zip(TITLES, overall, widths, strict=True):
        table.add_column(Text(title), Text(cell), justify="right", no_wrap=True, min_width=column)
    for name, row in zip(names, cells, strict=True):
        table.add_row(Text(name), *map(Text, row))
    notes = []
    if len(result.subsets) > MOST_ROWS:
        more = len(result.subsets) - MOST_ROWS
        notes.append(Text(f"{more:,} further subsets are in the overall figures; --json lists them all."))
    return Group(table, *notes, Text(), _protocol(result.protocol))


def _cells(score: Score) -> tuple[str, ...]:
    return (
        f"{score.documents:,}",
        rounded_bytes(score.bytes),
        f"{score.tokens:,}",
        f"{score.tokens / score.bytes:.4f}" if score.bytes else DASH,
        DASH if score.bpb is None else f"{score.bpb:.4f}",
    )


def _protocol(protocol: dict[str, Any]) -> Table:
    """The protocol as lines of `what  how`."""
    model, tokenizer, prefix = protocol["model"], protocol["tokenizer"], protocol["prefix"]
    described = f"{model['model_type']}, {model['parameters']:,} parameters, {protocol['dtype']}"
    if prefix["id"] is None:
        before = "none: the first token of a document is not predicted"
    else:
        numbered = f"id {prefix['id']}" + ("" if prefix["given"].isdecimal() else f", {prefix['given']}")
        before = f"{prefix['token']} ({numbered})" if prefix["token"] else numbered
    limit, subsets, skipped = protocol["limit"], protocol["subsets"], protocol["skipped_lines"]
    first = "document" if limit == 1 else f"{limit:,} documents" if limit else None
    shards = [shard["name"] for shard in protocol["data"]]
    lines = {
        "model": described if model["path"] is None else f"{model['path']}: {described}",
        "weights": model["weights"],
        "tokenizer": f"{tokenizer['fingerprint'][:23]}, {tokenizer['backend']}",
        "windows": f"{protocol['max_length']:,} tokens, disjoint but the last; each token predicted once",
        "prefix": before,
        "bytes": protocol["bytes"],
        "data": ", ".join(shards[:3]) + (f" and {len(shards) - 3:,} more" if len(shards) > 3 else ""),
        "subsets": None if subsets is None else ", ".join(subsets),
        "limit": first and f"the first {first} of each subset",
        "skipped": f"{skipped:,} bad line{'s' if skipped > 1 else ''}" if skipped else None,
    }
    table = Table(box=None, padding=0, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=11, style="dim")
    table.add_column(overflow="fold")
    for what, how in lines.items():
        if how is not None:
            table.add_row(Text(what), Text(visible(how, 400)))
    return table
