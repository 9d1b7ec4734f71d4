"""``collops.jax.jit`` beside ``jax.jit`` of the same function: methods, options, debugging modes, callbacks, errors."""

from __future__ import annotations

import functools
import inspect
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import collops.jax as cj
from tests.launch import run_ranks

DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


def described(tree):
    """Structure, dtypes, weak types and values."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.dtype, x.aval.weak_type, np.asarray(x).tolist()) for x in leaves]


def outcome(call):
    """The result of a call, or the class and the first line of its error, without the name of the module's `jit`."""
    try:
        return described(call())
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def test_methods_are_those_of_jax(comm):
    traced = []

    def total(x, scale=2.0):
        """Sum."""
        traced.append(scale)
        return {"sum": cj.allreduce(x, comm=comm) * scale, "count": (x.size, None)}

    ours, plain, x = cj.jit(total), jax.jit(total), jnp.arange(3.0)
    assert isinstance(ours, jax.stages.Wrapped)
    assert ours.__wrapped__ is total
    assert (ours.__name__, ours.__doc__) == ("total", "Sum.")
    assert inspect.signature(ours) == inspect.signature(plain)
    assert str(ours.trace(x).jaxpr) == str(plain.trace(x).jaxpr)
    assert ours.trace(x).out_info == plain.trace(x).out_info
    assert ours.eval_shape(x, scale=1) == plain.eval_shape(x, scale=1)
    expected = described(plain(x))
    assert described(ours(x)) == expected
    assert described(ours.lower(x).compile()(x)) == expected
    assert described(ours.trace(x).lower().compile()(x)) == expected
    known = len(traced)
    ours(x)
    assert len(traced) == known
    ours.clear_cache()
    ours(x)
    assert len(traced) > known


CALLS = {
    "weak scalar": ({}, lambda jit, f: jit(lambda x, s: (f(x), 2 * s, s + 1j))(jnp.ones(2), 3.0)),
    "other results": ({}, lambda jit, f: jit(lambda x: (f(x), 1, 2.5, None, np.ones(2, "f4")))(jnp.ones(2))),
    "no results": ({}, lambda jit, f: jit(lambda x: None)(jnp.ones(2))),
    "None": ({}, lambda jit, f: jit(lambda x, n=None: (f(x), n))(jnp.ones(2), None)),
    "pytrees": ({}, lambda jit, f: jit(lambda tree, *, k: {"a": f(tree["b"][0]), **k})({"b": (1.0, 2)}, k={"c": 3})),
    "static": ({"static_argnums": 1}, lambda jit, f: jit(lambda x, n: f(x) * n)(jnp.ones(2), 3)),
    "static number of NumPy": (
        {"static_argnums": np.int64(1)},
        lambda jit, f: jit(lambda x, n: f(x) * n)(jnp.ones(2), 3),
    ),
    "last static": ({"static_argnums": -1}, lambda jit, f: jit(lambda x, n: f(x) * n)(jnp.ones(2), 3)),
    "first static": ({"static_argnums": (-2,)}, lambda jit, f: jit(lambda n, x: f(x) * n)(3, jnp.ones(2))),
    "static and more": ({"static_argnums": (1, 2)}, lambda jit, f: jit(lambda x, *n: f(x) * sum(n))(jnp.ones(2), 3, 4)),
    "static name": ({"static_argnames": "n"}, lambda jit, f: jit(lambda x, *, n: f(x) * n)(jnp.ones(2), n=3)),
    "static name by position": ({"static_argnames": ["n"]}, lambda jit, f: jit(lambda x, n: f(x) * n)(jnp.ones(2), 3)),
    "static tuple": ({"static_argnums": 1}, lambda jit, f: jit(lambda x, n: f(x) * n[0])(jnp.ones(2), (3, "a"))),
    "unhashable": ({"static_argnums": 1}, lambda jit, f: jit(lambda x, n: f(x))(jnp.ones(2), [3])),
    "no such position": ({"static_argnums": 3}, lambda jit, f: jit(f)(jnp.ones(2))),
    "no such name": ({"static_argnames": "m"}, lambda jit, f: jit(f)(jnp.ones(2))),
    "unused": ({"keep_unused": True}, lambda jit, f: jit(lambda x, y: f(x))(jnp.ones(2), jnp.ones(3))),
    "inline": ({"inline": True}, lambda jit, f: jit(f)(jnp.ones(2))),
    "shardings": (
        {"in_shardings": (DEVICE, {"b": None}), "out_shardings": DEVICE},
        lambda jit, f: jit(lambda x, tree: f(x) + tree["b"])(jnp.ones(2), {"b": jnp.ones(2)}),
    ),
    "device": ({"device": jax.devices()[0]}, lambda jit, f: jit(f)(jnp.ones(2))),
    "backend": ({"backend": jax.default_backend()}, lambda jit, f: jit(f)(jnp.ones(2))),
    "compiler options": (
        {"compiler_options": {"xla_embed_ir_in_executable": False}},
        lambda jit, f: jit(f)(jnp.ones(2)),
    ),
    "unknown option": ({"statics": 1}, lambda jit, f: jit(f)(jnp.ones(2))),
    "not callable": ({}, lambda jit, f: jit(3)),
    "text": ({}, lambda jit, f: jit(lambda x: 2 * f(x))("a")),
    "text as a result": ({}, lambda jit, f: jit(lambda x: (f(x), "a"))(jnp.ones(2))),
    "too many arguments": ({}, lambda jit, f: jit(f)(1.0, 2.0)),
    "branch on a value": ({}, lambda jit, f: jit(lambda x: f(x) if x > 0 else x)(1.0)),
    "random key": ({}, lambda jit, f: jit(lambda k: f(jax.random.normal(jax.random.split(k)[0])))(jax.random.key(0))),
    "small floats": ({}, lambda jit, f: jit(lambda x: (f(1.0), (2 * x).astype(float)))(jnp.ones(2, "float8_e4m3fn"))),
    "batch": ({}, lambda jit, f: jax.vmap(jit(f))(jnp.ones((2, 3)))),
    "derivative": ({}, lambda jit, f: jax.grad(jit(lambda x: f(x) ** 2))(3.0)),
    "derivative inside": ({}, lambda jit, f: jit(jax.grad(lambda x: f(x) ** 2))(3.0)),
    "nested": ({}, lambda jit, f: jit(lambda x: jit(f)(x) + 1)(3.0)),
    "of a partial": ({}, lambda jit, f: jit(functools.partial(lambda a, x: a * f(x), 2))(3.0)),
    "of a compiled method": ({}, lambda jit, f: jit(Scaled(jit, f).static)(3.0)),
    "method": ({}, lambda jit, f: Scaled(jit, f).apply(3.0)),
}


