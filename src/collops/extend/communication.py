"""Communication: errors that all ranks raise together, deadlines, cores, devices and memory of ranks, reductions."""

from collops.comm import alone as alone
from collops.comm import missing_for_nccl as missing_for_nccl
from collops.comm import missing_for_nvshmem as missing_for_nvshmem
from collops.comm import wait_while_source as wait_while_source
from collops.comm.agreement import collective_errors as collective_errors
from collops.comm.agreement import collective_values as collective_values
from collops.comm.agreement import raised_together as raised_together
from collops.comm.arguments import communicator_or_world as communicator_or_world
from collops.comm.bounded import in_time as in_time
from collops.comm.cores import available_cores as available_cores
from collops.comm.cores import share_of_cores as share_of_cores
from collops.comm.failure import default_timeout as default_timeout
from collops.comm.mpi import mpi4py_module as mpi4py_module
from collops.comm.mpi import name_of_operation as name_of_operation
from collops.comm.nccl import NO_P2P as NO_P2P
from collops.comm.own_device import name_of_device as name_of_device
from collops.comm.reductions import DTYPES as DTYPES
from collops.comm.reductions import OPERATIONS as OPERATIONS
from collops.comm.side_stream import HIGHEST_PRIORITY as HIGHEST_PRIORITY
from collops.comm.side_stream import SideStream as SideStream
from collops.comm.symmetric import Symmetric as Symmetric
from collops.comm.world import device_count as device_count
from collops.limits import available_memory as available_memory
