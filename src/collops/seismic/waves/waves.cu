// Time steps of acoustic waves on a tile: the kernels of cuda_steps.py, with the arithmetic of numpy_steps.py.
//
// A step advances first the memory variables of the layers that neighbours of a point need. Then it computes the next field: threads
// march along the slowest axis, with the stencil's points along it in registers and those across it in shared memory. Points that layers
// reach are computed by the same code with further terms, in kernels of their own, which need more registers. At the same time the
// receivers are sampled. Compiled without contraction (--fmad=false), each point takes the operations of the NumPy steps in the same
// order: results are the same bits as on hosts, and depend neither on the tiles nor on how threads share the points.
//
// compile-with: -DNDIM=3 -DHALF=4 -DVEC=4 -DBX=16 -DBY=8 -DBLOCKS=4
// compile-with: -DNDIM=2 -DHALF=8 -DVEC=1 -DBX=128 -DBY=1 -DBLOCKS=1 -DCOLLOPS_DOUBLE
// compile-with: -DNDIM=1 -DHALF=1 -DVEC=1 -DBX=128 -DBY=1 -DBLOCKS=1
//
// NDIM is the number of axes of the grid and HALF half the order of accuracy. A thread computes VEC points that are next to each other,
// and a block has BX x BY threads, whose registers suffice for BLOCKS blocks on a multiprocessor. Arrays have three axes; those that the
// grid does not have are the first ones and have one point. Fields have halos, and rows whose length and whose first point are multiples
// of VEC; other arrays are of the size of the tile, whose rows are multiples of VEC as well.

#ifdef __HIP__
#pragma clang fp contract(off)
#endif

#ifdef COLLOPS_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define MARCH (NDIM == 3 ? 0 : 1)                // the axis along which a thread marches
#define FIRST_AXIS (3 - NDIM)                    // the first axis of the grid
#define DEEP (NDIM > 1 ? HALF : 0)               // points before and after along it
#define SIDE ((HALF + VEC - 1) / VEC)            // vectors beside a row of a block
#define ABOVE (NDIM == 3 ? HALF : 0)             // rows before and after those of a block
#define COLUMNS (BX + 2 * SIDE)                  // vectors of a row in shared memory
#define ENDS (2 * ABOVE * BX)                    // vectors above and below a block
#define BORDER (ENDS + 2 * SIDE * BY)            // vectors of the edge of a block
#define THREADS (BX * BY)
#define EACH ((BORDER + THREADS - 1) / THREADS)  // vectors of the edge that a thread loads
#define AROUND ((2 * HALF + 1) * VEC)            // values around the points of a thread along an axis
#define PREFETCH (HALF > 4 ? 1 : 2)              // planes that are fetched ahead: as many as shared memory has room for
#define WIDTH 8                                  // maximum of HALF
#define LINE 32                                  // threads along a row of a layer, and LINES rows
#define LINES 8
#define LAYERS 6

struct alignas(VEC * sizeof(Real)) Vec {
    Real at[VEC];
};

// A layer; see `Slab` in grid.py. Its memory variables are stored where `begin` <= index along the axis < `end`, at
// origin + i stride0 + j stride1 + k; they are zero elsewhere. Its coefficients are at profile + the index along the axis.
struct Slab {
    long long origin;
    int axis, first, last, begin, end, profile, stride0, stride1;
    int block;  // the number of the first block that advances it
};

// Points that blocks compute, each BY rows of BX vectors on so many planes. Blocks are numbered along rows, across them, and along the
// march.
struct Box {
    int first[3], last[3], columns, rows, planes, block;
};

