"""The recipe of collops for Spack."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyCollops(PythonPackage):
    """Distributed arrays, linear operators and solvers for large inverse problems on CPUs and GPUs."""

    pypi = "collops/collops-0.1.0.tar.gz"

    license("BSD-3-Clause")

    version("0.1.0", sha256="@SHA256 collops@")

    variant("mpi", default=True, description="Distribute arrays over the ranks of MPI")
    variant("jax", default=False, description="Messages between ranks inside compiled JAX programs")
    variant("numba", default=True, description="Multi-threaded kernels on CPUs")
    variant("segy", default=False, description="Read and write SEG-Y files")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.26:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-numpy@2.0:")
        depends_on("py-scipy@1.13:")
        depends_on("py-pylops@2.8:")
        depends_on("py-typer@0.20:")
        depends_on("py-rich@14:")
        depends_on("py-matplotlib@3.9:")
        depends_on("py-jinja2@3.1:")
        depends_on("py-zarr@3.1.6:")
        depends_on("py-threadpoolctl@3.1:")
        depends_on("py-mpi4py@4.1:", when="+mpi")
        depends_on("py-jax@0.7:", when="+jax")
        depends_on("py-collops-native@0.1:", when="+jax")
        depends_on("py-numba@0.61:", when="+numba")
        depends_on("py-segyio@1.9.13:", when="+segy")
