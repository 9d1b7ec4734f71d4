// Jacobi sweeps over one rank's block of a two-dimensional grid, at the speed of the memory.
//
// A warp processes a strip of 128 (float) or 64 (double) columns and marches down rows that it keeps in registers. A
// thread loads 16 bytes at a time, shuffles provide the neighbours along the row, and several rows are in flight. The
// same pass sums the squares of the update. Kernels store the outermost new values into the halos of neighbours, on
// this device or, over NVLink, on another.
//
// A block has `rows` x `columns` points; rows are `pitch` elements apart. There is a halo of one row (of `DEPTH` rows
// for `blocked`) above and below, and of columns to the left and right where the grid is split along them. Columns from
// `first` up to `last` change; others are the fixed boundary. Pointers are to the point (0, 0) of a block.
//
// compile-with: -DREAL=float
// compile-with: -DREAL=double

typedef REAL real;
typedef long long Index;
typedef unsigned long long Flag;

constexpr int WARP = 32;
constexpr int VECTOR = 16 / int(sizeof(real));
constexpr int STRIP = WARP * VECTOR;
constexpr int THREADS = 256;  // of a block, except of `persistent`
constexpr int WARPS = THREADS / WARP;
constexpr int PERSISTENT_THREADS = 1024;
// Rows that a warp loads before it computes: more in kernels that have enough registers.
constexpr int IN_FLIGHT = 4;
constexpr int PERSISTENT_IN_FLIGHT = VECTOR == 4 ? 3 : 2;
constexpr int BLOCKED_IN_FLIGHT = 2;
constexpr int FLAG_STEP = 16;  // flags are in cache lines of their own

// ---- What differs between CUDA and HIP, whose wavefronts of 64 threads hold two warps of this file

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
template <typename T>
__device__ __forceinline__ T of_previous_lane(T value) { return __shfl_up(value, 1, WARP); }
template <typename T>
__device__ __forceinline__ T of_next_lane(T value, int distance = 1) { return __shfl_down(value, distance, WARP); }
// The threads of a wavefront run in step: only the order of their accesses to memory is to be kept.
__device__ __forceinline__ void warp_barrier() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); }
#else
template <typename T>
__device__ __forceinline__ T of_previous_lane(T value) { return __shfl_up_sync(0xffffffffu, value, 1); }
template <typename T>
__device__ __forceinline__ T of_next_lane(T value, int distance = 1)
{
    return __shfl_down_sync(0xffffffffu, value, distance);
}
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }
#endif

struct alignas(16) Vector {
    real at[VECTOR];
};

// The arithmetic of a point. Every kernel calls it, and NumPy uses the same order, so that all give the same bits.
__device__ __forceinline__ real relax(real left, real right, real above, real below) {
    return real(0.25) * (((right + left) + below) + above);
}

// The halos that also get the outermost rows and columns of the new values; null where there is none.
struct Targets {
    real* above;  // row 0
    real* below;  // row rows - 1
    real* left;   // column 0, its rows `pitch` apart like all rows
    real* right;  // column columns - 1
};

// A thread's view of the strip of its warp.
struct Strip {
    int column;     // the first of this thread's columns
    int lane;
    int columns;
    int first, last;
    bool readable;  // whether this thread's columns are in memory
    bool edge;      // whether this thread reads the neighbour strip's element
    bool whole;     // whether all of this thread's columns change
    int beside;     // from this thread's first column to that element

    __device__ Strip(int strip, int columns, int first, int last, bool left, bool right)
        : lane(threadIdx.x % WARP), columns(columns), first(first), last(last) {
        column = strip * STRIP + lane * VECTOR;
        readable = column < columns + right;
        beside = lane == 0 ? -1 : VECTOR;
        edge = (lane == 0 && column - 1 >= -int(left)) || (lane == WARP - 1 && column + VECTOR < columns + right);
        whole = column >= first && column + VECTOR <= last;
    }

    __device__ bool changes(int i) const { return column + i >= first && column + i < last; }

    __device__ Vector load(const real* row) const {
        return readable ? *reinterpret_cast<const Vector*>(row + column) : Vector{};
    }

    __device__ real load_edge(const real* row) const { return edge ? row[column + beside] : real(0); }