// The arguments of all kernels. Indices of coefficients are axis * WIDTH + k.
struct Step {
    Real *now, *next;        // fields; `next` has the field before, and receives the one after
    Real *first, *second;    // memory variables: psi and zeta, or r and t of the adjoint
    const Real* earlier;     // t before the step
    const Real *a, *b, *c;
    Real* stored;            // the Laplacian with layers and sources at step n, at (n - clock[1]) * storage
    Real* image;             // of the adjoint
    const Real *change, *scattering;  // added to the field: their product; null if there is none
    int* clock;              // the number of the step is clock[0] + ahead
    const int* slots;        // of the points of a box around the source: the column of `signal`, or -1
    const Real* signal;      // (samples, sources)
    const int* reads;        // receivers as a sparse matrix: where rows begin, indices in the field, and weights
    const long long* columns;
    const Real* weights;
    Real* traces;            // (receivers, samples)
    const int* adds;         // its transpose: rows are points of the tile, columns receivers
    const int* receiver;
    const Real* spread;
    const long long* points;
    long long origin, stride0, storage;
    int stride1, samples, receivers, sources, added, surface, slabs;
    int size[3];
    int clear[3], unclear[3];        // no layer reaches the points in [clear, unclear) along each axis
    int slab_of[4];                  // the number of the first slab across each axis
    int box_of[5];                   // and of the first box that they reach, but no layers across axes before; then of other points
    int source_first[3], source_size[3];
    Real center, centers[3], seconds[3 * WIDTH], firsts[3 * WIDTH];
    Slab slab[LAYERS];
    Box box[LAYERS + 1];             // the last one has the points that no layer reaches
};

__device__ __forceinline__ Vec load(const Real* from)
{
    return *reinterpret_cast<const Vec*>(from);
}

// Copy to shared memory while the program continues: when wait<n>() returns, all copies but the last n groups are complete.
__device__ __forceinline__ void fetch(Vec* to, const Real* from)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(sizeof(Vec))
                 : "memory");
#else
    *to = load(from);
#endif
}

__device__ __forceinline__ void end_group()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int GROUPS>
__device__ __forceinline__ void wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

__device__ __forceinline__ void store(Real* to, const Vec& values)
{
    *reinterpret_cast<Vec*>(to) = values;
}

// Values around the points of a thread along an axis: those at distance e from point v at v + (HALF + e) * spacing(axis).
__device__ constexpr int spacing(int axis)
{
    return axis == 2 ? 1 : VEC;
}

template <int AXIS>
__device__ __forceinline__ Real first_derivative(const Step& s, const Real* around, int v)
{
    const int gap = spacing(AXIS);
    const Real* at = around + v + HALF * gap;
    Real total = s.firsts[AXIS * WIDTH] * (at[gap] - at[-gap]);
#pragma unroll
    for (int k = 1; k < HALF; ++k) total += s.firsts[AXIS * WIDTH + k] * (at[(k + 1) * gap] - at[-(k + 1) * gap]);
    return total;
}

// Add the second derivative without its central term.
template <int AXIS>
__device__ __forceinline__ void add_sides(const Step& s, const Real* around, int v, Real& total)
{
    const int gap = spacing(AXIS);
    const Real* at = around + v + HALF * gap;
#pragma unroll
    for (int k = 0; k < HALF; ++k) total += s.seconds[AXIS * WIDTH + k] * (at[(k + 1) * gap] + at[-(k + 1) * gap]);
}

template <int AXIS>
__device__ __forceinline__ Real second_derivative(const Step& s, const Real* around, int v)
{
    Real total = s.centers[AXIS] * around[v + HALF * spacing(AXIS)];
    add_sides<AXIS>(s, around, v, total);
    return total;
}

// Read values around points along an axis, where neighbours are `stride` apart. They are zero unless begin <= index along the axis < end.
template <int AXIS>
__device__ __forceinline__ void read_around(const Real* at, int stride, int depth, int begin, int end, Real (&around)[AROUND])
{
    if (AXIS == 2) {
#pragma unroll
        for (int e = -SIDE; e <= SIDE; ++e) {
            const int first = depth + e * VEC;
            const Vec part = first >= begin && first < end ? load(at + e * VEC) : Vec{};
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const int place = e * VEC + v + HALF;
                if (place >= 0 && place < VEC + 2 * HALF) around[place] = part.at[v];
            }
        }
    } else {
#pragma unroll
        for (int e = -HALF; e <= HALF; ++e) {
            const int index = depth + e;
            const Vec part = index >= begin && index < end ? load(at + (long long)e * stride) : Vec{};
#pragma unroll
            for (int v = 0; v < VEC; ++v) around[(e + HALF) * VEC + v] = part.at[v];
        }
    }
}

