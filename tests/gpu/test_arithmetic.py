"""The table of the design says what kernels on GPUs do with subnormal numbers, roundings, NaN and half precision."""

from __future__ import annotations

import numpy as np
import pytest

from collops._nvrtc import cuda_module
from tests import arithmetic

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

_DIVIDE = """
extern "C" __global__ void divide(const float* x, const float* y, float* out, int size) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) out[i] = x[i] / y[i];
}
"""


def divided(x, y):
    """Divide with the flags of all kernels of this package."""
    out = cupy.empty(x.size, np.float32)
    kernel = cuda_module(_DIVIDE).get_function("divide")
    kernel((-(-x.size // 256),), (256,), (cupy.asarray(x), cupy.asarray(y), out, np.int32(x.size)))
    return out.get()


@pytest.mark.usefixtures("device")
def test_kernels_of_this_package(comm):
    functions = arithmetic.of_collops("cupy", divide=divided)
    assert arithmetic.words(functions) == arithmetic.row_of_the_table("CUDA kernels of collops")


@pytest.mark.usefixtures("device")
def test_operations_of_cupy(comm):
    functions = arithmetic.Functions(
        axpby=lambda a, x, b, y: (cupy.asarray(x) * a + cupy.asarray(y) * b).get(),
        dot=lambda x, y: float(cupy.asarray(x) @ cupy.asarray(y)),
        divide=lambda x, y: (cupy.asarray(x) / cupy.asarray(y)).get(),
        largest=lambda x: float(cupy.asarray(x).max()),
        total=lambda x: float(cupy.asarray(x).sum()),
    )
    assert arithmetic.words(functions) == arithmetic.row_of_the_table("CuPy, one operation after the other")


@pytest.mark.usefixtures("device")
def test_compiled_programs_of_jax(comm):
    if comm.size > 1:
        pytest.skip("JAX would use the GPU of another rank")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    assert arithmetic.words(arithmetic.of_jax()) == arithmetic.row_of_the_table("JAX on GPUs, compiled")
