// NVSHMEM's device functions, as kernels of this package use them: the only device code that names NVSHMEM. Sources
// include it as <collops/nvshmem_device.cuh>; see nvshmem_link.py.

#include <device/nvshmem_defines.h>
#include <device/nvshmemx_defines.h>

namespace collops {

__device__ __forceinline__ void wait_for_puts() { nvshmem_quiet(); }

__device__ __forceinline__ void set_signal(uint64_t* signal, uint64_t value, int rank)
{
    nvshmemx_signal_op(signal, value, NVSHMEM_SIGNAL_SET, rank);
}

__device__ __forceinline__ bool has_reached(uint64_t* signal, uint64_t value)
{
    return nvshmem_uint64_test(signal, NVSHMEM_CMP_GE, value);
}

// Into the memory of `rank`, at the place that is at `there` in this rank's: an element; by all threads of a warp; by
// all threads of a block, with a signal that follows.
#define PUTS(TYPE)                                                                                                     \
    __device__ __forceinline__ void put(TYPE* there, TYPE value, int rank)                                             \
    {                                                                                                                  \
        nvshmem_##TYPE##_p(there, value, rank);                                                                        \
    }                                                                                                                  \
    __device__ __forceinline__ void put_by_warp(TYPE* there, const TYPE* here, size_t count, int rank)                 \
    {                                                                                                                  \
        nvshmemx_##TYPE##_put_nbi_warp(there, here, count, rank);                                                      \
    }                                                                                                                  \
    __device__ __forceinline__ void put_by_block(TYPE* there, const TYPE* here, size_t count, uint64_t* signal,        \
                                                 uint64_t value, int rank)                                             \
    {                                                                                                                  \
        nvshmemx_##TYPE##_put_signal_nbi_block(there, here, count, signal, value, NVSHMEM_SIGNAL_SET, rank);           \
    }
PUTS(float)
PUTS(double)
#undef PUTS

#define ATOMICS(BITS)                                                                                                  \
    __device__ __forceinline__ uint##BITS##_t fetch_add(uint##BITS##_t* target, uint##BITS##_t value, int rank)        \
    {                                                                                                                  \
        return nvshmem_uint##BITS##_atomic_fetch_add(target, value, rank);                                             \
    }                                                                                                                  \
    __device__ __forceinline__ void add(uint##BITS##_t* target, uint##BITS##_t value, int rank)                        \
    {                                                                                                                  \
        nvshmem_uint##BITS##_atomic_add(target, value, rank);                                                          \
    }                                                                                                                  \
    __device__ __forceinline__ uint##BITS##_t compare_and_swap(uint##BITS##_t* target, uint##BITS##_t expected,        \
                                                               uint##BITS##_t value, int rank)                         \
    {                                                                                                                  \
        return nvshmem_uint##BITS##_atomic_compare_swap(target, expected, value, rank);                                \
    }
ATOMICS(32)
ATOMICS(64)
#undef ATOMICS

}  // namespace collops
