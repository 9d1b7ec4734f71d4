"""Functions with proximal points in closed form: norms, bounds, and functions of local arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from collops.array import Array, StackedArray, axpby, divide, dots
from collops.array.operands import agree_on_numbers, check_alike
from collops.backend import LocalArray
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.solvers.kernels import Rule, step_kernels_for
from collops.solvers.problem import check_count, check_number, consistent
from collops.solvers.proximal.operator import ProxOperator, like, total
from collops.solvers.shrinkage import shrink
from collops.solvers.state import Scalar


class Separable(ProxOperator):
    """A sum of functions of single elements. Subclasses implement ``_prox_of_sum``; `y` may be ``None``.

    A proximal point takes one pass over memory and no message, a value one scalar allreduce.
    """

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._prox_of_sum(1.0, x, 0.0, None, tau, out)


class L0(Separable):
    r"""The function :math:`\sigma \|x\|_0`: the number of nonzero elements, times sigma. It is not convex.

    Parameters
    ----------
    sigma : float, DistributedArray or StackedArray
        Not negative; as an array, a real factor for each element.

    Notes
    -----
    The proximal point keeps the elements above :math:`\sqrt{2 \tau \sigma}` and sets the others to 0 [Beck 2017, 6.3].
    It takes one pass over memory and no message; a value takes one scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.L0().prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([-2.,  0.,  3.])
    """

    def __init__(self, sigma: float | Array = 1.0) -> None:
        self._sigma, self._weights = _factors(sigma)

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Array | None, tau: float, out: Array | None) -> Array:
        return shrink(Rule.HARD, tau * self._sigma, x, a=a, y=y, b=b, weights=self._weights, out=out)

    def _value(self, x: Array) -> Scalar:
        if self._weights is not None:
            return (self._weights * (x != 0)).sum()
        return self._sigma * x.norm(0)


class L1(Separable):
    r"""The function :math:`\sigma \|x - g\|_1`.

    Parameters
    ----------
    sigma : float, DistributedArray or StackedArray
        Not negative; as an array, a real factor for each element.
    g : DistributedArray or StackedArray, optional
        Subtracted from `x`; 0 by default.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = g + T_{\tau \sigma}(x - g), \quad
        \mathrm{prox}_{\tau f^*}(x) = P_{|\cdot| \le \sigma}(x - \tau g)

    with soft thresholding :math:`T` and the projection :math:`P`, both along the phase of complex numbers [Parikh and
    Boyd 2014, 6.5]. Messages as for :class:`L0`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.L1().prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([-1.,  0.,  2.])
    """

    def __init__(self, sigma: float | Array = 1.0, g: Array | None = None) -> None:
        self._sigma, self._weights = _factors(sigma)
        if g is not None and not hasattr(g, "leaves"):
            raise UnsupportedTypeError(f"g must be a distributed array, not {type(g).__qualname__}")
        self._g = g

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Array | None, tau: float, out: Array | None) -> Array:
        threshold, g = tau * self._sigma, self._g
        if g is None:
            return shrink(Rule.SOFT, threshold, x, a=a, y=y, b=b, weights=self._weights, out=out)
        if y is not None:
            x = out = axpby(a, x, b, y, out=out)
        point = shrink(Rule.SOFT, threshold, x, y=g, b=-1.0, weights=self._weights, out=out)
        return axpby(1.0, g, 1.0, point, out=point)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        return shrink(Rule.PROJECT, self._sigma, x, y=self._g, b=-tau, weights=self._weights, out=out)

    def _value(self, x: Array) -> Scalar:
        if self._g is not None:
            x = x - self._g
        if self._weights is not None:
            x = self._weights * x
        return self._sigma * x.norm(1)


class Box(Separable):
    r"""The indicator of :math:`l \le x \le u` for real arrays: 0 inside, infinite outside.

    Parameters
    ----------
    lower, upper : float, DistributedArray or StackedArray
        The bounds, for all elements or for each.

    Notes
    -----
    The proximal point is the projection :math:`\min(\max(x, l), u)`. Messages as for :class:`L0`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.Box(0, 1).prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([0. , 0.5, 1. ])
    """

    def __init__(self, lower: Any = -np.inf, upper: Any = np.inf) -> None:
        self._arrays = hasattr(lower, "leaves") or hasattr(upper, "leaves")
        if not self._arrays:
            lower, upper = float(lower), float(upper)
            if not lower <= upper:
                raise InputError(f"lower must be at most upper, not {lower} and {upper}")
        self._lower, self._upper = lower, upper

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Array | None, tau: float, out: Array | None) -> Any:
        if not self._arrays:
            return shrink(Rule.CLIP, self._lower, x, a=a, y=y, b=b, upper=self._upper, out=out)
        if x.dtype.kind == "c":
            raise UnsupportedTypeError("bounds need real arrays, not complex ones")
        if y is not None:
            x = out = axpby(a, x, b, y, out=out)
        above: Any = like(x, out)
        return np.minimum(np.maximum(x, self._lower, out=above), self._upper, out=above)

    def _value(self, x: Array) -> Scalar:
        outside = ((x < self._lower) | (x > self._upper)).sum()
        return x.engine.xp.where(outside > 0, np.inf, 0.0)


class Euclidean(ProxOperator):
    r"""The function :math:`\sigma \|x\|_2`: the norm itself, not its square.

    Parameters
    ----------
    sigma : float
        Not negative.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = \Big(1 - \frac{\tau \sigma}{\max(\|x\|_2, \tau \sigma)}\Big) x, \quad
        \mathrm{prox}_{\tau f^*}(x) = \frac{\sigma}{\max(\|x\|_2, \sigma)} x

    [Parikh and Boyd 2014, 6.5]. A point takes two passes over memory; a point or a value takes one scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.array([3.0, 4.0]))
    >>> float(collops.Euclidean()(x)), collops.Euclidean().prox(x, 2.5).gather()
    (5.0, array([1.5, 2. ]))
    """

    def __init__(self, sigma: float = 1.0) -> None:
        self._sigma = check_number("sigma", sigma)

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return axpby(1 - _ratio(tau * self._sigma, x), x, 0.0, x, out=out)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        return axpby(_ratio(self._sigma, x), x, 0.0, x, out=out)

    def _value(self, x: Array) -> Scalar:
        return self._sigma * x.norm()


class L21(ProxOperator):
    r"""The function :math:`\sigma \sum_j \|x_j\|_2` of vectors :math:`x_j` with `ndim` components.

    Parameters
    ----------
    ndim : int
        Number of components: the parts of a stacked array, all of one layout, or the extent of the first axis of an
        array, which is not split.
    sigma : float
        Not negative.

    Notes
    -----
    Proximal points are computed as for :class:`Euclidean` for each :math:`x_j`. They send no message; a value takes one
    scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> layout = collops.Layout.split((2, 2), collops.world().size, axis=1)  # two components of two points
    >>> x = collops.from_global(np.array([[3.0, 0.0], [4.0, 0.0]]), layout)
    >>> float(collops.L21(2)(x)), collops.L21(2).prox(x, 2.5).gather()
    (5.0, array([[1.5, 0. ],
           [2. , 0. ]]))
    """

    def __init__(self, ndim: int, sigma: float = 1.0) -> None:
        self._ndim = check_count("ndim", ndim, smallest=1)
        self._sigma = check_number("sigma", sigma)

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._shrunk(Rule.SOFT, tau * self._sigma, x, out)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._shrunk(Rule.PROJECT, self._sigma, x, out)

    def _value(self, x: Array) -> Scalar:
        norms = step_kernels_for(x.engine).group_norms(self._components(x))
        return self._sigma * total(x.leaves[0], [norms.sum()])

    def _shrunk(self, rule: Rule, threshold: float, x: Array, out: Array | None) -> Array:
        agree_on_numbers(x, threshold)
        components, out = self._components(x), like(x, out)
        if out is not x:
            check_alike(x, out)
        shrunk = step_kernels_for(x.engine).group_shrink(rule, threshold, components, self._components(out))
        if isinstance(out, StackedArray):
            for leaf, part in zip(out.leaves, shrunk, strict=True):
                leaf.local_array = part
        elif not out.engine.mutable:
            out.local_array = out.engine.xp.stack(shrunk)
        return out

    def _components(self, x: Any) -> list[LocalArray]:
        """Return this rank's part of each component."""
        if isinstance(x, StackedArray):
            if len(x.leaves) != self._ndim or any(leaf.layout is not x.leaves[0].layout for leaf in x.leaves):
                raise LayoutError(f"L21 of {self._ndim} components needs that many parts of one layout, not {x.layout}")
            return [leaf.local_array for leaf in x.leaves]
        if not x.ndim or x.shape[0] != self._ndim or 0 in x.layout.split_axes:
            raise LayoutError(f"L21 of {self._ndim} components needs them along an unsplit first axis, not {x.layout}")
        return [x.local_array[number] for number in range(self._ndim)]


