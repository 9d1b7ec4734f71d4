// Time steps of acoustic waves on a tile: the kernels of steps.py, with the arithmetic of steps/acoustic.py.
//
// Threads march along an axis, with the stencil's points along it in registers and those across it in shared memory. Points that layers
// reach are computed by the same code with further terms. In 3-D, where layers across one axis reach, or across rows and one more, their
// memory variables advance in the same kernel: a march across a layer keeps them in registers, and rows exchange them in shared memory.
// At the other edges, and on grids with fewer axes, where a march would take longer than a step, a kernel before advances them. Compiled
// without contraction (--fmad=false), each point takes the operations of the NumPy steps in the same order: results are the same bits as
// on hosts, and depend neither on the tiles nor on how threads share the points.
//
// compile-with: -DNDIM=3 -DHALF=4 -DVEC=4 -DBX=16 -DBY=8 -DFX=6 -DFY=21 -DBLOCKS=4 -DLAYER_BLOCKS=3
// compile-with: -DNDIM=2 -DHALF=8 -DVEC=1 -DBX=64 -DBY=1 -DFX=32 -DFY=2 -DBLOCKS=1 -DCOLLOPS_DOUBLE
// compile-with: -DNDIM=1 -DHALF=1 -DVEC=1 -DBX=64 -DBY=1 -DFX=4 -DFY=16 -DBLOCKS=1
//
// NDIM is the number of axes of the grid and HALF half the order of accuracy. A thread computes VEC points that are next to each other. A
// block has BX x BY threads, or FX x FY where a layer across rows reaches, in 3-D with FX VEC at least the points that it reaches;
// registers suffice for BLOCKS blocks on a multiprocessor, and in layers of 3-D grids for LAYER_BLOCKS. Arrays have three axes; those
// that the grid does not have are the first ones and have one point. Fields have halos, and rows whose length and whose first point are
// multiples of VEC; other arrays are of the size of the tile, whose rows are multiples of VEC as well.

#ifdef __HIP__
#pragma clang fp contract(off)
#endif

#ifdef COLLOPS_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define MARCH (NDIM == 3 ? 0 : 1)      // the axis along which a thread marches, unless it crosses a layer
#define DEEP (NDIM > 1 ? HALF : 0)     // points before and after along it
#define SIDE ((HALF + VEC - 1) / VEC)  // vectors beside a row of a block
#define ABOVE (NDIM == 3 ? HALF : 0)   // rows before and after those of a block
#define AROUND ((2 * HALF + 1) * VEC)  // values around the points of a thread along an axis
#define PREFETCH (HALF > 4 ? 1 : 2)    // planes that are fetched ahead at most
#define WIDTH 8                        // maximum of HALF
#define LINE 32                        // threads along a row of a layer, and LINES rows
#define LINES 8
#define LAYERS 6
#define BOXES 19

// Kinds of points: those that only layers across one axis reach, which is their number, and the others.
#define INTERIOR 3  // no layer reaches them
#define CORNER 4    // layers across rows and across axis 0 reach them; one more: and across axis 1
#define EDGES 6     // any layers may reach them: memory variables have been advanced
#define SIDES 7     // likewise, at the ends of rows
#define KINDS 8

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

// Points that blocks compute, each so many planes. Blocks are numbered along rows, across them, and along the march.
struct Box {
    int first[3], last[3], columns, rows, planes, block;
};

