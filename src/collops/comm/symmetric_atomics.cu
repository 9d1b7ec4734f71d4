// Atomic additions to the memory of another rank, by NVSHMEM's device functions.

#include <device/nvshmem_defines.h>

typedef long long Index;

// Add `values` to `count` elements of the memory of `rank`, which begin where `target` is in this rank's memory. Store
// the elements from before in `fetched`, unless it is null. Sums of signed and unsigned integers have the same bits.
#define FETCH_ADD(BITS)                                                                                                \
    extern "C" __global__ void fetch_add_##BITS(uint##BITS##_t* target, const uint##BITS##_t* values,                  \
                                                uint##BITS##_t* fetched, Index count, int rank) {                      \
        const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;                                                  \
        if (i >= count) return;                                                                                        \
        if (fetched) {                                                                                                 \
            fetched[i] = nvshmem_uint##BITS##_atomic_fetch_add(target + i, values[i], rank);                           \
        } else {                                                                                                       \
            nvshmem_uint##BITS##_atomic_add(target + i, values[i], rank);                                              \
        }                                                                                                              \
    }
FETCH_ADD(32)
FETCH_ADD(64)
