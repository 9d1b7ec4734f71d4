"""The bridge to PyTorch: shared memory, derivatives against finite differences, denoisers against whole images."""

from __future__ import annotations

import importlib

import numpy as np
import pylops
import pytest
import scipy.linalg

import collops
from collops import Layout, profile
from collops.errors import InputError, LayoutError, UnsupportedTypeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
bridge = importlib.import_module("collops.bridges.torch")


class Part(torch.autograd.Function):
    """This rank's part of a tensor that all ranks have, with the gradient of all parts on all ranks."""

    @staticmethod
    def forward(ctx, whole, layout, comm):
        ctx.place = layout, comm
        return whole[layout.slices(comm.rank)].clone()

    @staticmethod
    def backward(ctx, gradient):
        return Whole.apply(gradient, *ctx.place), None, None


class Whole(torch.autograd.Function):
    """The tensor with these parts, on all ranks; its gradient is one value that all ranks have."""

    @staticmethod
    def forward(ctx, part, layout, comm):
        ctx.place = layout, comm
        x = collops.DistributedArray(layout, comm, part.detach().resolve_conj().contiguous().numpy())
        return torch.from_numpy(x.gather())

    @staticmethod
    def backward(ctx, gradient):
        return Part.apply(gradient, *ctx.place), None, None


def on_whole(function, domain, range, comm):
    """Return a function of tensors that all ranks have, for gradcheck, which must do the same on all ranks."""
    torch.manual_seed(0)  # of the gradients that it draws
    return lambda whole: Whole.apply(function(Part.apply(whole, domain, comm)), range, comm)


def whole_tensor(layout, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layout.shape, dtype=dtype, generator=generator, requires_grad=True)


def matrix(comm, rows, columns, dtype="float64"):
    """This rank's matrix; ranks have different numbers of rows."""
    rng = np.random.default_rng(comm.rank)
    values = rng.normal(size=(rows + comm.rank % 2, columns))
    return values.astype(dtype) + (1j * rng.normal(size=values.shape) if np.dtype(dtype).kind == "c" else 0)


def normal(comm):
    """A Hermitian positive definite operator on a split vector."""
    size = 2 * comm.size + 1
    D = collops.FirstDerivative(size, comm=comm)
    return D.H @ D + collops.Diagonal(collops.from_global(np.arange(1.0, size + 1), comm=comm))


OPERATORS = {
    "exchange": lambda comm: collops.FirstDerivative(2 * comm.size + 2, comm=comm),
    "replicated domain": lambda comm: collops.VStack([matrix(comm, 2, 3)], comm),
    "replicated range": lambda comm: collops.VStack([matrix(comm, 2, 3)], comm).H,
    "complex": lambda comm: collops.VStack([matrix(comm, 1, 3, "complex128")], comm),
    "complex and replicated": lambda comm: collops.VStack([matrix(comm, 1, 3, "complex128")], comm).H,
    "real only": lambda comm: collops.FFT((5, comm.size), axis=0, real=True, comm=comm),
}


# Memory


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float16, torch.int32, torch.bool])
def test_tensor_and_array_share_memory(comm, dtype):
    tensor = torch.ones(2 + comm.rank, 3, dtype=dtype)
    x = bridge.from_torch(tensor, comm=comm)
    assert x.shape == (sum(range(2, 2 + comm.size)), 3) and tensor.numpy().dtype == x.dtype
    x.local_array[0, 1] = 0
    again = bridge.to_torch(x)
    again[-1, 2] = 0
    assert tensor.dtype == again.dtype and tensor.data_ptr() == again.data_ptr() == x.local_array.ctypes.data
    assert tensor[0, 1] == 0 and x.local_array[-1, 2] == 0 and tensor.sum() == tensor.numel() - 2


