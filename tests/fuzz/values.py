"""What a slot of a call may hold, by kind: expressions that are wrong for certain, and that may be either.

All are source text, so that a failing case is one line of Python.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KINDS", "Kind"]


class Kind(NamedTuple):
    """The values of one kind of argument.

    Attributes
    ----------
    wrong : tuple of str
        What no call may accept.
    odd : tuple of str
        What a call may refuse or make sense of.
    """

    wrong: tuple[str, ...]
    odd: tuple[str, ...] = ()


_NO_NUMBER = ("JUNK", "'nonsense'", "...", "[[]]", "{}", "np.array(['a'])")
_SIZES = ("-1", "NAN", "INF", "2.5", "HUGE", "-HUGE", "1j")
_ANYTHING = (
    *_NO_NUMBER,
    "NAN",
    "INF",
    "-1",
    "0",
    "1",
    "True",
    "HUGE",
    "b'bytes'",
    "None",
    "''",
    "()",
    "1j",
    "Exception",
)

KINDS: dict[str, Kind] = {
    "shape": Kind(
        (*_NO_NUMBER, *_SIZES, "None", "()", "(2.5,)", "(-1, 3)", "(2**40, 2**40)", "('a',)", "10**30", "(3, None)"),
        ("0", "1", "5", "(0, 3)", "(5, 3)", "(1, 1, 1)", "np.int64(4)", "[4]", "np.array([4, 3])", "True", "(0, HUGE)"),
    ),
    "extents": Kind(  # of what is arithmetic only
        (*_NO_NUMBER, "-1", "NAN", "INF", "2.5", "-HUGE", "1j", "None", "()", "(-1, 3)", "(2**40, 2**40)", "10**30"),
        ("0", "1", "5", "(0, 3)", "(5, 3)", "HUGE", "(0, HUGE)", "np.int64(4)", "[4]", "True"),
    ),
    "range": Kind(  # extents, or None for a default
        ("JUNK", "'nonsense'", "-1", "NAN", "2.5", "1j", "(-1, 3)", "(2**40, 2**40)"), ("None", "0", "[4]", "HUGE")
    ),
    "grid": Kind(  # of processes
        (
            "JUNK",
            "'nonsense'",
            "[-1, -1]",
            "[comm.size]",
            "[1] * 3",
            "[0, 1]",
            "['a', 'b']",
            "[0.5, 2]",
            "3.5",
            "[None] * 2",
        ),
        ("None", "(1, comm.size)", "range(2)", "np.ones(2, int)"),
    ),
    "layout": Kind(
        ("JUNK", "'nonsense'", "comm", "x", "Layout.split(7, comm.size + 1)", "Layout.replicated(HUGE, comm.size + 2)"),
        (
            *_ANYTHING,
            "Layout.split(0, comm.size)",
            "Layout.split(7, comm.size)",
            "Layout.replicated(7, comm.size)",
            "Layout.split((6, 4), comm.size, 1)",
            "stacked.layout",
            "None",
            "7",
        ),
    ),
    "dtype": Kind(
        ("'nonsense'", "object", "'U5'", "'M8[s]'", "[('a', int)]", "JUNK", "'O'", "{}", "np.ones(2)", "...", "2.5"),
        (
            "'float32'",
            "'float16'",
            "'bfloat16'",
            "'complex64'",
            "'int8'",
            "'bool'",
            "float",
            "None",
            "'longdouble'",
            "3",
        ),
    ),
    "comm": Kind(
        ("JUNK", "'world'", "3", "x", "np.ones(2)", "Layout.split(7, comm.size)"),
        ("alone", "other_comm"),
    ),
    "engine": Kind(("'nonsense'", "JUNK", "3", "np", "x", "['numpy']"), ("'numpy'", "None", "'cupy'", "'jax'", "''")),
    "axis": Kind(
        (*_NO_NUMBER[:3], "9", "-9", "1.5", "NAN", "HUGE", "'0'"),
        ("0", "-1", "1", "None", "True", "(0,)", "(0, 0)", "[]"),
    ),
    "array": Kind(
        ("JUNK", "'nonsense'", "np.ones(7)", "[1.0, 2.0]", "comm", "layout", "object", "{}"),
        ("wide", "stacked", "copies", "foreign", "complex_x", "halves", "integers", "empty", "None", "3.0", "NAN", "x"),
    ),
    "saved": Kind(
        ("JUNK", "'nonsense'", "np.ones(7)", "3", "None", "comm", "{}"), ("stacked", "wide", "copies", "empty")
    ),
    "operand": Kind(
        ("JUNK", "'nonsense'", "np.ones(7)", "[1.0, 2.0]", "comm", "{}", "wide", "stacked", "foreign"),
        (
            "3",
            "2.5",
            "1j",
            "NAN",
            "x",
            "complex_x",
            "halves",
            "integers",
            "np.float32(2)",
            "HUGE",
            "np.array(2.0)",
            "True",
        ),
    ),
    "number": Kind(
        ("JUNK", "'nonsense'", "None", "np.ones(3)", "[1, 2]", "comm", "{}"),
        ("0", "-1", "NAN", "INF", "1j", "HUGE", "1e-300", "True", "np.float32(2)", "b'1'"),
    ),
    "real": Kind(
        ("JUNK", "'nonsense'", "np.ones(3)", "[1, 2]", "comm", "{}", "NAN", "1j"),
        ("0", "-1", "INF", "1e300", "True", "None"),
    ),
    "count": Kind(
        ("JUNK", "'nonsense'", "-1", "2.5", "NAN", "[1]", "1j"), ("0", "1", "3", "True", "None", "np.int64(2)")
    ),
    "size": Kind(
        ("JUNK", "'nonsense'", "-1", "2.5", "NAN", "HUGE", "1j", "10**30"), ("0", "1", "3", "True", "None", "[1]")
    ),
    "counts": Kind(  # what only the root can compare with its array is left out
        ("JUNK", "'nonsense'", "[-1] * comm.size", "[1] * (comm.size + 1)", "['a'] * comm.size", "3.5", "[None]"),
        ("None",),
    ),
    "seed": Kind(("JUNK", "'nonsense'", "NAN", "2.5", "[1]"), ("-1", "0", "HUGE", "10**30", "True")),
    "ranks": Kind(("JUNK", "'nonsense'", "-1", "0", "2.5", "NAN", "HUGE", "10**30", "[1]"), ("1", "3", "True", "None")),
    "mask": Kind(
        ("JUNK", "[1] * (comm.size + 1)", "['a'] * comm.size", "[0.5] * comm.size", "3.5", "[None] * comm.size"),
        ("None", "[]", "[0] * comm.size", "range(comm.size)", "[-1] * comm.size", "[HUGE] * comm.size"),
    ),
    "peer": Kind(("-1", "comm.size", "99", "1.5", "JUNK", "'0'", "NAN", "HUGE", "[0]", "None"), ()),
    "flag": Kind((), ("JUNK", "None", "1", "'yes'", "NAN", "[]")),
    "word": Kind(("'nonsense'", "JUNK", "3", "''", "[]", "b'sum'", "NAN"), ("None",)),
    "rank": Kind(("-1", "comm.size", "99", "1.5", "JUNK", "'0'", "NAN", "HUGE", "[0]"), ("0", "None", "True")),
    "path": Kind(
        ("JUNK", "2.5", "''", "'/dev/null/nonsense'", "'\\0'", "['a']", "folder", "'/dev/null'", "b'\\xff\\0'"),
        ("None",),
    ),
    "operator": Kind(
        ("JUNK", "'nonsense'", "x", "3", "None", "comm", "object", "{}", "[]", "np.ones(3)"),
        ("Slope", "Square", "Wide", "Foreign", "np.eye(7)", "sparse.eye_array(7)", "abs", "Complex"),
    ),
    "distributed": Kind(
        ("JUNK", "'nonsense'", "x", "3", "np.eye(7)", "None", "sparse.eye_array(7)", "comm", "abs", "object", "[]"),
        ("Slope", "Square", "Wide", "Foreign", "Complex"),
    ),
    "identity": Kind(  # an operator whose default is the identity
        ("JUNK", "'nonsense'", "x", "3", "np.eye(7)", "sparse.eye_array(7)", "comm", "abs", "object", "[]"),
        ("None", "Slope", "Square", "Wide", "Foreign", "Complex"),
    ),
    "operators": Kind(
        ("JUNK", "'nonsense'", "3", "[JUNK]", "[None]", "['a']", "[np.ones(3)]", "np.ones(3)", "[np.array(['a'])]"),
        (
            "[]",
            "[Slope]",
            "[np.eye(3)]",
            "[np.eye(3), np.eye(4)]",
            "[sparse.eye_array(4)]",
            "(np.eye(3),)",
            "{}",
            "None",
        ),
    ),
    "proximal": Kind(("JUNK", "'nonsense'", "x", "3", "None", "Slope", "np.eye(3)"), ("L1", "L2", "collops.Box(0, 1)")),
    "indices": Kind(
        (
            "JUNK",
            "'nonsense'",
            "[-1]",
            "[10**12]",
            "[2**63]",
            "[0.5]",
            "['a']",
            "NAN",
            "[[0, 1], [2]]",
            "[None]",
            "[1j]",
            "np.array([NAN])",
            "[-2**63]",
            "[HUGE]",
        ),
        (
            "[]",
            "[0]",
            "[1, 0]",
            "range(2)",
            "np.array([0], 'uint8')",
            "[0, 0]",
            "[[0, 1]]",
            "True",
            "None",
            "3",
            "[True]",
        ),
    ),
    "local": Kind(
        ("JUNK", "'nonsense'", "np.array(['a'])", "np.array([JUNK])", "comm", "{}", "x", "object"),
        (
            "np.ones(2)",
            "np.ones((2, 3))",
            "np.ones(0)",
            "np.ones(3, 'complex64')",
            "np.ones((4, 4))[::2]",
            "3.0",
            "[1, 2]",
            "np.ones(2, '>f8')",
            "np.ones(2, 'longdouble')",
            "np.ones(4, 'float16')",
            "True",
            "None",
            "np.ones(3, 'm8[s]')",
        ),
    ),
    "message": Kind(  # whose size the other side expects
        ("JUNK", "'nonsense'", "np.array(['a'])", "np.array([JUNK])", "comm", "x", "object", "np.ones(3, '>f8')"), ()
    ),
    "matrix": Kind(
        ("JUNK", "'nonsense'", "np.array(['a'])", "comm", "{}", "3"),
        (
            "np.ones(3)",
            "np.ones((3, 3, 3))",
            "np.ones((0, 4))",
            "sparse.eye_array(3)",
            "np.full((3, 3), NAN)",
            "x",
            "None",
            "np.ones((3, 3), bool)",
            "sparse.eye_array(3).astype('complex64')",
            "sparse.random_array((3, 3)).tocsc()",
        ),
    ),
    "sizes": Kind(
        (
            "JUNK",
            "'nonsense'",
            "[-1] * comm.size",
            "[1] * (comm.size + 1)",
            "[HUGE] * comm.size",
            "['a'] * comm.size",
            "[0.5] * comm.size",
            "3.5",
            "[None] * comm.size",
            "[NAN] * comm.size",
        ),
        ("None", "[]", "[0] * comm.size", "range(comm.size)", "np.ones(comm.size, int)", "{}"),
    ),
    "any": Kind((), (*_ANYTHING, "x", "comm", "np.ones(3)", "layout", "Slope", "object", "len")),
}


def _with(kind: str, *accepted: str) -> Kind:
    """A kind some of whose wrong values have a meaning in a call."""
    wrong, odd = KINDS[kind]
    assert set(accepted) <= set(wrong)
    return Kind(tuple(value for value in wrong if value not in accepted), (*odd, *accepted))


KINDS |= {
    "numbers": _with("number", "np.ones(3)", "[1, 2]"),  # one for each iteration, or an array
    "samples": _with("count", "[1]"),  # one for each axis
    "positions": _with("indices", "[-1]"),  # from the end
    "window": _with("shape", "()"),  # a single element
}