// The arguments of all kernels. Indices of coefficients are axis * WIDTH + k.
struct Step {
    Real *now, *next;        // fields; `next` has the field before, and receives the one after
    Real *first, *second;    // memory variables: psi and zeta, or r and t of the adjoint
    const Real* earlier;     // t before the step
    const Real *a, *b, *c;
    Real* stored;            // the Laplacian with layers and sources at step n, at (n - clock[1]) * storage, as in `scattering`
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
    int box_of[KINDS + 1];           // and of the first box of each kind
    int block_of[KINDS + 1];         // the first blocks of kinds in propagate_in_layers, in its order
    int source_first[3], source_size[3];
    Real center, centers[3], seconds[3 * WIDTH], firsts[3 * WIDTH];
    Slab slab[LAYERS];
    Box box[BOXES];
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

// Take values around the points of a thread along an axis: from its queue, in which `own` has those at the points, or from shared memory,
// where rows are `columns` apart.
template <int AXIS, bool QUEUED>
__device__ __forceinline__ void take_around(const Vec* own, const Vec* shared, int columns, Real (&around)[AROUND])
{
#pragma unroll
    for (int e = AXIS == 2 ? -SIDE : -HALF; e <= (AXIS == 2 ? SIDE : HALF); ++e) {
        const Vec part = e == 0 ? *own : QUEUED ? own[QUEUED ? e : 0] : shared[AXIS == 2 ? e : e * columns];
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

// Return the field after a step at the points of a thread, without the source. `total` is the Laplacian with layers.
__device__ __forceinline__ Vec advanced(
    const Step& s, int n, long long own, const Vec& middle, const Vec& old, const Vec& c, const Vec& total)
{
    Vec result;
#pragma unroll
    for (int v = 0; v < VEC; ++v) result.at[v] = (2 * middle.at[v] - old.at[v]) + c.at[v] * total.at[v];
    if (s.change) {
        const Vec change = load(s.change + own), other = load(s.scattering + (n - s.clock[1]) * s.storage + own);
#pragma unroll
        for (int v = 0; v < VEC; ++v) result.at[v] += change.at[v] * other.at[v];
    }
    return result;
}

// Add the source of step n to the field after it, and to the Laplacian, at the points of a thread from (i, j, k) on.
__device__ __forceinline__ void add_source(
    const Step& s, int n, int i, int j, int k, const Vec& c, Vec& result, Vec& total)
{
    const int box0 = i - s.source_first[0], box1 = j - s.source_first[1];
    if ((unsigned)box0 >= (unsigned)s.source_size[0] || (unsigned)box1 >= (unsigned)s.source_size[1]) return;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
        const int box2 = k + v - s.source_first[2];
        if ((unsigned)box2 >= (unsigned)s.source_size[2]) continue;
        const int slot = s.slots[(box0 * s.source_size[1] + box1) * s.source_size[2] + box2];
        if (slot < 0) continue;
        const Real signal = s.signal[(long long)n * s.sources + slot];
        result.at[v] += c.at[v] * signal;
        total.at[v] += signal;
    }
}

// The vector number e of the edge of a block of X times Y threads: its place relative to the first point of the block.
template <int X, int Y>
__device__ __forceinline__ void edge_of(int e, int& row, int& column)
{
    constexpr int ENDS = 2 * ABOVE * X;
    if (e < ENDS) {
        row = e / X;
        row = row < ABOVE ? row - ABOVE : row - ABOVE + Y;
        column = e % X;
    } else {
        row = (e - ENDS) / (2 * SIDE);
        column = (e - ENDS) % (2 * SIDE);
        column = column < SIDE ? column - SIDE : column - SIDE + X;
    }
}

// Add the sides of the Laplacian along an axis.
template <int AXIS, bool QUEUED>
__device__ __forceinline__ void add_axis(const Step& s, const Vec* own, const Vec* shared, int columns, Vec& total)
{
    Real around[AROUND];
    take_around<AXIS, QUEUED>(own, shared, columns, around);
#pragma unroll
    for (int v = 0; v < VEC; ++v) add_sides<AXIS>(s, around, v, total.at[v]);
}

// Advance psi, or r of the adjoint, at one point: `around` has the field around it, and `others` the adjoint's t.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void advance_first(const Step& s, const Real* around, const Real* others, int v, Real a, Real b, Real& value)
{
    const Real change = first_derivative<AXIS>(s, around, v);
    value = ADJOINT ? b * value - a * (change + first_derivative<AXIS>(s, others, v)) : b * value + a * change;
}

// Add the terms of a layer at one point: `around` has psi or r around it, and `others` the field or t. `value` is zeta, which advances.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void add_terms(
    const Step& s, const Real* around, const Real* others, int v, Real a, Real b, Real& value, Real& total)
{
    const Real change = first_derivative<AXIS>(s, around, v), curvature = second_derivative<AXIS>(s, others, v);
    if (ADJOINT) {
        total += curvature - change;
    } else {
        value = b * value + a * (curvature + change);
        total += change;
        total += value;
    }
}

// Add the terms of all layers across an axis, whose memory variables have been advanced.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void add_layers(
    const Step& s, int i, int j, int k, const Vec* own, const Vec* shared, int columns, Vec& total)
{
    const int depth = AXIS == 0 ? i : AXIS == 1 ? j : k;
    for (int number = s.slab_of[AXIS]; number < s.slab_of[AXIS + 1]; ++number) {
        const Slab& slab = s.slab[number];
        if (depth + (AXIS == 2 ? VEC - 1 : 0) < slab.first || depth >= slab.last) continue;
        const long long at = slab.origin + (long long)i * slab.stride0 + (long long)j * slab.stride1 + k;
        const bool stored = depth >= slab.begin && depth < slab.end;
        const int stride = AXIS == 0 ? slab.stride0 : slab.stride1;
        Vec value = !ADJOINT && stored ? load(s.second + at) : Vec{};
        Real around[AROUND], others[AROUND];
        read_around<AXIS>(s.first + at, stride, depth, slab.begin, slab.end, around);
        if (ADJOINT)
            read_around<AXIS>(s.second + at, stride, depth, slab.begin, slab.end, others);
        else
            take_around<AXIS, AXIS == MARCH>(own, shared, columns, others);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const int of = depth + (AXIS == 2 ? v : 0);
            if (AXIS == 2 && (of < slab.first || of >= slab.last)) continue;
            add_terms<ADJOINT, AXIS>(
                s, around, others, v, s.a[slab.profile + of], s.b[slab.profile + of], value.at[v], total.at[v]);
        }
        if (!ADJOINT && stored) store(s.second + at, value);
    }
}