def test_an_array_in_a_layout(comm):
    layout = Layout.split((4, 2 * comm.size + 1), comm.size, axis=1)
    whole = np.arange(layout.size, dtype=float).reshape(layout.shape)
    x = bridge.from_torch(torch.from_numpy(whole)[layout.slices(comm.rank)], layout, comm=comm)
    assert np.array_equal(x.gather(), whole) and np.shares_memory(x.local_array, whole)
    assert bridge.to_torch(x).stride() == (layout.shape[1], 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(2, requires_grad=True), "requires gradients"),
        (lambda: torch.ones(2, dtype=torch.bfloat16), "bfloat16 cannot become an array"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "lazy conjugate"),
        (lambda: torch.ones(2).to_sparse(), "must be dense"),
        (lambda: torch.ones(2, device="meta"), "on meta"),
        (lambda: np.ones(2), "numpy.ndarray"),
    ],
)
def test_a_tensor_that_is_refused_on_one_rank_is_refused_on_all(comm, make, message):
    tensor = make() if comm.rank == comm.size - 1 else torch.ones(2)
    with pytest.raises(UnsupportedTypeError, match=message):
        bridge.from_torch(tensor, comm=comm)


def test_arrays_without_a_tensor(comm):
    wide = np.ones(2, np.longdouble)
    if wide.dtype.itemsize > 8:
        with pytest.raises(UnsupportedTypeError, match=r"float128 cannot become a tensor|longdouble"):
            bridge.to_torch(collops.from_local(wide, comm=comm))
    with pytest.raises(UnsupportedTypeError, match="negative"):
        bridge.to_torch(collops.from_local(np.ones(2)[::-1], comm=comm))
    fixed = np.ones(2)
    fixed.flags.writeable = False
    with pytest.raises(UnsupportedTypeError, match="can be written to"):
        bridge.to_torch(collops.from_local(fixed, comm=comm))
    with pytest.raises(UnsupportedTypeError, match="numpy"):
        bridge.to_torch(fixed)


# Derivatives


@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives_of_an_operator(comm, name):
    op = OPERATORS[name](comm)
    dtype = torch.complex128 if name.startswith("complex") else torch.float64
    function = on_whole(lambda x: bridge.apply(op, x), op.domain, op.range, comm)
    x = whole_tensor(op.domain, dtype)
    assert np.allclose(function(x).detach(), (op @ collops.from_global(x.detach().numpy(), op.domain)).gather())
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x, fast_mode=True)


def test_gradient_of_a_real_tensor_with_a_complex_operator(comm):
    op = OPERATORS["complex"](comm)
    function = on_whole(lambda x: bridge.apply(op, x), op.domain, op.range, comm)
    assert torch.autograd.gradcheck(function, whole_tensor(op.domain))
    x = Part.apply(whole_tensor(op.domain), op.domain, comm).float().detach().requires_grad_()
    bridge.apply(op, x).abs().square().sum().backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch uses it
def test_forward_mode(comm):
    op = OPERATORS["exchange"](comm)
    x, direction = (whole_tensor(op.domain, seed=seed).detach()[op.domain.slices(comm.rank)] for seed in (0, 1))
    with torch.autograd.forward_ad.dual_level():
        dual = bridge.apply(op, torch.autograd.forward_ad.make_dual(x, direction))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert torch.equal(tangent, bridge.apply(op, direction))


def test_stacked_arrays(comm):
    """The squared norm of the gradient of an image has the gradient 2 D^H D x."""
    op = collops.Gradient((2 * comm.size + 1, 3), comm=comm)
    x = collops.random(op.domain, seed=1, comm=comm)
    tensor = bridge.to_torch(x.copy()).requires_grad_()
    first, second = bridge.apply(op, tensor)
    (first.square().sum() + second.square().sum()).backward()
    assert np.allclose(tensor.grad, (2 * (op.H @ (op @ x))).local_array)
    back = bridge.apply(op.H, [first.detach(), second.detach()])
    assert np.allclose(2 * back, tensor.grad)
    with pytest.raises(LayoutError, match="takes 2 tensors"):
        bridge.apply(op.H, [first.detach()])


