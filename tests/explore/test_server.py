"""The server answers the page alone: its host, its origin, its token, its questions, GET."""

from __future__ import annotations

import http.client
import json
from urllib.parse import quote, urlsplit

from pilekit.explore.server import HEADERS


def ask(address: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=30)
    sent = {"Host": parts.netloc, **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request(method, path if path.startswith("/") else parts.path + path, headers=sent)
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_the_page_and_its_questions_are_answered_with_the_policy(address: str) -> None:
    for path in ("", "explore.js", "compare.js", "traced.js", "explore.css", "api/corpus", "api/documents?start=0"):
        status, headers, content = ask(address, path)
        assert status == 200
        assert content
        assert {name: headers[name.lower()] for name in HEADERS} == HEADERS
        assert "server" not in headers
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_other_hosts_and_origins_are_refused(address: str) -> None:
    port, origin = urlsplit(address).port, f"http://{urlsplit(address).netloc}"
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil:{port}", ""):
        assert ask(address, "api/corpus", Host=host)[0] in (400, 403)
    for other in ("http://evil.example", "null", f"https://127.0.0.1:{port}", f"{origin}.evil", "http://127.0.0.1"):
        assert ask(address, "api/corpus", Origin=other)[0] == 403
    for site in ("cross-site", "same-site"):
        assert ask(address, "api/corpus", Sec_Fetch_Site=site)[0] == 403
    assert ask(address, "api/corpus", Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200
    assert ask(address, "api/corpus", Host=f"localhost:{port}")[0] == 200


def test_without_the_token_there_is_nothing(address: str, plain_address: str) -> None:
    token = urlsplit(address).path.strip("/")
    assert len(token) >= 32
    for wrong in (token[:-1], f"{token}x", token.swapcase()):
        assert ask(address, f"/{wrong}/api/corpus")[0] == 404
    for path in ("/", "//", "/api/corpus", "/explore.js"):
        assert ask(address, path)[0] == 404
    assert ask(plain_address, urlsplit(address).path)[0] == 404


def test_nothing_of_the_disk_is_served_and_nothing_is_changed(address: str) -> None:
    root = urlsplit(address).path
    for path in ("server.py", "../server.py", "%2e%2e/server.py", "..%2fserver.py", "explore.html", "%2fetc%2fpasswd"):
        assert ask(address, root + path)[0] in (400, 404)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(address, "api/corpus", method)[0] == 405


def test_a_question_that_the_page_does_not_ask_is_an_error_in_one_line(address: str) -> None:
    of_documents = ("documents", "documents?start=-1", "documents?start=x", "document?shard=a", "search?text=a")
    for question in (
        *of_documents,
        f"document?shard={quote('/etc/passwd')}&number=0",
        "pair?shard=a&number=1",
        "cuts?folder=9&start=0",
        "cut?folder=0&place=99999",
        *("texts?folder=9&start=0", "text?folder=0&number=99999", "passage?folder=0&number=0&place=0"),
    ):
        status, _, content = ask(address, f"api/{question}")
        assert (status, [*json.loads(content)]) == (400, ["error"])
    status, _, content = ask(address, "api/documents?start=" + "9" * 30)
    assert (status, json.loads(content)["documents"]) == (200, [])


def test_pairs_without_a_dedup_folder_are_an_error(plain_address: str) -> None:
    status, _, content = ask(plain_address, "api/pairs")
    assert (status, b"--dedup" in content) == (400, True)
    assert ask(plain_address, "api/scored?start=0")[0] == 400