def Scaled(jit, f):
    class Scaled:
        @functools.partial(jit, static_argnums=0)
        def apply(self, x):
            return 2 * f(x)

        @staticmethod
        @jit
        def static(x):
            return 2 * f(x)

    return Scaled()


@pytest.mark.parametrize("name", CALLS)
def test_calls_and_errors_are_those_of_jax(comm, name):
    options, call = CALLS[name]

    def of(compile):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of device and backend
            return outcome(
                lambda: call(functools.partial(compile, **options), functools.partial(cj.allreduce, comm=comm))
            )

    found, expected = of(cj.jit), of(jax.jit)
    if isinstance(expected[0], type):
        assert found[0] is expected[0]
        anonymous = functools.partial(re.sub, r"0x\w+", "")
        assert anonymous(found[1]) == anonymous(expected[1])
    else:
        assert found == expected


@pytest.mark.parametrize(
    "options",
    [
        {"donate_argnums": 0},
        {"donate_argnums": -1},
        {"donate_argnums": (0, 1)},
        {"donate_argnames": "a"},
        {"donate_argnames": ("b",)},
        {"donate_argnums": 1, "static_argnums": 0, "donate_argnames": "b"},
    ],
)
def test_donated_arguments(comm, options):
    def run(compile, call):
        a, b = jnp.arange(100.0), jnp.ones(100)
        static = "static_argnums" in options
        function = compile((lambda n, a, b: total(a, b)) if static else total, **options)
        result = call(function, *([3] if static else []), a, b)
        return a.is_deleted(), b.is_deleted(), described(result)

    def total(a, b):
        return cj.allreduce(2 * a, comm=comm), b + 1

    for call in (lambda f, *args: f(*args), lambda f, *args: f(*args[:-1], b=args[-1])):
        assert run(cj.jit, call) == run(jax.jit, call)


def test_inlined_functions(comm):
    def text(compile):
        def total(x):
            return cj.allreduce(x, comm=comm)

        return str(jax.make_jaxpr(lambda x: compile(total, inline=True)(x) + compile(total)(x))(1.0))

    assert text(cj.jit) == text(jax.jit)
    assert text(cj.jit).count("jit[") == 1


def test_decorators(comm):
    @cj.jit(static_argnames="n")
    def one(x, n):
        return cj.allreduce(x, comm=comm) * n

    @functools.partial(cj.jit, static_argnames="n")
    def other(x, n):
        return cj.allreduce(x, comm=comm) * n

    assert float(one(2.0, n=3)) == float(other(2.0, 3)) == 6 * comm.size
    scaled = Scaled(cj.jit, lambda x: x)
    assert scaled.apply.__name__ == "apply"
    assert scaled.static.lower(1.0).out_info == jax.ShapeDtypeStruct((), jnp.float64)