// The only layer that reaches the points of a block, for a thread on its march.
struct Layer {
    Real *first, *second;         // memory variables at the first plane of the march, `gap` apart
    const Real *earlier, *a, *b;  // coefficients, at index 0 along the march if it crosses the layer, else at the first of the points
    int gap, begin, end;          // the planes that have memory variables
    int from, to;                 // the points that the layer reaches, relative to the first one, if the march does not cross it

    __device__ __forceinline__ bool has(int m) const { return m >= begin && m < end; }
};

// Return the layer across an axis that reaches a box, for a thread that marches along axis ALONG from the point (i, j, k), and computes
// planes from `begin` to `end`.
template <int AXIS, int ALONG>
__device__ __forceinline__ Layer layer_of(const Step& s, const Box& box, int i, int j, int k, int begin, int end, bool inside)
{
    int number = s.slab_of[AXIS];
    while (box.first[AXIS] >= s.slab[number].last || box.last[AXIS] <= s.slab[number].first) ++number;
    const Slab& slab = s.slab[number];
    const long long at = slab.origin + (long long)i * slab.stride0 + (long long)j * slab.stride1 + k;
    Layer layer = {s.first + at, s.second + at, s.earlier + at, s.a + slab.profile, s.b + slab.profile};
    layer.gap = ALONG == 0 ? slab.stride0 : slab.stride1;
    if (AXIS == 2) {
        layer.a += k, layer.b += k, layer.from = slab.first - k, layer.to = slab.last - k;
        inside = inside && k >= slab.begin && k < slab.end;
    }
    layer.begin = inside ? (AXIS == 2 ? begin : slab.begin) : 0;
    layer.end = inside ? (AXIS == 2 ? end : slab.end) : 0;
    return layer;
}

// Advance the memory variables of a layer that a march crosses, on the last planes that have neighbours of plane m. The fetched values
// are psi, or r and t, and receive the advanced ones; queues have psi or r from HALF planes before to HALF after, and t to 2 HALF after.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void cross_layer(
    const Step& s, const Layer& layer, int m, int step, const Vec& first, const Vec& second, const Vec* own, Vec* firsts, Vec* seconds)
{
    Real around[AROUND], others[AROUND];
    if (ADJOINT) {
        Vec t = {};
        if (layer.has(m + 2 * HALF)) {
            const Real a = layer.a[m + 2 * HALF], b = layer.b[m + 2 * HALF];
#pragma unroll
            for (int v = 0; v < VEC; ++v) t.at[v] = b * second.at[v] + a * own[2 * HALF].at[v];
            store(layer.second + (long long)(step + 2 * HALF) * layer.gap, t);
        }
        seconds[3 * HALF] = t;
        take_around<AXIS, true>(seconds + 2 * HALF, nullptr, 0, others);
    }
    Vec value = {};
    if (layer.has(m + HALF)) {
        const Real a = layer.a[m + HALF], b = layer.b[m + HALF];
        value = first;
        take_around<AXIS, true>(own + HALF, nullptr, 0, around);
#pragma unroll
        for (int v = 0; v < VEC; ++v) advance_first<ADJOINT, AXIS>(s, around, others, v, a, b, value.at[v]);
        store(layer.first + (long long)(step + HALF) * layer.gap, value);
    }
    firsts[2 * HALF] = value;
}

