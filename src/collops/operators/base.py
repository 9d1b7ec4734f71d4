"""Linear operators: two layouts, a dtype, a forward and an adjoint."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from collops.array import DistributedArray, Layout, StackedArray, StackedLayout, axpby, empty
from collops.array.dtypes import as_dtype, real_of
from collops.comm.given import checked_communicator
from collops.errors import InputError, LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["AnyLayout", "Buffers", "LinearOperator", "is_complex", "new_array"]

AnyLayout: TypeAlias = Layout | StackedLayout


class LinearOperator:
    """A linear map between distributed arrays.

    Subclasses implement ``_forward(x, out)`` and ``_adjoint(y, out)``, which get arrays of the right layout and return
    the result. ``out`` is ``None`` or an array whose memory they may use for it.

    Parameters
    ----------
    domain, range : Layout or StackedLayout
        Layout of the arrays that :meth:`forward` takes, and of those that it returns.
    dtype : dtype
        Type of the coefficients. Results have the common type of this and the input, unless `out` has another.
    comm : Communicator
        The ranks.

    Attributes
    ----------
    domain, range : Layout or StackedLayout
    dtype : numpy.dtype
    comm : Communicator
    shape : tuple of int
        Global numbers of rows and columns.
    capturable : bool
        Whether a solver may record the operator's device work once and replay it (a CUDA graph). An operator whose work
        depends on values that the host reads, or differs from call to call, sets this to ``False``.
    clinear : bool
        Whether the operator is linear over the complex numbers. An operator that takes real parts, such as the adjoint
        of a Fourier transform of real arrays, is linear over the real numbers only, and so are operators made of it:
        their adjoint is defined by the real part of the inner product.

    Raises
    ------
    LayoutError
        If the layouts are for different numbers of ranks.
    InputError
        If there is no such dtype.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(5)
    >>> isinstance(D, collops.LinearOperator), (D.H @ D).shape, D.dottest()
    (True, (5, 5), True)
    """

    capturable = True
    clinear = True
    __array_ufunc__ = None  # so that a NumPy scalar times an operator calls the operator's __rmul__

    def __init__(self, domain: AnyLayout, range: AnyLayout, dtype: Any, comm: Communicator) -> None:
        checked_communicator(comm)
        for layout in (domain, range):
            if not isinstance(layout, Layout | StackedLayout):
                raise LayoutError(
                    f"an operator needs layouts, not {type(layout).__module__}.{type(layout).__qualname__}"
                )
        if not domain.ranks == range.ranks == comm.size:
            raise LayoutError(
                f"an operator on {comm.size} ranks cannot have a domain on {domain.ranks} "
                f"and a range on {range.ranks} ranks"
            )
        self.domain = domain
        self.range = range
        self.dtype = as_dtype(dtype)
        self.comm = comm
        self._allocators: dict[Hashable, Callable[[], Any]] = {}
        comm.announce(type(self).__name__, shape=[range.size, domain.size], dtype=self.dtype.name)

    def _inherit(self, operators: Sequence[LinearOperator]) -> None:
        """Be capturable, and linear over the complex numbers, where all of `operators` are."""
        self.capturable = all(op.capturable for op in operators)
        self.clinear = all(op.clinear for op in operators)

    # For subclasses

    # Functions of source and target that add the product to the target in the pass that computes it, for operators that
    # can do so. The target is mutable.
    _add_forward: Any = None
    _add_adjoint: Any = None

    def _forward(self, x: Any, out: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def _adjoint(self, y: Any, out: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no adjoint")

    def _new(self, layout: AnyLayout, like: Any, real: bool = False) -> Any:
        """Return an array of `layout` with undefined values, for the result of applying the operator to `like`.

        Its dtype is the common one of the operator and `like`, or that of its real part.
        """
        key = layout, like.dtype, like.engine, real
        make = self._allocators.get(key)
        if make is None:
            dtype = np.result_type(self.dtype, like.dtype)
            dtype = real_of(dtype) if real else dtype
            if not like.engine.mutable:  # JAX's configuration, which may change, decides on the dtype
                return new_array(layout, like, dtype)
            make = self._allocators[key] = allocator(layout, like, dtype)
        return make()

    # Application

    @property
    def shape(self) -> tuple[int, int]:
        """Global numbers of rows and columns."""
        return self.range.size, self.domain.size

    def forward(self, x: Any, out: Any = None) -> Any:
        """Apply the operator. Collective.

        Parameters
        ----------
        x : DistributedArray or StackedArray
            In the layout ``domain``.
        out : DistributedArray or StackedArray, optional
            In the layout ``range``; shares no memory with `x`; receives the result.

        Returns
        -------
        DistributedArray or StackedArray
            The result: `out` if it was given.

        Raises
        ------
        LayoutError
            If an array has another layout or communicator, or `out` is not contiguous.
        InputError
            If `out` shares memory with `x`, or is read-only.
        UnsupportedTypeError
            If an argument is not a distributed array, or `out` cannot hold the result.
        """
        if getattr(x, "layout", None) is not self.domain or x.comm is not self.comm:
            self._raise_misfit(x, self.domain, "forward takes an array")
        if out is not None:
            self._check_out(x, out, self.range)
        result = self._forward(x, out)
        return result if out is None or result is out else axpby(1, result, 0, result, out=out)

    def adjoint(self, y: Any, out: Any = None) -> Any:
        """Apply the adjoint, the conjugate transpose, to an array in the layout ``range``. See :meth:`forward`."""
        if getattr(y, "layout", None) is not self.range or y.comm is not self.comm:
            self._raise_misfit(y, self.range, "adjoint takes an array")
        if out is not None:
            self._check_out(y, out, self.domain)
        result = self._adjoint(y, out)
        return result if out is None or result is out else axpby(1, result, 0, result, out=out)

    def _raise_misfit(self, array: Any, layout: AnyLayout, role: str) -> NoReturn:
        if not isinstance(array, DistributedArray | StackedArray):
            raise UnsupportedTypeError(
                f"{type(self).__name__}.{role} of collops, not {type(array).__module__}.{type(array).__qualname__}; "
                "make one with collops.from_global or collops.from_local"
            )
        # Layouts are interned: equal ones are one object.
        if array.layout is not layout:
            raise LayoutError(
                f"{type(self).__name__}.{role} in the layout {layout}, but this one is {array.layout}; "
                "redistribute it with redistribute(), or use reshape()"
            )
        raise LayoutError(f"{type(self).__name__}.{role} on its own communicator; make both with one comm=")

    def _check_out(self, given: Any, out: Any, layout: AnyLayout) -> None:
        if getattr(out, "layout", None) is not layout or out.comm is not self.comm:
            self._raise_misfit(out, layout, "out is an array")
        engine = out.engine
        sources = given.leaves if given.engine is engine else ()
        for leaf in out.leaves if engine.mutable else ():
            memory = leaf.local_array
            for source in sources:
                if source is leaf or engine.xp.may_share_memory(memory, source.local_array):
                    raise InputError(
                        f"{type(self).__name__} cannot work in place: out must not share memory with the input"
                    )
            flags = memory.flags
            if not flags.c_contiguous or not getattr(flags, "aligned", True):
                raise LayoutError(f"{type(self).__name__} fills contiguous arrays only; this out is not contiguous")
            if not getattr(flags, "writeable", True):
                raise InputError(f"{type(self).__name__} cannot fill an out that is read-only")
        if out is given:
            raise InputError(f"{type(self).__name__} cannot work in place: out must not share memory with the input")

    # Algebra

    @property
    def H(self) -> LinearOperator:
        """The adjoint operator."""
        from collops.operators.algebra import adjoint_of

        return adjoint_of(self)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator, without conjugation."""
        return self.conj().H

    @property
    def flat(self) -> LinearOperator:
        """The same operator on ravelled arrays (``domain.reshape(size)``), by views, so that it can be stacked.

        Raises
        ------
        LayoutError
            If domain or range cannot be ravelled without moving data between ranks.
        """
        from collops.operators.algebra import flattened

        return flattened(self)

    def conj(self) -> LinearOperator:
        """Return the operator with conjugated coefficients."""
        from collops.operators.algebra import conjugate_of

        return conjugate_of(self)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, LinearOperator):
            from collops.operators.algebra import product

            return product(self, other)
        return self.forward(other)

    def __mul__(self, other: Any) -> Any:
        if is_scalar(other):
            from collops.operators.algebra import combination

            return combination([(other, self)])
        return self @ other

    def __rmul__(self, other: Any) -> Any:
        if is_scalar(other):
            return self * other
        return NotImplemented

    def __truediv__(self, other: Any) -> Any:
        if not is_scalar(other):
            return NotImplemented
        from collops.operators.algebra import plain_number

        divisor = plain_number(other)
        if isinstance(divisor, int | float | complex) and divisor == 0:
            raise InputError("an operator cannot be divided by zero")
        return self * (1 / divisor)

    def __neg__(self) -> LinearOperator:
        return self * -1

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, LinearOperator):
            return NotImplemented
        from collops.operators.algebra import combination

        return combination([(1, self), (1, other)])

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, LinearOperator):
            return NotImplemented
        from collops.operators.algebra import combination

        return combination([(1, self), (-1, other)])

    def __pow__(self, exponent: int) -> LinearOperator:
        from collops.operators.algebra import power

        return power(self, exponent)

    def dottest(self, *, rtol: float | None = None, seed: int = 0, raises: bool = True, **options: Any) -> bool:
        """Run the dot test of forward and adjoint; see :func:`collops.operators.dottest`. Collective."""
        from collops.operators.dottest import dottest

        return dottest(self, rtol=rtol, seed=seed, raises=raises, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}: {self.domain} -> {self.range}>"


