"""Matrix Market files: the check that protects SciPy's native parser, alone, and matrices of all kinds through both."""

from __future__ import annotations

import bz2
import gzip

import numpy as np
import pytest
from scipy import io
from scipy import sparse as sp

from collops.errors import InputError
from collops.operators.csr import market
from collops.operators.csr.market import _check_file, read_matrix

pytestmark = pytest.mark.serial

FIELDS = {"integer": np.int64, "real": np.float64, "complex": np.complex128}


def text(kind: str, *lines: str) -> bytes:
    return "\n".join([f"%%MatrixMarket matrix {kind}", *lines]).encode()


def square(field: str, symmetry: str) -> np.ndarray:
    values = np.random.default_rng(0).integers(-9, 9, (2, 4, 4)).astype(FIELDS[field])
    matrix = values[0] + 1j * values[1] if field == "complex" else values[0]
    parts = {"symmetric": matrix.T, "skew-symmetric": -matrix.T, "hermitian": matrix.conj().T}
    return matrix + parts[symmetry] if symmetry in parts else matrix


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
@pytest.mark.parametrize("form", ["coordinate", "array"])
@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".mtx.bz2"])
def test_what_scipy_writes_is_read(tmp_path, field, symmetry, form, suffix, monkeypatch):
    monkeypatch.setattr(market, "_CHUNK", 100)  # several chunks
    matrix, path = square(field, symmetry), tmp_path / "a.mtx"
    io.mmwrite(path, matrix if form == "array" else sp.coo_array(matrix), field=field, symmetry=symmetry)
    packed = tmp_path / f"b{suffix}"
    compress = {".mtx.gz": gzip.compress, ".mtx.bz2": bz2.compress}.get(suffix, bytes)
    packed.write_bytes(compress(path.read_bytes()))
    np.testing.assert_array_equal(read_matrix(packed).toarray(), matrix)


@pytest.mark.parametrize("shape", [(3, 5), (0, 0), (4, 0), (1, 1)])
def test_matrices_of_any_shape_and_of_patterns_are_read(tmp_path, shape):
    matrix = sp.random_array(shape, density=0.4, random_state=np.random.default_rng(0))
    for field in ("real", "pattern"):
        io.mmwrite(tmp_path / "a.mtx", matrix, field=field)
        expected = matrix.toarray() if field == "real" else matrix.toarray() != 0
        np.testing.assert_array_equal(read_matrix(tmp_path / "a.mtx").toarray(), expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            text("COORDINATE Real General", "% c\xff", "", " % d", "2 2 2", "", "1 1 5.", "\t2  2\t-.5e+3 ", " "),
            [5, -500],
        ),
        (text("coordinate real general\r", "2 2 2\r", "1 1 5\r", "2 2 1E-1\r", "\r", ""), [5, 0.1]),
        (text("coordinate double general", "2 2 2", "1 1 Infinity", "2 2 -inf"), [np.inf, -np.inf]),
        (text("coordinate unsigned-integer symmetric", "2 2 2", "1 1 7", "2 2 0"), [7, 0]),
        (text("array real skew-symmetric", "2 2", "3"), [0, 0]),
        (text("array complex hermitian", "2 2", "3 0", "NaN 1", "4 0", ""), [3, 4]),
    ],
)
def test_all_spellings_of_numbers_are_read(tmp_path, content, expected):
    path = tmp_path / "a.mtx"
    path.write_bytes(content)
    np.testing.assert_array_equal(read_matrix(path).diagonal(), expected)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "its first line must be"),
        (b"2 2 1\n1 1 5\n", "its first line must be"),
        (text("vector real general", "2 2 1", "1 1 5"), "its first line must be"),
        (text("coordinate text general", "2 2 1", "1 1 5"), "its first line must be"),
        (text("coordinate real diagonal", "2 2 1", "1 1 5"), "its first line must be"),
        (text("coordinate real general"), "line 2 must be 3 counts, not ''"),
        (text("coordinate real general", "% c", "2 2", "1 1 5"), "line 3 must be 3 counts, not '2 2'"),
        (text("coordinate real general", "2 2 1 1", "1 1 5"), "line 2 must be 3 counts"),
        (text("coordinate real general", "-2 2 1", "1 1 5"), "line 2 must be 3 counts"),
        (text("coordinate real general", "2.0 2 1", "1 1 5"), "line 2 must be 3 counts"),
        (text("coordinate real general", "2 2 9999999999999999999", "1 1 5"), "line 2 must be 3 counts"),
        (text("array real general", "2 2 4", "1", "2", "3", "4"), "line 2 must be 2 counts"),
        (text("coordinate real symmetric", "2 3 1", "1 1 5"), "of 2 x 3 cannot be symmetric"),
        (text("array integer hermitian", "3 2", *"123456"), "of 3 x 2 cannot be hermitian"),
        (text("array real general", "0 4"), "an array of 0 x 4 has no real values"),
        (text("array pattern general", "1 1"), "an array of 1 x 1 has no pattern values"),
        (text("coordinate real general", "2 2 2", "", "1 1 5"), "promises 2 entries but has 1"),
        (text("coordinate real general", "2 2 1", "1 1 5", "2 2 5"), "promises 1 entries but has 2"),
        (text("array real general", "2 2", *"12345"), "promises 4 entries but has 5"),
        (text("array real symmetric", "2 2", *"1234"), "promises 3 entries but has 4"),
        (text("array real skew-symmetric", "3 3", *"123456"), "promises 3 entries but has 6"),
        (text("array complex hermitian", "2 2", "1 0", "1 0"), "promises 3 entries but has 2"),
    ],
)
def test_wrong_headers_and_counts_are_refused_before_scipy_reads(tmp_path, content, complaint):
    path = tmp_path / "a.mtx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        _check_file(path)