// Add the terms of a layer that a march crosses, at plane m; `zeta` is the fetched value.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void add_crossed(
    const Step& s, const Layer& layer, int m, int step, const Vec& zeta, const Vec* own, const Vec* firsts, const Vec* seconds, Vec& total)
{
    Real around[AROUND], others[AROUND];
    take_around<AXIS, true>(firsts + HALF, nullptr, 0, around);
    take_around<AXIS, true>(ADJOINT ? seconds + HALF : own, nullptr, 0, others);
    const Real a = layer.a[m], b = layer.b[m];
    const bool stored = !ADJOINT && layer.has(m);
    Vec value = stored ? zeta : Vec{};
#pragma unroll
    for (int v = 0; v < VEC; ++v) add_terms<ADJOINT, AXIS>(s, around, others, v, a, b, value.at[v], total.at[v]);
    if (stored) store(layer.second + (long long)step * layer.gap, value);
}

// Advance the memory variables of a layer across rows, of which a block has all points of the layer: psi, or r and t, receive the
// advanced values. `near` is where shared memory has them for the neighbours, first psi or r, then t `other` vectors further.
template <bool ADJOINT>
__device__ __forceinline__ void advance_row(
    const Step& s, const Layer& layer, int m, int step, const Vec& a, const Vec& b, Vec& first, Vec& second, const Vec* own,
    const Vec* shared, int columns, Vec* near, int other)
{
    Real around[AROUND], others[AROUND];
    const bool has = layer.has(m);
    if (ADJOINT) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) second.at[v] = has ? b.at[v] * second.at[v] + a.at[v] * own->at[v] : 0;
        if (has) store(layer.second + (long long)step * layer.gap, second);
        near[other] = second;
        __syncthreads();
        take_around<2, false>(&second, near + other, columns, others);
    }
    if (has) {
        take_around<2, false>(own, shared, columns, around);
#pragma unroll
        for (int v = 0; v < VEC; ++v) advance_first<ADJOINT, 2>(s, around, others, v, a.at[v], b.at[v], first.at[v]);
        store(layer.first + (long long)step * layer.gap, first);
    } else {
        first = {};
    }
    *near = first;
    __syncthreads();
}

// Add the terms of a layer across rows; `zeta` is the fetched value, or t.
template <bool ADJOINT>
__device__ __forceinline__ void add_row(
    const Step& s, const Layer& layer, int m, int step, const Vec& a, const Vec& b, const Vec& first, const Vec& zeta, const Vec* own,
    const Vec* shared, int columns, const Vec* near, int other, Vec& total)
{
    Real around[AROUND], others[AROUND];
    take_around<2, false>(&first, near, columns, around);
    take_around<2, false>(ADJOINT ? &zeta : own, ADJOINT ? near + other : shared, columns, others);
    const bool stored = !ADJOINT && layer.has(m);
    Vec value = stored ? zeta : Vec{};
#pragma unroll
    for (int v = 0; v < VEC; ++v)
        if (v >= layer.from && v < layer.to)
            add_terms<ADJOINT, 2>(s, around, others, v, a.at[v], b.at[v], value.at[v], total.at[v]);
    if (stored) store(layer.second + (long long)step * layer.gap, value);
}

// How a block of X times Y threads computes points of a kind.
template <bool ADJOINT, int KIND, int X, int Y>
struct Form {
    static constexpr bool CROSSES = KIND < 2 || KIND == CORNER || KIND == CORNER + 1;  // whether threads march across a layer
    static constexpr bool ROW = KIND == 2 || (KIND >= CORNER && KIND < EDGES);         // whether there is a layer across rows
    static constexpr int ALONG = CROSSES ? KIND % CORNER : MARCH;                      // the axis of the march
    static constexpr int OWN = ADJOINT ? 5 : 3, OWN_ROW = OWN + 2 * CROSSES;           // numbers of values that a thread fetches
    static constexpr int VALUES = OWN_ROW + 2 * ROW;
    static constexpr int SLOTS = VALUES > 5 ? 2 : PREFETCH + 1;                        // planes in shared memory, which is limited
    static constexpr int COLUMNS = X + 2 * SIDE, CELLS = (Y + 2 * ABOVE) * COLUMNS;    // vectors of a row and of a plane in shared memory
    static constexpr int VARIABLES = ROW ? Y * COLUMNS : 0;
    static constexpr int VECTORS = SLOTS * (CELLS + VALUES * X * Y) + (1 + ADJOINT) * VARIABLES;  // in shared memory
};

