"""The posterior of a linear inverse problem with Gaussian noise and a Gaussian prior."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, random
from collops.array.random_numbers import child_seed
from collops.errors import InputError, LayoutError
from collops.operators import Columns, Diagonal, LinearOperator
from collops.operators.base import AnyLayout
from collops.solvers import SolverResult, block_cg, cg
from collops.solvers.problem import check_array, check_count, check_number, check_operator
from collops.solvers.state import Scalar
from collops.uncertainty.probing import Estimate, estimate_of, mean_of_columns, random_signs


class GaussianPosterior:
    r"""The posterior of :math:`y = A x + e`, with Gaussian noise `e` and a Gaussian prior of `x` [Tarantola 2005].

    Its covariance is :math:`(A^H \Sigma^{-1} A + L^H L)^{-1}`, where the noise has the covariance :math:`\Sigma`, and
    :math:`L^H L` is the inverse of the covariance of the prior.

    Parameters
    ----------
    A : LinearOperator
        From the model to the data.
    noise : float or DistributedArray or StackedArray
        Standard deviation of the noise, for all data or for each element, in the layout of the range of `A`. For
        complex noise, real and imaginary part each have half the variance.
    prior : float or LinearOperator
        Standard deviation of independent elements of the model, or the operator `L`, such as a stack of derivatives and
        a multiple of the identity.

    Attributes
    ----------
    hessian : LinearOperator
        :math:`A^H \Sigma^{-1} A`, plus :math:`L^H L` if `prior` is an operator.
    damp : float
        Multiple of the identity to add to `hessian` if `prior` is a standard deviation, else 0.

    Raises
    ------
    InputError
        If a standard deviation is not positive.
    LayoutError
        If `noise` is not in the range of `A`, or `prior` has another domain.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.uncertainty import GaussianPosterior
    >>> A = collops.Diagonal(np.array([0.0, 1.0, 2.0]))
    >>> posterior = GaussianPosterior(A, noise=0.5, prior=1.0)
    >>> posterior.mean(collops.ones(3)).x.gather().round(6)
    array([0.      , 0.8     , 0.470588])
    >>> posterior.variance(2).value.gather().round(6)  # 1 / (1 + 4 a^2)
    array([1.      , 0.2     , 0.058824])
    """

    def __init__(self, A: LinearOperator, *, noise: float | Array, prior: float | LinearOperator) -> None:
        check_operator("A", A)
        if isinstance(noise, Array):
            check_array("noise", noise, A.range)
            if not bool((noise > 0).all()):
                raise InputError("the standard deviations of the noise must be positive")
            self._weight: float | Array = 1.0 / noise
            self._whitened = Diagonal(self._weight) @ A
        else:
            self._weight = 1.0 / _positive("noise", noise)
            self._whitened = self._weight * A
        self.hessian = self._whitened.H @ self._whitened
        self._prior, self.damp = None, 0.0
        if isinstance(prior, LinearOperator):
            if prior.domain is not A.domain:
                raise LayoutError(f"prior must have the domain of A, {A.domain}, not {prior!r}")
            self._prior = prior
            self.hessian = self.hessian + prior.H @ prior
        else:
            self.damp = _positive("prior", prior) ** -2
        self._deviation = self.damp**-0.5 if self.damp else 0.0

    def mean(self, y: Array, *, niter: int = 100, rtol: float = 1e-5, **options: Any) -> SolverResult:
        """Compute the mean, which is also the most probable model. Collective.

        Parameters
        ----------
        y : DistributedArray or StackedArray
            The data.
        niter, rtol
            As for :func:`collops.solvers.block_cg`.
        **options
            Other options of :func:`collops.cg`, such as the preconditioner `M` of the :attr:`hessian`.
        """
        check_array("y", y, self._whitened.range)
        right = self._whitened.H @ (self._weight * y)
        return cg(self.hessian, right, niter=niter, damp=self.damp, rtol=rtol, **options)

    def samples(
        self,
        count: int,
        *,
        niter: int = 100,
        rtol: float = 1e-3,
        seed: int = 0,
        dtype: DTypeLike = "float64",
        engine: str | None = None,
        **options: Any,
    ) -> SolverResult:
        """Draw independent samples of the difference between model and mean. Collective.

        Each sample is the solution for random data and a random prior [Bardsley et al. 2014]; for linear problems it is
        a sample of the posterior. It does not depend on the data. Add the :meth:`mean` for samples of the model.

        Parameters
        ----------
        count : int
            Number of samples.
        niter, rtol
            As for :func:`collops.solvers.block_cg`, which computes all samples together.
        seed : int
            Seed of the random numbers, which do not depend on the number of ranks, nor on `count`: the first ten of
            twenty samples have the same random numbers as ten samples.
        dtype : dtype
            Element type of the samples; complex if the operator is complex.
        engine : str, optional
            Engine of the samples.
        **options
            Other options of :func:`collops.solvers.block_cg`.

        Returns
        -------
        SolverResult
            Its ``x`` is a block of samples; see :class:`collops.operators.Columns`. The mean of their squares is the
            variance, with a relative standard error of the root of 2 / count.

        Notes
        -----
        It applies `A` and its adjoint once to each sample in every iteration, and once more at the start; to batches of
        64 samples if :class:`collops.operators.Columns` supports it.

        If the prior is a standard deviation, samples start from samples of the prior, and iterations add the
        information of the data: variances are overestimated, not underestimated, before convergence. If it is an
        operator, samples start at zero; then choose `rtol` so small that the variances do not change.
        """
        A, prior = self._whitened, self._prior
        if A.dtype.kind == "c" or (prior is not None and prior.dtype.kind == "c"):
            dtype = np.result_type(dtype, np.complex64)

        def noise(layout: AnyLayout, number: int) -> Array:
            values = random(layout, seed=child_seed(seed, number), comm=A.comm, dtype=dtype, engine=engine)
            return values * 0.5**0.5 if values.dtype.kind == "c" else values

        starts, rights, size = [], [], (prior or A.H).range
        width = Columns(A, check_count("count", count, smallest=1)).width
        for begin in range(0, count, width):
            numbers = range(begin, min(begin + width, count))
            of_data = Columns.join([noise(A.range, 2 * number) for number in numbers])
            of_prior = Columns.join([noise(size, 2 * number + 1) for number in numbers])
            forward, back = Columns(A, len(numbers)), Columns(A.H, len(numbers))
            if prior is None:
                start = self._deviation * of_prior
                starts += Columns.split(start)
                right = back @ (of_data - forward @ start)
            else:
                right = back @ of_data + Columns(prior.H, len(numbers)) @ of_prior
            rights += Columns.split(right)
        result = block_cg(self.hessian, rights, niter=niter, damp=self.damp, rtol=rtol, **options)
        return dataclasses.replace(result, x=result.x + Columns.join(starts)) if starts else result

    def variance(
        self,
        probes: int = 32,
        *,
        niter: int = 100,
        rtol: float = 1e-3,
        seed: int = 0,
        dtype: DTypeLike = "float64",
        engine: str | None = None,
        **options: Any,
    ) -> Estimate:
        """Estimate the variance of each element of the model by probing. Collective.

        It solves for random signs, like :func:`probe_diagonal` for the covariance. The error depends on the
        correlations between elements: it is smaller than with equally many samples if the squared correlations of an
        element with all others add up to less than 2; if it is large, estimates may be negative.

        Parameters
        ----------
        probes : int
            Number of solutions, at least 2.
        niter, rtol, seed, dtype, engine, **options
            As for :meth:`samples`.

        Returns
        -------
        named tuple
            The variance as ``value`` and its standard error as ``error``; both real.
        """
        count = check_count("probes", probes, smallest=2)
        dtype = np.result_type(dtype, np.complex64) if self.hessian.dtype.kind == "c" else dtype
        signs = [random_signs(self.hessian, seed, number, dtype, engine) for number in range(count)]
        starts = [self._deviation**2 * sign for sign in signs]
        solutions = block_cg(self.hessian, signs, starts, niter=niter, damp=self.damp, rtol=rtol, **options).x
        products = (solutions * Columns.join(signs)).real
        return estimate_of(mean_of_columns(products), mean_of_columns(products**2), count)


def _positive(name: str, value: Scalar) -> float:
    number = check_number(name, value)
    if number == 0:
        raise InputError(f"{name} must be positive, not {value!r}")
    return number