// The field around the points of a thread, from its queue or from shared memory.
template <int AXIS>
__device__ __forceinline__ void take_around(const Vec (&queue)[2 * DEEP + 1], const Vec* shared, Real (&around)[AROUND])
{
#pragma unroll
    for (int e = AXIS == 2 ? -SIDE : -HALF; e <= (AXIS == 2 ? SIDE : HALF); ++e) {
        const bool along = AXIS == MARCH && DEEP > 0;
        const Vec part = e == 0 ? queue[DEEP] : along ? queue[along ? DEEP + e : 0] : shared[AXIS == 2 ? e : e * COLUMNS];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const int place = AXIS == 2 ? e * VEC + v + HALF : (e + HALF) * VEC + v;
            if (place >= 0 && place < AROUND) around[place] = part.at[v];
        }
    }
}

// Store a value of a field, and its mirror image above a free surface.
__device__ __forceinline__ void store_and_mirror(const Step& s, Real* field, int k, Real value)
{
    *field = value;
    if (s.surface && k >= 1 && k <= HALF) *(field - 2 * k) = -value;
}

// Finish a step at a point: add what scatters, and the source. `total` is the Laplacian with layers, and receives the source.
__device__ __forceinline__ Real completed(
    const Step& s, int n, int i, int j, int k, long long own, Real middle, Real old, Real c, Real& total, bool source)
{
    Real result = (2 * middle - old) + c * total;
    if (s.change) result += s.change[own] * s.scattering[own];
    if (source) {
        const int box0 = i - s.source_first[0], box1 = j - s.source_first[1], box2 = k - s.source_first[2];
        if ((unsigned)box0 < (unsigned)s.source_size[0] && (unsigned)box1 < (unsigned)s.source_size[1] &&
            (unsigned)box2 < (unsigned)s.source_size[2]) {
            const int slot = s.slots[(box0 * s.source_size[1] + box1) * s.source_size[2] + box2];
            if (slot >= 0) {
                const Real signal = s.signal[(long long)n * s.sources + slot];
                result += c * signal;
                total += signal;
            }
        }
    }
    return result;
}


// The vector number e of the edge of a block: its place relative to the first point of the block.
__device__ __forceinline__ void edge_of(int e, int& row, int& column)
{
    if (e < ENDS) {
        row = e / BX;
        row = row < ABOVE ? row - ABOVE : row - ABOVE + BY;
        column = e % BX;
    } else {
        row = (e - ENDS) / (2 * SIDE);
        column = (e - ENDS) % (2 * SIDE);
        column = column < SIDE ? column - SIDE : column - SIDE + BX;
    }
}

// Add the sides of the Laplacian along an axis.
template <int AXIS>
__device__ __forceinline__ void add_axis(const Step& s, const Vec (&queue)[2 * DEEP + 1], const Vec* shared, Vec& total)
{
    Real around[AROUND];
    take_around<AXIS>(queue, shared, around);
#pragma unroll
    for (int v = 0; v < VEC; ++v) add_sides<AXIS>(s, around, v, total.at[v]);
}

// A layer at the points of a thread: the places of their memory variables and coefficients, and indices along the axis relative to the
// first point.
struct Reach {
    Real *first, *second;
    const Real *a, *b;
    int from, to, begin, end, stride;  // of the zone and of the layer; no layer reaches them if to <= from
};

// Whether the zone of a layer contains any of the points of a thread.
template <int AXIS>
__device__ __forceinline__ bool reaches(const Slab& slab, int i, int j, int k)
{
    const int depth = AXIS == 0 ? i : AXIS == 1 ? j : k;
    return depth + (AXIS == 2 ? VEC - 1 : 0) >= slab.first && depth < slab.last;
}

template <int AXIS>
__device__ __forceinline__ Reach reach_of(const Step& s, const Slab& slab, int i, int j, int k)
{
    const int depth = AXIS == 0 ? i : AXIS == 1 ? j : k, profile = slab.profile + depth;
    const long long at = slab.origin + (long long)i * slab.stride0 + (long long)j * slab.stride1 + k;
    return {s.first + at, s.second + at, s.a + profile, s.b + profile, slab.first - depth, slab.last - depth, slab.begin - depth,
            slab.end - depth, AXIS == 0 ? slab.stride0 : slab.stride1};
}

// Return the only layer across an axis that reaches the points of a thread, if any, and how far its variables are apart along the march.
template <int AXIS>
__device__ __forceinline__ Reach find_reach(const Step& s, int i, int j, int k, int& along)
{
    for (int number = s.slab_of[AXIS]; number < s.slab_of[AXIS + 1]; ++number)
        if (reaches<AXIS>(s.slab[number], i, j, k)) {
            along = MARCH == 0 ? s.slab[number].stride0 : s.slab[number].stride1;
            return reach_of<AXIS>(s, s.slab[number], i, j, k);
        }
    along = 0;
    return {};
}