// Compute the next field at the points of block number `block` of X times Y threads, of `blocks` of a kind. Unless they are edges, the
// memory variables of layers that reach them advance as well: threads march across a layer with those around their points in queues,
// and a block has all points of a row of a layer across rows, with its variables in shared memory.
template <bool ADJOINT, int KIND, int X, int Y>
__device__ __forceinline__ void propagate(const Step& s, int ahead, int block, int blocks, Vec* memory)
{
    using F = Form<ADJOINT, KIND, X, Y>;
    constexpr bool CROSSES = F::CROSSES, ROW = F::ROW;
    constexpr int ALONG = F::ALONG, DOWN = 1 - ALONG;                            // the axes of the march, and across the rows of a block
    constexpr int LEAD = CROSSES ? HALF : 0, AFTER = CROSSES ? 2 * HALF : DEEP;  // planes before the first one, and after the present one
    constexpr int THREADS = X * Y, COLUMNS = F::COLUMNS, SLOTS = F::SLOTS, OWN = F::OWN, OWN_ROW = F::OWN_ROW;
    constexpr int BORDER = 2 * ABOVE * X + 2 * SIDE * Y, EACH = (BORDER + THREADS - 1) / THREADS;  // of a block's edge, in all and a thread
    constexpr int OTHER = ADJOINT ? F::VARIABLES : 0;
    Vec *const tiles = memory, *const own_values = tiles + SLOTS * F::CELLS, *const variables = own_values + SLOTS * F::VALUES * THREADS;
    if (KIND == INTERIOR && (ahead & 1)) block = blocks - 1 - block;  // so that steps begin with what the one before left in the L2 cache
    int which = s.box_of[KIND];
    while (which + 1 < s.box_of[KIND + 1] && block >= s.box[which + 1].block) ++which;
    const Box& box = s.box[which];
    block -= box.block;
    const int number = threadIdx.x, x = number % X, y = number / X, n = s.clock[0] + ahead, chunk = block / (box.columns * box.rows);
    const int first_row = NDIM == 3 ? box.first[DOWN] + block / box.columns % box.rows * Y : 0;
    const int first_k = box.first[2] + block % box.columns * (X * VEC);
    const int row = NDIM == 3 ? first_row + y : 0, k0 = first_k + x * VEC;
    const int rows = NDIM == 3 ? box.last[DOWN] : 1, size = box.last[2], last = box.last[ALONG];
    // In 3-D the rows of a block are next to each other, else each one has planes of its own.
    const int begin = box.first[ALONG] + (NDIM == 3 ? chunk : chunk * Y + y) * box.planes;
    const int end = min(begin + box.planes, last), first_m = begin - LEAD, steps = LEAD + (NDIM == 3 ? end - begin : box.planes);
    const int across = ALONG == 0 ? (int)s.stride0 : s.stride1, plane = (ALONG == 0 ? s.size[1] : 1) * s.size[2];
    const int down = NDIM < 3 ? box.planes * across : DOWN == 0 ? (int)s.stride0 : s.stride1;
    const bool inside = row < rows && k0 < size && begin < end;
    const bool near = row < rows + ABOVE && k0 < size + HALF && begin < end;
    const int i0 = NDIM < 3 ? 0 : ALONG == 0 ? first_m : row, j0 = ALONG == 1 ? first_m : row;

    const Real* here = s.now + s.origin + i0 * s.stride0 + (long long)j0 * s.stride1 + k0;
    Real* next = s.next + (here - s.now);
    const long long own_place = ((long long)i0 * s.size[1] + j0) * s.size[2] + k0;
    const Real *in_c = s.c + own_place, *in_w = s.stored + (n - s.clock[1]) * s.storage + own_place, *in_image = s.image + own_place;
    const int from_source = k0 - s.source_first[2];
    const bool source = from_source > -VEC && from_source < s.source_size[2];

    // What this thread loads of the edge, relative to its first point, and on how many planes.
    int offset[EACH], target[EACH], planes[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int r, column;
        edge_of<X, Y>(number + e * THREADS, r, column);
        const bool needed = number + e * THREADS < BORDER && (NDIM < 3 || first_row + r < rows + ABOVE);
        offset[e] = (r - y) * down + (column - x) * VEC;
        target[e] = needed && first_k + column * VEC < size + HALF ? (r + ABOVE) * COLUMNS + column + SIDE : -1;
        planes[e] = NDIM == 3 ? end - begin : min(box.planes, last - begin - (r - y) * box.planes);
    }

    Layer crossed = {}, beside = {};
    if constexpr (CROSSES) crossed = layer_of<ALONG, ALONG>(s, box, i0, j0, k0, begin, end, inside);
    Vec a = {}, b = {};  // coefficients across rows
    if constexpr (ROW) {
        beside = layer_of<2, ALONG>(s, box, i0, j0, k0, begin, end, inside);
#pragma unroll
        for (int v = 0; v < VEC; ++v)
            if (inside && v >= beside.from && v < beside.to) a.at[v] = beside.a[v], b.at[v] = beside.b[v];
        for (int e = number; e < (1 + ADJOINT) * F::VARIABLES; e += THREADS) variables[e] = Vec{};
    }
    constexpr int FURTHER = ADJOINT ? 2 * HALF : 0;  // planes by which t of a crossed layer is ahead

    // Fetch for a plane: the edge of its tile, and this thread's values of the last plane that its stencil needs, `old` and `c`.
    const auto prefetch = [&](int step) {
        const int slot = step % SLOTS, m = first_m + step;
        const Real* from = here + (long long)step * across;
        Vec *cells = tiles + slot * F::CELLS, *values = own_values + slot * F::VALUES * THREADS + number;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (target[e] >= 0 && step >= LEAD && step - LEAD < planes[e]) fetch(cells + target[e], from + offset[e]);
        if (m < end) {
            if (near && NDIM > 1 && m + AFTER < last + HALF) fetch(values, from + AFTER * across);
            if (inside && m >= begin) {
                fetch(values + THREADS, next + (long long)step * across);
                fetch(values + 2 * THREADS, in_c + (long long)step * plane);
                if (ADJOINT) {
                    fetch(values + 3 * THREADS, in_w + (long long)step * plane);
                    fetch(values + 4 * THREADS, in_image + (long long)step * plane);
                }
            }
            if (CROSSES && crossed.has(m + HALF))
                fetch(values + OWN * THREADS, crossed.first + (long long)(step + HALF) * crossed.gap);
            if (CROSSES && m + FURTHER >= begin && crossed.has(m + FURTHER))
                fetch(values + (OWN + 1) * THREADS,
                      (ADJOINT ? crossed.earlier : crossed.second) + (long long)(step + FURTHER) * crossed.gap);
            if (ROW && beside.has(m)) {
                fetch(values + OWN_ROW * THREADS, beside.first + (long long)step * beside.gap);
                fetch(values + (OWN_ROW + 1) * THREADS, (ADJOINT ? beside.earlier : beside.second) + (long long)step * beside.gap);
            }
        }
        end_group();
    };
#pragma unroll
    for (int step = 0; step < SLOTS - 1; ++step) prefetch(step);
    Vec queue[DEEP + AFTER + 1] = {};  // the points along the march, and memory variables there
    Vec firsts[CROSSES ? 2 * HALF + 1 : 1] = {}, seconds[CROSSES && ADJOINT ? 3 * HALF + 1 : 1] = {};
    if (near) {
#pragma unroll
        for (int k = LEAD; k < (NDIM > 1 ? DEEP + AFTER : 1); ++k) queue[k] = load(here + (k - DEEP) * across);
    }
    if constexpr (CROSSES && ADJOINT) {
#pragma unroll
        for (int k = HALF; k < 2 * HALF; ++k) {
            if (!crossed.has(first_m + k)) continue;
            const Vec earlier = load(crossed.earlier + (long long)k * crossed.gap);
#pragma unroll
            for (int v = 0; v < VEC; ++v)
                seconds[HALF + k].at[v] = crossed.b[first_m + k] * earlier.at[v] + crossed.a[first_m + k] * queue[DEEP + k].at[v];
            store(crossed.second + (long long)k * crossed.gap, seconds[HALF + k]);
        }
    }
    const int center = (y + ABOVE) * COLUMNS + x + SIDE;
    tiles[center] = queue[DEEP];

    int buffer = 0;
    for (int step = 0; step < steps; ++step) {
        const int m = first_m + step;
        wait<SLOTS - 2>();
        __syncthreads();
        prefetch(step + SLOTS - 1);
        const Vec* values = own_values + buffer * F::VALUES * THREADS + number;
        if (NDIM > 1) queue[DEEP + AFTER] = values[0];
        const Vec *own = queue + DEEP, *shared = tiles + buffer * F::CELLS + center;
        Vec first = {}, second = {}, *near_variables = variables + y * COLUMNS + x + SIDE;
        if constexpr (CROSSES)
            cross_layer<ADJOINT, ALONG>(s, crossed, m, step, values[OWN * THREADS], values[(OWN + 1) * THREADS], own, firsts, seconds);
        if constexpr (ROW) {
            first = values[OWN_ROW * THREADS], second = values[(OWN_ROW + 1) * THREADS];
            advance_row<ADJOINT>(s, beside, m, step, a, b, first, second, own, shared, COLUMNS, near_variables, OTHER);
        }
        if (inside && m >= begin && m < end) {
            const Vec middle = *own, old = values[THREADS], c = values[2 * THREADS];
            const long long own_index = own_place + (long long)step * plane;
            const int i = ALONG == 0 ? m : i0, j = ALONG == 1 ? m : j0;
            Vec total, result;
#pragma unroll
            for (int v = 0; v < VEC; ++v) total.at[v] = s.center * middle.at[v];
            if (NDIM == 3) add_axis<0, ALONG == 0>(s, own, shared, COLUMNS, total);
            if (NDIM > 1) add_axis<1, ALONG == 1>(s, own, shared, COLUMNS, total);
            add_axis<2, false>(s, own, shared, COLUMNS, total);
            if (KIND >= EDGES) {
                if (NDIM == 3) add_layers<ADJOINT, 0>(s, i, j, k0, own, shared, COLUMNS, total);
                if (NDIM > 1) add_layers<ADJOINT, 1>(s, i, j, k0, own, shared, COLUMNS, total);
                add_layers<ADJOINT, 2>(s, i, j, k0, own, shared, COLUMNS, total);
            }
            if constexpr (CROSSES)
                add_crossed<ADJOINT, ALONG>(s, crossed, m, step, values[(OWN + 1) * THREADS], own, firsts, seconds, total);
            if constexpr (ROW)
                add_row<ADJOINT>(s, beside, m, step, a, b, first, second, own, shared, COLUMNS, near_variables, OTHER, total);
            if (ADJOINT) {
                const Vec w = values[(OWN - 2) * THREADS];
                Vec image = values[(OWN - 1) * THREADS];
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    image.at[v] += middle.at[v] * w.at[v];
                    result.at[v] = (2 * middle.at[v] - old.at[v]) + c.at[v] * total.at[v];
                }
                store(s.image + own_index, image);
            } else {
                result = advanced(s, n, own_index, middle, old, c, total);
                if (source) add_source(s, n, i, j, k0, c, result, total);
                if (s.stored) store(s.stored + (n - s.clock[1]) * s.storage + own_index, total);
            }
            Real* const to = next + (long long)step * across;
            store(to, result);
            if (s.surface && k0 <= HALF) {
#pragma unroll
                for (int v = 0; v < VEC; ++v) store_and_mirror(s, to + v, k0 + v, result.at[v]);
            }
        }

#pragma unroll
        for (int k = 0; k < DEEP + AFTER; ++k) queue[k] = queue[k + 1];
#pragma unroll
        for (int k = 0; k < (CROSSES ? 2 * HALF : 0); ++k) firsts[k] = firsts[k + 1];
#pragma unroll
        for (int k = 0; k < (CROSSES && ADJOINT ? 3 * HALF : 0); ++k) seconds[k] = seconds[k + 1];
        buffer = buffer == SLOTS - 1 ? 0 : buffer + 1;
        tiles[buffer * F::CELLS + center] = queue[DEEP];
    }
}

