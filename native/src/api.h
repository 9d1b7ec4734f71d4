// The functions that Python calls through ctypes. They set up transports; arrays are only passed to the XLA handlers.
#pragma once

#include <cstddef>
#include <cstdint>

#define COLLOPS_API extern "C" __attribute__((visibility("default")))

// The version of these functions, of their enumerations and of the handlers. Increase it with every change to them, here and in
// src/collops/jax/native.py, which raises an error for any other version.
constexpr int kInterface = 6;
COLLOPS_API int collops_interface();

// Adds the transport of a single rank. Returns its number.
COLLOPS_API std::int64_t collops_add_alone();

// Sets the MPI library. `functions` are addresses in the order of MpiFunctions (mpi.cpp); `types`, `moved` and `ops` are handles
// in the order of transport.h (moved: of 1, 2, 4, 8 and 16 bytes); `handle_bytes` is 4 if MPI's handles are integers and 8 if they
// are pointers. Returns null on success, else the error message.
COLLOPS_API const char* collops_load_mpi(int handle_bytes, const std::int64_t* functions, const std::int64_t* types,
                                         const std::int64_t* moved, const std::int64_t* ops, std::int64_t in_place);

// Adds the transport of an MPI communicator. A wait polls `spins` times before it yields. Only a transport that is watched has a
// deadline.
COLLOPS_API std::int64_t collops_add_mpi(std::int64_t communicator, int rank, int size, int spins);

// Functions of Python. They get the text that the program has for a call (without a null at its end), and set the failure of the call
// to null or to a message, which stays until the next call of the function. They set nothing if a signal interrupts them.
// Agree: called before data move; returns when all ranks are about to make this call.
// Look: called every 10 ms while this rank waits; `calls` counts its collective calls, `looks` the earlier looks at this wait. With
// kRefused looks it returns why a broken transport makes no call, with kDiffer looks a failure of all ranks because of `note`. Else
// `note`, unless it is empty, says which devices of this rank wait.
constexpr int kRefused = -1;
constexpr int kDiffer = -2;
using Agree = void (*)(const char** failure, const char* call, std::size_t length);
using Look = void (*)(const char** failure, const char* call, std::size_t length, std::int64_t calls, int looks,
                      double seconds, const char* note);

// Lets Python watch the calls of a transport. `agree` may be null.
COLLOPS_API void collops_watch(std::int64_t transport, Agree agree, Look look);

// Makes every later call of a watched transport fail.
COLLOPS_API void collops_break(std::int64_t transport);

// Returns how many collective calls of a transport this rank has begun.
COLLOPS_API std::int64_t collops_calls(std::int64_t transport);

// Adds the transport of host devices of this process and of all ranks of the transport `between`, which have `counts` of them;
// `devices` are those of this process. Where `between` is not watched, a wait for another device fails after `timeout` seconds (0:
// never).
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
