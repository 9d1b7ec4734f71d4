// Time steps of acoustic waves on a tile: the kernels of cuda_steps.py, with the arithmetic of numpy_steps.py.
//
// A step advances first the memory variables of the layers that neighbours of a point need, and samples the receivers. Then it computes
// the next field. Through points that no layer reaches, threads march along the slowest axis, with the stencil's points along it in
// registers and those across it in shared memory. Compiled without contraction (--fmad=false), each point
// takes the operations of the NumPy steps in the same order: results are the same bits as those of hosts, and depend neither on the
// tiles nor on how threads share the points.
//
// compile-with: -DNDIM=3 -DHALF=4 -DVEC=2 -DBX=32 -DBY=8 -DBLOCKS=4
// compile-with: -DNDIM=2 -DHALF=8 -DVEC=1 -DBX=128 -DBY=1 -DBLOCKS=1 -DCOLLOPS_DOUBLE
// compile-with: -DNDIM=1 -DHALF=1 -DVEC=1 -DBX=128 -DBY=1 -DBLOCKS=1
//
// NDIM is the number of axes of the grid and HALF half the order of accuracy. A thread computes VEC points that are next to each other,
// and a block has BX x BY threads, whose registers suffice for BLOCKS blocks on a multiprocessor. Arrays have three axes; those that the grid does not have are the first ones and have one point. Fields
// have halos, and rows whose length and whose first point are multiples of VEC; other arrays are of the size of the tile, whose rows
// are multiples of VEC as well.

#ifdef __HIP__
#pragma clang fp contract(off)
#endif

#ifdef COLLOPS_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define MARCH (NDIM == 3 ? 0 : 1)                // the axis along which a thread marches
#define SIDE ((HALF + VEC - 1) / VEC)            // vectors beside a row of a block
#define ABOVE (NDIM == 3 ? HALF : 0)             // rows before and after those of a block
#define COLUMNS (BX + 2 * SIDE)                  // vectors of a row in shared memory
#define ENDS (2 * ABOVE * BX)                    // vectors above and below a block
#define BORDER (ENDS + 2 * SIDE * BY)            // vectors of the edge of a block
#define THREADS (BX * BY)
#define EACH ((BORDER + THREADS - 1) / THREADS)  // vectors of the edge that a thread loads
#define WIDTH 8                                  // maximum of HALF
#define LINE 32                                  // threads along a row of a layer, and LINES rows
#define LINES 8
#define DEPTH 24                                 // points along the first axis that a thread computes, where layers reach

struct alignas(VEC * sizeof(Real)) Vec {
    Real at[VEC];
};

// A layer; see `Slab` in grid.py. Its memory variables at (i, j, k) are at origin + i stride0 + j stride1 + k, and its coefficients at
// profile + the index along the axis.
struct Slab {
    long long origin;
    int axis, first, last, profile, stride0, stride1;
    int block;  // the number of the first block that advances it
};

// Points that a layer reaches, and the number of the first block that computes them.
struct Box {
    int first[3], size[3], block;
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
    int stride1, samples, receivers, sources, added, surface, slabs, blocks, planes, boxes;
    int size[3], low[3], high[3];    // no layer reaches the points in [low, high), through which threads march
    int clear[3], unclear[3];        // nor those in [clear, unclear) along each axis
    int slab_of[4];                  // the number of the first slab across each axis
    int source_first[3], source_size[3];
    Real center, centers[3], seconds[3 * WIDTH], firsts[3 * WIDTH];
    Slab slab[6];
    Box box[6];
};

__device__ __forceinline__ Vec load(const Real* from)
{
    return *reinterpret_cast<const Vec*>(from);
}

// The first derivative of values at `at`, whose neighbours are `stride` apart.
__device__ __forceinline__ Real first_derivative(const Step& s, int axis, const Real* at, long long stride)
{
    const Real *after = at + stride, *before = at - stride;
    Real total = s.firsts[axis * WIDTH] * (*after - *before);
#pragma unroll
    for (int k = 1; k < HALF; ++k) {
        after += stride, before -= stride;
        total += s.firsts[axis * WIDTH + k] * (*after - *before);
    }
    return total;
}

