// A sweep that stores into windows of NCCL: its device functions say where the memory of a neighbour is.
//
// compile-after: jacobi.cu
// compile-with: -DREAL=float -DWITHOUT_KERNELS
// compile-with: -DREAL=double -DWITHOUT_KERNELS

// A window, and the address of this rank's memory in it by which the host knows it: NCCL's own addresses differ.
struct Window {
    ncclWindow_t window;
    const char* begin;

    // The place in the memory of `rank` that is at `here` in this rank's; both are null where there is no neighbour.
    template <typename T>
    __device__ __forceinline__ T* at_peer(T* here, int rank) const {
        if (!here) return nullptr;
        return static_cast<T*>(ncclGetPeerPointer(window, reinterpret_cast<const char*>(here) - begin, rank));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    sweep_nccl(const real* in, real* out, Index pitch, int rows, int columns, int first, int last, int strips,
               int count, int chunks, real* above, real* below, real* left, real* right, const Flag* mine,
               Flag* set_above, Flag* set_below, Flag* set_left, Flag* set_right, unsigned* arrived,
               ncclWindow_t grid_window, const char* grid_begin, ncclWindow_t flag_window, const char* flag_begin,
               int rank_above, int rank_below, int rank_left, int rank_right, Flag number, double* norm) {
    const Window grids{grid_window, grid_begin}, flags{flag_window, flag_begin};
    const Targets targets{grids.at_peer(above, rank_above), grids.at_peer(below, rank_below),
                          grids.at_peer(left, rank_left), grids.at_peer(right, rank_right)};
    const Flags theirs{flags.at_peer(set_above, rank_above), flags.at_peer(set_below, rank_below),
                       flags.at_peer(set_left, rank_left), flags.at_peer(set_right, rank_right)};
    sweep_with_neighbours(in, out, pitch, rows, columns, first, last, strips, count, chunks, targets, mine, theirs,
                          arrived, number, norm);
}