// Add the terms of a layer.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void add_layer(
    const Step& s, const Reach& reach, const Vec (&queue)[2 * DEEP + 1], const Vec* shared, Vec& total)
{
    const bool inside = reach.begin <= 0 && reach.end > 0;
    Vec change, value = !ADJOINT && inside ? load(reach.second) : Vec{};
    Real around[AROUND];
    read_around<AXIS>(reach.first, reach.stride, 0, reach.begin, reach.end, around);
#pragma unroll
    for (int v = 0; v < VEC; ++v) change.at[v] = first_derivative<AXIS>(s, around, v);
    if (ADJOINT)
        read_around<AXIS>(reach.second, reach.stride, 0, reach.begin, reach.end, around);
    else
        take_around<AXIS>(queue, shared, around);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
        const int own = AXIS == 2 ? v : 0;
        if (AXIS == 2 && (own < reach.from || own >= reach.to)) continue;
        const Real curvature = second_derivative<AXIS>(s, around, v);
        if (ADJOINT) {
            total.at[v] += curvature - change.at[v];
        } else {
            value.at[v] = reach.b[own] * value.at[v] + reach.a[own] * (curvature + change.at[v]);
            total.at[v] += change.at[v];
            total.at[v] += value.at[v];
        }
    }
    if (!ADJOINT && inside) store(reach.second, value);
}

// Add the terms of all layers across an axis.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void add_layers(
    const Step& s, int i, int j, int k, const Vec (&queue)[2 * DEEP + 1], const Vec* shared, Vec& total)
{
    for (int number = s.slab_of[AXIS]; number < s.slab_of[AXIS + 1]; ++number)
        if (reaches<AXIS>(s.slab[number], i, j, k))
            add_layer<ADJOINT, AXIS>(s, reach_of<AXIS>(s, s.slab[number], i, j, k), queue, shared, total);
}