def check_operators(*operators: Any) -> None:
    """Raise unless all are distributed operators on one communicator.

    Raises
    ------
    UnsupportedTypeError
        If one is not a distributed operator.
    LayoutError
        If communicators differ.
    """
    for op in operators:
        if not isinstance(op, LinearOperator):
            raise UnsupportedTypeError(
                f"expected a distributed operator, not {type(op).__module__}.{type(op).__qualname__}; "
                "collops.operators.VStack, HStack or BlockDiag makes one of local operators"
            )
        if op.comm is not operators[0].comm:
            raise LayoutError(
                "operators on different communicators cannot be combined; make all of them with one comm="
            )


def new_array(layout: AnyLayout, like: Any, dtype: Any) -> Any:
    """Return an array of `layout` with undefined values, on the ranks and the engine of `like`."""
    return empty(layout, comm=like.comm, dtype=dtype, engine=like.engine)


def allocator(layout: AnyLayout, like: Any, dtype: Any) -> Callable[[], Any]:
    """Return a function without arguments that does what :func:`new_array` does; all checks are made here, once."""
    prototype = new_array(layout, like, dtype)
    if isinstance(layout, StackedLayout):
        parts = [allocator(part, like, dtype) for part in layout]
        prototype = prototype._like(())
        return lambda: prototype._like([make() for make in parts])
    shape, xp = prototype.local_array.shape, like.engine.xp
    kind, prototype = prototype.dtype, prototype._like(None)
    return lambda: prototype._like(xp.empty(shape, kind))