    __device__ void store(real* row, const Vector& value) const {
        if (whole) {
            *reinterpret_cast<Vector*>(row + column) = value;
        } else {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                if (changes(i)) row[column + i] = value.at[i];
            }
        }
    }

    // One row of new values; `edge_value` is the element next to the strip in `current`. Adds to `sum`.
    __device__ Vector update(const Vector& above, const Vector& current, const Vector& below, real edge_value,
                             real& sum) const {
        real left = of_previous_lane(current.at[VECTOR - 1]);
        real right = of_next_lane(current.at[0]);
        if (lane == 0) left = edge_value;
        if (lane == WARP - 1) right = edge_value;
        Vector result;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const real value = relax(i == 0 ? left : current.at[i - 1], i == VECTOR - 1 ? right : current.at[i + 1],
                                     above.at[i], below.at[i]);
            const real change = changes(i) ? value - current.at[i] : real(0);
            sum += change * change;
            result.at[i] = value;
        }
        return result;
    }
};

// Sweep rows from `begin` up to `end` of one strip, AHEAD of which are loaded at once; returns this thread's sum of
// squares of the update.
template <int AHEAD>
__device__ __forceinline__ real march(const Strip& strip, const real* in, real* out, Index pitch, int rows, int begin,
                                      int end, const Targets& targets) {
    const bool at_left = targets.left && strip.column == 0 && strip.changes(0);
    const bool at_right = targets.right && strip.column <= strip.columns - 1 && strip.column + VECTOR >= strip.columns;
    const real* ahead = in + Index(begin - 1) * pitch;
    real* row_out = out + Index(begin) * pitch;
    Vector above = strip.load(ahead);
    Vector current = strip.load(ahead + pitch);
    real edge = strip.load_edge(ahead + pitch);
    ahead += 2 * pitch;
    real sum = 0;
    for (int row = begin; row < end; row += AHEAD) {
        Vector next[AHEAD];
        real next_edge[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (row + i < end) {
                next[i] = strip.load(ahead);
                next_edge[i] = strip.load_edge(ahead);
                ahead += pitch;
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (row + i < end) {
                const Vector result = strip.update(above, current, next[i], edge, sum);
                strip.store(row_out, result);
                if (row + i == 0 && targets.above) strip.store(targets.above, result);
                if (row + i == rows - 1 && targets.below) strip.store(targets.below, result);
                if (at_left) targets.left[Index(row + i) * pitch] = result.at[0];
                if (at_right) {
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j) {
                        if (strip.column + j == strip.columns - 1 && strip.changes(j)) {
                            targets.right[Index(row + i) * pitch] = result.at[j];
                        }
                    }
                }
                above = current;
                current = next[i];
                edge = next_edge[i];
                row_out += pitch;
            }
        }
    }
    return sum;
}

__device__ __forceinline__ double over_warp(double value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) value += of_next_lane(value, step);
    return value;
}

// Add the block's sum to `norm`, with one atomic addition for each block.
__device__ __forceinline__ void add_norm(real sum, double* norm) {
    __shared__ double parts[WARPS];
    const double part = over_warp(double(sum));
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = part;
    __syncthreads();
    if (threadIdx.x < WARP) {
        const double total = over_warp(threadIdx.x < WARPS ? parts[threadIdx.x] : 0.0);
        if (threadIdx.x == 0) atomicAdd(norm, total);
    }
}

// ---- signals between devices, and between blocks of one

// A fence: earlier reads and writes of this thread precede later ones, for this device or for all.
__device__ __forceinline__ void fence(bool all_devices) {
    if (all_devices) {
        __threadfence_system();
    } else {
        __threadfence();
    }
}

#ifndef WAIT_WHILE  // defined before this text as a loop with a deadline, if waits have one
#define WAIT_WHILE(condition) \
    while (condition) {       \
    }
#endif

// Return when `flag` has reached `value`; writes before it was set are visible after a fence.
__device__ __forceinline__ void wait_for(const Flag* flag, Flag value) {
    WAIT_WHILE(*reinterpret_cast<const volatile Flag*>(flag) < value);
}

// Set a flag; a fence before it orders it after this thread's reads and writes.
__device__ __forceinline__ void set(Flag* flag, Flag value) { *reinterpret_cast<volatile Flag*>(flag) = value; }

// ---- a sweep with neighbours' memory

// The flags of the neighbours that this rank sets.
struct Flags {
    Flag *above, *below, *left, *right;
};