// Compute the next field at the points of a block, which layers across the axes from REACHED on reach.
template <bool ADJOINT, int REACHED>
__device__ __forceinline__ void propagate(const Step& s, int ahead)
{
    __shared__ Vec tile[PREFETCH + 1][BY + 2 * ABOVE][COLUMNS], own_values[PREFETCH + 1][ADJOINT ? 5 : 3][THREADS];
    int which = s.box_of[REACHED], block = blockIdx.x;
    while (which + 1 < s.box_of[REACHED + 1] && block >= s.box[which + 1].block) ++which;
    const Box& box = s.box[which];
    block -= box.block;
    const int number = threadIdx.y * BX + threadIdx.x, n = s.clock[0] + ahead;
    const int first_row = NDIM == 3 ? box.first[1] + block / box.columns % box.rows * BY : 0;
    const int first_k = box.first[2] + block % box.columns * (BX * VEC);
    const int row = first_row + threadIdx.y, k0 = first_k + threadIdx.x * VEC;
    const int rows = NDIM == 3 ? box.last[1] : 1, size = box.last[2];
    const int begin = box.first[MARCH] + block / (box.columns * box.rows) * box.planes, end = min(begin + box.planes, box.last[MARCH]);
    const int across = NDIM == 3 ? (int)s.stride0 : s.stride1, plane = (NDIM == 3 ? s.size[1] : 1) * s.size[2];
    const bool inside = row < rows && k0 < size, near = row < rows + ABOVE && k0 < size + HALF;

    const long long place = s.origin + (long long)begin * across + (NDIM == 3 ? row * s.stride1 : 0) + k0;
    const long long own_place = (long long)begin * plane + (NDIM == 3 ? row * s.size[2] : 0) + k0;
    const Real* here = s.now + place;
    Real* next = s.next + place;
    const Real *in_c = s.c + own_place, *in_w = s.stored + (n - s.clock[1]) * s.storage + own_place, *in_image = s.image + own_place;
    const int from_source = k0 - s.source_first[2];
    const bool source = from_source > -VEC && from_source < s.source_size[2];

    // What this thread loads of the edge, relative to its first point.
    int offset[EACH], target[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int r, column;
        edge_of(number + e * THREADS, r, column);
        const bool needed = number + e * THREADS < BORDER && first_row + r < rows + ABOVE && first_k + column * VEC < size + HALF;
        offset[e] = (r - (int)threadIdx.y) * (NDIM == 3 ? s.stride1 : 0) + (column - (int)threadIdx.x) * VEC;
        target[e] = needed ? (r + ABOVE) * COLUMNS + column + SIDE : -1;
    }

    // Boxes that layers across the first axis do not reach exist only where both layers across an axis are apart: then a thread has
    // points of one of them at most, and the same one on all planes.
    Reach rows_reach = {}, columns_reach = {};
    int rows_along = 0, columns_along = 0;
    if (REACHED > FIRST_AXIS && REACHED < 3 && inside) {
        const int i = NDIM == 3 ? begin : 0, j = NDIM == 3 ? row : begin;
        if (REACHED == 1) rows_reach = find_reach<1>(s, i, j, k0, rows_along);
        columns_reach = find_reach<2>(s, i, j, k0, columns_along);
    }

    // Fetch for plane m: the edge of its tile, and this thread's values of the last plane that its stencil needs, `old` and `c`.
    const auto prefetch = [&](int m) {
        if (m < end) {
            const int slot = (m - begin) % (PREFETCH + 1);
            const Real* from = here + (long long)(m - begin) * across;
            Vec *cells = &tile[slot][0][0], *values = &own_values[slot][0][number];
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (target[e] >= 0) fetch(cells + target[e], from + offset[e]);
            if (near && NDIM > 1) fetch(values, from + DEEP * across);
            if (inside) {
                fetch(values + THREADS, next + (long long)(m - begin) * across);
                fetch(values + 2 * THREADS, in_c + (long long)(m - begin) * plane);
                if (ADJOINT) {
                    fetch(values + 3 * THREADS, in_w + (long long)(m - begin) * plane);
                    fetch(values + 4 * THREADS, in_image + (long long)(m - begin) * plane);
                }
            }
        }
        end_group();
    };
#pragma unroll
    for (int ahead = 0; ahead < PREFETCH; ++ahead) prefetch(begin + ahead);
    Vec queue[2 * DEEP + 1] = {};  // the points along the march
    if (near) {
#pragma unroll
        for (int k = 0; k < (NDIM > 1 ? 2 * DEEP : 1); ++k) queue[k] = load(here + (k - DEEP) * across);
    }
    tile[0][threadIdx.y + ABOVE][threadIdx.x + SIDE] = queue[DEEP];

    int buffer = 0;
    for (int m = begin; m < end; ++m) {
        wait<PREFETCH - 1>();
        __syncthreads();
        prefetch(m + PREFETCH);
        if (NDIM > 1) queue[2 * DEEP] = own_values[buffer][0][number];
        if (inside) {
            const Vec middle = queue[DEEP], old = own_values[buffer][1][number], c = own_values[buffer][2][number];
            const Vec* shared = &tile[buffer][threadIdx.y + ABOVE][threadIdx.x + SIDE];
            const long long own = own_place + (long long)(m - begin) * plane;
            const int i = NDIM == 3 ? m : 0, j = NDIM == 3 ? row : m;
            Vec total, result;
#pragma unroll
            for (int v = 0; v < VEC; ++v) total.at[v] = s.center * middle.at[v];
            if (NDIM == 3) add_axis<0>(s, queue, shared, total);
            if (NDIM > 1) add_axis<1>(s, queue, shared, total);
            add_axis<2>(s, queue, shared, total);
            if (REACHED == FIRST_AXIS) {
                if (NDIM == 3) add_layers<ADJOINT, 0>(s, i, j, k0, queue, shared, total);
                if (NDIM > 1) add_layers<ADJOINT, 1>(s, i, j, k0, queue, shared, total);
                add_layers<ADJOINT, 2>(s, i, j, k0, queue, shared, total);
            } else {
                if (REACHED == 1 && rows_reach.to > rows_reach.from) add_layer<ADJOINT, 1>(s, rows_reach, queue, shared, total);
                if (REACHED < 3 && columns_reach.to > columns_reach.from) add_layer<ADJOINT, 2>(s, columns_reach, queue, shared, total);
                rows_reach.first += rows_along, rows_reach.second += rows_along;
                columns_reach.first += columns_along, columns_reach.second += columns_along;
            }
            if (ADJOINT) {
                const Vec w = own_values[buffer][3][number];
                Vec image = own_values[buffer][4][number];
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    image.at[v] += middle.at[v] * w.at[v];
                    result.at[v] = (2 * middle.at[v] - old.at[v]) + c.at[v] * total.at[v];
                }
                store(s.image + own, image);
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    result.at[v] = completed(
                        s, n, i, j, k0 + v, own + v, middle.at[v], old.at[v], c.at[v], total.at[v], source);
                if (s.stored) store(s.stored + (n - s.clock[1]) * s.storage + own, total);
            }
            Real* const to = next + (long long)(m - begin) * across;
            store(to, result);
            if (s.surface && k0 <= HALF) {
#pragma unroll
                for (int v = 0; v < VEC; ++v) store_and_mirror(s, to + v, k0 + v, result.at[v]);
            }
        }

#pragma unroll
        for (int k = 0; k < 2 * DEEP; ++k) queue[k] = queue[k + 1];
        buffer = buffer == PREFETCH ? 0 : buffer + 1;
        tile[buffer][threadIdx.y + ABOVE][threadIdx.x + SIDE] = queue[DEEP];
    }
}

