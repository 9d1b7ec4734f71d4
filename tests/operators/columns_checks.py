"""Products of local operators with columns against those of NumPy, on a device or what plays one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.comm.checks import to_host
from tests.solvers.problems import assert_close, random_matrix


def check_products(xp: Any, op: Any, host: np.ndarray, dtype: str, count: int = 6, factor: float = 1.0) -> None:
    """Multiply columns of `dtype` by the local operator of the matrix `host`, forward and adjoint.

    Rows of the operand and of the result are contiguous, parts of longer ones, and every second element of them.
    """
    precision = np.finfo(dtype) if np.finfo(dtype).eps > np.finfo(host.dtype).eps else np.finfo(host.dtype)
    for apply, matrix in ((op.forward_columns, host.T), (op.adjoint_columns, host.conj())):
        given, wanted = matrix.shape
        X = random_matrix(count, 2 * given + 3, dtype, 2)
        for some in (slice(0, given), slice(2, given + 2), slice(1, 2 * given + 1, 2)):
            for place in (slice(0, wanted), slice(1, wanted + 1), slice(0, 2 * wanted, 2)):
                expected = X[:, some] @ matrix
                memory, source = xp.full((count, 2 * wanted + 1), 9, expected.dtype), xp.asarray(X.copy())
                out = memory[:, place]
                assert apply(source[:, some], out) is out
                assert_close(to_host(out), expected, precision.dtype, factor)
                np.testing.assert_array_equal(to_host(source), X)
                np.testing.assert_array_equal(np.delete(to_host(memory), np.arange(2 * wanted + 1)[place], axis=1), 9)