def test_disabled(comm):
    """Operation by operation, on values that Python can look at; collectives are compiled all the same."""
    seen = []

    @cj.jit
    def program(x):
        seen.append(float(x[0]))
        return cj.allreduce(x, comm=comm) + 1 if x[0] > 0 else x

    with jax.disable_jit():
        for _ in range(2):
            np.testing.assert_array_equal(program(jnp.ones(2)), np.full(2, comm.size + 1.0))
        slope = jax.grad(cj.jit(lambda x: cj.allreduce(x, comm=comm).sum()))(jnp.ones(2))
    np.testing.assert_array_equal(slope, np.full(2, float(comm.size)))
    assert seen == [1, 1]


def test_debug_nans(comm):
    """Raises on the ranks that have a NaN, once their messages are sent; the others are not left waiting."""

    @cj.jit
    def logarithm(x):
        return cj.allreduce(x, comm=comm), jnp.log(x)

    x, nan = jnp.full(2, -1.0 if comm.rank == 0 else 1.0), jnp.full(1, jnp.nan)
    total = comm.size - 2.0
    with jax.debug_nans(True):
        np.testing.assert_array_equal(logarithm(jnp.ones(2))[0], np.full(2, comm.size))
        if comm.rank == 0:
            with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) .*logarithm") as caught:
                logarithm(x)
            assert any("jax.disable_jit()" in note for note in caught.value.__notes__)
        else:
            np.testing.assert_array_equal(logarithm(x)[0], np.full(2, total))
        # Nothing is left over from the program that failed, and nothing was sent twice.
        np.testing.assert_array_equal(cj.allreduce(x, comm=comm), np.full(2, total))
        with pytest.raises(FloatingPointError, match="collops_allreduce"):
            cj.allreduce(nan, comm=comm)
        with jax.disable_jit(), pytest.raises(FloatingPointError, match="log"):
            logarithm(jnp.full(2, -1.0))
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
        cj.jit(lambda x: cj.allreduce(1 / x, comm=comm))(jnp.zeros(2))


@pytest.mark.parametrize("ordered", [True, False])
def test_callbacks(comm, ordered):
    """All run, ordered ones in the order of the program and among the calls of collectives."""

    def run(compile):
        log = []

        def note(name, x):
            log.append((name, float(x[0])))
            return np.asarray(x) if name == "before" else None

        @compile
        def program(x):
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            x = io_callback(functools.partial(note, "before"), shape, x, ordered=ordered)
            x = cj.allreduce(x, comm=comm)

            def turn(i, x):
                io_callback(functools.partial(note, "turn"), None, x + i, ordered=ordered)
                return cj.allreduce(x, "max", comm=comm)

            x = jax.lax.fori_loop(0, 3, turn, x)
            io_callback(functools.partial(note, "after"), None, x, ordered=ordered)
            return x

        results = [program(jnp.full(2, value)).tolist() for value in (1.0, 2.0)]
        jax.effects_barrier()
        return results, log if ordered else sorted(log)

    assert run(cj.jit) == run(jax.jit)


def test_ordered_print(comm, capfd):
    @cj.jit
    def program(x):
        jax.debug.print("of this rank {}", x, ordered=True)
        x = cj.allreduce(x, comm=comm)
        jax.debug.print("of all ranks {}", x, ordered=True)
        jax.debug.print("unordered")
        return x

    for _ in range(2):
        program(1.0)
    jax.effects_barrier()
    lines = [line for line in capfd.readouterr().out.splitlines() if "rank" in line]
    assert lines == ["of this rank 1.0", f"of all ranks {float(comm.size)}"] * 2


def test_no_tracer_leaks(comm):
    with jax.checking_leaks():
        found = cj.jit(lambda x, n: cj.allreduce(x, comm=comm) * n, static_argnums=1)(jnp.ones(2), 3)
    np.testing.assert_array_equal(found, np.full(2, 3.0 * comm.size))


SEVERAL_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
import collops, collops.jax as cj

comm = collops.world()
first, second = jax.devices()
slow = cj.jit(lambda x: cj.allreduce(x @ x @ x, "max"))
quick = cj.jit(lambda x: cj.allreduce(x))
large = jax.device_put(jnp.ones((800, 800)), second)
small = jax.device_put(jnp.ones(2), first)
jax.block_until_ready([slow(large), quick(small)])
for _ in range(3):
    slow(large)  # is still running when the next one starts, on the other device
    np.testing.assert_array_equal(quick(small), np.full(2, comm.size))
print("as expected")
"""


@pytest.mark.serial
def test_programs_on_different_devices_one_after_the_other():
    done = run_ranks(2, SEVERAL_DEVICES, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    assert done.stdout.count("as expected") == 2, done.stderr
