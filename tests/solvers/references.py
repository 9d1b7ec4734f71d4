"""Sparse and proximal methods of one process, written down as in the textbook, to compare with."""

from __future__ import annotations

import numpy as np


def soft(u: np.ndarray, t: float) -> np.ndarray:
    size = np.abs(u)
    return u * np.maximum(1 - t / np.where(size == 0, 1, size), 0)


def lengths(x: np.ndarray, components: int) -> np.ndarray:
    """Lengths of vectors whose components are rows."""
    return np.sqrt((np.abs(x.reshape(components, -1)) ** 2).sum(axis=0))


class Function:
    """A function by its value and proximal point; the dual one by Moreau's identity."""

    def __init__(self, value, prox, grad=None) -> None:
        self.value, self.prox, self.grad = value, prox, grad

    def proxdual(self, x, tau):
        return x - tau * self.prox(x / tau, 1 / tau)


def l1(sigma: float) -> Function:
    return Function(lambda x: sigma * np.abs(x).sum(), lambda x, tau: soft(x, tau * sigma))


def misfit(matrix: np.ndarray, data: np.ndarray, sigma: float = 1.0) -> Function:
    adjoint = matrix.conj().T

    def prox(x, tau):
        normal = np.eye(len(x)) + tau * sigma * adjoint @ matrix
        return np.linalg.solve(normal, x + tau * sigma * adjoint @ data)

    return Function(
        lambda x: 0.5 * sigma * np.linalg.norm(matrix @ x - data) ** 2,
        prox,
        lambda x: sigma * adjoint @ (matrix @ x - data),
    )


def proximal_gradient(f, g, x, tau, niter, *, epsg=1.0, eta=1.0, acceleration=None, beta=None):
    """All iterates; with beta, the step size is searched for."""
    ahead, t, iterates = x.copy(), 1.0, []
    weights = np.broadcast_to(epsg, niter)
    for k in range(niter):
        while True:
            gradient = f.grad(ahead)
            point = g.prox(ahead - tau * gradient, weights[k] * tau)
            step = point - ahead
            model = f.value(ahead) + np.vdot(gradient, step).real + np.linalg.norm(step) ** 2 / (2 * tau)
            if beta is None or f.value(point) <= model:
                break
            tau *= beta
        before, x = x, ahead + eta * (point - ahead)
        omega = 0.0
        if acceleration == "vandenberghe":
            omega = k / (k + 3)
        elif acceleration == "fista":
            t, t_before = (1 + np.sqrt(1 + 4 * t**2)) / 2, t
            omega = (t_before - 1) / t
        ahead = x + omega * (x - before)
        iterates.append(x)
    return iterates


def admm(f, g, x, z, tau, niter, gfirst=False):
    u, iterates = np.zeros_like(x), []
    for _ in range(niter):
        if gfirst:
            z = g.prox(x + u, tau)
        x = f.prox(z - u, tau)
        if not gfirst:
            z = g.prox(x + u, tau)
        u = u + x - z
        iterates.append((x, z))
    return iterates


def linearized_admm(f, g, matrix, x, z, tau, mu, niter):
    u, iterates = np.zeros_like(z), []
    for _ in range(niter):
        x = f.prox(x - mu / tau * matrix.conj().T @ (matrix @ x - z + u), mu)
        z = g.prox(matrix @ x + u, tau)
        u = u + matrix @ x - z
        iterates.append((x, z))
    return iterates


def admm_l2(g, misfit_matrix, data, matrix, x, z, tau, niter, gfirst=False):
    u, iterates = np.zeros_like(z), []
    adjoint, back = misfit_matrix.conj().T, matrix.conj().T
    for _ in range(niter):
        if gfirst:
            z = g.prox(matrix @ x + u, tau)
        x = np.linalg.solve(adjoint @ misfit_matrix + back @ matrix / tau, adjoint @ data + back @ (z - u) / tau)
        if not gfirst:
            z = g.prox(matrix @ x + u, tau)
        u = u + matrix @ x - z
        iterates.append((x, z))
    return iterates


def primal_dual(f, g, matrix, x, y, tau, mu, niter, *, theta=1.0, gfirst=True, linear=0.0):
    ahead, iterates = x, []
    taus, mus = np.broadcast_to(tau, niter), np.broadcast_to(mu, niter)
    for tau, mu in zip(taus, mus, strict=True):
        if gfirst:
            y = g.proxdual(y + mu * (matrix @ ahead), mu)
        before, x = x, f.prox(x - tau * (matrix.conj().T @ y + linear), tau)
        ahead = x + theta * (x - before)
        if not gfirst:
            y = g.proxdual(y + mu * (matrix @ ahead), mu)
        iterates.append((x, y))
    return iterates


def lasso(A, b, weight):
    """The minimum of a misfit and the 1-norm times a weight, for real matrices, by coordinate descent."""
    x = np.zeros(A.shape[1])
    for _ in range(2000):
        before = x.copy()
        for n, column in enumerate(A.T):
            slope = column @ (b - A @ x) + x[n] * (column @ column)
            x[n] = np.sign(slope) * max(abs(slope) - weight, 0) / (column @ column)
        if np.array_equal(x, before):
            break
    return x
