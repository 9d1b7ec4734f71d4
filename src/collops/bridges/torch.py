"""PyTorch: tensors in the memory of distributed arrays, automatic differentiation, and denoisers.

A tensor is one rank's part of a distributed array. Gradients follow the convention of :mod:`collops.jax`: a replicated
array is one value, and so is its gradient, equal on all ranks; the gradient of a split array is split like the array.
Derivatives are then applications of the adjoint operator, with its messages and no others. All ranks make the same
calls, ``backward`` included, with tensors that require gradients on all ranks or on none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from collops import (
    Communicator,
    DistributedArray,
    Halo,
    Layout,
    LinearOperator,
    ProxOperator,
    SolverResult,
    StackedArray,
    StackedLayout,
    bicgstab,
    cg,
    cgls,
    from_local,
    gmres,
    lsmr,
    lsqr,
    minres,
)
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import Array, LocalArray
from collops.extend.communication import collective_errors, communicator_or_world
from collops.extend.engines import engine
from collops.extend.operators import AnyLayout

__all__ = ["Denoiser", "apply", "from_torch", "solve", "to_torch"]

_LINEAR_SOLVERS = (bicgstab, cg, cgls, gmres, lsmr, lsqr, minres)
_OPTIONS_OF_ONE_SOLUTION = {"checkpoint", "every", "resume", "x0"}
_MAX_LEADING_AXES = 2  # images and channels


def from_torch(
    tensor: torch.Tensor, layout: Layout | None = None, *, comm: Communicator | None = None, axis: int = 0
) -> DistributedArray:
    """Make a distributed array from the ranks' tensors, which share its memory. Collective: two metadata messages.

    Parameters
    ----------
    tensor : torch.Tensor
        This rank's part, on the CPU (engine ``numpy``) or on a CUDA device (engine ``cupy``, by DLPack, ordered after
        the work on the current stream of PyTorch).
    layout, comm, axis
        As for :func:`collops.from_local`.

    Raises
    ------
    LayoutError
        On every rank, if the parts do not fit together or do not fit `layout`.
    UnsupportedTypeError
        On every rank, if one of them is not a dense tensor on the CPU or a CUDA device, has a dtype that NumPy lacks
        (such as bfloat16), is a lazy conjugate, or requires gradients.

    Examples
    --------
    >>> import torch
    >>> from collops.bridges.torch import from_torch
    >>> tensor = torch.zeros(3)
    >>> x = from_torch(tensor)
    >>> x += 1
    >>> tensor
    tensor([1., 1., 1.])
    """
    comm = communicator_or_world(comm)
    with collective_errors(comm):
        local_array = _local_array(tensor)
    return from_local(local_array, layout, comm=comm, axis=axis)


def to_torch(x: DistributedArray) -> torch.Tensor:
    """Return this rank's part of an array as a tensor, which shares its memory. No messages.

    Raises
    ------
    UnsupportedTypeError
        If `x` is not a distributed array of NumPy or CuPy, its memory is read-only, or PyTorch lacks its dtype or
        negative strides. Arrays of JAX are immutable.

    Examples
    --------
    >>> import collops
    >>> from collops.bridges.torch import to_torch
    >>> x = collops.zeros(2 * collops.world().size)
    >>> to_torch(x)[0] = 1
    >>> float(x.sum()) == collops.world().size
    True
    """
    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(f"to_torch takes a distributed array, not {type_name(x)}")
    array = x.local_array
    if not x.engine.mutable or not getattr(array.flags, "writeable", True):
        raise UnsupportedTypeError(
            f"a tensor can be written to, unlike this array of {x.engine.name}: copy it to a writable NumPy array"
        )
    try:
        return torch.from_numpy(array) if x.engine.memory == "host" else torch.from_dlpack(array)
    except (TypeError, ValueError, BufferError) as error:
        raise UnsupportedTypeError(f"an array of dtype {x.dtype} cannot become a tensor: {error}") from None


def apply(op: LinearOperator, x: torch.Tensor | Sequence[torch.Tensor]) -> Any:
    r"""Apply an operator to this rank's tensor; its derivatives apply the adjoint. Collective.

    Parameters
    ----------
    op : LinearOperator
        Derivatives of any order, in reverse and forward mode, apply it or its adjoint.
    x : torch.Tensor, or sequence of torch.Tensor for a stacked domain
        This rank's part, of shape ``op.domain.local_shape(rank)``; for a stacked array its leaves in order. A tensor
        that is not contiguous is copied.

    Returns
    -------
    torch.Tensor, or tuple of torch.Tensor for a stacked range
        This rank's part of the result.

    Raises
    ------
    LayoutError
        If a shape or the number of tensors does not fit the domain.
    UnsupportedTypeError
        If an argument is not an operator or a dense tensor, or NumPy lacks its dtype.

    Notes
    -----
    The gradient of a real function of :math:`y = A x` is :math:`A^H \bar{y}`, for complex numbers in PyTorch's
    convention, and its real part if `x` is real. If the result is replicated, ``backward`` expects equal gradients on
    all ranks. To combine a replicated tensor with data that differ between ranks, apply
    ``collops.VStack([pylops.Identity(n)], comm)``, whose result is the same vector on each rank, and whose adjoint sums
    the gradients of the ranks.

    Examples
    --------
    >>> import torch
    >>> import collops
    >>> from collops.bridges.torch import apply
    >>> op = collops.Diagonal(collops.full(collops.world().size, 3.0))
    >>> x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    >>> apply(op, x).square().sum().backward()
    >>> x.grad
    tensor([18.], dtype=torch.float64)
    """
    return _applied(op, x)


def solve(
    solver: Callable[..., SolverResult], op: LinearOperator, y: torch.Tensor | Sequence[torch.Tensor], **options: Any
) -> Any:
    r"""Solve a linear system or least-squares problem; derivatives take one more solution each. Collective.

    Parameters
    ----------
    solver : function
        One of ``bicgstab``, ``cg``, ``cgls``, ``gmres``, ``lsmr``, ``lsqr`` and ``minres`` of collops.
    op : LinearOperator
    y : torch.Tensor, or sequence of torch.Tensor for a stacked range
        This rank's part of the data; see :func:`apply`.
    **options
        Of the solver, such as `niter`, `damp` and tolerances, also for the derivatives. `damp` may be a real tensor of
        one element, equal on all ranks, with a gradient. A preconditioner `M` needs an operator with one layout on both
        sides. `x0` and checkpoints belong to one solution and raise an error.

    Returns
    -------
    torch.Tensor, or tuple of torch.Tensor for a stacked domain
        This rank's part of the solution.

    Raises
    ------
    InputError
        If the solver or an option is not supported, or, also in ``backward``, if the solver has not converged: the
        solution and its derivative would belong to different problems.
    UnsupportedTypeError, LayoutError
        As for :func:`apply`.

    Notes
    -----
    The solution is a linear function of the data. For least squares it is
    :math:`x = (A^H A + \epsilon^2 I)^{-1} A^H y`, and the gradient is the solution of the problem with the adjoint,
    :math:`\bar{y} = (A A^H + \epsilon^2 I)^{-1} A \bar{x}`; for square systems :math:`\bar{y} = A^{-H} \bar{x}`. The
    tolerances of the solver bound the error of both.

    The gradient of the damping is :math:`-2 \operatorname{Re} \langle \bar{y}, y - A x \rangle / \epsilon`, and for
    ``cg`` :math:`-\operatorname{Re} \langle \bar{y}, x \rangle`. It takes one more product and one more allreduce, and
    multiplies the errors of both solutions by :math:`1/\epsilon`. A solution whose damping requires gradients has first
    derivatives only, in reverse mode.

    Examples
    --------
    >>> import torch
    >>> import collops
    >>> from collops.bridges.torch import solve
    >>> op = collops.Diagonal(collops.full(collops.world().size, 2.0))
    >>> y = torch.ones(1, dtype=torch.float64, requires_grad=True)
    >>> solve(collops.cg, op, y, rtol=1e-12).sum().backward()
    >>> y.grad
    tensor([0.5000], dtype=torch.float64)
    """
    damp: Any = options.get("damp")
    if not isinstance(damp, torch.Tensor):
        return apply(_Solution(solver, op, options), y)
    if damp.numel() != 1 or not damp.is_floating_point():
        raise InputError(f"damp must have one real number, not the shape {tuple(damp.shape)} of {damp.dtype}")
    solution = _Solution(solver, op, {**options, "damp": damp.item()})
    return _applied(solution, y, damp if damp.requires_grad else None)


class Denoiser(ProxOperator):
    """A network on images, applied to each rank's tile, as a proximal operator of plug-and-play methods.

    Each rank applies the network to its block and a halo of half of the receptive field, which ends at the boundary of
    the image. The result is, up to rounding, the network's result for the whole image, if a value depends on nothing
    outside its receptive field and if shifting the image shifts the result: convolutions with padding, and no pooling,
    strides, attention or statistics of the image. The network's padding acts at the boundary of the image only.

    Parameters
    ----------
    module : torch.nn.Module
        Takes and returns a tensor of one shape: NCL for one spatial axis, NCHW for two, NCDHW for three. Its floating
        parameters have the dtype of the images. It runs in its current mode (``module.eval()``) and on the device of
        the images.
    layout : Layout
        Layout of the images: ``(channels, *space)`` or ``(images, channels, *space)`` with whole channels, or by
        default only the spatial axes of one image with one channel.
    receptive_field : int or sequence of int
        Number of elements, in each spatial direction or per spatial axis, that a value depends on: 1 plus k - 1 for
        each convolution with a kernel of k elements.
    spatial : int, optional
        Number of spatial axes, the last ones; all by default.
    comm : Communicator, optional
        The ranks; the world by default.

    Raises
    ------
    InputError
        If a number is invalid.
    LayoutError
        If `layout` does not fit, or its axis of channels is split.
    UnsupportedTypeError
        If `module` is not a module of PyTorch.

    Notes
    -----
    One halo exchange for each application. The step size `tau` of :meth:`prox` does not reach the network: choose a
    network for the level of noise. A network has no value as a function.

    Examples
    --------
    >>> import torch
    >>> import collops
    >>> from collops.bridges.torch import Denoiser
    >>> smooth = torch.nn.Conv1d(1, 1, 3, padding=1, bias=False, dtype=torch.float64)
    >>> _ = torch.nn.init.constant_(smooth.weight, 1 / 3)
    >>> x = collops.ones(4)
    >>> Denoiser(smooth, x.layout, 3).prox(x, 1.0).gather().round(3)
    array([0.667, 1.   , 1.   , 0.667])
    """

    capturable = False

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        receptive_field: int | Sequence[int],
        *,
        spatial: int | None = None,
        comm: Communicator | None = None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise UnsupportedTypeError(f"a denoiser needs a torch.nn.Module, not {type_name(module)}")
        if not isinstance(layout, Layout):
            raise LayoutError(f"a denoiser needs the layout of the images, not {type_name(layout)}")
        spatial = layout.ndim if spatial is None else spatial
        leading = layout.ndim - spatial
        if not 1 <= spatial <= layout.ndim or leading > _MAX_LEADING_AXES:
            raise InputError(f"spatial={spatial}: images of {layout.ndim} axes have images, channels and then space")
        if leading and leading - 1 in layout.split_axes:
            raise LayoutError(f"the channels, axis {leading - 1}, must be whole on each rank, not split: {layout}")
        fields = (receptive_field,) * spatial if isinstance(receptive_field, int) else tuple(receptive_field)
        if len(fields) != spatial or not all(isinstance(field, int) and field > 0 for field in fields):
            raise InputError(f"receptive_field={receptive_field!r} must have one positive number per spatial axis")
        self.module, self.layout = module, layout
        widths = [0] * leading + [field // 2 for field in fields]
        # Booleans are exact in every dtype: the halo has the dtype of the images.
        self._halo = Halo(layout, widths, comm=comm, dtype=bool)
        block = layout.block(self._halo.comm.rank)
        before = [min(width, start) for width, start in zip(widths, block.offset, strict=True)]
        ends = zip(widths, block.slices, layout.shape, strict=True)
        after = [min(width, size - part.stop) for width, part, size in ends]
        sides = list(zip(widths, before, block.shape, after, strict=True))
        self._inside = tuple(slice(width - low, width + n + high) for width, low, n, high in sides)  # of the image
        self._block = tuple(slice(low, low + n) for _, low, n, _ in sides)
        self._batch = (1,) * (_MAX_LEADING_AXES - leading)

    def denoise(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network to this rank's tensor, with derivatives. Collective.

        The gradient of a parameter is the sum over this rank's values only: add the gradients of all ranks, for example
        by ``comm.allreduce``, before a step of an optimiser.

        Raises
        ------
        LayoutError
            If a shape does not fit, or the network returns another shape than it takes.
        UnsupportedTypeError
            If the parameters of the network have another dtype.
        """
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), x.dtype)
        if dtype != x.dtype:
            raise UnsupportedTypeError(f"the network has parameters of {dtype}, the image is of {x.dtype}: convert one")
        tile = apply(self._halo, x)[self._inside]
        if tile[self._block].numel() == 0:  # nothing to denoise, and the network may need a larger image
            return tile[self._block]
        batch = tile.reshape(self._batch + tuple(tile.shape))
        result = self.module(batch)
        if result.shape != batch.shape:
            raise LayoutError(
                f"a network for denoising must keep the shape {tuple(batch.shape)}, not return {tuple(result.shape)}"
            )
        return result.reshape(tile.shape)[self._block]

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        if not isinstance(x, DistributedArray) or x.layout is not self.layout or x.comm is not self._halo.comm:
            raise LayoutError(f"the denoiser is for arrays of its communicator in the layout {self.layout}, not {x!r}")
        with torch.no_grad():
            point = _local_array(self.denoise(to_torch(x)).contiguous())
        if out is None:
            return DistributedArray(x.layout, x.comm, point)
        out.local_array = out.engine.put(out.local_array, ..., point)
        return out