__device__ __forceinline__ Real second_derivative(const Step& s, int axis, const Real* at, long long stride)
{
    const Real *after = at, *before = at;
    Real total = s.centers[axis] * *at;
#pragma unroll
    for (int k = 0; k < HALF; ++k) {
        after += stride, before -= stride;
        total += s.seconds[axis * WIDTH + k] * (*after + *before);
    }
    return total;
}

// Store a value of a field, and its mirror image above a free surface.
__device__ __forceinline__ void store(const Step& s, Real* field, int k, Real value)
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

#if NDIM > 1
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

// Compute the next field at the points of a block that no layer reaches, on `planes` planes across the axis of the march.
template <bool ADJOINT>
__device__ __forceinline__ void propagate(const Step& s, int ahead)
{
    __shared__ Vec tile[2][BY + 2 * ABOVE][COLUMNS];
    Vec* const cells = &tile[0][0][0];
    const int number = threadIdx.y * BX + threadIdx.x, n = s.clock[0] + ahead;
    const int first_row = (NDIM == 3 ? s.low[1] + blockIdx.y * BY : 0), first_k = s.low[2] + blockIdx.x * (BX * VEC);
    const int row = first_row + threadIdx.y, k0 = first_k + threadIdx.x * VEC;
    const int rows = NDIM == 3 ? s.high[1] : 1, size = s.high[2];
    const int begin = s.low[MARCH] + blockIdx.z * s.planes, end = min(begin + s.planes, s.high[MARCH]);
    const int across = NDIM == 3 ? (int)s.stride0 : s.stride1, plane = (NDIM == 3 ? s.size[1] : 1) * s.size[2];
    const bool inside = row < rows && k0 < size, near = row < rows + ABOVE && k0 < size + HALF;

    const long long place = s.origin + (long long)begin * across + (NDIM == 3 ? row * s.stride1 : 0) + k0;
    const long long own_place = (long long)begin * plane + (NDIM == 3 ? row * s.size[2] : 0) + k0;
    const Real* here = s.now + place;
    Real* next = s.next + place;
    const Real* in_c = s.c + own_place;
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

    // The queue holds the points along the march; of the present plane, `old` and `c`, and its edge in shared memory.
    Vec queue[2 * HALF + 1] = {}, last = {}, old = {}, c = {}, edge[EACH] = {};
    if (near) {
#pragma unroll
        for (int k = 0; k <= 2 * HALF; ++k) queue[k] = load(here + (k - HALF) * across);
    }
    if (inside) old = load(next), c = load(in_c);
    tile[0][threadIdx.y + ABOVE][threadIdx.x + SIDE] = queue[HALF];
#pragma unroll
    for (int e = 0; e < EACH; ++e)
        if (target[e] >= 0) cells[target[e]] = load(here + offset[e]);
    __syncthreads();

    int buffer = 0;
    for (int m = begin; m < end; ++m) {
        // The next plane is loaded while this one is computed.
        const bool more = m + 1 < end;
        Vec next_old = {}, next_c = {};
        if (more) {
            if (near) last = load(here + (HALF + 1) * across);
            if (inside) next_old = load(next + across), next_c = load(in_c + plane);
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (target[e] >= 0) edge[e] = load(here + across + offset[e]);
        }

        if (inside) {
            const Vec middle = queue[HALF];
            const Vec* shared = &tile[buffer][threadIdx.y + ABOVE][threadIdx.x + SIDE];
            Vec total;
#pragma unroll
            for (int v = 0; v < VEC; ++v) total.at[v] = s.center * middle.at[v];
#pragma unroll
            for (int k = 0; k < HALF; ++k)
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    total.at[v] += s.seconds[MARCH * WIDTH + k] * (queue[HALF + k + 1].at[v] + queue[HALF - k - 1].at[v]);
            if (NDIM == 3) {
#pragma unroll
                for (int k = 0; k < HALF; ++k) {
                    const Vec after = shared[(k + 1) * COLUMNS], before = shared[-(k + 1) * COLUMNS];
#pragma unroll
                    for (int v = 0; v < VEC; ++v) total.at[v] += s.seconds[WIDTH + k] * (after.at[v] + before.at[v]);
                }
            }
            Real line[(2 * SIDE + 1) * VEC];
#pragma unroll
            for (int e = 0; e <= 2 * SIDE; ++e) {
                const Vec part = e == SIDE ? middle : shared[e - SIDE];
#pragma unroll
                for (int v = 0; v < VEC; ++v) line[e * VEC + v] = part.at[v];
            }
#pragma unroll
            for (int k = 0; k < HALF; ++k)
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    total.at[v] += s.seconds[2 * WIDTH + k] * (line[SIDE * VEC + v + k + 1] + line[SIDE * VEC + v - k - 1]);

            const long long own = in_c - s.c;
            const int i = NDIM == 3 ? m : 0, j = NDIM == 3 ? row : m;
            Vec result;
            if (ADJOINT) {
                const Vec w = load(s.stored + (n - s.clock[1]) * s.storage + own);
                Vec image = load(s.image + own);
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    image.at[v] += middle.at[v] * w.at[v];
                    result.at[v] = (2 * middle.at[v] - old.at[v]) + c.at[v] * total.at[v];
                }
                *reinterpret_cast<Vec*>(s.image + own) = image;
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    result.at[v] = completed(
                        s, n, i, j, k0 + v, own + v, middle.at[v], old.at[v], c.at[v], total.at[v], source);
                if (s.stored) *reinterpret_cast<Vec*>(s.stored + (n - s.clock[1]) * s.storage + own) = total;
            }
            *reinterpret_cast<Vec*>(next) = result;
            if (s.surface && k0 <= HALF) {
#pragma unroll
                for (int v = 0; v < VEC; ++v) store(s, next + v, k0 + v, result.at[v]);
            }
        }

#pragma unroll
        for (int k = 0; k < 2 * HALF; ++k) queue[k] = queue[k + 1];
        queue[2 * HALF] = last, old = next_old, c = next_c;
        here += across, next += across, in_c += plane, buffer ^= 1;
        if (more) {
            tile[buffer][threadIdx.y + ABOVE][threadIdx.x + SIDE] = queue[HALF];
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (target[e] >= 0) cells[buffer * (BY + 2 * ABOVE) * COLUMNS + target[e]] = edge[e];
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward(const Step s, int ahead)
{
    propagate<false>(s, ahead);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) adjoint(const Step s, int ahead)
{
    propagate<true>(s, ahead);
}
#endif

// Compute the next field at the points of a box that layers reach: a thread has up to DEPTH points along the first axis.
template <bool ADJOINT>
__device__ __forceinline__ void propagate_border(const Step& s, int ahead)
{
    int number = 0, block = blockIdx.x;
    while (number + 1 < s.boxes && block >= s.box[number + 1].block) ++number;
    block -= s.box[number].block;
    const int width = s.box[number].size[2], height = s.box[number].size[1];
    const int columns = (width + LINE - 1) / LINE, rows = (height + LINES - 1) / LINES;
    int k = block % columns * LINE + threadIdx.x, j = block / columns % rows * LINES + threadIdx.y;
    if (k >= width || j >= height) return;
    const int n = s.clock[0] + ahead, begin = s.box[number].first[0] + block / (columns * rows) * DEPTH;
    const int end = min(begin + DEPTH, s.box[number].first[0] + s.box[number].size[0]);
    k += s.box[number].first[2], j += s.box[number].first[1];
    const long long place = s.origin + begin * s.stride0 + (long long)j * s.stride1 + k;
    const int across = (int)s.stride0, plane = s.size[1] * s.size[2];
    long long own = (long long)begin * plane + j * s.size[2] + k;
    const Real* u = s.now + place;
    Real* next = s.next + place;

    Real queue[2 * HALF + 1] = {};
    if (NDIM == 3) {
#pragma unroll
        for (int e = 0; e <= 2 * HALF; ++e) queue[e] = u[(e - HALF) * across];
    }
    for (int i = begin; i < end; ++i) {
        const Real old = *next, c = s.c[own], last = NDIM == 3 && i + 1 < end ? u[(HALF + 1) * across] : 0;
        const Real middle = NDIM == 3 ? queue[HALF] : *u;
        Real total = s.center * middle, ends[NDIM][HALF];
#pragma unroll
        for (int axis = 3 - NDIM; axis < 3; ++axis) {
            const int stride = axis == 1 ? s.stride1 : 1;
            const Real *after = u, *before = u;
#pragma unroll
            for (int e = 0; e < HALF; ++e) {
                after += stride, before -= stride;
                const Real both = axis == 0 ? queue[HALF + e + 1] + queue[HALF - e - 1] : *after + *before;
                ends[axis - (3 - NDIM)][e] = both;
                total += s.seconds[axis * WIDTH + e] * both;
            }
        }
#pragma unroll
        for (int axis = 3 - NDIM; axis < 3; ++axis) {
            const int depth = axis == 0 ? i : axis == 1 ? j : k;
            if (depth >= s.clear[axis] && depth < s.unclear[axis]) continue;
            for (int number = s.slab_of[axis]; number < s.slab_of[axis + 1]; ++number) {
                if (depth < s.slab[number].first || depth >= s.slab[number].last) continue;
                const int stride0 = s.slab[number].stride0, stride1 = s.slab[number].stride1;
                const long long at = s.slab[number].origin + (long long)i * stride0 + (long long)j * stride1 + k;
                const int beside = axis == 0 ? stride0 : axis == 1 ? stride1 : 1;
                const Real change = first_derivative(s, axis, s.first + at, beside);
                if (ADJOINT) {
                    total += second_derivative(s, axis, s.second + at, beside) - change;
                } else {
                    Real curvature = s.centers[axis] * middle;
#pragma unroll
                    for (int e = 0; e < HALF; ++e) curvature += s.seconds[axis * WIDTH + e] * ends[axis - (3 - NDIM)][e];
                    const int profile = s.slab[number].profile + depth;
                    const Real value = s.b[profile] * s.second[at] + s.a[profile] * (curvature + change);
                    s.second[at] = value;
                    total += change;
                    total += value;
                }
            }
        }

        Real result;
        if (ADJOINT) {
            result = (2 * middle - old) + c * total;
            s.image[own] += middle * s.stored[(n - s.clock[1]) * s.storage + own];
        } else {
            result = completed(s, n, i, j, k, own, middle, old, c, total, true);
            if (s.stored) s.stored[(n - s.clock[1]) * s.storage + own] = total;
        }
        store(s, next, k, result);
#pragma unroll
        for (int e = 0; e < 2 * HALF; ++e) queue[e] = queue[e + 1];
        queue[2 * HALF] = last;
        u += across, next += across, own += plane;
    }
}

extern "C" __global__ void __launch_bounds__(LINE * LINES) forward_border(const Step s, int ahead)
{
    propagate_border<false>(s, ahead);
}

extern "C" __global__ void __launch_bounds__(LINE * LINES) adjoint_border(const Step s, int ahead)
{
    propagate_border<true>(s, ahead);
}

// The points of a thread in the zone of a layer: in 3-D all those across it, one after the other, unless they are next to each other.
struct Points {
    int axis, count;  // no points if the count is 0
    int profile;      // index of the coefficients of the first one
    long long at, in_field, stride, along;
};

__device__ __forceinline__ Points points_of(const Step& s, int block)
{
    int number = 0;
    while (number + 1 < s.slabs && block >= s.slab[number + 1].block) ++number;
    block -= s.slab[number].block;
    const int axis = s.slab[number].axis, first = s.slab[number].first, zone = s.slab[number].last - first;
    const int stride0 = s.slab[number].stride0, stride1 = s.slab[number].stride1;
    const bool marches = NDIM == 3 && axis < 2;
    // Threads lie along rows and along the axis `lines`; blocks are numbered along rows, `lines` and the remaining axis.
    const int lines = NDIM == 3 && axis == 1 ? 0 : 1;
    const int width = axis == 2 ? zone : s.size[2], height = NDIM < 3 && axis == 1 ? zone : lines == 0 ? s.size[0] : s.size[1];
    const int columns = (width + LINE - 1) / LINE, rows = (height + LINES - 1) / LINES;
    int k = block % columns * LINE + threadIdx.x, line = block / columns % rows * LINES + threadIdx.y;
    const int other = block / (columns * rows);  // 0 where threads march
    if (k >= width || line >= height) return {axis, 0, 0, 0, 0, 0, 0};
    if (axis == 2) k += first;
    if (NDIM < 3 && axis == 1) line += first;
    const int i = lines == 0 ? line : axis == 0 ? first : other, j = lines == 1 ? line : first;
    const long long at = s.slab[number].origin + (long long)i * stride0 + (long long)j * stride1 + k;
    const long long in_field = s.origin + i * s.stride0 + (long long)j * s.stride1 + k;
    const int profile = s.slab[number].profile + (axis == 0 ? i : axis == 1 ? j : k), count = marches ? zone : 1;
    if (axis == 2) return {axis, count, profile, at, in_field, 1, 1};
    if (axis == 1) return {axis, count, profile, at, in_field, stride1, s.stride1};
    return {axis, count, profile, at, in_field, stride0, s.stride0};
}

// The first derivative of values in a queue.
__device__ __forceinline__ Real derivative_of(const Step& s, int axis, const Real* queue)
{
    Real total = s.firsts[axis * WIDTH] * (queue[HALF + 1] - queue[HALF - 1]);
#pragma unroll
    for (int k = 1; k < HALF; ++k) total += s.firsts[axis * WIDTH + k] * (queue[HALF + k + 1] - queue[HALF - k - 1]);
    return total;
}

// Sample the field at the receivers, whose blocks follow those of the layers.
__device__ __forceinline__ void sample(const Step& s, int block, int n)
{
    const int number = (block * LINES + threadIdx.y) * LINE + threadIdx.x;
    if (number >= s.receivers) return;
    Real total = 0;
    for (int e = s.reads[number]; e < s.reads[number + 1]; ++e) total += s.weights[e] * s.now[s.columns[e]];
    s.traces[(long long)number * s.samples + n] = total;
}

// Advance psi, and sample the receivers at the same time. Without layers, blocks sample only.
extern "C" __global__ void __launch_bounds__(LINE * LINES) advance(const Step s, int ahead)
{
    const int block = blockIdx.x;
    if (block >= s.blocks) return sample(s, block - s.blocks, s.clock[0] + ahead);
    const Points p = points_of(s, block);
    if (!p.count) return;
    const Real* u = s.now + p.in_field;
    Real *psi = s.first + p.at, queue[2 * HALF + 1];
#pragma unroll
    for (int k = 0; k <= 2 * HALF; ++k) queue[k] = u[(k - HALF) * p.along];
    for (int number = 0; number < p.count; ++number) {
        const Real last = number + 1 < p.count ? u[(HALF + 1) * p.along] : 0;
        const int profile = p.profile + number;
        *psi = s.b[profile] * *psi + s.a[profile] * derivative_of(s, p.axis, queue);
#pragma unroll
        for (int k = 0; k < 2 * HALF; ++k) queue[k] = queue[k + 1];
        queue[2 * HALF] = last;
        u += p.along, psi += p.stride;
    }
}

// Sample the receivers only, after the last step.
extern "C" __global__ void __launch_bounds__(LINE * LINES) record(const Step s, int ahead)
{
    sample(s, blockIdx.x, s.clock[0] + ahead);
}

// Take the memory variables of the adjoint one step back. Neighbours' t are computed again, since theirs may not be stored yet.
extern "C" __global__ void __launch_bounds__(LINE * LINES) recede(const Step s, int ahead)
{
    const Points p = points_of(s, blockIdx.x);
    if (!p.count) return;
    const Real *u = s.now + p.in_field, *earlier = s.earlier + p.at;
    Real *r = s.first + p.at, *t = s.second + p.at, queue[2 * HALF + 1], recent[2 * HALF + 1];
#pragma unroll
    for (int k = 0; k <= 2 * HALF; ++k) {
        const int profile = p.profile + k - HALF;
        queue[k] = u[(k - HALF) * p.along];
        recent[k] = s.b[profile] * earlier[(k - HALF) * p.stride] + s.a[profile] * queue[k];
    }
    for (int number = 0; number < p.count; ++number) {
        const int profile = p.profile + number, newest = profile + HALF + 1;
        Real last = 0, last_t = 0;
        if (number + 1 < p.count) {
            last = u[(HALF + 1) * p.along];
            last_t = s.b[newest] * earlier[(HALF + 1) * p.stride] + s.a[newest] * last;
        }
        *t = recent[HALF];
        *r = s.b[profile] * *r - s.a[profile] * (derivative_of(s, p.axis, queue) + derivative_of(s, p.axis, recent));
#pragma unroll
        for (int k = 0; k < 2 * HALF; ++k) queue[k] = queue[k + 1], recent[k] = recent[k + 1];
        queue[2 * HALF] = last, recent[2 * HALF] = last_t;
        u += p.along, earlier += p.stride, r += p.stride, t += p.stride;
    }
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
    store(s, field, k, *field + s.c[point] * total);
}

// Move the clock on after steps that were recorded together.
extern "C" __global__ void tick(const Step s, int by)
{
    s.clock[0] += by;
}