class Nuclear(ProxOperator):
    r"""The function :math:`\sigma \|X\|_* = \sigma \sum_i \lambda_i(X)`, where :math:`\lambda_i` are singular values.

    Parameters
    ----------
    dim : tuple of int
        Rows and columns of the matrix.
    sigma : float or array_like
        Not negative; or a weight for each singular value, the largest value first.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(X) = U\, T_{\tau \sigma}(\Lambda)\, V^H

    with the singular value decomposition :math:`X = U \Lambda V^H` and soft thresholding :math:`T` [Parikh and Boyd
    2014, 6.7]. The array, of the shape `dim` or ravelled, is replicated: every rank decomposes its copy, and sends no
    message. On devices the decomposition synchronises with the host, so it is not captured.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.diag([3.0, 1.0]).ravel())
    >>> float(collops.Nuclear((2, 2))(x)), collops.Nuclear((2, 2)).prox(x, 1.0).gather().reshape(2, 2)
    (4.0, array([[2., 0.],
           [0., 0.]]))
    """

    capturable = False

    def __init__(self, dim: tuple[int, int], sigma: Any = 1.0) -> None:
        if len(dim) != 2 or any(extent < 0 for extent in dim):
            raise InputError(f"dim must be the shape of a matrix, not {dim!r}")
        self._dim = (int(dim[0]), int(dim[1]))
        weights = [check_number("sigma", weight) for weight in sigma] if hasattr(sigma, "__len__") else None
        if weights is not None and len(weights) != min(self._dim):
            raise InputError(f"sigma must have {min(self._dim)} weights, not {len(weights)}")
        self._sigma = check_number("sigma", sigma) if weights is None else weights

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        xp = x.engine.xp
        U, values, Vh = xp.linalg.svd(self._matrix(x), full_matrices=False)
        agree_on_numbers(x, tau, *np.ravel(self._sigma))
        values = xp.maximum(values - tau * xp.asarray(self._sigma, dtype=values.dtype), 0)
        out = like(x, out)
        point = x.engine.matmul(U * values, Vh).reshape(out.local_array.shape)
        out.local_array = out.engine.put(out.local_array, ..., point)
        return out

    def _value(self, x: Array) -> Scalar:
        xp = x.engine.xp
        values = xp.linalg.svd(self._matrix(x), compute_uv=False)
        return (xp.asarray(self._sigma, dtype=values.dtype) * values).sum()

    def _matrix(self, x: Array) -> LocalArray:
        if len(x.leaves) != 1 or not x.layout.is_replicated or math.prod(self._dim) != x.size:
            raise LayoutError(f"Nuclear of a matrix {self._dim} needs it on every rank, but the layout is {x.layout}")
        return x.leaves[0].local_array.reshape(self._dim)


