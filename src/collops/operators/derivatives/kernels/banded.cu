// Products of an array with bands along its axes, summed or stored separately, in one pass over memory.
//
// The array is rows x columns. Rows run along the *marched* axis: a thread proceeds along it and keeps in registers the
// values it has read, to read nothing twice. Without this axis, rows are all lines of the last axis. A column is PACK
// neighbouring numbers. A complex array is one of twice as many real numbers (PARTS = 2).
//
// compile-with: -DMARCH=1 -DLOWER=1 -DUPPER=1
// compile-with: -DLAST=1 -DLAST_LOWER=1 -DLAST_UPPER=1
// compile-with: -DMARCH=1 -DLOWER=1 -DUPPER=1 -DLAST=1 -DLAST_LOWER=1 -DLAST_UPPER=1
// compile-with: -DMARCH=1 -DLOWER=1 -DUPPER=1 -DLAST=1 -DLAST_LOWER=1 -DLAST_UPPER=1 -DSHUFFLE=1
// compile-with: -DMARCH=1 -DLOWER=1 -DUPPER=1 -DLAST=1 -DLAST_LOWER=1 -DLAST_UPPER=1 -DSHUFFLE=1 -DADD=1 -DFLAT=1
// compile-with: -DMARCH=1 -DLOWER=1 -DUPPER=1 -DLAST=1 -DLAST_LOWER=1 -DLAST_UPPER=1 -DSHUFFLE=1 -DADD=1 -DFLAT=1 -DSQUARES=1
// compile-with: -DMARCH=1 -DLOWER=2 -DUPPER=2 -DOTHERS=1 -DLAST=1 -DLAST_LOWER=2 -DLAST_UPPER=2 -DPARTS=2 -DPACK=1
// compile-with: -DCOLLOPS_DOUBLE -DPACK=2 -DMARCH=1 -DOTHERS=2 -DUPPER=1 -DSEVERAL=1
// compile-with: -DCOLLOPS_DOUBLE -DPACK=2 -DPARTS=2 -DMARCH=1 -DLAST=1 -DLAST_UPPER=1 -DUPPER=1 -DSEVERAL=2
// compile-with: -DCOLLOPS_DOUBLE -DPACK=2 -DPARTS=2 -DMARCH=1 -DLAST=1 -DLAST_UPPER=1 -DUPPER=1 -DSEVERAL=2 -DSQUARES=1

#ifdef COLLOPS_DOUBLE
typedef double Real;
typedef double2 Wide;
#define BLOCKS_AT_ONCE 2  // of one multiprocessor
#else
typedef float Real;
typedef float4 Wide;
#define BLOCKS_AT_ONCE (LAST && (ADD || SEVERAL == 1) ? 2 : 3)
#endif
#ifndef PACK
#define PACK 4  // real numbers that a thread reads at once: 16 bytes, or one number
#endif
#ifndef PARTS
#define PARTS 1  // real numbers of one element
#endif
#ifndef MARCH
#define MARCH 0  // whether there is a band along an axis that is not the last
#endif
#ifndef OTHERS
#define OTHERS 0  // number of further bands along axes that are not the last
#endif
#ifndef LAST
#define LAST 0  // whether there is a band along the last axis
#endif
#ifndef LOWER
#define LOWER 0  // how far the stencil of the marched band reaches down
#endif
#ifndef UPPER
#define UPPER 0  // and up
#endif
#ifndef LAST_LOWER
#define LAST_LOWER 0
#endif
#ifndef LAST_UPPER
#define LAST_UPPER 0
#endif
#ifndef FLAT
#define FLAT 0  // whether there are no other axes before the marched one, nor between it and the last band's
#endif
#ifndef SHUFFLE
#define SHUFFLE 0  // whether threads exchange the numbers next to theirs along the last axis
#endif
#ifndef SEVERAL
#define SEVERAL 0  // 1: every band reads a separate array; 2: every band writes a separate array
#endif
#ifndef ADD
#define ADD 0  // whether the products are added to the values of the only target
#endif
#ifndef SQUARES
#define SQUARES 0  // whether blocks also add up the squares of the numbers that they write
#endif

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
#define GRID_CONSTANT
#define STORE_WHOLE(address, wide) (*(address) = (wide))
#else
#define GRID_CONSTANT __grid_constant__  // or a function that is not inlined would be given a copy of the argument
#define STORE_WHOLE(address, wide) __stwb(address, wide)  // which the compiler does not split
#endif