// A sweep that waits for the previous sweep of the neighbours where it needs their values, stores its own values into
// their memory, and sets their flags. It overwrites a halo that the neighbours have read in the previous sweep, as
// their flags also indicate. `arrived` counts the warps that have stored, in each direction.
__device__ __forceinline__ void sweep_with_neighbours(const real* in, real* out, Index pitch, int rows, int columns,
                                                      int first, int last, int strips, int count, int chunks,
                                                      const Targets& targets, const Flag* mine, const Flags& flags,
                                                      unsigned* arrived, Flag number, double* norm) {
    const int item = int(blockIdx.x) * WARPS + int(threadIdx.x) / WARP;
    const bool leader = threadIdx.x % WARP == 0;
    real sum = 0;
    if (item < strips * chunks) {
        // The first and the last chunk run first, so that their values travel during the computation of the others.
        const int turn = item / strips, number_of_strip = item % strips;
        const int chunk = turn == 0 ? 0 : turn == 1 ? chunks - 1 : turn - 1;
        const int from = chunk * count, to = min(from + count, rows);
        Flag* theirs[4] = {from == 0 ? flags.above : nullptr, to == rows ? flags.below : nullptr,
                           number_of_strip == 0 ? flags.left : nullptr,
                           number_of_strip == strips - 1 ? flags.right : nullptr};
        const unsigned expected[4] = {unsigned(strips), unsigned(strips), unsigned(chunks), unsigned(chunks)};
        if (leader) {
#pragma unroll
            for (int side = 0; side < 4; ++side) {
                if (theirs[side]) {
                    wait_for(mine + side * FLAG_STEP, number);
                    fence(true);
                }
            }
        }
        warp_barrier();
        const Strip strip(number_of_strip, columns, first, last, targets.left != nullptr, targets.right != nullptr);
        sum = march<IN_FLIGHT>(strip, in, out, pitch, rows, from, to, targets);
        warp_barrier();
        if (leader) {
#pragma unroll
            for (int side = 0; side < 4; ++side) {
                if (!theirs[side]) continue;
                fence(true);
                if (atomicAdd(arrived + side, 1u) == expected[side] - 1) {
                    arrived[side] = 0;
                    fence(true);
                    set(theirs[side], number + 1);
                }
            }
        }
    }
    if (norm) add_norm(sum, norm);
}

#ifndef WITHOUT_KERNELS  // defined where another source has kernels of its own

// ---- one launch for each sweep

// Chunk number c has `count` rows from begin + c * step; there are `strips` from `strip_begin`. Each warp takes one
// chunk of one strip, side by side in a block.
extern "C" __global__ void __launch_bounds__(THREADS)
    sweep(const real* __restrict__ in, real* __restrict__ out, Index pitch, int rows, int columns, int first, int last,
          int strip_begin, int strips, int begin, int end, int step, int count, int chunks, int has_left, int has_right,
          real* above, real* below, real* left, real* right, double* norm) {
    const int item = int(blockIdx.x) * WARPS + int(threadIdx.x) / WARP;
    real sum = 0;
    if (item < strips * chunks) {
        const int from = begin + item / strips * step;
        const Strip strip(strip_begin + item % strips, columns, first, last, has_left, has_right);
        sum = march<IN_FLIGHT>(strip, in, out, pitch, rows, from, min(from + count, end), {above, below, left, right});
    }
    if (norm) add_norm(sum, norm);
}

// ---- the same, with neighbours' memory

extern "C" __global__ void __launch_bounds__(THREADS)
    sweep_peer(const real* in, real* out, Index pitch, int rows, int columns, int first, int last, int strips,
               int count, int chunks, real* above, real* below, real* left, real* right, const Flag* mine,
               Flag* set_above, Flag* set_below, Flag* set_left, Flag* set_right, unsigned* arrived, Flag number,
               double* norm) {
    sweep_with_neighbours(in, out, pitch, rows, columns, first, last, strips, count, chunks,
                          {above, below, left, right}, mine, {set_above, set_below, set_left, set_right}, arrived,
                          number, norm);
}

// ---- the whole loop in one launch