def test_a_replicated_result_is_one_value(comm):
    """A loss that all ranks compute from a replicated result counts once; messages are those of the operator."""
    rows = matrix(comm, 2, 3)
    op = collops.VStack([rows], comm).H
    y = torch.ones(len(rows), dtype=torch.float64, requires_grad=True)
    with profile.count_messages() as messages:
        loss = bridge.apply(op, y).square().sum()
        loss.backward()
    total = np.array(comm.allreduce(rows.sum(axis=0)))
    assert float(loss.detach()) == pytest.approx(total @ total)
    assert np.allclose(y.grad, 2 * rows @ total)
    assert sum(messages.counts().values()) == (comm.size > 1)


def test_a_replicated_tensor_with_local_data(comm):
    """The gradients of the ranks are added by the adjoint of a stack of identities."""
    spread = collops.VStack([pylops.Identity(3)], comm)
    weights = torch.arange(3.0, dtype=torch.float64, requires_grad=True)
    (bridge.apply(spread, weights) * (comm.rank + 1)).sum().backward()
    assert torch.equal(weights.grad, torch.full((3,), comm.size * (comm.size + 1) / 2, dtype=torch.float64))


def test_wrong_arguments_of_apply(comm):
    op = collops.Identity(2 * comm.size, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="operator of collops"):
        bridge.apply(np.eye(2), torch.ones(2))
    with pytest.raises(UnsupportedTypeError, match=r"tensors of PyTorch, not numpy\.ndarray"):
        bridge.apply(op, np.ones(2))
    with pytest.raises(LayoutError, match="shape"):
        bridge.apply(op, torch.ones(3))
    x = torch.ones(2, dtype=torch.complex128)
    assert torch.equal(bridge.apply(op, (1j * x).conj()), -1j * x)  # lazily conjugated


# Solvers


SOLVERS = {
    "cg": (collops.cg, normal, {"damp": 0.5}),
    "cg with a preconditioner": (collops.cg, normal, {"M": None}),
    "cgls": (collops.cgls, lambda comm: collops.VStack([matrix(comm, 3, 2)], comm), {}),
    "cgls with damping": (collops.cgls, lambda comm: collops.VStack([matrix(comm, 1, 4)], comm), {"damp": 0.7}),
    "lsqr": (collops.lsqr, lambda comm: collops.VStack([matrix(comm, 3, 2, "complex128")], comm), {"damp": 0.7}),
    "lsmr": (collops.lsmr, lambda comm: collops.VStack([matrix(comm, 3, 2)], comm), {}),
    "minres": (collops.minres, normal, {}),
    "bicgstab": (collops.bicgstab, lambda comm: collops.BlockDiag([matrix_of_order(3)], comm), {}),
    "gmres": (collops.gmres, lambda comm: collops.BlockDiag([matrix_of_order(3)], comm), {}),
}


def matrix_of_order(n):
    return np.diag(np.arange(2.0, n + 2)) + 0.3 * np.eye(n, k=1) + 0.1j * np.eye(n, k=-1)


@pytest.mark.parametrize("name", SOLVERS)
def test_derivatives_of_a_solution(comm, name):
    solver, make, options = SOLVERS[name]
    op = make(comm)
    options = {"niter": 200, **options}
    if "M" in options:
        diagonal = 1.0 / np.arange(1.0, op.shape[0] + 1)
        options["M"] = collops.Diagonal(collops.from_global(diagonal, comm=comm))
    if solver in (collops.lsqr, collops.lsmr):
        options |= {"atol": 1e-13, "btol": 1e-13}
    else:
        options |= {"rtol": 1e-13} | ({"gtol": 1e-13} if solver is collops.cgls else {})
    function = on_whole(lambda y: bridge.solve(solver, op, y, **options), op.range, op.domain, comm)
    y = whole_tensor(op.range, torch.complex128 if op.dtype.kind == "c" else torch.float64)
    dense = np.stack([(op @ collops.from_global(one, op.domain, comm=comm)).gather() for one in np.eye(op.shape[1])], 1)
    damp = options.get("damp", 0.0)
    if solver is collops.cg:
        expected = scipy.linalg.solve(dense + damp * np.eye(len(dense)), y.detach().numpy())
    else:
        A = np.vstack([dense, damp * np.eye(dense.shape[1])])
        expected = np.linalg.lstsq(A, np.append(y.detach(), np.zeros(dense.shape[1])))[0]
    assert np.allclose(function(y).detach(), expected)
    assert torch.autograd.gradcheck(function, y)
    if name in ("cg", "cgls with damping"):
        assert torch.autograd.gradgradcheck(function, y, fast_mode=True)