@pytest.mark.parametrize("chunk", [1, 12, 1 << 24])
@pytest.mark.parametrize(
    ("kind", "wrong", "needed"),
    [
        *(
            ("coordinate real", wrong, "two indices and a real number")
            for wrong in (
                *("1 1", "1", "1 1 ", "1 1 -", "1 1 .", "1 1 e5", "1 1 5e", "1 1 5e+", "1 1 5 7", "1.0 1 5"),
                *(
                    "-1 1 5",
                    "+1 1 5",
                    "1 1 +5",
                    "1 1 0x5",
                    "1 1 5D3",
                    "1 1 i",
                    "1 1 infi",
                    "1 1 na",
                    "1 1 1_0",
                    "1,1,5",
                ),
                *("1 1 5\v", "1 1 5\0", "% c", "1 1 --5", "1 1 5.5.5", "1\r1 5"),
            )
        ),
        ("coordinate integer", "1 1 5.5", "two indices and an integer"),
        ("coordinate integer", "1 1 nan", "two indices and an integer"),
        ("coordinate unsigned-integer", "1 1 -5", "two indices and an integer"),
        ("coordinate complex", "1 1 5", "two indices and two real numbers"),
        ("coordinate complex", "1 1 5 6 7", "two indices and two real numbers"),
        ("coordinate pattern", "1 1 5", "two indices, "),
        ("coordinate pattern", "1", "two indices, "),
        ("array real", "5 6", "a real number"),
        ("array complex", "5", "two real numbers"),
        ("array integer", "5e0", "an integer"),
    ],
)
def test_incomplete_numbers_are_refused_before_scipy_reads(tmp_path, monkeypatch, chunk, kind, wrong, needed):
    monkeypatch.setattr(market, "_CHUNK", chunk)
    right = {"real": "5", "integer": "5", "unsigned-integer": "5", "complex": "5 6", "pattern": ""}[kind.split()[1]]
    right = f"1 1 {right}" if "coordinate" in kind else right
    size = "3 1 3" if "coordinate" in kind else "3 1"
    path = tmp_path / "a.mtx"
    for lines, number in (([right, "", wrong, right], 5), ([right, right, wrong], 5)):
        path.write_bytes(text(f"{kind} general", size, *lines))
        with pytest.raises(InputError, match=rf"line {number} must be {needed}"):
            _check_file(path)
