"""Arrays and scalars of two packages, and functions that one lacks: errors that name them."""

import operator
from functools import partial

import numpy as np
import pytest

import collops
from collops import StackedArray
from collops.backend import Engine, kernel_table
from collops.backend import engine as find_engine
from collops.errors import UnsupportedTypeError

BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod]
UFUNCS = [np.add, np.multiply, np.maximum, np.arctan2, np.greater]


class Tensor:
    """A scalar of a package that collops does not know, which computes with whatever NumPy can convert."""

    dtype, ndim, shape = "tensor.float32", 0, ()

    def __init__(self, value):
        self.value = value

    def __array__(self, *args, **options):
        return np.asarray(self.value, np.float32)

    def __float__(self):
        return float(self.value)

    def __mul__(self, other):
        return NotImplemented if hasattr(other, "leaves") else Tensor(self.value * np.asarray(other))

    __add__ = __sub__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __mul__
    __rmul__ = __radd__ = __rsub__ = __rtruediv__ = __mul__


def arrays(engine):
    one = collops.full((5, 3), 2.0, dtype="float32", engine=engine)
    return one, StackedArray([one, collops.ones(4, dtype="float32", engine=engine)])


@pytest.fixture(params=["single", "stacked"])
def pairs(request):
    pytest.importorskip("jax")
    number = ["single", "stacked"].index(request.param)
    return [(arrays(one)[number], arrays(other)[number]) for one, other in (("numpy", "jax"), ("jax", "numpy"))]


def calls_of_arrays(x, y):
    yield from (partial(function, x, y) for function in (*BINARY, *IN_PLACE, *UFUNCS))
    yield from (partial(collops.where, x > 0, x, y), partial(collops.where, x > 0, y, x), partial(x.dot, y))
    yield from (partial(np.add, x, x, out=y), partial(collops.axpby, 1, x, 1, y), partial(collops.dots, (x, y)))


def calls_of_scalars(x, scalar):
    yield from (partial(function, x, scalar) for function in (*BINARY, *IN_PLACE, *UFUNCS))
    yield from (partial(function, scalar, x) for function in (*BINARY[:4], *BINARY[7:]))
    yield from (partial(x.fill, scalar), partial(collops.where, x > 0, x, scalar))


def test_arrays_of_two_engines(pairs):
    for x, y in pairs:
        before = [leaf.local_array.copy() for leaf in x.leaves]
        for call in calls_of_arrays(x, y):
            with pytest.raises(UnsupportedTypeError, match="different engines"):
                call()
        assert all(np.array_equal(old, leaf.local_array) for old, leaf in zip(before, x.leaves, strict=True))


def test_the_advice_for_two_engines():
    pytest.importorskip("jax")
    x, y = (arrays(engine)[0] for engine in ("numpy", "jax"))
    with pytest.raises(UnsupportedTypeError) as caught:
        x + y
    converted = eval(str(caught.value).partition("one of them: ")[2], {"collops": collops, "x": x, "y": y})
    total = x + converted
    assert type(total.local_array) is np.ndarray and np.all(total.local_array == 4)
    x, y = (arrays(engine)[1] for engine in ("numpy", "jax"))
    with pytest.raises(UnsupportedTypeError) as caught:
        x + y
    advice = str(caught.value).partition("part of one of them: ")[2]
    converted = [eval(advice, {"collops": collops, "x": x, "part": part}) for part in y.arrays]
    assert float((x + StackedArray(converted)).leaves[1].sum()) == 8


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_scalars_of_other_packages(engine):
    jax = pytest.importorskip("jax")
    for x in arrays(engine):
        others = [Tensor(2.0)] + ([jax.numpy.float32(2.0)] if engine == "numpy" else [])
        for scalar in others:
            for call in calls_of_scalars(x, scalar):
                with pytest.raises(UnsupportedTypeError, match=r"scalar of jax|Tensor"):
                    call()
        for leaf in x.leaves:
            assert leaf.dtype == np.float32 and type(leaf.local_array) is type(x.leaves[0].local_array)
        assert (2 * x).dtype == (np.float32(2) * x).dtype == (np.array(2, np.float32) * x).dtype == np.float32
        with pytest.raises(UnsupportedTypeError, match="Tensor"):
            collops.axpby(Tensor(3.0), x, 0, x)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_local_arrays_are_not_combined(engine):
    jax = pytest.importorskip("jax")
    x, _ = arrays(engine)
    for local in (np.ones(x.local_array.shape), jax.numpy.ones(x.local_array.shape)):
        for function, *operands in (
            (operator.add, x, local),
            (operator.add, local, x),
            (operator.imul, x, local),
            (operator.eq, x, local),
        ):
            with pytest.raises(UnsupportedTypeError, match="ambiguous"):
                function(*operands)