DAMPED = {
    "cg": (collops.cg, normal),
    "cgls": (collops.cgls, lambda comm: collops.VStack([matrix(comm, 3, 2)], comm)),
    "cgls, replicated data": (collops.cgls, lambda comm: collops.VStack([matrix(comm, 1, 4)], comm).H),
    "lsqr": (collops.lsqr, lambda comm: collops.VStack([matrix(comm, 1, 4, "complex128")], comm)),
    "lsmr": (collops.lsmr, lambda comm: collops.BlockDiag([matrix(comm, 3, 2)], comm)),
    "cgls, stacked data": (collops.cgls, lambda comm: collops.Gradient((comm.size + 1, 3), comm=comm)),
}


@pytest.mark.parametrize("name", DAMPED)
def test_derivative_of_the_damping(comm, name):
    """Against the formula of dense matrices, and finite differences of the data as well."""
    solver, make = DAMPED[name]
    op = make(comm)
    bounds = {"rtol": 1e-13} | ({"gtol": 1e-13} if solver is collops.cgls else {})
    options = {"niter": 300} | ({"atol": 1e-13, "btol": 1e-13} if solver in (collops.lsqr, collops.lsmr) else bounds)
    y = op @ collops.random(op.domain, seed=1, dtype=op.dtype, comm=comm) + collops.random(op.range, seed=2, comm=comm)
    weights = collops.random(op.domain, seed=3, comm=comm)
    damp = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    data = [bridge.to_torch(leaf.copy()).requires_grad_() for leaf in y.leaves]
    x = bridge.solve(solver, op, data, damp=damp, **options)
    share = (x.abs().square() * bridge.to_torch(weights)).sum()
    share.backward()

    columns = [
        (op @ collops.from_global(one.reshape(op.domain.shape), op.domain, comm=comm)).gather()
        for one in np.eye(op.shape[1])
    ]
    A = np.stack(
        [np.concatenate([part.ravel() for part in (c if isinstance(c, list | tuple) else [c])]) for c in columns], 1
    )
    b = np.concatenate([leaf.gather().ravel() for leaf in y.leaves])
    w = weights.gather().ravel()

    def loss(epsilon):
        if solver is collops.cg:
            solution = np.linalg.solve(A + epsilon * np.eye(len(A)), b)
        else:
            solution = np.linalg.solve(A.conj().T @ A + epsilon**2 * np.eye(A.shape[1]), A.conj().T @ b)
        return float(w @ abs(solution) ** 2)

    step = 1e-5
    expected = (loss(0.7 + step) - loss(0.7 - step)) / (2 * step)
    assert damp.grad.shape == (1,) and float(damp.grad) == pytest.approx(expected, rel=1e-7)
    plain = [tensor.detach().requires_grad_() for tensor in data]
    x = bridge.solve(solver, op, plain, damp=damp.detach(), **options)
    (x.abs().square() * bridge.to_torch(weights)).sum().backward()
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(data, plain, strict=True))


def test_damping_that_is_refused(comm):
    op = OPERATORS["replicated domain"](comm)
    y = torch.ones(op.range.local_shape(comm.rank), dtype=torch.float64, requires_grad=True)
    for damp in (torch.ones(2), torch.tensor(1)):
        with pytest.raises(InputError, match="damp must have one real number, not the shape"):
            bridge.solve(collops.cgls, op, y, damp=damp)
    damp = torch.tensor(0.0, requires_grad=True)
    x = bridge.solve(collops.cgls, op, y, damp=damp, rtol=0.0, gtol=1e-10)
    (derivative,) = torch.autograd.grad(x.sum(), damp, create_graph=True)
    assert derivative == 0  # of its square
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        derivative.backward()


