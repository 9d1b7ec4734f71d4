"""Chunks of Zarr arrays compressed by Blosc: their length is compared with their header before they are decoded.

Blosc trusts the length in the header. It reads beyond the end of a truncated chunk, and can crash the process.
"""

from __future__ import annotations

from typing import Any

import zarr
from zarr.storage import FsspecStore, LocalStore

from collops.array.store import ZarrNode

_LENGTH = slice(12, 16)  # in the header of a chunk: the size of the chunk in bytes, little-endian


def guarded(array: ZarrNode) -> ZarrNode:
    """Return an open Zarr array with a `BloscStore` if Blosc has written its files, else the array itself.

    Files of shards, which hold several chunks, are not compared.
    """
    compressors = () if array.shards is not None else array.compressors
    if not compressors or type(compressors[-1]).__name__ not in ("Blosc", "BloscCodec"):
        return array
    if isinstance(array.store, FsspecStore):
        store = BloscUrl(array.store.fs, read_only=True, path=array.store.path)
    else:
        store = BloscStore(array.store.root, read_only=True)
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


class BloscStore(LocalStore):
    """The folder of one such array; reading raises ValueError if the length of a chunk differs from its header."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """Return the bytes of a file, or ``None`` if there is none."""
        return _checked(key, await super().get(key, *args, **options))

    def get_sync(self, key: str, **options: Any) -> Any:
        """Implement :meth:`get` for versions of Zarr that read without an event loop."""
        return _checked(key, super().get_sync(key, **options))


class BloscUrl(FsspecStore):
    """The URL of one such array; see `BloscStore`."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """Return the bytes of a file, or ``None`` if there is none."""
        return _checked(key, await super().get(key, *args, **options))


def _checked(key: str, content: Any) -> Any:
    if content is None or key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"):
        return content
    header = content[: _LENGTH.stop].to_bytes()
    length = int.from_bytes(header[_LENGTH], "little")
    if len(header) < _LENGTH.stop or length != len(content):
        raise ValueError(f"its chunk {key} has {len(content)} bytes, but a header for {length}")
    return content
