"""E-mail and IPv4 addresses are those that a slow search by hand finds."""

from __future__ import annotations

import ipaddress
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import PilekitError, RedactPII, read_corpus
from tests.pipeline.making import batch, identities

ALNUM = string.ascii_letters + string.digits
LOCAL = ALNUM + ".!#$%&'*+/=?^_`{|}~-"


def domain_end(text: str, at: int) -> int:
    """Where the longest domain that begins at `at` ends; `at` if there is none."""
    end = at
    while end < len(text) and text[end] in ALNUM + "-.":
        end += 1
    for last in range(end, at, -1):
        *labels, top = text[at:last].split(".")
        behind = text[last : last + 1]
        if (
            labels
            and all(1 <= len(one) <= 63 and not one.startswith("-") and not one.endswith("-") for one in labels)
            and 2 <= len(top) <= 24
            and all(char in string.ascii_letters for char in top)
            and not (behind and behind in ALNUM + "-")
        ):
            return last
    return at


def without_emails(text: str) -> str:
    out, done, at = "", 0, text.find("@")
    while at >= 0:
        end = domain_end(text, at + 1)
        fits = [
            begin
            for begin in range(max(done, at - 64), at)
            if all(char in LOCAL for char in text[begin:at]) and all(text[begin:at].split("."))
        ]
        if end > at + 1 and fits:
            out += text[done : fits[0]] + "email@example.com"
            done = end
        at = text.find("@", at + 1)
    return out + text[done:]


def without_addresses(text: str) -> str:
    def is_word(char: str) -> bool:
        return char.isalnum() or char == "_"

    out, at = "", 0
    while at < len(text):
        before = text[at - 1] if at else " "
        for end in range(min(len(text), at + 15), at + 6, -1) if text[at] in string.digits else ():
            parts, behind = text[at:end].split("."), text[end : end + 2]
            if (
                len(parts) == 4
                and all(p.isascii() and p.isdigit() and str(int(p)) == p and int(p) < 256 for p in parts)
                and not (is_word(before) or before == ".")
                and not (
                    behind and (is_word(behind[0]) or (len(behind) == 2 and behind[0] == "." and is_word(behind[1])))
                )
            ):
                found = text[at:end]
                out += "192.0.2.1" if ipaddress.ip_address(found).is_global else found
                at = end
                break
        else:
            out += text[at]
            at += 1
    return out


PIECES = st.one_of(
    st.sampled_from(["me", "a.b", "@", "@@", ".", "..", "-", "x-y", "_", " ", "\n", "some.org", "org", "é", ",", "/"]),
    st.sampled_from(["8.8.8.8", "10.0.0.1", "256", "01", "1.1.1.1", "255", ".", "1", "0", "٣"]),
    st.sampled_from(["a" * 23, "b" * 63, "c" * 64, "com", "@some", ".de"]),
)


@given(st.lists(st.lists(PIECES, max_size=12).map("".join) | st.text(st.characters(codec="utf-8")), max_size=8))
def test_addresses_are_found_as_by_hand(texts: list[str]) -> None:
    for kinds, slow in ((["email"], without_emails), (["ip"], without_addresses)):
        whole = batch(texts)
        changed = [slow(text) for text in texts]
        assert [text for *_, text in identities(RedactPII(kinds)(iter([whole])))] == changed
        (judged,) = RedactPII(kinds).judge(whole).values()
        assert judged.tolist() == [after != before for after, before in zip(changed, texts, strict=True)]


def test_examples_of_addresses() -> None:
    e, i = "email@example.com", "192.0.2.1"
    for text, expected in (
        ("write to me.too@some-host.co.uk.", f"write to {e}."),
        ("<a+b@x.org>,c@y.de", f"<{e}>,{e}"),
        (".a@b.com a.@b.com a..b@c.com", f".{e} a.@b.com a..{e}"),
        ("a@b a@b.c a@b.123 a@-b.com a@b.com-x a@b.com1", "a@b a@b.c a@b.123 a@-b.com a@b.com-x a@b.com1"),
        ("x" * 70 + "@b.com", "x" * 6 + e),
        ("a@" + "b" * 64 + ".com", "a@" + "b" * 64 + ".com"),
        ("a@b.com@c.org", f"{e}@c.org"),
        ("8.8.8.8 (8.8.4.4), 1.1.1.1.", f"{i} ({i}), {i}."),
        ("10.1.2.3 127.0.0.1 192.168.1.1 192.0.2.1 0.0.0.0", "10.1.2.3 127.0.0.1 192.168.1.1 192.0.2.1 0.0.0.0"),
        (
            "v8.8.8.8 8.8.8.8.8 8.8.8.08 8.8.8.256 8.8.8.8x 8.8.8.8_",
            "v8.8.8.8 8.8.8.8.8 8.8.8.08 8.8.8.256 8.8.8.8x 8.8.8.8_",
        ),
    ):
        assert RedactPII().redact(batch([text])).texts == [expected]
    border = "x" * 56 + "/8.8.8.8@b.com"
    assert RedactPII("ip,email").redact(batch([border])).texts == RedactPII().redact(batch([border])).texts == [e]
    assert RedactPII("email, ip").kinds == ("email", "ip")
    for wrong in ((), ("mail",), "email,"):
        with pytest.raises(PilekitError, match="PII is email, ip or both, not"):
            RedactPII(wrong)


@pytest.mark.slow
def test_real_text(real_corpus: Path) -> None:
    edited = 0
    with read_corpus([real_corpus / "minipile-00.jsonl.zst", real_corpus / "val.jsonl.zst"]) as batches:
        for whole in batches:
            redacted = RedactPII().redact(whole)
            edited += len(redacted.edited)
            pairs = zip("\n".join(whole.texts).split("\n"), "\n".join(redacted.texts).split("\n"), strict=True)
            for line, found in pairs:  # No address spans lines, and most lines can hold none.
                may_hold = "@" in line or re.search(r"\d\.\d", line)
                assert found == (without_addresses(without_emails(line)) if may_hold else line)
    assert edited > 50
