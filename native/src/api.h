// The functions that Python calls through ctypes. They set up transports; arrays are only passed to the XLA handlers.
#pragma once

#include <cstdint>

#define COLLOPS_API extern "C" __attribute__((visibility("default")))

// The version of these functions, of their enumerations and of the handlers. Increase it with every change to them, here and in
// src/collops/jax/native.py, which raises an error for any other version.
constexpr int kInterface = 4;
COLLOPS_API int collops_interface();

// Adds the transport of a single rank. Returns its number.
COLLOPS_API std::int64_t collops_add_alone();

// Sets the MPI library. `functions` are addresses in the order of MpiFunctions (mpi.cpp); `types`, `moved` and `ops` are handles
// in the order of transport.h (moved: of 1, 2, 4, 8 and 16 bytes); `handle_bytes` is 4 if MPI's handles are integers and 8 if they
// are pointers. Returns null on success, else the error message.
COLLOPS_API const char* collops_load_mpi(int handle_bytes, const std::int64_t* functions, const std::int64_t* types,
                                         const std::int64_t* moved, const std::int64_t* ops, std::int64_t in_place);

// Adds the transport of an MPI communicator. A wait fails after `timeout` seconds (0: never); it polls `spins` times before it
// yields.
COLLOPS_API std::int64_t collops_add_mpi(std::int64_t communicator, int rank, int size, double timeout, int spins);

// Adds the transport of host devices of this process and of all ranks of the transport `between`, which have `counts` of them;
// `devices` are those of this process. A wait for another device fails after `timeout` seconds (0: never).
COLLOPS_API std::int64_t collops_add_devices(std::int64_t between, const int* devices, const std::int64_t* counts,
                                             double timeout);

// Sets the NCCL (or RCCL) library: addresses in the order of NcclFunctions (nccl.cpp).
COLLOPS_API void collops_load_nccl(const std::int64_t* functions);

// Sets the functions of the CUDA driver that record short NCCL calls: addresses in the order of CudaFunctions
// (recordings.cpp). Without them nothing is recorded.
COLLOPS_API void collops_load_cuda(const std::int64_t* functions);

// Adds the transport of NCCL communicators, one for each device of this process: device `devices[i]` is rank `ranks[i]`. If
// `record` is not 0, short calls that are repeated may be recorded.
COLLOPS_API std::int64_t collops_add_nccl(const std::int64_t* communicators, const int* devices, const int* ranks,
                                          int count, int size, int record);
