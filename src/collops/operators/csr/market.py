"""Matrix Market files of every kind of the format, validated before SciPy reads them."""

from __future__ import annotations

import bz2
import gzip
import inspect
import os
import re
import zlib
from pathlib import Path

from collops.backend import SparseArray
from collops.errors import InputError
from collops.limits import available_memory, in_words

__all__ = ["read_matrix"]

_CHUNK = 1 << 24
_MAX_BANNER = 1024
_BANNER = re.compile(
    rb"%%?MatrixMarket\s+matrix\s+(coordinate|array)\s+(real|double|complex|integer|unsigned-integer|pattern)"
    rb"\s+(general|symmetric|skew-symmetric|hermitian)\s*",
    re.IGNORECASE,
)
_INDEX, _SPACE = rb"\d++", rb"[ \t]++"
# No possessive optional groups: Python 3.11.2, which is Debian 12's, does not go back if one matches in part.
_REAL = rb"-?(?:(?:\d++\.?\d*+|\.\d++)(?:e[+-]?\d++)?|inf(?:inity)?|nan)"
_VALUES = {
    "real": _REAL,
    "double": _REAL,
    "complex": _REAL + _SPACE + _REAL,
    "integer": rb"-?\d++",
    "unsigned-integer": _INDEX,
    "pattern": None,
}
_BLANK_LINE = re.compile(rb"\n[ \t\r]*+(?=\n)")


def read_matrix(path: str | Path) -> SparseArray:
    """Return the matrix of a file in COO format, with symmetric parts expanded; raise InputError. Not collective."""
    from scipy import io, sparse

    try:
        _check_file(Path(path))
        # SciPy before 1.15 returns matrices only; later versions warn unless the kind is specified.
        arrays = {"spmatrix": False} if "spmatrix" in inspect.signature(io.mmread).parameters else {}
        matrix = io.mmread(path, **arrays)
    except InputError:
        raise
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    except (EOFError, TypeError, ValueError, OverflowError, zlib.error) as problem:
        raise InputError(f"{path} is not a Matrix Market file: {problem}") from None
    return sparse.coo_array(matrix)


def _check_file(path: Path) -> None:
    """Raise InputError unless the file follows the grammar of the format and has the number of entries in its header.

    SciPy's parser is native code. It reads or writes out of bounds if a number is incomplete, the number of entries of
    an array is zero or differs from the header, or a symmetric matrix is not square.
    """
    opened = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        banner, number = _BANNER.fullmatch(file.readline(_MAX_BANNER)), 2
        if banner is None:
            raise InputError(
                f"{path} is not a Matrix Market file: its first line must be %%MatrixMarket matrix, the form, the "
                "field and the symmetry, such as coordinate real general"
            )
        form, field, symmetry = (word.decode().lower() for word in banner.groups())
        line = file.readline()
        while line and (not line.strip() or line.lstrip().startswith(b"%")):  # comments may be in any language
            line, number = file.readline(), number + 1
        counts = 3 if form == "coordinate" else 2
        size = re.fullmatch(rb"\s*" + rb"\s+".join([rb"(\d{1,18})"] * counts) + rb"\s*", line)
        if size is None:
            raise InputError(
                f"{path} is not a Matrix Market file: line {number} must be {counts} counts, {_quoted(line)}"
            )
        rows, columns, *announced = map(int, size.groups())
        if symmetry != "general" and rows != columns:
            raise InputError(f"{path} is not a Matrix Market file: a matrix of {rows} x {columns} cannot be {symmetry}")
        if form == "array" and (not rows * columns or field == "pattern"):
            raise InputError(
                f"{path} is not a Matrix Market file: an array of {rows} x {columns} has no {field} values"
            )
        triangle = rows * (rows + (-1 if symmetry == "skew-symmetric" else 1)) // 2
        entries = announced[0] if announced else rows * columns if symmetry == "general" else triangle
        _check_size(path, rows, columns, entries, form, field, symmetry)
        numbers = [*([_INDEX, _INDEX] if announced else []), *filter(None, [_VALUES[field]])]
        entry = _SPACE.join(numbers)
        lines = re.compile(rb"(?:[ \t]*+(?:" + entry + rb"[ \t]*+)?\r?\n)*+", re.IGNORECASE)
        entries_found, number = 0, number + 1
        while chunk := file.read(_CHUNK):
            chunk += file.readline()
            chunk += b"" if chunk.endswith(b"\n") else b"\n"
            right = lines.match(chunk)
            assert right is not None  # the pattern also matches an empty rest
            if right.end() < len(chunk):
                number += chunk.count(b"\n", 0, right.end())
                wrong = chunk[right.end() :].partition(b"\n")[0]
                raise InputError(
                    f"{path} is not a Matrix Market file: line {number} must be {_described(form, field)}, "
                    f"{_quoted(wrong)}"
                )
            count = chunk.count(b"\n")
            number, entries_found = number + count, entries_found + count - len(_BLANK_LINE.findall(b"\n" + chunk))
    if entries_found != entries:
        raise InputError(f"{path} promises {entries} entries but has {entries_found}: it is truncated or damaged")


def _described(form: str, field: str) -> str:
    """Describe the numbers in the line of an entry, for messages."""
    value = {"pattern": "", "complex": "two real numbers", "real": "a real number", "double": "a real number"}
    words = ["two indices"] if form == "coordinate" else []
    return " and ".join([*words, *filter(None, [value.get(field, "an integer")])])


def _quoted(line: bytes) -> str:
    text = line.strip().decode("ascii", "replace")
    return f"not {text[:60]!r}"


def _check_size(path: Path, rows: int, columns: int, entries: int, form: str, kind: str, symmetry: str) -> None:
    """Raise, before allocating memory, if the header announces more entries than the file or the memory can hold."""
    fewest = 4 if form == "coordinate" else 2  # bytes of the line of an entry: two indices or a value, and line ends
    held = os.stat(path).st_size if path.suffix not in (".gz", ".bz2") else None
    if held is not None and entries * fewest > held + fewest:
        raise InputError(f"{path} promises {entries} entries but has {held} bytes: it is truncated or damaged")
    value, index = 16 if kind == "complex" else 8, 4 if max(rows, columns) < 1 << 31 else 8
    needed = 8 * max(rows, columns)  # a vector, and the matrix as SciPy reads it:
    if form == "array":
        needed += value * rows * columns
    else:
        needed += (value + 2 * index) * entries * (1 if symmetry == "general" else 2)
    if needed > (available := available_memory()):
        raise InputError(
            f"{path} is a matrix of {rows} x {columns} with {entries} entries, which need {in_words(needed)} of "
            f"memory, and this process can still use {in_words(available)}"
        )