#define REACH 2
#define WIDTH 5
#define MAX_SPECIAL 8
#define BANDS (MARCH + OTHERS + LAST)
#define LAST_BAND (BANDS - 1)
#define THREADS 256  // of a block
#define BATCH 4    // rows whose numbers are all loaded before the first is used
#define AT_ONCE 2  // the same at the ends of rows

typedef long long Long;

// The rows of a band that this rank has.
struct Band {
    const Real* source;
    Real* target;
    const Real* before;  // planes of other ranks on either side
    const Real* after;
    Long stride;  // real numbers from one element to the next along the axis
    int extent, planes_before, planes_after;
    int head_end, head_row, tail_begin, tail_row;  // where the special rows end and begin, and their indices
    int unused;
    Real usual[WIDTH];
    Real special[MAX_SPECIAL][WIDTH];
};

struct Problem {
    Band bands[BANDS];  // the marched band first, the band of the last axis at the end
    Long columns;       // in packs, of all outer indices
    Long packs;         // columns of one outer index
    Long inner;         // real numbers from one row to the next
    Long last;          // real numbers along the last axis
    int rows;
    int first_begin, first_end, second_begin, second_end;  // the rows to compute: two ranges
    int chunk, first_chunks, chunks;                       // rows of one thread, and the number of such chunks
#if SQUARES
    double* squares;  // the sum of each block
#endif
};

struct Pack {
    Real value[PACK];
};

__device__ __forceinline__ Pack zeros()
{
    Pack pack;
    #pragma unroll
    for (int v = 0; v < PACK; ++v) pack.value[v] = 0;
    return pack;
}

__device__ __forceinline__ Pack load(const Real* address)
{
    Pack pack;
#if PACK == 1
    pack.value[0] = __ldg(address);
#else
    const Wide wide = __ldg(reinterpret_cast<const Wide*>(address));
    pack.value[0] = wide.x;
    pack.value[1] = wide.y;
#if PACK == 4
    pack.value[2] = wide.z;
    pack.value[3] = wide.w;
#endif
#endif
    return pack;
}

// Of an array that this kernel writes.
__device__ __forceinline__ Pack load_own(const Real* address)
{
    Pack pack;
#if PACK == 1
    pack.value[0] = *address;
#else
    const Wide wide = *reinterpret_cast<const Wide*>(address);
    pack.value[0] = wide.x;
    pack.value[1] = wide.y;
#if PACK == 4
    pack.value[2] = wide.z;
    pack.value[3] = wide.w;
#endif
#endif
    return pack;
}

__device__ __forceinline__ void store(Real* address, const Pack& pack)
{
#if PACK == 1
    *address = pack.value[0];
#else
#if PACK == 4
    const Wide wide = {pack.value[0], pack.value[1], pack.value[2], pack.value[3]};
#else
    const Wide wide = {pack.value[0], pack.value[1]};
#endif
    STORE_WHOLE(reinterpret_cast<Wide*>(address), wide);
#endif
}

__device__ __forceinline__ void add_squares(Real& sum, const Pack& pack)
{
    #pragma unroll
    for (int v = 0; v < PACK; ++v) sum += pack.value[v] * pack.value[v];
}

// A part of the result.
__device__ __forceinline__ void store_result(Real* address, const Pack& pack, Real& square)
{
    store(address, pack);
#if SQUARES
    add_squares(square, pack);
#endif
}