def is_complex(dtype: Any) -> bool:
    """Return whether `dtype` is a complex type."""
    return np.dtype(dtype).kind == "c"


class Buffers:
    """Intermediate arrays that an operator keeps, so that applying it again allocates nothing.

    A buffer is never dropped: a recorded CUDA graph may still write to it.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import Buffers
    >>> buffers, x = Buffers(), collops.ones(4)
    >>> between = buffers.get("between", x.layout, x, x.dtype)
    >>> buffers.get("between", x.layout, x, x.dtype) is between
    True
    """

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}

    def get(self, slot: Hashable, layout: AnyLayout, like: Any, dtype: Any) -> Any:
        """Return the array in `slot` for input such as `like`; ``None`` on an engine of immutable arrays.

        Parameters
        ----------
        slot : hashable
            Name; one slot has one layout.
        layout : Layout or StackedLayout
            Layout of the array.
        like : DistributedArray or StackedArray
            Array with the same engine and communicator.
        dtype : dtype
            Element type; each has an array of its own.
        """
        if not like.engine.mutable:
            return None
        key = (slot, dtype, like.engine, like.comm)
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = new_array(layout, like, dtype)
        return array


def is_scalar(value: Any) -> bool:
    """Return whether `value` is a number or an array without axes."""
    return isinstance(value, Number | np.generic) or (
        getattr(value, "ndim", None) == 0 and not isinstance(value, DistributedArray | StackedArray)
    )
