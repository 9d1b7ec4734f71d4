// NCCL's device functions, as kernels of this package use them: the only device code that names NCCL. nccl_link.py puts
// this text before each source that it compiles.

// NVRTC refuses functions of the host, and arrays without elements, which NCCL's template has in branches that are not
// taken: here are the instances that are used.
#include <cuda/atomic>
#undef __host__
#define __host__
#include <nccl_device/utility.h>
namespace nccl { namespace utility {
template <> NCCL_DEVICE_INLINE char* loadConst(char* const* p) { return (char*)__ldg((const unsigned long long*)p); }
template <> NCCL_DEVICE_INLINE uint32_t loadConst(uint32_t const* p) { return __ldg(p); }
template <> NCCL_DEVICE_INLINE int loadConst(int const* p) { return __ldg(p); }
} }
#include <nccl_device/impl/core__funcs.h>
#include <nccl_device/impl/ptr__funcs.h>
#include <nccl_device/impl/lsa_barrier__funcs.h>

namespace collops {

typedef ncclWindow_t WindowHandle;

// The memory of `rank` in a window.
__device__ __forceinline__ void* window_of(WindowHandle window, int rank) { return ncclGetPeerPointer(window, 0, rank); }

// A window, and the address of this rank's memory in it by which the host knows it: NCCL's own addresses differ.
struct Window {
    WindowHandle window;
    const char* begin;

    // The address in the memory of `rank` of what this rank has at `here`; both are null where there is no neighbour.
    template <typename T>
    __device__ __forceinline__ T* at_peer(T* here, int rank) const {
        if (!here) return nullptr;
        return static_cast<T*>(ncclGetPeerPointer(window, reinterpret_cast<const char*>(here) - begin, rank));
    }
};

}  // namespace collops