// Sample the field at a receiver.
__device__ __forceinline__ void record_one(const Step& s, int ahead, int number)
{
    if (number >= s.receivers) return;
    Real total = 0;
    for (int e = s.reads[number]; e < s.reads[number + 1]; ++e) total += s.weights[e] * s.now[s.columns[e]];
    s.traces[(long long)number * s.samples + s.clock[0] + ahead] = total;
}

#define KERNEL(NAME, ADJOINT, KIND, X, Y, BLOCKS)                                                 \
    extern "C" __global__ void __launch_bounds__((X) * (Y), BLOCKS) NAME(const Step s, int ahead) \
    {                                                                                             \
        __shared__ Vec memory[Form<ADJOINT, KIND, X, Y>::VECTORS];                                \
        propagate<ADJOINT, KIND, X, Y>(s, ahead, blockIdx.x, gridDim.x, memory);                  \
    }

KERNEL(forward_3, false, INTERIOR, BX, BY, BLOCKS)
KERNEL(adjoint_3, true, INTERIOR, BX, BY, BLOCKS)

#if NDIM == 3

KERNEL(forward_0, false, 0, BX, BY, LAYER_BLOCKS)
KERNEL(forward_1, false, 1, BX, BY, LAYER_BLOCKS)
KERNEL(forward_2, false, 2, FX, FY, LAYER_BLOCKS)
KERNEL(forward_4, false, CORNER, FX, (FY + 1) / 2, 1)
KERNEL(forward_5, false, CORNER + 1, FX, (FY + 1) / 2, 1)
KERNEL(forward_6, false, EDGES, BX, BY, LAYER_BLOCKS)
KERNEL(adjoint_0, true, 0, BX, BY, LAYER_BLOCKS)
KERNEL(adjoint_1, true, 1, BX, BY, LAYER_BLOCKS)
KERNEL(adjoint_2, true, 2, FX, FY, LAYER_BLOCKS)
KERNEL(adjoint_4, true, CORNER, FX, (FY + 1) / 2, 1)
KERNEL(adjoint_5, true, CORNER + 1, FX, (FY + 1) / 2, 1)
KERNEL(adjoint_6, true, EDGES, BX, BY, LAYER_BLOCKS)