def _applied(op: LinearOperator, x: torch.Tensor | Sequence[torch.Tensor], damp: torch.Tensor | None = None) -> Any:
    """Implement :func:`apply`, and for a solution that has `damp` also the derivative of the damping."""
    if not isinstance(op, LinearOperator):
        raise UnsupportedTypeError(f"apply takes an operator of collops, not {type_name(op)}")
    tensors = tuple(x) if isinstance(x, Sequence) else (x,)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedTypeError(f"apply takes tensors of PyTorch, not {type_name(tensor)}")
    expected = 1 if isinstance(op.domain, Layout) else len(op.domain.leaves)
    if len(tensors) != expected:
        raise LayoutError(f"{type(op).__name__} takes {expected} tensors, one for each leaf, not {len(tensors)}")
    results = _Application.apply(op, *tensors) if damp is None else _DampedSolution.apply(op, damp, *tensors)
    return results if isinstance(op.range, StackedLayout) else results[0]


class _Application(torch.autograd.Function):
    """An operator and its derivatives, which are applications as well; operands and results are the leaves."""

    @staticmethod
    def forward(ctx: Any, op: LinearOperator, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.op, ctx.dtypes = op, [tensor.dtype for tensor in tensors]
        with _current_stream(tensors[0]):
            result = op.forward(_array(op.domain, op.comm, map(_plain_array, tensors)))
            return tuple(to_torch(leaf) for leaf in result.leaves)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *_of_dtypes(_Application.apply(ctx.op.H, *gradients), ctx.dtypes)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[torch.Tensor, ...]:
        return _Application.apply(ctx.op, *tangents[1:])  # the first is the operator's


class _DampedSolution(torch.autograd.Function):
    """A solution and its derivatives with respect to the data and the damping."""

    @staticmethod
    def forward(ctx: Any, solution: _Solution, damp: torch.Tensor, *data: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = _Application.forward(ctx, solution, *data)
        ctx.save_for_backward(damp, *data, *results)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        damp, *tensors = ctx.saved_tensors
        ybar = _Application.apply(ctx.op.H, *gradients)
        with _current_stream(ybar[0]):
            arrays = map(_plain_array, (*tensors, *ybar))
            y, x, z = (_array(layout, ctx.op.comm, arrays) for layout in (ctx.op.domain, ctx.op.range, ctx.op.domain))
            derivative = ctx.op.derivative_of_damping(y, x, z)
        of_damp = torch.as_tensor(derivative, dtype=damp.dtype, device=damp.device).reshape(damp.shape)
        return None, of_damp, *_of_dtypes(ybar, ctx.dtypes)


class _Solution(LinearOperator):
    """The map from data to the solution of a solver; the adjoint solves with the adjoint operator."""

    capturable = False

    def __init__(self, solver: Callable[..., SolverResult], op: LinearOperator, options: dict[str, Any]) -> None:
        if not isinstance(op, LinearOperator):
            raise UnsupportedTypeError(f"solve takes an operator of collops, not {type_name(op)}")
        if solver not in _LINEAR_SOLVERS:
            names = ", ".join(known.__name__ for known in _LINEAR_SOLVERS)
            raise InputError(f"solve takes a solver of linear problems, one of {names}, not {solver!r}")
        if unsupported := sorted(_OPTIONS_OF_ONE_SOLUTION & options.keys()):
            raise InputError(f"solve also solves for derivatives: leave out {', '.join(unsupported)}")
        if options.get("M") is not None and op.domain is not op.range:
            raise LayoutError("solve takes a preconditioner only if the operator has one layout on both sides")
        super().__init__(op.range, op.domain, op.dtype, op.comm)
        self.clinear = op.clinear
        self._solver, self._operator, self._options = solver, op, options

    def derivative_of_damping(self, y: Array, x: Array, ybar: Array) -> float:
        """Return the derivative of a function of the solution `x` that has the gradient `ybar` in the data `y`."""
        damp = self._options["damp"]
        if self._solver is cg:
            return -float(ybar.vdot(x).real)
        return -2 * float(ybar.vdot(y - self._operator @ x).real) / damp if damp else 0.0

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._solved(self._operator, x, self._options)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        M = self._options.get("M")
        return self._solved(self._operator.H, y, self._options if M is None else {**self._options, "M": M.H})

    def _solved(self, op: LinearOperator, y: Array, options: dict[str, Any]) -> Array:
        result = self._solver(op, y, **options)
        if not result.status.successful:
            raise InputError(
                f"{self._solver.__name__} stopped after {result.iterations} iterations without converging, so that the "
                f"solution has no derivative: {result.status}"
            )
        return result.x


def _array(layout: AnyLayout, comm: Communicator, arrays: Iterator[LocalArray]) -> Array:
    """Return the array with these local arrays of its leaves."""
    if isinstance(layout, StackedLayout):
        return StackedArray([_array(part, comm, arrays) for part in layout])
    return DistributedArray(layout, comm, next(arrays))


def _of_dtypes(gradients: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    """Return gradients in the dtypes of their tensors; the real part for a real tensor."""
    return [
        (gradient if dtype.is_complex or not gradient.is_complex() else gradient.real).to(dtype)
        for gradient, dtype in zip(gradients, dtypes, strict=True)
    ]


def _plain_array(tensor: torch.Tensor) -> LocalArray:
    """Return the array of the values of a tensor that may require gradients, be a lazy conjugate or not contiguous."""
    return _local_array(tensor.detach().resolve_conj().resolve_neg().contiguous())


def _local_array(tensor: torch.Tensor) -> LocalArray:
    """Return the array of NumPy or CuPy that shares the memory of a tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedTypeError(f"expected a tensor of PyTorch, not {type_name(tensor)}")
    if tensor.requires_grad:
        raise UnsupportedTypeError(
            "the tensor requires gradients, which distributed arrays do not record: pass tensor.detach(), or use apply"
        )
    if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedTypeError(
            f"a tensor must be dense, on the CPU or a CUDA device, not {tensor.layout} on {tensor.device}"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedTypeError("the tensor is a lazy conjugate: pass tensor.resolve_conj().resolve_neg()")
    try:
        return engine("cupy").xp.from_dlpack(tensor) if tensor.is_cuda else tensor.numpy()
    except (TypeError, ValueError, BufferError) as error:
        raise UnsupportedTypeError(f"a tensor of {tensor.dtype} cannot become an array: {error}") from None


def _current_stream(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Make PyTorch's current stream the current stream of CuPy, on which collops works."""
    if not tensor.is_cuda:
        return nullcontext()
    stream = torch.cuda.current_stream(tensor.device)
    return engine("cupy").xp.cuda.ExternalStream(stream.cuda_stream, tensor.device.index)
