-- Module file of Lmod for a virtual environment with collops. Put it into a folder "collops" of MODULEPATH, and set the root:
--   python3 -m venv /opt/collops/0.1.0
--   /opt/collops/0.1.0/bin/pip install "collops==0.1.0" mpi4py     with the MPI of the cluster loaded
local version = "0.1.0"
local root = pathJoin("/opt/collops", version)

whatis("Name: collops")
whatis("Version: " .. version)
whatis("Description: Distributed arrays, linear operators and solvers for large inverse problems on CPUs and GPUs")
help([[Start programs with the mpiexec or srun of the MPI that mpi4py was installed with; `collops info` shows it.]])

conflict("collops")
depends_on("openmpi") -- or the MPI of the cluster
prepend_path("PATH", pathJoin(root, "bin"))
