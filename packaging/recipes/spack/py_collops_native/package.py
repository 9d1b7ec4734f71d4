"""The recipe of collops-native for Spack."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyCollopsNative(PythonPackage):
    """The XLA FFI handlers of collops.jax: MPI and NCCL inside compiled JAX programs."""

    pypi = "collops-native/collops_native-0.1.0.tar.gz"

    license("BSD-3-Clause")

    version("0.1.0", sha256="@SHA256 collops-native@")

    depends_on("cxx", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-jaxlib@0.7:", type=("build", "run"))
