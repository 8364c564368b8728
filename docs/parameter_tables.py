"""A griffe extension: the columns of names and explanations in docstrings become tables on the API page.

A docstring of pilekit explains arguments and fields in two columns, a name to a line. A continuation is indented to the
second column:

    seq_len        tokens in a row
    subsets        only documents of these subsets, in any
                   spelling the manifest knows

Markdown would join these lines to a paragraph. The source keeps its columns, which read well in an editor and in
`help()`. A function that takes `**work` is shown with its options, as `help()` shows it (`pilekit/shards/work.py`).
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

ROW = re.compile(r"( *)([`*]*[A-Za-z_][\w.*`\[\]]*(?:, [`*]*[A-Za-z_][\w.*`\[\]]*)*) {2,}(?=\S)")
"""The indent, the names, and the gap before the second column. Prose has single spaces."""


def with_tables(text: str) -> str:
    """The docstring with each run of rows as a Markdown table."""
    done: list[str] = []
    rows: list[list[str]] = []
    column = indent = -1  # where the second and the first column of the present table begin

    def close() -> None:
        if rows:
            done.extend(("", "| | |", "| --- | --- |"))
            done.extend(f"| {names} | {' '.join(lines)} |" for names, *lines in rows)
            done.append("")
            rows.clear()

    for line in text.split("\n"):
        row = ROW.match(line)
        if row and (not rows or (row.end() == column and len(row[1]) == indent)):
            column, indent = row.end(), len(row[1])
            names = ", ".join(f"`{name.strip('`')}`" for name in row[2].split(", "))
            rows.append([names, _cell(line[column:])])
        elif rows and line.strip() and len(line) - len(line.lstrip()) >= column:
            rows[-1].append(_cell(line))
        else:
            close()
            done.append(line)
    close()
    return "\n".join(done)


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


class ParameterTables(griffe.Extension):
    """Rewrites each docstring as griffe meets it."""

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Called by griffe with each function, after `on_instance`."""
        if "work" not in func.parameters or not func.decorators or func.docstring is None:
            return
        function = getattr(importlib.import_module(func.module.path), func.name)
        func.docstring.value = with_tables(inspect.getdoc(function) or "")
        del func.parameters["work"]
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in func.parameters:
                kind, default = griffe.ParameterKind.keyword_only, repr(parameter.default)
                func.parameters.add(
                    griffe.Parameter(parameter.name, annotation=parameter.annotation, kind=kind, default=default)
                )

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe with each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_tables(obj.docstring.value)