// All blocks run at once, each with a band of rows. A band needs only the outermost rows of the bands next to it, so it
// waits for these, on this device or on another; there is no grid-wide barrier. `flags` has numbers of
// finished sweeps: of the band above this device's, of its own bands, of the band below, then of the bands to the left
// and to the right. The grid of even sweeps is at `grid` and that of odd ones `stride` elements further, here and on
// the neighbours' devices. The squared norm of the n-th sweep of this launch is added to `norms[n]`, for every
// `check`-th sweep since the very first.
extern "C" __global__ void __launch_bounds__(PERSISTENT_THREADS)
    persistent(real* grid, Index stride, Index pitch, int rows, int columns, int first, int last, real* above,
               real* below, real* left, real* right, Flag* flags, Flag* set_above, Flag* set_below, Flag* set_left,
               Flag* set_right, Flag done, int sweeps, int check, double* norms) {
    __shared__ double parts[2][PERSISTENT_THREADS / WARP];
    const int bands = int(gridDim.x), band = int(blockIdx.x);
    const int begin = int(Index(rows) * band / bands), end = int(Index(rows) * (band + 1) / bands);
    const int warps = int(blockDim.x) / WARP, warp = int(threadIdx.x) / WARP;
    const int strips = (columns + STRIP - 1) / STRIP;
    // With fewer strips than warps, several warps share the rows of a strip.
    const int shares = max(1, min(warps / strips, (end - begin) / PERSISTENT_IN_FLIGHT));
    const int per_share = (end - begin + shares - 1) / shares;

    // The first four threads wait, each for one neighbour.
    Flag* const side_flags = flags + Index(bands + 2) * FLAG_STEP;
    const Flag* awaited = nullptr;
    if (threadIdx.x == 0) awaited = flags + Index(band) * FLAG_STEP;
    if (threadIdx.x == 1) awaited = flags + Index(band + 2) * FLAG_STEP;
    if (threadIdx.x == 2 && left) awaited = side_flags + Index(band) * FLAG_STEP;
    if (threadIdx.x == 3 && right) awaited = side_flags + Index(bands + band) * FLAG_STEP;
    const bool outermost = band == 0 || band == bands - 1 || left || right;

    for (int number = 0; number < sweeps; ++number) {
        const Flag now = done + number;
        const Index from = (now & 1) ? stride : 0, to = stride - from;
        if (awaited) {
            wait_for(awaited, now);
            fence(outermost);
        }
        __syncthreads();
        const Targets targets{above + to, below + to, left ? left + to : nullptr, right ? right + to : nullptr};
        real sum = 0;
        for (int item = warp; item < strips * shares; item += warps) {
            const Strip strip(item % strips, columns, first, last, left != nullptr, right != nullptr);
            const int share = begin + item / strips * per_share;
            if (share >= end) break;  // the last shares may be empty
            sum += march<PERSISTENT_IN_FLIGHT>(strip, grid + from, grid + to, pitch, rows, share,
                                               min(share + per_share, end), targets);
        }
        const bool checked = now % check == 0;
        if (checked) {
            const double part = over_warp(double(sum));
            if (threadIdx.x % WARP == 0) parts[number & 1][warp] = part;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            fence(outermost);
            set(flags + Index(band + 1) * FLAG_STEP, now + 1);
            if (band == 0) set(set_above, now + 1);
            if (band == bands - 1) set(set_below, now + 1);
            if (left) set(set_left + Index(band) * FLAG_STEP, now + 1);
            if (right) set(set_right + Index(band) * FLAG_STEP, now + 1);
        }
        if (checked && warp == warps - 1) {
            const int lane = threadIdx.x % WARP;
            const double total = over_warp(lane < warps ? parts[number & 1][lane] : 0.0);
            if (lane == 0) atomicAdd(norms + number, total);
        }
    }
}

// ---- several sweeps per pass over memory

