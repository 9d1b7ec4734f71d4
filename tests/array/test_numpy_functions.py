"""NumPy functions of distributed arrays: the ones that work, and what the others advise."""

import numpy as np
import pytest

import collops
from collops.array.numpy_functions import _INSTEAD
from collops.errors import UnsupportedTypeError

A = np.arange(12.0).reshape(4, 3) - 5
B = np.cos(A)

# For each advice that is an expression of x, y and these names: the function of NumPy.
NAMES = {
    "atol": 1e-8,
    "rtol": 1e-5,
    "dtype": np.float32,
    "shape": (12,),
    "axes": (1, 0),
    "value": 7.0,
    "weights": 2.0,
}
EXPRESSIONS = {
    "allclose": np.allclose,
    "around": lambda x, y: np.around(x),
    "array_equal": np.array_equal,
    "array_equiv": np.array_equiv,
    "astype": lambda x, y: np.astype(x, np.float32),
    "copy": lambda x, y: np.copy(x),
    "count_nonzero": lambda x, y: np.count_nonzero(x),
    "dot": lambda x, y: np.dot(x.ravel(), y.ravel()),
    "full_like": lambda x, y: np.full_like(x, 7),
    "inner": lambda x, y: np.inner(x.ravel(), y.ravel()),
    "isclose": np.isclose,
    "iscomplex": lambda x, y: np.iscomplex(x),
    "linalg.vecdot": lambda x, y: np.linalg.vecdot(x.ravel(), y.ravel()),
    "moveaxis": lambda x, y: np.moveaxis(x, 0, 1),
    "nan_to_num": lambda x, y: np.nan_to_num(x),
    "nansum": lambda x, y: np.nansum(x),
    "ones_like": lambda x, y: np.ones_like(x),
    "ptp": lambda x, y: np.ptp(x),
    "ravel": lambda x, y: np.ravel(x),
    "reshape": lambda x, y: np.reshape(x, (12,)),
    "round": lambda x, y: np.round(x),
    "swapaxes": lambda x, y: np.swapaxes(x, 0, 1),
    "vdot": np.vdot,
    "zeros_like": lambda x, y: np.zeros_like(x),
}


def global_values(result):
    return result.gather() if hasattr(result, "gather") else result


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_advice_gives_the_result_of_numpy(comm, name):
    function = EXPRESSIONS[name]
    # Whole rows of 3 elements on each rank: NumPy's shape (12,) is then a view.
    x, y = collops.from_global(A), collops.from_global(B)
    with pytest.raises(UnsupportedTypeError) as caught:
        function(x, y)
    advice = str(caught.value).rpartition("; use ")[2]
    assert advice == _INSTEAD[name]
    found = eval(advice, {"collops": collops, "numpy": np, "x": x, "y": y, **NAMES})
    assert np.allclose(global_values(found), function(A, B))


def test_equal_arrays_are_never_called_different(comm):
    x = collops.from_global(A)
    both = collops.StackedArray([x, collops.ones(5)])
    for array, kind in ((x, "DistributedArray"), (both, "StackedArray")):
        for function in (np.array_equal, np.array_equiv, np.allclose):
            with pytest.raises(UnsupportedTypeError, match=kind):
                function(array, array)
            with pytest.raises(UnsupportedTypeError):
                function(A, array)
        for function in (np.array_equal, np.array_equiv):  # NumPy ignores the error, and returns False
            with pytest.warns(RuntimeWarning, match=rf"{function.__name__} of a list .* use \(x == y\)\.all") as caught:
                assert not function([array], [array])
            assert caught[0].filename == __file__
        assert (array == array).all()


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (np.linalg.norm, r"x.norm\(\)"),
        (np.fft.fft, "collops.FFT, "),
        (lambda x: np.hstack([x, x]), r"collops.StackedArray\(\[x, y\]\)"),
        (np.gradient, "collops.Gradient"),
        (lambda x: np.linalg.solve(x, x), "collops.cg, "),
        (lambda x: np.linalg.lstsq(x, x), "collops.cgls"),
        (lambda x: np.save("x.npy", x), r"collops.save\(path, x\)"),
        (np.median, "numpy.median on .*gather"),
        (np.linalg.svd, "numpy.linalg.svd on .*gather"),
        (np.asarray, "gather"),
        (np.add.reduce, "use sum"),
    ],
)
def test_functions_that_need_all_values(comm, call, advice):
    for array in (collops.from_global(A), collops.StackedArray([collops.from_global(A)])):
        with pytest.raises(UnsupportedTypeError, match=advice):
            call(array)


def test_advice_names_what_exists():
    for advice in _INSTEAD.values():
        for word in advice.replace("(", " ").replace(",", " ").replace(")", " ").split():
            if word.startswith("collops."):
                owner = collops.array if word.startswith("collops.array.") else collops
                assert hasattr(owner, word.rpartition(".")[2]), word


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")  # since NumPy 2.5
def test_functions_that_work(comm):
    x = collops.from_global(A)
    assert (np.shape(x), np.ndim(x), np.size(x)) == (A.shape, 2, 12)
    assert np.result_type(x, np.complex64) == np.complex128 and np.isrealobj(x)
    for function in (np.sum, np.mean, np.max, np.amin, np.all, np.any):
        assert function(x) == function(A)
        assert np.array_equal(global_values(function(x, axis=0)), function(A, axis=0))
    for function in (np.real, np.imag, np.isreal, np.fix):
        assert np.array_equal(global_values(function(x)), function(A))
