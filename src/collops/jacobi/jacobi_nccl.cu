// A sweep that stores into windows of NCCL, whose device functions say where the memory of a neighbour is
// (comm/nccl_device.cuh).
//
// compile-after: jacobi.cu
// compile-with: -DREAL=float -DWITHOUT_KERNELS
// compile-with: -DREAL=double -DWITHOUT_KERNELS

using collops::Window;
using collops::WindowHandle;

extern "C" __global__ void __launch_bounds__(THREADS)
    sweep_nccl(const real* in, real* out, Index pitch, int rows, int columns, int first, int last, int strips,
               int count, int chunks, real* above, real* below, real* left, real* right, const Flag* mine,
               Flag* set_above, Flag* set_below, Flag* set_left, Flag* set_right, unsigned* arrived,
               WindowHandle grid_window, const char* grid_begin, WindowHandle flag_window, const char* flag_begin,
               int rank_above, int rank_below, int rank_left, int rank_right, Flag number, double* norm) {
    const Window grids{grid_window, grid_begin}, flags{flag_window, flag_begin};
    const Targets targets{grids.at_peer(above, rank_above), grids.at_peer(below, rank_below),
                          grids.at_peer(left, rank_left), grids.at_peer(right, rank_right)};
    const Flags theirs{flags.at_peer(set_above, rank_above), flags.at_peer(set_below, rank_below),
                       flags.at_peer(set_left, rank_left), flags.at_peer(set_right, rank_right)};
    sweep_with_neighbours(in, out, pitch, rows, columns, first, last, strips, count, chunks, targets, mine, theirs,
                          arrived, number, norm);
}