// A warp performs DEPTH sweeps while it marches down a strip: after loading a row it sweeps the previous row for the
// first time, the one before that for the second time, and so on; a stored row has been swept DEPTH times. Each
// sweep loses a column on either side of the strip; neighbouring strips overlap, and compute these columns. The kernel
// needs a halo of DEPTH rows and, where the grid is split along columns, of `beside` = DEPTH columns. Columns of the
// whole grid from `low` up to `high` change. Norms are as for `persistent`.
//
// WITHIN: all columns of the warp are far from any boundary.
template <int DEPTH, bool WITHIN>
__device__ __forceinline__ void march_blocked(const real* in, real* out, Index pitch, int columns, int first, int last,
                                              int low, int high, int column, bool kept, int beside, int begin, int end,
                                              real (&sums)[DEPTH]) {
    const bool readable = WITHIN || (column + VECTOR > -beside && column < columns + beside);
    const bool whole = kept && (WITHIN || (column >= first && column + VECTOR <= last));
    Vector above[DEPTH] = {}, current[DEPTH] = {};
    const real* ahead = in + Index(begin - DEPTH) * pitch + column;
    real* row_out = out + Index(begin) * pitch + column;
    // Load row `row`, and make the sweep number s of row `row` - s, from s = 1 to DEPTH.
    for (int row = begin - DEPTH; row < end + DEPTH; row += BLOCKED_IN_FLIGHT) {
        Vector coming[BLOCKED_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < BLOCKED_IN_FLIGHT; ++i) {
            coming[i] = readable && row + i < end + DEPTH ? *reinterpret_cast<const Vector*>(ahead) : Vector{};
            ahead += pitch;
        }
#pragma unroll
        for (int i = 0; i < BLOCKED_IN_FLIGHT; ++i) {
            Vector below = coming[i];
#pragma unroll
            for (int s = 0; s < DEPTH; ++s) {
                const int made = row + i - s - 1;
                const bool counts = made >= begin && made < end;
                const real left = of_previous_lane(current[s].at[VECTOR - 1]);
                const real right = of_next_lane(current[s].at[0]);
                Vector result;
                real sum = 0;
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    const real was = current[s].at[j];
                    result.at[j] = relax(j == 0 ? left : current[s].at[j - 1],
                                         j == VECTOR - 1 ? right : current[s].at[j + 1], above[s].at[j], below.at[j]);
                    if (!WITHIN && (column + j < low || column + j >= high)) result.at[j] = was;
                    // Columns of neighbours' blocks change as well, but the neighbours add them to the norm.
                    const bool changes = WITHIN || (column + j >= first && column + j < last);
                    const real change = changes ? result.at[j] - was : real(0);
                    sum += change * change;
                }
                if (counts) sums[s] += sum;
                above[s] = current[s];
                current[s] = below;
                below = result;
            }
            const int made = row + i - DEPTH;
            if (made >= begin && made < end) {
                if (whole) {
                    *reinterpret_cast<Vector*>(row_out) = below;
                } else if (!WITHIN && kept) {
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j) {
                        if (column + j >= first && column + j < last) row_out[j] = below.at[j];
                    }
                }
                row_out += pitch;
            }
        }
    }
}

template <int DEPTH>
__device__ __forceinline__ void blocked(const real* __restrict__ in, real* __restrict__ out, Index pitch, int rows,
                                        int columns, int first, int last, int low, int high, int strips, int count,
                                        int chunks, int beside, Flag done, int check, double* norms) {
    constexpr int LOST = (DEPTH + VECTOR - 1) / VECTOR;  // lanes on either side
    constexpr int KEPT = (WARP - 2 * LOST) * VECTOR;     // columns
    const int item = int(blockIdx.x) * WARPS + int(threadIdx.x) / WARP;
    const int lane = threadIdx.x % WARP;
    const bool kept = lane >= LOST && lane < WARP - LOST;
    real sums[DEPTH] = {};
    if (item < strips * chunks) {
        const int begin = item / strips * count, end = min(begin + count, rows);
        const int left_end = item % strips * KEPT - LOST * VECTOR, column = left_end + lane * VECTOR;
        if (left_end >= first && left_end + STRIP <= last) {
            march_blocked<DEPTH, true>(in, out, pitch, columns, first, last, low, high, column, kept, beside, begin,
                                       end, sums);
        } else {
            march_blocked<DEPTH, false>(in, out, pitch, columns, first, last, low, high, column, kept, beside, begin,
                                        end, sums);
        }
    }
#pragma unroll
    for (int s = 0; s < DEPTH; ++s) {
        if ((done + s) % check == 0) {
            add_norm(kept ? sums[s] : real(0), norms + s);
            __syncthreads();
        }
    }
}

#define BLOCKED(DEPTH)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) blocked##DEPTH(                                              \
        const real* in, real* out, Index pitch, int rows, int columns, int first, int last, int low, int high,         \
        int strips, int count, int chunks, int beside, Flag done, int check, double* norms) {                          \
        blocked<DEPTH>(in, out, pitch, rows, columns, first, last, low, high, strips, count, chunks, beside, done,     \
                       check, norms);                                                                                  \
    }
BLOCKED(1)
BLOCKED(2)
BLOCKED(4)
BLOCKED(8)

#endif
