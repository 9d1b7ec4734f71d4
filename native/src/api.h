// The functions that Python calls through ctypes. They set up wires; arrays only pass through the XLA handlers.
#pragma once

#include <cstdint>

#define COLLOPS_API extern "C" __attribute__((visibility("default")))

// Says which version of these functions, of their lists and of the handlers this is. To be raised with every change of them, here
// and in src/collops/jax/native.py, which refuses any other.
constexpr int kInterface = 3;
COLLOPS_API int collops_interface();

// The wire of a world of one. Returns its number.
COLLOPS_API std::int64_t collops_add_alone();

// Says which MPI to call. `functions` are addresses in the order of MpiFunctions (mpi.cpp); `types`, `moved` and `ops` are
// handles in the order of wire.h (moved: of 1, 2, 4, 8 and 16 bytes); `handle_bytes` is 4 where MPI's handles are integers and 8
// where they are pointers. Returns null, or what is wrong.
COLLOPS_API const char* collops_load_mpi(int handle_bytes, const std::int64_t* functions, const std::int64_t* types,
                                         const std::int64_t* moved, const std::int64_t* ops, std::int64_t in_place);

// The wire of an MPI communicator. A wait may take `timeout` seconds (0: any time) and polls `spins` times before it lets others run.
COLLOPS_API std::int64_t collops_add_mpi(std::int64_t communicator, int rank, int size, double timeout, int spins);

// Says which NCCL (or RCCL) to call: addresses in the order of NcclFunctions (nccl.cpp).
COLLOPS_API void collops_load_nccl(const std::int64_t* functions);

// Says by which functions of CUDA's driver short calls of NCCL are recorded: addresses in the order of CudaFunctions
// (recordings.cpp). Without them nothing is recorded.
COLLOPS_API void collops_load_cuda(const std::int64_t* functions);

// The wire of NCCL communicators, one for each device of this process: device `devices[i]` is rank `ranks[i]`. `record` says
// whether short calls that come again may be recorded.
COLLOPS_API std::int64_t collops_add_nccl(const std::int64_t* communicators, const int* devices, const int* ranks,
                                          int count, int size, int record);