def lift_proximal(local: Any) -> ProxOperator:
    """Return the sum over all ranks of a function of each rank's part of an array.

    Parameters
    ----------
    local : object or ProxOperator
        Has ``prox(x, tau)`` or ``proxdual(x, tau)``, and ``local(x)`` for values, all for one-dimensional arrays; and
        ``grad(x)`` if ``hasgrad`` is true. It must act on each element separately, so that the result does not depend
        on the layout. Each rank may pass a different object for its elements. A proximal operator of collops is
        returned unchanged.

    Raises
    ------
    UnsupportedTypeError
        If `local` has neither ``prox`` nor ``proxdual``.

    Notes
    -----
    No messages; a value takes one scalar allreduce. A Boolean value means 0 (true) or infinity. The function is not
    captured, since `local` may synchronise with the device. For complex arrays its ``prox`` also gives the operator of
    the dual: ``proxdual`` of PyProximal's ``L1`` (0.13) is for real arrays, and wrong for others.

    Examples
    --------
    >>> import collops
    >>> import pyproximal
    >>> f = collops.lift_proximal(pyproximal.L1())
    >>> f.prox(collops.full(2, 3.0), 1.0).gather()
    array([2., 2.])
    """
    if isinstance(local, ProxOperator):
        return local
    if not callable(getattr(local, "prox", None)) and not callable(getattr(local, "proxdual", None)):
        raise UnsupportedTypeError(f"a proximal operator must have prox or proxdual, unlike {type_name(local)}")
    return LiftedProximal(local)


