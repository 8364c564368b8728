"""Finding shards behind URLs, through fsspec: the rules for local folders, on the listing that a store gives."""

from __future__ import annotations

from typing import Any

from pilekit.corpus.header import HEADER_FILE
from pilekit.corpus.local import Search
from pilekit.corpus.local import search as search_local
from pilekit.corpus.shard import looks_like_shard, without_query
from pilekit.errors import PilekitError, visible


def search(url: str) -> Search:
    """Shards at a URL: of a file, of a folder, or with `*` in it.

    Raises PilekitError if there is nothing, if the store does not answer, or if its fsspec driver is not installed.
    """
    if url.startswith(("file://", "local://")) and "::" not in url:
        return search_local(url.partition("://")[2])
    try:
        return _search(url)
    except FileNotFoundError:
        raise PilekitError(f"{visible(url)}: there is no such file or folder; check the URL") from None
    except ImportError as error:
        reason = visible(str(error), 200)
        raise PilekitError(f"{visible(url)}: {reason}; `pip install 'pilekit[cloud]'` brings the usual ones") from error
    except PilekitError:
        raise
    except Exception as error:
        # Every store raises errors of its own making; what they have in common is that the URL could not be listed.
        reason = visible(str(error) or type(error).__name__, 300)
        raise PilekitError(f"{visible(url)}: cannot be listed: {reason}") from error


def _search(url: str) -> Search:
    import fsspec

    store, path = fsspec.core.url_to_fs(url)
    plain, chain, outer = url.partition("::")
    plain = without_query(plain)
    if "*" in plain:
        fixed = plain[: plain.index("*")].rpartition("/")[0]
        base = path[: path.index("*")].rpartition("/")[0]
        listing = store.glob(path, detail=True)
    else:
        about = _info(store, path)
        if about["type"] == "file" or looks_like_shard(plain):
            folder, _, name = plain.rpartition("/")
            return Search(folder + chain + outer, [(name or plain, url, about.get("size"))])
        fixed, base = plain, path
        listing = store.find(path, detail=True)
    files = {name: about for name, about in listing.items() if about["type"] == "file"}
    return _chosen(Search(fixed.rstrip("/") + chain + outer), base.strip("/"), files, fixed.rstrip("/"), chain + outer)


def _info(store: Any, path: str) -> dict[str, Any]:
    about: dict[str, Any] = store.info(path)
    return about


def _chosen(search: Search, base: str, files: dict[str, dict[str, Any]], fixed: str, chain: str) -> Search:
    below = {name.strip("/")[len(base) :].strip("/"): about.get("size") for name, about in files.items()}
    ours = {name.rpartition("/")[0] for name in below if name.rpartition("/")[2] == HEADER_FILE} - {""}
    for name, size in below.items():
        parts = name.split("/")
        parents = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if (
            looks_like_shard(name)
            and not any(part.startswith(".") and part != ".." for part in parts)
            and not parents & ours
        ):
            search.files.append((name, f"{fixed}/{name}{chain}", size))
    search.ours = sorted(f"{fixed}/{folder}{chain}" for folder in ours)
    return search