#if NDIM > 2
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward_0(const Step s, int ahead)
{
    propagate<false, 0>(s, ahead);
}
#endif

#if NDIM > 1
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward_1(const Step s, int ahead)
{
    propagate<false, 1>(s, ahead);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward_2(const Step s, int ahead)
{
    propagate<false, 2>(s, ahead);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward_3(const Step s, int ahead)
{
    propagate<false, 3>(s, ahead);
}

#if NDIM > 2
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) adjoint_0(const Step s, int ahead)
{
    propagate<true, 0>(s, ahead);
}
#endif

#if NDIM > 1
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) adjoint_1(const Step s, int ahead)
{
    propagate<true, 1>(s, ahead);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) adjoint_2(const Step s, int ahead)
{
    propagate<true, 2>(s, ahead);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) adjoint_3(const Step s, int ahead)
{
    propagate<true, 3>(s, ahead);
}

// Advance psi, or take the memory variables of the adjoint one step back, in a block of a layer: in 3-D, threads march across it unless
// its points along the axis are next to each other. Neighbours' t are computed again, since theirs may not be stored yet.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void advance_layer(const Step& s, const Slab& slab, int block)
{
    constexpr bool marches = NDIM == 3 && AXIS < 2;
    int i = 0, j = 0, k;
    if (AXIS == 2) {
        const int vectors = (slab.end - slab.begin) / VEC, thread = (block * LINES + threadIdx.y) * LINE + threadIdx.x;
        const int row = thread / vectors;
        if (row >= s.size[0] * s.size[1]) return;
        i = row / s.size[1], j = row % s.size[1], k = slab.begin + thread % vectors * VEC;
    } else {
        const int columns = (s.size[2] / VEC + LINE - 1) / LINE, line = block / columns * LINES + threadIdx.y;
        k = (block % columns * LINE + threadIdx.x) * VEC;
        if (k >= s.size[2] || line >= (AXIS == 1 && marches ? s.size[0] : AXIS == 0 ? s.size[1] : slab.end - slab.begin)) return;
        i = AXIS == 0 ? slab.begin : marches ? line : 0;
        j = AXIS == 0 ? line : marches ? slab.begin : slab.begin + line;
    }
    const int stride = AXIS == 0 ? slab.stride0 : slab.stride1, along = AXIS == 0 ? (int)s.stride0 : s.stride1;
    long long at = slab.origin + (long long)i * slab.stride0 + (long long)j * slab.stride1 + k;
    const Real* u = s.now + s.origin + i * s.stride0 + (long long)j * s.stride1 + k;
    int depth = AXIS == 0 ? i : AXIS == 1 ? j : k, profile = slab.profile + depth;

    Real around[AROUND], recent[AROUND];
    read_around<AXIS>(u, along, 0, -2 * WIDTH, 2 * WIDTH, around);
    if (ADJOINT) {
        read_around<AXIS>(s.earlier + at, stride, depth, slab.begin, slab.end, recent);
#pragma unroll
        for (int e = 0; e < (AXIS == 2 ? VEC + 2 * HALF : AROUND); ++e) {
            const int of = profile + (AXIS == 2 ? e : e / VEC) - HALF;
            recent[e] = s.b[of] * recent[e] + s.a[of] * around[e];
        }
    }
    for (int left = marches ? slab.end - slab.begin : 1; left > 0; --left) {
        // The next plane is loaded while this one is computed.
        Vec ahead = {}, ahead_t = {}, value = load(s.first + at);
        if (left > 1) {
            ahead = load(u + (HALF + 1) * (long long)along);
            if (ADJOINT && depth + HALF + 1 < slab.end) ahead_t = load(s.earlier + at + (HALF + 1) * (long long)stride);
        }
        Vec second;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const int of = profile + (AXIS == 2 ? v : 0);
            const Real change = first_derivative<AXIS>(s, around, v);
            if (ADJOINT) {
                value.at[v] = s.b[of] * value.at[v] - s.a[of] * (change + first_derivative<AXIS>(s, recent, v));
                second.at[v] = recent[v + HALF * spacing(AXIS)];
            } else {
                value.at[v] = s.b[of] * value.at[v] + s.a[of] * change;
            }
        }
        store(s.first + at, value);
        if (ADJOINT) store(s.second + at, second);
        if (!marches || left == 1) break;
        const int newest = profile + HALF + 1;
#pragma unroll
        for (int e = 0; e < 2 * HALF * VEC; ++e) around[e] = around[e + VEC], recent[e] = recent[e + VEC];
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            around[2 * HALF * VEC + v] = ahead.at[v];
            if (ADJOINT) recent[2 * HALF * VEC + v] = s.b[newest] * ahead_t.at[v] + s.a[newest] * ahead.at[v];
        }
        u += along, at += stride, ++depth, ++profile;
    }
}