class LiftedProximal(ProxOperator):
    """The function that :func:`lift_proximal` returns."""

    capturable = False

    def __init__(self, local: Any) -> None:
        self._local = local
        self.has_gradient = bool(getattr(local, "hasgrad", False))

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        if not callable(getattr(self._local, "prox", None)):
            return super()._prox(x, tau, out)
        return _applied(lambda part: self._local.prox(part, tau), x, out)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        known, dual = (callable(getattr(self._local, name, None)) for name in ("prox", "proxdual"))
        if not dual or (known and any(leaf.dtype.kind == "c" for leaf in x.leaves)):
            return super()._proxdual(x, tau, out)
        return _applied(lambda part: self._local.proxdual(part, tau), x, out)

    def _grad(self, x: Array, out: Array | None) -> Array:
        return _applied(self._local.grad, x, out) if self.has_gradient else super()._grad(x, out)

    def _value(self, x: Array) -> Scalar:
        return total(x, [self._local_value(leaf.local_array) for leaf in x.leaves])

    def _local_value(self, part: LocalArray) -> Scalar:
        value = self._local(part.reshape(-1)) if part.size else 0.0
        if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":
            return 0.0 if value else float("inf")
        return value

    def __repr__(self) -> str:
        return f"<LiftedProximal of {type_name(self._local)}>"


def _factors(sigma: float | Array) -> tuple[float, Any]:
    """Return a factor as a pair: a number and ``None``, or 1 and an array."""
    return (1.0, sigma) if hasattr(sigma, "leaves") else (check_number("sigma", sigma), None)


def _ratio(size: float, x: Array) -> Scalar:
    """Return ``size / max(norm of x, size)``, bitwise equal on ranks with replicas; finite unless `x` is 0."""
    xp = x.engine.xp
    norm = xp.sqrt(dots(*consistent((x, x)))[0])
    return divide(size, xp.maximum(norm, size))


def _applied(function: Callable[[LocalArray], LocalArray], x: Array, out: Array | None) -> Array:
    """Return a function of each rank's part of each leaf, ravelled."""
    out = like(x, out)
    for leaf, target in zip(x.leaves, out.leaves, strict=True):
        part = leaf.local_array
        if part.size:
            point = function(part.reshape(-1)).reshape(part.shape)
            target.local_array = out.engine.put(target.local_array, ..., point)
    return out