#if SQUARES
// Write the sum over a block, always in the same order. Threads have stored their sums in `of_threads`. Threads without
// work have stored 0 and exited: they are the last of each row of threads, and the last rows. An exited thread would have
// added zeros only, so that the sum of the remaining threads is complete.
__device__ __forceinline__ void write_block_sum(double* of_threads, int thread, double* out)
{
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) of_threads[thread] += of_threads[thread + half];
    }
    if (thread == 0) *out = of_threads[0];
}
#endif

__device__ __forceinline__ void add(Pack& sum, Real factor, const Pack& pack)
{
    #pragma unroll
    for (int v = 0; v < PACK; ++v) sum.value[v] += factor * pack.value[v];
}

__device__ __forceinline__ bool is_special(const Band& band, int row)
{
    return row < band.head_end || row >= band.tail_begin;
}

// A coefficient of a row, `offset` elements from the diagonal.
__device__ __forceinline__ Real coefficient(const Band& band, int row, int offset)
{
    if (row < band.head_end) return band.special[band.head_row + row][REACH + offset];
    if (row >= band.tail_begin) return band.special[band.tail_row + row - band.tail_begin][REACH + offset];
    return band.usual[REACH + offset];
}

// Where element `row` along the axis is, given the outer index and the place within one plane; null beyond all planes.
__device__ __forceinline__ const Real* place(const Band& band, Long outer, int row, Long within)
{
    if (row < 0) {
        row += band.planes_before;
        return row < 0 ? nullptr : band.before + (outer * band.planes_before + row) * band.stride + within;
    }
    if (row < band.extent) return band.source + (outer * band.extent + row) * band.stride + within;
    row -= band.extent;
    return row < band.planes_after ? band.after + (outer * band.planes_after + row) * band.stride + within : nullptr;
}

__device__ __forceinline__ Pack load_or_zeros(const Real* address)
{
    return address == nullptr ? zeros() : load(address);
}

// A row of any band by its own coefficients, with one read for each number.
__device__ __forceinline__ void add_row(Pack& sum, const Band& band, Long outer, int row, Long within)
{
    #pragma unroll 1
    for (int offset = -REACH; offset <= REACH; ++offset) {
        const Real factor = coefficient(band, row, offset);
        if (factor != 0) add(sum, factor, load_or_zeros(place(band, outer, row + offset, within)));
    }
}

#if SHUFFLE
// The threads that take part, and whether this one has a neighbour among them on either side.
struct Lanes {
    unsigned mask;
    bool below, above;
};

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
__device__ __forceinline__ Real of_lane_below(const Lanes&, Real value) { return __shfl_up(value, 1); }
__device__ __forceinline__ Real of_lane_above(const Lanes&, Real value) { return __shfl_down(value, 1); }
__device__ __forceinline__ Lanes lanes_of(bool busy)
{
    const unsigned long long mask = __ballot(busy);
    const int lane = threadIdx.x % warpSize;
    return {0, lane > 0, lane + 1 < warpSize && (mask >> (lane + 1) & 1) != 0};
}
#else
__device__ __forceinline__ Real of_lane_below(const Lanes& lanes, Real value)
{
    return __shfl_up_sync(lanes.mask, value, 1);
}
__device__ __forceinline__ Real of_lane_above(const Lanes& lanes, Real value)
{
    return __shfl_down_sync(lanes.mask, value, 1);
}
__device__ __forceinline__ Lanes lanes_of(bool busy)
{
    const unsigned mask = __ballot_sync(0xffffffffu, busy);
    const int lane = threadIdx.x % 32;
    return {mask, lane > 0, lane < 31 && (mask >> (lane + 1) & 1) != 0};
}
#endif
#else
struct Lanes {};
__device__ __forceinline__ Lanes lanes_of(bool) { return {}; }
#endif

