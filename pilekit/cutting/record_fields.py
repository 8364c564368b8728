"""`RecordFields`: which fields of an evaluation's records are text, which is the question, and which is its secret.

The secret of a record is its answer: words that follow a question only where the record has leaked. `answers` takes the
spellings of the common benchmarks, and an answer may have several forms.

    --question question --answer answer                        text, a number, true or false; a list of them: each form
    --question question --answer answers                       {"text": ["8", "eight"]}
    --question question --choices choices --answer answer      choices: a list; answer: 2, "2" or "C", all the third
    --question question --choices choices --answer answerKey   choices: {"text": [...], "label": ["A", ...]}; a label
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilekit.errors import PilekitError, shortened

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class RecordFields:
    """The fields of evaluations' records.

    texts      each is searched for by itself, and if there are several, all joined; with a question: its passages
    question   the question, whose `answer` is the secret
    answer     the answer, or which of the choices it is
    choices    the possible answers
    """

    texts: Sequence[str]
    question: str | None = None
    answer: str | None = None
    choices: str | None = None

    def __post_init__(self) -> None:
        if not all(self.names) or not self.names:
            raise PilekitError("fields names the fields of an evaluation's records; one has no name")
        if self.question is None and (self.answer or self.choices):
            raise PilekitError("answer and choices belong to a question; name the field of the question too")
        if self.question is not None and self.answer is None:
            raise PilekitError("the answer is a question's secret; name its field too, or give the question in fields")

    @property
    def names(self) -> list[str]:
        """All fields that are named, each once."""
        further = (name for name in (self.question, self.answer, self.choices) if name is not None)
        return list(dict.fromkeys([*self.texts, *further]))

    @property
    def searched(self) -> list[str]:
        """The fields whose text is searched for."""
        return [*self.texts, *([] if self.question is None else [self.question])]

    def option(self, name: str) -> str:
        """The option that names a field."""
        options = {self.choices: "--choices", self.answer: "--answer", self.question: "--question"}
        return "--fields" if name in self.texts else options[name]

    def answers(self, record: Mapping[str, Any], place: str) -> list[str]:
        """The forms of a record's answer; none without an answer. PilekitError, which names `place`, for no text."""
        value = None if self.answer is None else record.get(self.answer)
        if value is None or value == "":
            return []
        forms = list(_forms(value, place := f"{place}: {self.answer}"))
        if self.choices is None or record.get(self.choices) is None:
            return forms
        choices = record[self.choices]
        texts = list(_forms(choices, f"{place}, {self.choices}"))
        labels = choices.get("label") if isinstance(choices, Mapping) else None
        return [texts[at] for form in forms if (at := _place_of(form, len(texts), labels, place)) >= 0]


def _forms(value: Any, place: str) -> Iterator[str]:
    """The texts of a value: text, number, true or false, a list of them, or an object with them as `text`."""
    if isinstance(value, Mapping) and "text" in value:
        value = value["text"]
    for form in value if isinstance(value, list) else [value]:
        if isinstance(form, bool):
            yield str(form).lower()
        elif isinstance(form, str | int | float):
            yield str(int(form) if isinstance(form, float) and form.is_integer() else form)
        else:
            raise PilekitError(f"{place} is no answer but {shortened(form, 60)}; name another field with --answer")


def _place_of(form: str, choices: int, labels: Sequence[Any] | None, place: str) -> int:
    """The number from 0 of the choice that a label, a number from 0 or a letter names; -1: none is given."""
    if form == "-1":
        return -1
    if labels is not None:
        names = [str(label) for label in labels]
        at = names.index(form) if form in names else choices
    elif form.isdecimal():
        at = int(form)
    else:
        at = _LETTERS.index(form.upper()) if form.upper() in [*_LETTERS] else choices
    if at >= choices:
        raise PilekitError(
            f"{place} is {shortened(form, 60)}, which names none of {choices} choices; a choice is named by its label, "
            "its number from 0, or its letter"
        )
    return at