def test_solutions_that_are_refused(comm):
    op = normal(comm)
    y = torch.ones(op.range.local_shape(comm.rank), dtype=torch.float64)
    for options, message in (
        ({"niter": 1}, "cg stopped after 1 iterations without converging"),
        ({"x0": None, "checkpoint": "here"}, "leave out checkpoint, x0"),
    ):
        with pytest.raises(InputError, match=message):
            bridge.solve(collops.cg, op, y, **options)
    with pytest.raises(InputError, match="one of bicgstab, cg"):
        bridge.solve(collops.ista, op, y)
    with pytest.raises(UnsupportedTypeError, match="operator of collops"):
        bridge.solve(collops.cg, np.eye(2), y)
    tall = OPERATORS["replicated domain"](comm)
    with pytest.raises(LayoutError, match="one layout on both sides"):
        bridge.solve(collops.cgls, tall, y, M=op)


# Denoisers


def network(spatial=2, channels=1, kernel=5):
    """Three convolutions with zero padding and biases, which make the boundary of each layer count."""
    torch.manual_seed(1)
    Convolution = (torch.nn.Conv1d, torch.nn.Conv2d)[spatial - 1]
    layers = [
        Convolution(channels, 4, kernel, padding=kernel // 2),
        torch.nn.Softplus(),
        Convolution(4, 4, 3, padding=1),
        torch.nn.Softplus(),
        Convolution(4, channels, 3, padding=1),
    ]
    return torch.nn.Sequential(*layers).double()


FIELD = 9  # 1 + 4 + 2 + 2


IMAGES = {
    "rows": lambda ranks: (Layout.split((3 * ranks + 1, 7), ranks), None),
    "columns": lambda ranks: (Layout.split((6, 2 * ranks + 1), ranks, axis=1), None),
    "one axis": lambda ranks: (Layout.split(5 * ranks + 2, ranks), None),
    "empty parts": lambda ranks: (Layout.split((6, 5), ranks, sizes=[0] * (ranks - 1) + [6]), None),
    "channels": lambda ranks: (Layout.split((2, 9, 8), ranks, axis=1), 2),
    "images": lambda ranks: (Layout.split((ranks + 1, 2, 6, 5), ranks), 2),
    "replicated": lambda ranks: (Layout.replicated((6, 5), ranks), None),
}


@pytest.mark.parametrize("name", IMAGES)
def test_tiles_equal_the_whole_image(comm, name):
    layout, spatial = IMAGES[name](comm.size)
    axes = spatial or layout.ndim
    module = network(axes, 1 if spatial is None else layout.shape[-1 - axes])
    x = collops.random(layout, seed=2, comm=comm)
    batch = torch.from_numpy(x.gather()).reshape((1,) * (2 - layout.ndim + axes) + layout.shape)
    expected = module(batch).detach().reshape(layout.shape).numpy()
    denoiser = bridge.Denoiser(module, layout, FIELD, spatial=spatial, comm=comm)
    assert np.allclose(denoiser.prox(x, 1.0).gather(), expected, rtol=1e-12, atol=1e-14)
    same = denoiser.prox(x, 1.0, out=x)
    assert same is x and np.allclose(x.gather(), expected, rtol=1e-12, atol=1e-14)


def test_a_grid_of_tiles(comm):
    """One receptive field per axis, tiles narrower than the halo, and the derivative."""
    layout = Layout.grid((5, 2 * comm.size), (1, comm.size))
    module = torch.nn.Conv2d(1, 1, (3, 5), padding=(1, 2)).double()
    torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(3))
    denoiser = bridge.Denoiser(module, layout, (3, 5), comm=comm)
    x = whole_tensor(layout)
    function = on_whole(denoiser.denoise, layout, layout, comm)
    assert torch.allclose(function(x), module(x[None, None])[0, 0])
    assert torch.autograd.gradcheck(function, x)