#else

__device__ constexpr int larger(int a, int b)
{
    return a < b ? b : a;
}

// Compute the points that layers reach, and sample the receivers.
template <bool ADJOINT>
__device__ __forceinline__ void propagate_in_layers(const Step& s, int ahead)
{
    __shared__ Vec memory[larger(Form<ADJOINT, EDGES, BX, BY>::VECTORS, Form<ADJOINT, SIDES, FX, FY>::VECTORS)];
    const int* of = s.block_of;
    const int block = blockIdx.x;
    if (block < of[1]) return propagate<ADJOINT, EDGES, BX, BY>(s, ahead, block, of[1], memory);
    if (block < of[2]) return propagate<ADJOINT, SIDES, FX, FY>(s, ahead, block - of[1], of[2] - of[1], memory);
    record_one(s, ahead, (block - of[2]) * (BX * BY) + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(BX * BY) forward(const Step s, int ahead)
{
    propagate_in_layers<false>(s, ahead);
}

extern "C" __global__ void __launch_bounds__(BX * BY) adjoint(const Step s, int ahead)
{
    propagate_in_layers<true>(s, ahead);
}

#endif

// How many indices along an axis layers reach, and number n of them.
template <int AXIS>
__device__ __forceinline__ int edges_of(const Step& s)
{
    return s.size[AXIS] - (s.unclear[AXIS] - s.clear[AXIS]);
}

template <int AXIS>
__device__ __forceinline__ int edge_at(const Step& s, int n)
{
    return n < s.clear[AXIS] ? n : n - s.clear[AXIS] + s.unclear[AXIS];
}

// Advance psi, or take the memory variables of the adjoint one step back, in a block of a layer, where layers across other axes reach: in
// 3-D, threads march across it unless its points along the axis are next to each other. Neighbours' t are computed again, since theirs
// may not be stored yet.
template <bool ADJOINT, int AXIS>
__device__ __forceinline__ void advance_layer(const Step& s, const Slab& slab, int block)
{
    constexpr bool marches = NDIM == 3 && AXIS < 2;
    int i = 0, j = 0, k;
    if (AXIS == 2) {
        const int vectors = (slab.end - slab.begin) / VEC, thread = (block * LINES + threadIdx.y) * LINE + threadIdx.x;
        const int row = thread / vectors;
        if (row >= edges_of<0>(s) * edges_of<1>(s)) return;
        i = edge_at<0>(s, row / edges_of<1>(s)), j = edge_at<1>(s, row % edges_of<1>(s)), k = slab.begin + thread % vectors * VEC;
    } else {
        const int columns = (s.size[2] / VEC + LINE - 1) / LINE, line = block / columns * LINES + threadIdx.y;
        k = (block % columns * LINE + threadIdx.x) * VEC;
        if (k >= s.size[2] || line >= (AXIS == 0 ? edges_of<1>(s) : marches ? edges_of<0>(s) : slab.end - slab.begin)) return;
        i = AXIS == 0 ? slab.begin : marches ? edge_at<0>(s, line) : 0;
        j = AXIS == 0 ? edge_at<1>(s, line) : marches ? slab.begin : slab.begin + line;
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
    record_one(s, ahead, (blockIdx.x * LINES + threadIdx.y) * LINE + threadIdx.x);
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
