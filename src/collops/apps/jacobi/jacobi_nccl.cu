// A sweep that stores into windows of NCCL: its device functions say where the memory of a neighbour is.
//
// compile-after: jacobi.cu
// compile-with: -DREAL=float -DWITHOUT_KERNELS
// compile-with: -DREAL=double -DWITHOUT_KERNELS

// The place in the memory of `rank` that is at `here` in this rank's; both are null where there is no neighbour.
template <typename T>
__device__ __forceinline__ T* at_peer(ncclWindow_t window, T* here, int rank) {
    const size_t offset = reinterpret_cast<char*>(here) - static_cast<char*>(ncclGetLocalPointer(window, 0));
    return here ? static_cast<T*>(ncclGetPeerPointer(window, offset, rank)) : nullptr;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sweep_nccl(const real* in, real* out, Index pitch, int rows, int columns, int first, int last, int strips,
               int count, int chunks, real* above, real* below, real* left, real* right, const Flag* mine,
               Flag* set_above, Flag* set_below, Flag* set_left, Flag* set_right, unsigned* arrived,
               ncclWindow_t grids, ncclWindow_t flags, int rank_above, int rank_below, int rank_left, int rank_right,
               Flag number, double* norm) {
    const Targets targets{at_peer(grids, above, rank_above), at_peer(grids, below, rank_below),
                          at_peer(grids, left, rank_left), at_peer(grids, right, rank_right)};
    const Flags theirs{at_peer(flags, set_above, rank_above), at_peer(flags, set_below, rank_below),
                       at_peer(flags, set_left, rank_left), at_peer(flags, set_right, rank_right)};
    sweep_with_neighbours(in, out, pitch, rows, columns, first, last, strips, count, chunks, targets, mine, theirs,
                          arrived, number, norm);
}