def test_wrong_denoisers(comm):
    layout = Layout.split((4 * comm.size, 4), comm.size)
    module = network()
    for arguments, error, message in (
        ((module.forward, layout, 3), UnsupportedTypeError, "torch.nn.Module"),
        ((module, layout.shape, 3), LayoutError, "layout of the images"),
        ((module, layout, 0), InputError, "receptive_field=0"),
        ((module, layout, (3, 3, 3)), InputError, "one positive number"),
    ):
        with pytest.raises(error, match=message):
            bridge.Denoiser(*arguments, comm=comm)
    with pytest.raises(InputError, match="spatial=3"):
        bridge.Denoiser(module, layout, 3, spatial=3, comm=comm)
    split_channels = Layout.grid((comm.size, 4), (comm.size, 1))
    if comm.size > 1:
        with pytest.raises(LayoutError, match="channels, axis 0, must be whole"):
            bridge.Denoiser(module, split_channels, 3, spatial=1, comm=comm)
    denoiser = bridge.Denoiser(module, layout, FIELD, comm=comm)
    with pytest.raises(UnsupportedTypeError, match=r"parameters of torch\.float64, the image is of torch\.float32"):
        denoiser.prox(collops.zeros(layout, dtype="float32", comm=comm), 1.0)
    with pytest.raises(LayoutError, match="in the layout"):
        denoiser.prox(collops.zeros(3, comm=comm), 1.0)
    shrinking = torch.nn.Conv2d(1, 1, 3).double()
    with pytest.raises(LayoutError, match="must keep the shape"):
        bridge.Denoiser(shrinking, layout, 3, comm=comm).prox(collops.zeros(layout, comm=comm), 1.0)


def test_plug_and_play(comm):
    """ADMM with a misfit and a network, against the same iterations of NumPy and PyTorch on the whole image."""
    layout = Layout.split((2 * comm.size + 3, 6), comm.size)
    noisy = collops.random(layout, seed=4, comm=comm)
    module = network()
    misfit = collops.L2(b=noisy, sigma=2.0)
    result = collops.admm(misfit, bridge.Denoiser(module, layout, FIELD, comm=comm), noisy, tau=0.5, niter=4)
    b = torch.from_numpy(noisy.gather())
    x, z, u = b, b, torch.zeros_like(b)
    with torch.no_grad():
        for _ in range(4):
            x = (z - u + b) / 2  # tau sigma = 1
            z = module((x + u)[None, None])[0, 0]
            u = u + x - z
    assert np.allclose(result.x.gather(), x, rtol=1e-12) and np.allclose(result.details["z"].gather(), z, rtol=1e-12)


def test_training_an_unrolled_network(comm):
    """Gradient steps and a network, three times: the losses of training equal those of a program without collops."""
    layout = Layout.split((8, 6), comm.size)
    rng = np.random.default_rng(5)
    truth, difference = rng.normal(size=layout.shape), np.eye(8, k=1) - np.eye(8)
    difference[-1] = 0
    mixing = np.eye(8) - 0.2 * difference
    data = torch.from_numpy(mixing @ truth)

    def train(forward, adjoint, denoise, module, y, target, total):
        losses = []
        for _ in range(3):
            x = adjoint(y)
            for _ in range(3):
                x = denoise(x - 0.2 * adjoint(forward(x) - y))
            loss = (x - target).square().sum()
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter -= 1e-4 * total(gradient)
            losses.append(float(total(loss.detach())))
        return losses

    def total(tensor):
        return torch.from_numpy(np.asarray(comm.allreduce(tensor.numpy())))

    module = network()
    T = torch.from_numpy(mixing)
    alone = train(
        lambda x: T @ x,
        lambda y: T.T @ y,
        lambda x: module(x[None, None])[0, 0],
        module,
        data,
        torch.from_numpy(truth),
        lambda tensor: tensor,
    )
    module = network()
    bands = collops.Identity(layout, comm=comm) - 0.2 * collops.FirstDerivative(layout, kind="forward", comm=comm)
    denoiser = bridge.Denoiser(module, layout, FIELD, comm=comm)
    mine = layout.slices(comm.rank)
    together = train(
        lambda x: bridge.apply(bands, x),
        lambda y: bridge.apply(bands.H, y),
        denoiser.denoise,
        module,
        data[mine],
        torch.from_numpy(truth)[mine],
        total,
    )
    assert together == pytest.approx(alone, rel=1e-10) and alone[2] < alone[0]
