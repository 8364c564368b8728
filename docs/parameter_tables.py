"""A griffe extension: the columns of names and explanations in docstrings become tables on the API page.

A docstring of pilekit explains arguments and fields in two columns, a name to a line. A continuation is indented to the
second column:

    seq_len        tokens in a row
    subsets        only documents of these subsets, in any
                   spelling the manifest knows

Markdown would join these lines to a paragraph. The source keeps its columns, which read well in an editor and in
`help()`. A function that takes shared options or settings is shown with each of them, as `help()` shows it
(`pilekit/shards/work.py`, `pilekit/artifacts/settings.py`).
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

from pilekit.artifacts.settings import settings_of

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

    def on_module_instance(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Called by griffe with each file, before the files below it: it skips folders without an `__init__.py`."""
        if mod.is_init_module:
            for folder in {file.parent for file in mod.filepath.parent.glob("*/*.py")}:
                if not (folder / "__init__.py").exists():
                    mod.set_member(folder.name, griffe.Module(folder.name, filepath=[folder]))

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Called by griffe with each function, after `on_instance`."""
        if func.docstring is None or not any(str(one.value).startswith("takes") for one in func.decorators):
            return
        function: Any = importlib.import_module(func.module.path)
        for name in func.path.removeprefix(f"{func.module.path}.").split("."):
            function = getattr(function, name)
        func.docstring.value = with_tables(inspect.getdoc(function) or "")
        del func.parameters["work" if "work" in func.parameters else "settings"]
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in func.parameters:
                kind = griffe.ParameterKind.keyword_only
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    kind = griffe.ParameterKind.positional_or_keyword
                default = None if parameter.default is parameter.empty else repr(parameter.default)
                func.parameters.add(
                    griffe.Parameter(parameter.name, annotation=parameter.annotation, kind=kind, default=default)
                )

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called by griffe with each class: a section of a config shows the settings that it inherits."""
        if not any(str(base) == "_DataSource" for base in cls.bases):
            return
        for setting in settings_of(getattr(importlib.import_module(cls.module.path), cls.name)):
            docstring = griffe.Docstring(setting.sentence)
            if setting.name in cls.members:
                cls.members[setting.name].docstring = docstring
                continue
            value = repr(setting.default)
            field = griffe.Attribute(setting.name, value=value, annotation=setting.annotation, docstring=docstring)
            field.labels |= {"class-attribute", "instance-attribute"}
            cls.set_member(setting.name, field)

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe with each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_tables(obj.docstring.value)
