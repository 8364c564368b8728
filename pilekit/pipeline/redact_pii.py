r"""`RedactPII`: e-mail addresses and public IPv4 addresses become constants, so the output depends on nothing else.

An e-mail address is found by its `@`. Before it are up to 64 of ``[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]``, without a dot at
either end or two together; after it is a domain whose last label has 2 to 24 letters. An IPv4 address is four numbers
up to 255 without leading zeros. No letter, digit, `_` or `.` may precede or follow it, except a dot that ends a
sentence. Private and reserved addresses stay.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import DocumentStage, names_in

EMAIL, IP = "email@example.com", "192.0.2.1"

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*\Z")
_LOCAL_CHARS = 64
_DOMAIN = re.compile(r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}(?![A-Za-z0-9-])")
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\w|\.\w)")


def _without_emails(text: str) -> str:
    if "@" not in text:
        return text
    pieces, end = [], 0
    for domain in _DOMAIN.finditer(text):
        at = domain.start()
        if local := _LOCAL.search(text, max(end, at - _LOCAL_CHARS), at):
            pieces += [text[end : local.start()], EMAIL]
            end = domain.end()
    return "".join([*pieces, text[end:]]) if pieces else text


def _without_addresses(text: str) -> str:
    return _IPV4.sub(lambda match: IP if ipaddress.ip_address(match[0]).is_global else match[0], text)


_KINDS: dict[str, Callable[[str], str]] = {"email": _without_emails, "ip": _without_addresses}


@dataclass(frozen=True)
class RedactPII(DocumentStage):
    """Replace e-mail addresses by `email@example.com` and public IPv4 addresses by `192.0.2.1`.

    kinds    "email", "ip" or both
    """

    kinds: str | Sequence[str] = ("email", "ip")

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", names_in(self.kinds))
        if not self.kinds or not set(self.kinds) <= set(_KINDS):
            raise PilekitError(f"PII is email, ip or both, not {shortened(','.join(self.kinds) or 'nothing', 80)}")

    def __call__(self, batches: Iterator[DocumentBatch]) -> Iterator[DocumentBatch]:
        """The same documents, of which only texts change. Empty batches are dropped."""
        return (self.redact(batch) for batch in batches if len(batch))

    def redact(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents of one batch."""
        texts = batch.texts
        for kind in sorted(self.kinds):  # a replacement may move the border of another address
            texts = list(map(_KINDS[kind], texts))
        return batch.with_texts(texts)

    def judge(self, batch: DocumentBatch) -> dict[str, npt.NDArray[np.bool_]]:
        """Whether each document holds something to replace, by kind."""
        return {kind: np.array([_KINDS[kind](text) != text for text in batch.texts], bool) for kind in self.kinds}