#if LAST
#define SIDE(reach) ((reach) * PARTS > 0 ? (reach) * PARTS : 1)

// The numbers of a row before and after a pack.
struct Sides {
    Real below[SIDE(LAST_LOWER)], above[SIDE(LAST_UPPER)];
};

// The sides of the pack `here` that must be read: loaded together with the pack, some rows before it is used.
__device__ __forceinline__ Sides load_sides(const Real* here, bool below, bool above, const Lanes& lanes)
{
    Sides sides;
#if SHUFFLE
    below = below && !lanes.below;
    above = above && !lanes.above;
#endif
    #pragma unroll
    for (int k = 0; k < LAST_LOWER * PARTS; ++k)
        sides.below[k] = below ? __ldg(here - LAST_LOWER * PARTS + k) : static_cast<Real>(0);
    #pragma unroll
    for (int k = 0; k < LAST_UPPER * PARTS; ++k)
        sides.above[k] = above ? __ldg(here + PACK + k) : static_cast<Real>(0);
    return sides;
}

// Get the others from the neighbouring threads. All threads of a warp call this together.
__device__ __forceinline__ void pass_sides(Sides& sides, const Pack& center, const Lanes& lanes)
{
#if SHUFFLE
    #pragma unroll
    for (int k = 0; k < LAST_LOWER * PARTS; ++k) {
        const Real value = of_lane_below(lanes, center.value[PACK - LAST_LOWER * PARTS + k]);
        if (lanes.below) sides.below[k] = value;
    }
    #pragma unroll
    for (int k = 0; k < LAST_UPPER * PARTS; ++k) {
        const Real value = of_lane_above(lanes, center.value[k]);
        if (lanes.above) sides.above[k] = value;
    }
#endif
}

// The band of the last axis on a pack, `center`, without the elements in `ends`: those with a special row, and those that
// need elements beyond the array.
__device__ __forceinline__ void add_last(Pack& sum, const Band& band, const Pack& center, const Sides& sides,
                                         unsigned ends)
{
    Real near[PACK + (LAST_LOWER + LAST_UPPER) * PARTS];
    #pragma unroll
    for (int k = 0; k < LAST_LOWER * PARTS; ++k) near[k] = sides.below[k];
    #pragma unroll
    for (int v = 0; v < PACK; ++v) near[LAST_LOWER * PARTS + v] = center.value[v];
    #pragma unroll
    for (int k = 0; k < LAST_UPPER * PARTS; ++k) near[LAST_LOWER * PARTS + PACK + k] = sides.above[k];
    #pragma unroll
    for (int v = 0; v < PACK; ++v) {
        Real total = 0;
        #pragma unroll
        for (int offset = -LAST_LOWER; offset <= LAST_UPPER; ++offset)
            total += band.usual[REACH + offset] * near[v + (LAST_LOWER + offset) * PARTS];
        sum.value[v] += ends >> v & 1 ? static_cast<Real>(0) : total;
    }
}

