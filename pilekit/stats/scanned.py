"""Count a long shard by the compiled scan of its lines (json_line_kernel.py); only what that leaves is read carefully.

What the scan leaves goes through the same parser as everywhere, so errors, skipped lines and odd spellings count as
they do elsewhere. A label's first documents are read carefully too: from then on the scan knows it. Where most lines
are of another form, scanning them is lost time, and the rest of the shard is read as usual.
"""

from __future__ import annotations

import numpy as np

from pilekit.corpus import Manifest, Shard
from pilekit.engine import Advance
from pilekit.shards.index.json_line_kernel import LINES, Int64, known_labels, line_form, scan_lines
from pilekit.shards.read.json_records import LineParser
from pilekit.shards.read.lines import Line
from pilekit.shards.read.reader import OnError, line_blocks, located_errors, record_format
from pilekit.stats.counting import Counts, count_batch


def count_by_scanning(
    shard: Shard, counts: Counts, *, manifest: Manifest | None, on_error: OnError, advance: Advance | None, ahead: bool
) -> None:
    """Count all documents of a shard (not Parquet) into `counts`, its bad lines into `counts.skipped`."""
    format = record_format(manifest)
    parser = LineParser(shard.path, shard.name, format, None, counts.skipped if on_error == "skip" else None)
    form = line_form(format.text_field, format.label_path)
    begins, ends, rows, sizes = (np.empty(LINES, dtype=np.int64) for _ in range(4))
    known, labels = -1, known_labels({})
    number = 0
    scanning = True

    def read_carefully(lines: list[Line], numbers: Int64) -> None:
        count_batch(parser.parse(lines, numbers), counts)

    with (
        located_errors(shard.path, lambda: number),
        line_blocks(shard.path, advance=advance, ahead=ahead) as blocks,
    ):
        for block in blocks:
            if not scanning:
                lines = block.lines()
                read_carefully(lines, np.arange(number, number + len(lines)))
                number += len(lines)
                continue
            if block.head is not None:
                read_carefully([block.head], np.array([number]))
                number += 1
            view = memoryview(block.data)
            data = np.frombuffer(view, dtype=np.uint8)
            words = np.frombuffer(view, dtype=np.uint64, count=len(view) // 8)
            begin = block.begin
            while begin < block.end:
                if known != len(counts.groups):
                    known, labels = len(counts.groups), known_labels(counts.groups)
                count, begin = scan_lines(data, words, begin, block.end, *form, *labels, begins, ends, rows, sizes)
                scanned = rows[:count] >= 0
                counts.add(rows[:count][scanned], sizes[:count][scanned])
                left = np.flatnonzero(~scanned)
                read_carefully([view[begins[i] : ends[i]] for i in left.tolist()], number + left)
                number += count
                scanning = 2 * len(left) <= count or known != len(counts.groups)