def test_masked_scalars():
    x, _ = arrays("numpy")
    for call in (lambda: x * np.ma.masked, lambda: np.ma.masked * x, lambda: x + np.ma.masked_array(1.0, True)):
        with pytest.raises(UnsupportedTypeError):
            call()
    assert type((x * np.ma.masked_array(2.0)).local_array) is np.ndarray


def test_results_in_arrays_of_another_engine():
    pytest.importorskip("jax")
    operators = collops.Identity(4), collops.Diagonal(np.ones(4)), collops.BlockDiag([np.eye(4)])
    for A in (*operators, collops.FirstDerivative(4).H, operators[0] + operators[1]):
        for one, other in (("numpy", "jax"), ("jax", "numpy")):
            x = collops.ones(A.domain, engine=one)
            for apply, layout in ((A.forward, A.range), (A.adjoint, A.domain)):
                out = collops.zeros(layout, engine=other)
                with pytest.raises(UnsupportedTypeError, match=r"engine=x\.engine"):
                    apply(x, out)
                assert not out.any()


def test_the_layer_of_pylops_mpi():
    jax = pytest.importorskip("jax")
    import collops.compat.pylops_mpi as pylops_mpi

    x = pylops_mpi.DistributedArray(4)
    x[:] = 1.0
    for other in (jax.numpy.float32(2), jax.numpy.ones(x.local_shape), Tensor(2.0)):
        for function in (operator.add, operator.mul, operator.sub):
            with pytest.raises(UnsupportedTypeError):
                function(x, other)
    assert type((x + np.ones(x.local_shape)).local_array) is type((2 * x).local_array) is np.ndarray


@pytest.mark.serial
def test_functions_that_an_engine_lacks():
    pytest.importorskip("jax")
    x = collops.full(3, 2.0, engine="jax")
    with pytest.raises(UnsupportedTypeError, match="where= is not supported by the engine jax; use"):
        np.add(x, x, where=x > 0)
    triple = np.frompyfunc(lambda a: 3 * a, 1, 1)
    with pytest.raises(UnsupportedTypeError, match="the engine jax has no function"):
        triple(x)
    assert triple(collops.full(2, 2.0)).local_array.tolist() == [6.0, 6.0]


@pytest.mark.serial
@pytest.mark.parametrize("name", ["numpy", "jax"])
@pytest.mark.parametrize("by", [-2, 0, 1])
def test_shifted_arrays(name, by):
    pytest.importorskip(name)
    engine = find_engine(name)
    values = np.arange(1.0, 13).reshape(3, 4).astype("float32")
    expected = np.roll(values, by, 1)
    expected[:, slice(by) if by >= 0 else slice(by, None)] = 0
    found = engine.shifted(engine.from_host(values), by, 1)
    np.testing.assert_array_equal(engine.to_host(found), expected)


def test_a_table_without_kernels_for_an_engine():
    table = kernel_table("collops.jacobi", None, numpy="numpy_sweeps", cupy="cupy_sweeps")
    with pytest.raises(UnsupportedTypeError, match="has no kernels for abacus: choose numpy or cupy"):
        table(Engine("abacus", np, "host"))