template <bool ADJOINT>
__device__ __forceinline__ void advance_layers(const Step& s)
{
    int number = 0;
    while (number + 1 < s.slabs && (int)blockIdx.x >= s.slab[number + 1].block) ++number;
    const Slab& slab = s.slab[number];
    const int block = blockIdx.x - slab.block;
    if (NDIM == 3 && slab.axis == 0) return advance_layer<ADJOINT, 0>(s, slab, block);
    if (NDIM > 1 && slab.axis == 1) return advance_layer<ADJOINT, 1>(s, slab, block);
    advance_layer<ADJOINT, 2>(s, slab, block);
}

// Advance psi.
extern "C" __global__ void __launch_bounds__(LINE * LINES) advance(const Step s, int ahead)
{
    advance_layers<false>(s);
}

// Sample the field at the receivers.
extern "C" __global__ void __launch_bounds__(LINE * LINES) record(const Step s, int ahead)
{
    const int number = (blockIdx.x * LINES + threadIdx.y) * LINE + threadIdx.x, n = s.clock[0] + ahead;
    if (number >= s.receivers) return;
    Real total = 0;
    for (int e = s.reads[number]; e < s.reads[number + 1]; ++e) total += s.weights[e] * s.now[s.columns[e]];
    s.traces[(long long)number * s.samples + n] = total;
}

// Take the memory variables of the adjoint one step back.
extern "C" __global__ void __launch_bounds__(LINE * LINES) recede(const Step s, int ahead)
{
    advance_layers<true>(s);
}

// Add the residuals at the sample after step n to the field, multiplied by c.
extern "C" __global__ void __launch_bounds__(LINE * LINES) inject(const Step s, int ahead)
{
    const int number = (blockIdx.x * LINES + threadIdx.y) * LINE + threadIdx.x, n = s.clock[0] + ahead;
    if (number >= s.added) return;
    Real total = 0;
    for (int e = s.adds[number]; e < s.adds[number + 1]; ++e)
        total += s.spread[e] * s.traces[(long long)s.receiver[e] * s.samples + n + 1];
    const long long point = s.points[number];
    const int k = point % s.size[2], j = point / s.size[2] % s.size[1];
    const long long i = point / s.size[2] / s.size[1];
    Real* field = s.now + s.origin + i * s.stride0 + (long long)j * s.stride1 + k;
    store_and_mirror(s, field, k, *field + s.c[point] * total);
}

// Move the clock on after steps that were recorded together.
extern "C" __global__ void tick(const Step s, int by)
{
    s.clock[0] += by;
}
