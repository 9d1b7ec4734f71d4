// Sweeps that put a block's outermost points into the halos of the neighbours by NVSHMEM's device functions, which
// reach neighbours on this node and on others.
//
// A block of threads has eight strips of one chunk of rows. It waits for the signals of the neighbours' blocks with
// which it shares an edge, sweeps, puts its own part of the edge, and sets their signals.
//
// compile-after: jacobi.cu
// compile-with: -DREAL=float -DWITHOUT_KERNELS
// compile-with: -DREAL=double -DWITHOUT_KERNELS

#include <collops/nvshmem_device.cuh>

typedef uint64_t Signal;

enum class Put { ELEMENT, WARP, BLOCK };

// A neighbour. NVSHMEM takes the address that the same place has in this rank's memory.
struct Side {
    real* halo;  // the place of this rank's point (0, 0) in the neighbour's halo; null where there is no neighbour
    int rank;
};

// Put `count` elements, `step` apart here and there, and set the signal of the same rank afterwards.
__device__ __forceinline__ void put_elements(real* there, const real* here, Index step, int count, Signal* signal,
                                             Signal value, int rank) {
    for (int i = int(threadIdx.x); i < count; i += THREADS) collops::put(there + i * step, here[i * step], rank);
    __syncthreads();
    if (threadIdx.x == 0) {
        collops::wait_for_puts();
        collops::set_signal(signal, value, rank);
    }
}

// Put `count` adjacent elements, and set the signal. All threads of the block call it.
template <Put PUT>
__device__ __forceinline__ void put_row(real* there, const real* here, int count, Signal* signal, Signal value,
                                        int rank) {
    if (PUT == Put::BLOCK) {
        collops::put_by_block(there, here, count, signal, value, rank);
    } else if (PUT == Put::WARP) {
        const int begin = int(threadIdx.x) / WARP * STRIP, mine = min(STRIP, count - begin);
        if (mine > 0) collops::put_by_warp(there + begin, here + begin, mine, rank);
        __syncthreads();
        if (threadIdx.x == 0) {
            collops::wait_for_puts();
            collops::set_signal(signal, value, rank);
        }
    } else {
        put_elements(there, here, 1, count, signal, value, rank);
    }
}

// `number` sweeps were made before. Every side has `places` signals: one for each block along that side. A block
// overwrites a halo that the neighbour's block has read in the previous sweep, as its signal also indicates.
template <Put PUT>
__device__ __forceinline__ void sweep_and_put(const real* in, real* out, Index pitch, int rows, int columns, int first,
                                              int last, int strips, int count, int chunks, const Side (&sides)[4],
                                              Signal* signals, int places, Signal number, double* norm) {
    const int pieces = (strips + WARPS - 1) / WARPS;
    const int turn = int(blockIdx.x) / pieces, piece = int(blockIdx.x) % pieces;
    // The first and the last chunk run first, so that their values travel during the computation of the others.
    const int chunk = turn == 0 ? 0 : turn == 1 ? chunks - 1 : turn - 1;
    const int from = chunk * count, to = min(from + count, rows);
    const bool shared[4] = {from == 0, to == rows, piece == 0 && sides[2].halo, piece == pieces - 1 && sides[3].halo};
#pragma unroll
    for (int side = 0; side < 4; ++side) {
        if (shared[side] && int(threadIdx.x) == side) {
            Signal* const signal = signals + side * places + (side < 2 ? piece : chunk);
            WAIT_WHILE(!collops::has_reached(signal, number));
            fence(true);
        }
    }
    __syncthreads();

    const int strip = piece * WARPS + int(threadIdx.x) / WARP;
    real sum = 0;
    if (strip < strips) {
        const Strip mine(strip, columns, first, last, sides[2].halo != nullptr, sides[3].halo != nullptr);
        sum = march<IN_FLIGHT>(mine, in, out, pitch, rows, from, to, {});
    }
    __syncthreads();

    const int begin = piece * WARPS * STRIP, width = min(WARPS * STRIP, columns - begin);
#pragma unroll
    for (int side = 0; side < 4; ++side) {
        if (!shared[side]) continue;
        // For the neighbour, this rank is on the opposite side.
        Signal* const signal = signals + (side ^ 1) * places + (side < 2 ? piece : chunk);
        if (side < 2) {
            const real* const row = out + Index(side == 0 ? 0 : rows - 1) * pitch + begin;
            put_row<PUT>(sides[side].halo + begin, row, width, signal, number + 1, sides[side].rank);
        } else {
            const Index edge = Index(from) * pitch;
            put_elements(sides[side].halo + edge, out + edge + (side == 2 ? 0 : columns - 1), pitch, to - from, signal,
                         number + 1, sides[side].rank);
        }
    }
    if (norm) add_norm(sum, norm);
}

#define SWEEP(NAME, PUT)                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) sweep_##NAME(                                                \
        const real* in, real* out, Index pitch, int rows, int columns, int first, int last, int strips, int count,     \
        int chunks, real* above, real* below, real* left, real* right, int rank_above, int rank_below, int rank_left,  \
        int rank_right, Signal* signals, int places, Signal number, double* norm) {                                    \
        const Side sides[4] = {{above, rank_above}, {below, rank_below}, {left, rank_left}, {right, rank_right}};      \
        sweep_and_put<PUT>(in, out, pitch, rows, columns, first, last, strips, count, chunks, sides, signals, places,  \
                           number, norm);                                                                              \
    }
SWEEP(element, Put::ELEMENT)
SWEEP(warp, Put::WARP)
SWEEP(block, Put::BLOCK)