// Add to `target` the elements that add_last omitted, for `rows` rows: the first is row `row` of the last axis, each next
// one is `row_step` rows and `inner` numbers further. Done once at the end, since few threads need it and
// it takes registers; where the coefficients are zeros, as at most ends, there is nothing to do.
__device__ __noinline__ void add_ends(const Band& band, Real* target, Long row, Long row_step, Long inner, Long column,
                                      int rows, unsigned ends)
{
    for (int v = 0; v < PACK; ++v) {
        if (!(ends >> v & 1)) continue;
        const int element = static_cast<int>((column + v) / PARTS);
        Real factors[WIDTH];
        const Real* near[WIDTH];
        Long steps[WIDTH];  // from one of the rows to the next
        bool any = false;
        #pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            const int other = element + k - REACH;
            factors[k] = coefficient(band, element, k - REACH);
            any = any || factors[k] != 0;
            near[k] = factors[k] != 0 ? place(band, row, other, (column + v) % PARTS) : nullptr;
            steps[k] = row_step * band.stride *
                       (other < 0 ? band.planes_before : other < band.extent ? band.extent : band.planes_after);
        }
        if (!any) continue;
        // The values for several rows are loaded before the first is used, as in the loop over the others.
        for (int first = 0; first < rows; first += AT_ONCE) {
            Real totals[AT_ONCE], values[AT_ONCE][WIDTH];
            #pragma unroll
            for (int b = 0; b < AT_ONCE; ++b) {
                const int number = first + b;
                totals[b] = number < rows ? target[number * inner + v] : static_cast<Real>(0);
                #pragma unroll
                for (int k = 0; k < WIDTH; ++k)
                    values[b][k] = near[k] != nullptr && number < rows ? __ldg(near[k] + number * steps[k])
                                                                      : static_cast<Real>(0);
            }
            #pragma unroll
            for (int b = 0; b < AT_ONCE; ++b) {
                #pragma unroll
                for (int k = 0; k < WIDTH; ++k) totals[b] += factors[k] * values[b][k];
            }
            #pragma unroll
            for (int b = 0; b < AT_ONCE; ++b)
                if (first + b < rows) target[(first + b) * inner + v] = totals[b];
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) banded(const GRID_CONSTANT Problem p)
{
    const Long column = static_cast<Long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int number = blockIdx.y * blockDim.y + threadIdx.y;
    const bool busy = column < p.columns && number < p.chunks;
    const Lanes lanes = lanes_of(busy);
#if SQUARES
    __shared__ double of_threads[THREADS];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    of_threads[thread] = 0;
#endif
    if (!busy) return;
    Real squares[] = {0, 0};  // of the target that add_ends changes, and of the others
    const bool first = number < p.first_chunks;
    const int begin = first ? p.first_begin + number * p.chunk : p.second_begin + (number - p.first_chunks) * p.chunk;
    const int limit = first ? p.first_end : p.second_end;
    const int end = begin + p.chunk < limit ? begin + p.chunk : limit;
    const Long outer = FLAT ? 0 : column / p.packs;
    const Long within = (column - outer * p.packs) * PACK;
    const Long start = outer * p.rows * p.inner + within;

#if LAST
    const Long along = FLAT ? within : within % p.last;
    const Long lowest_row = FLAT ? 0 : (start - along) / p.last, row_step = FLAT ? 1 : p.inner / p.last;
    const int lowest = static_cast<int>(along / PARTS), highest = static_cast<int>((along + PACK - 1) / PARTS);
    const Band& last = p.bands[LAST_BAND];
    const bool below = lowest >= LAST_LOWER, above = highest + LAST_UPPER < last.extent;
    unsigned ends = 0;
    #pragma unroll
    for (int v = 0; v < PACK; ++v) {
        const int element = static_cast<int>((along + v) / PARTS);
        if (is_special(last, element) || element < LAST_LOWER || element + LAST_UPPER >= last.extent) ends |= 1u << v;
    }
#endif

#if MARCH
    const Band& march = p.bands[0];
    // Most threads have neither a remote nor a special row and skip the tests of each row.
    const bool inside = begin >= LOWER && end + UPPER <= march.extent;
    const bool regular = begin >= march.head_end && end <= march.tail_begin;
    const Real* const coming = march.source + start + UPPER * p.inner;
    Pack window[LOWER + UPPER + BATCH];
    #pragma unroll
    for (int k = 0; k < LOWER + UPPER; ++k) window[k] = load_or_zeros(place(march, outer, begin - LOWER + k, within));
#endif

#if LAST
    Sides sides[UPPER + BATCH];  // of this row and of those that are being loaded
    #pragma unroll
    for (int k = 0; k < UPPER; ++k)
        sides[k] = load_sides(last.source + start + (begin + k) * p.inner, below && begin + k < end,
                              above && begin + k < end, lanes);
#endif

    for (int row = begin; row < end; row += BATCH) {
#if ADD
        Pack sums[BATCH];
        #pragma unroll
        for (int b = 0; b < BATCH; ++b)
            sums[b] = row + b < end ? load_own(p.bands[0].target + start + (row + b) * p.inner) : zeros();
#endif
#if LAST
        #pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int under_way = row + b + UPPER;
            const bool some = under_way < end;
            sides[UPPER + b] =
                load_sides(last.source + start + under_way * p.inner, below && some, above && some, lanes);
        }
#endif
#if MARCH
        if (inside) {
            #pragma unroll
            for (int b = 0; b < BATCH; ++b)
                window[LOWER + UPPER + b] = row + b < end ? load(coming + (row + b) * p.inner) : zeros();
        } else {
            #pragma unroll
            for (int b = 0; b < BATCH; ++b)
                window[LOWER + UPPER + b] =
                    row + b < end ? load_or_zeros(place(march, outer, row + b + UPPER, within)) : zeros();
        }
#endif
#if LAST && (!MARCH || SEVERAL == 1)
        Pack centers[BATCH];
        #pragma unroll
        for (int b = 0; b < BATCH; ++b)
            centers[b] = row + b < end ? load(last.source + start + (row + b) * p.inner) : zeros();
#endif
        #pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (row + b >= end) break;
            const Long here = start + (row + b) * p.inner;
#if ADD
            Pack sum = sums[b];
#else
            Pack sum = zeros();
#endif
#if MARCH
            if (!regular && is_special(march, row + b)) {
                add_row(sum, march, outer, row + b, within);
            } else {
                #pragma unroll
                for (int offset = -LOWER; offset <= UPPER; ++offset)
                    add(sum, march.usual[REACH + offset], window[b + LOWER + offset]);
            }
#if SEVERAL == 2
            store_result(march.target + here, sum, squares[1]);
            sum = zeros();
#endif
#endif
#if OTHERS
            #pragma unroll
            for (int other = MARCH; other < MARCH + OTHERS; ++other) {
                const Band& band = p.bands[other];
                const Long planes = here / band.stride;
                add_row(sum, band, planes / band.extent, static_cast<int>(planes % band.extent), here % band.stride);
#if SEVERAL == 2
                store_result(band.target + here, sum, squares[1]);
                sum = zeros();
#endif
            }
#endif
#if LAST
#if !MARCH || SEVERAL == 1
            const Pack center = centers[b];
#else
            const Pack center = window[b + LOWER];
#endif
            pass_sides(sides[b], center, lanes);
            add_last(sum, last, center, sides[b], ends);
#if SEVERAL == 2
            store_result(last.target + here, sum, squares[0]);
#endif
#endif
#if SEVERAL != 2
            store_result(p.bands[0].target + here, sum, squares[0]);
#endif
        }
#if MARCH
        #pragma unroll
        for (int k = 0; k < LOWER + UPPER; ++k) window[k] = window[k + BATCH];
#endif
#if LAST
        #pragma unroll
        for (int k = 0; k < UPPER; ++k) sides[k] = sides[k + BATCH];
#endif
    }
#if LAST
    if (ends) {
        Real* const target = p.bands[SEVERAL == 2 ? LAST_BAND : 0].target + start + begin * p.inner;
        add_ends(last, target, lowest_row + begin * row_step, row_step, p.inner, along, end - begin, ends);
#if SQUARES
        squares[0] = 0;
        for (int row = 0; row < end - begin; ++row) add_squares(squares[0], load_own(target + row * p.inner));
#endif
    }
#endif
#if SQUARES
    of_threads[thread] = static_cast<double>(squares[0]) + squares[1];
    // The index depends on the rows of the block, not on the order of execution.
    write_block_sum(of_threads, thread, p.squares + static_cast<Long>(number / blockDim.y) * gridDim.x + blockIdx.x);
#endif
}
