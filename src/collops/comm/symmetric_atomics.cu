// Atomic operations in the memory of another rank, by NVSHMEM's device functions.

#include <collops/nvshmem_device.cuh>

typedef long long Index;

// Add `values` to `count` elements of the memory of `rank`, which begin where `target` is in this rank's memory. Store
// the elements from before in `fetched`, unless it is null. Sums of signed and unsigned integers have the same bits.
#define FETCH_ADD(BITS)                                                                                                \
    extern "C" __global__ void fetch_add_##BITS(uint##BITS##_t* target, const uint##BITS##_t* values,                  \
                                                uint##BITS##_t* fetched, Index count, int rank) {                      \
        const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;                                                  \
        if (i >= count) return;                                                                                        \
        if (fetched) {                                                                                                 \
            fetched[i] = collops::fetch_add(target + i, values[i], rank);                                              \
        } else {                                                                                                       \
            collops::add(target + i, values[i], rank);                                                                 \
        }                                                                                                              \
    }
FETCH_ADD(32)
FETCH_ADD(64)

// Replace those elements that equal `expected` by `values`, and store the elements from before in `fetched`.
#define COMPARE_AND_SWAP(BITS)                                                                                         \
    extern "C" __global__ void compare_and_swap_##BITS(uint##BITS##_t* target, const uint##BITS##_t* expected,         \
                                                       const uint##BITS##_t* values, uint##BITS##_t* fetched,          \
                                                       Index count, int rank) {                                        \
        const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;                                                  \
        if (i < count) {                                                                                               \
            fetched[i] = collops::compare_and_swap(target + i, expected[i], values[i], rank);                          \
        }                                                                                                              \
    }
COMPARE_AND_SWAP(32)
COMPARE_AND_SWAP(64)
