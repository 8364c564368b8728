"""Search for shards behind URLs through fsspec: the rules for local folders, applied to the listing of a store.

A URL may be chained, as fsspec writes it: `zip://train/*.jsonl::s3://bucket/pile.zip` looks inside an archive,
`simplecache::https://host/00.jsonl.zst` wraps a store in a cache. `*` makes a URL a pattern (`?` begins a query).
"""

from __future__ import annotations

from typing import Any

from pilekit.artifacts.header import HEADER_FILE
from pilekit.corpus.job_shards import folder_of_shards
from pilekit.corpus.local import Search
from pilekit.corpus.local import search as search_local
from pilekit.corpus.shard import FILE_SUFFIXES, is_url, looks_like_shard, without_query
from pilekit.corpus.stores import cause_of, is_missing, store_of
from pilekit.errors import PilekitError, shortened


def search(url: str) -> Search:
    """Shards at the URL of a file, of a folder, or with `*` in it.

    Raises PilekitError if nothing is there, if the store does not answer, or if its fsspec driver is not installed.
    """
    if not is_url(url) or (url.startswith(("file://", "local://")) and "::" not in url):
        return search_local(url.partition("://")[2] or url)
    wrapper, chain, inner = url.partition("::")
    if chain and "://" not in wrapper:
        wrapped, around = search(inner), wrapper + chain
        files = [(name, around + path, size) for name, path, size in wrapped.files]
        return Search(around + wrapped.root, files, [around + folder for folder in wrapped.ours])
    try:
        return _search_store(url)
    except ImportError as error:
        why = shortened(error, 200)
        raise PilekitError(f"{url}: {why}; `pip install 'pilekit[cloud]'` brings the usual ones") from error
    except PilekitError:
        raise
    except Exception as error:  # Every store raises its own errors.
        if is_missing(error):
            raise PilekitError(f"{url}: there is no such file or folder; check the URL") from error
        why = shortened(str(cause_of(error)) or type(error).__name__, 300)
        raise PilekitError(f"{url}: cannot be listed: {why}") from error


def _search_store(url: str) -> Search:
    store, path = store_of(url)
    first, chain, outer = url.partition("::")
    scheme, _, place = without_query(first).partition("://")
    header = None
    if "*" in place:
        place = place[: place.index("*")].rpartition("/")[0]
        base = path[: path.index("*")].rpartition("/")[0]
        listing = store.glob(path, detail=True)
    else:
        about: dict[str, Any] = store.info(path)
        if about["type"] == "file" and (place.endswith(FILE_SUFFIXES) or scheme not in ("http", "https")):
            folder, _, name = place.rpartition("/")
            return Search(f"{scheme}://{folder}{chain}{outer}", [(name, url, about.get("size"))])
        base = path
        listing = store.find(path, detail=True)
        header = next((stored for stored in listing if _below(base, stored) == HEADER_FILE), None)
    if header is not None and (inner := folder_of_shards(url, store.cat_file(header))):
        listing = {stored: about for stored, about in listing.items() if _below(base, stored).startswith(f"{inner}/")}
        base, place = f"{base.rstrip('/')}/{inner}", f"{place.rstrip('/')}/{inner}".lstrip("/")
    prefix = f"{scheme}://{place.rstrip('/')}"
    search = Search(prefix + chain + outer)
    for stored, about in listing.items():
        name = _below(base, stored)
        hidden = any(part.startswith(".") and part != ".." for part in name.split("/"))
        if about.get("type") == "file" and looks_like_shard(name) and not hidden:
            below = name if prefix.endswith("://") else f"/{name}"
            search.files.append((name, f"{prefix}{below}{chain}{outer}", about.get("size")))
    _drop_ours(search, store, base.strip("/"))
    return search


def _below(base: str, stored: str) -> str:
    """The path of a stored file below the folder `base`."""
    return stored.strip("/").removeprefix(base.strip("/")).strip("/")


def _drop_ours(search: Search, store: Any, base: str) -> None:
    """Drop the files in folders below the root that hold a header of pilekit."""
    folders = {
        "/".join(parts[:depth])
        for parts in (name.split("/") for name, _, _ in search.files)
        for depth in range(1, len(parts))
    }
    ours = {folder for folder in folders if store.exists(f"{base}/{folder}/{HEADER_FILE}".lstrip("/"))}
    search.files = [file for file in search.files if not any(file[0].startswith(f"{folder}/") for folder in ours)]
    search.ours = sorted(f"{search.root.partition('::')[0]}/{folder}" for folder in ours)
