// Time steps of any medium on a tile: the kernels of media_kernels.py, with the arithmetic of steps/acoustic.py, vti.py, density.py and
// relaxation.py.
//
// A step is one kernel, `forward` or `adjoint`, after one or two that advance memory variables of the layers. It applies the operator L and
// completes the step at each point. Threads march along the first axis of three-dimensional grids, with the values around them along it in
// registers; along the other axes, the first cache has what neighbours read. Other kernels do a part of a step: products with the
// coefficients, relaxation, sources and receivers. Compiled without contraction (--fmad=false), each point takes the operations of the
// NumPy steps in the same order, so that results are the same bits as on hosts, and do not depend on the tiles.
//
// compile-after: tile.cu
// compile-with: -DNDIM=3 -DHALF=4 -DFIELDS=1 -DROWS=16 -DFLUXES
// compile-with: -DNDIM=2 -DHALF=8 -DFIELDS=2 -DROWS=8 -DLAPLACIAN -DRELAXED -DCOLLOPS_DOUBLE
// compile-with: -DNDIM=3 -DHALF=1 -DFIELDS=6
//
// NDIM is the number of axes of the grid, HALF half the order of accuracy, and FIELDS the number of coupled fields. With LAPLACIAN or FLUXES
// there is an operator of constant coefficients, or of variable density, and with RELAXED a filter in time after it; a block of its kernels
// has ROWS rows. Arrays have three axes; those that the grid does not have are the first ones and have one point.

#define LINE 32   // threads of a block along a row, and LINES rows
#define LINES 8
#define LAYERS 6
#define MECHANISMS 5
#define NONE (-2147483647)
#ifdef RELAXED
#define RELAXES true
#else
#define RELAXES false
#endif
#define MORE (2 * HALF - 1)  // half points by which staggered derivatives need more fluxes than points
#define KERNEL extern "C" __global__ void __launch_bounds__(LINE * LINES, 4)

// Where a memory variable differs from zero: first <= index along the axis < last. It is stored at origin + i plane + j row + k, and its
// coefficients are at profile + the index along the axis.
struct Variable {
    long long origin, plane, row;
    int first, last, profile;
};

enum { FIRST, SECOND, EDGE };  // psi or r, zeta or t, and, with FLUXES, the fluxes that they change

struct Layer {
    Variable variable[3];
    int axis, block[3];  // the numbers of the first blocks that advance each variable
};

// The arguments of all kernels; each needs some of them. Indices of coefficients of stencils are axis * WIDTH + k.
struct Step {
    View u, before, w, out;
    View relaxed, gains;      // memory variables and gains of relaxation; their times are the mechanisms
    Real *first, *second;     // memory variables of layers: psi and zeta, or r and t of the adjoint
    const Real *a, *b, *c;
    Real *image, *edge;
    const Real* change;       // of the coefficients
    const Real* buoyancy[3];  // by axis, at half points from `low` to `high`
    int* clock;               // the number of the step is clock[0] + ahead; wavefields are stored from number clock[1] on
    const int* rows;          // stations as a sparse matrix: where rows begin, columns and weights
    const int* columns;
    const Real* weights;
    const long long* points;  // of the tile
    const Real* signal;       // (steps from number -lead on, parts, points)
    Real* traces;             // (receivers, samples)
    int count, samples, lead, parts, part;
    long long volume;         // points of the tile; c, change, image, and in steps w and out have no gaps
    int size[3], surface, layers, planes, mechanisms;
    int clear[3], unclear[3];  // no layer reaches the points, or with FLUXES the half points, in [clear, unclear) along each axis
    int low[3], high[3];       // half points along each axis before the first one and from the last one on have no flux
    int element[FIELDS * FIELDS];  // of the matrix of coefficients at a point: the number of a coefficient, or -1
    Real factor, center[FIELDS], centers[3], seconds[3 * WIDTH], firsts[3 * WIDTH], decays[MECHANISMS];
    Layer layer[LAYERS];
};

__device__ __forceinline__ Point moved(const Point& p, int axis, int by)
{
    return {p.i + (axis == 0 ? by : 0), p.j + (axis == 1 ? by : 0), p.k + (axis == 2 ? by : 0)};
}

__device__ __forceinline__ Point own_point()
{
    return {(int)blockIdx.z, (int)(blockIdx.y * LINES + threadIdx.y), (int)(blockIdx.x * LINE + threadIdx.x)};
}

__device__ __forceinline__ bool inside(const Step& s, const Point& p)
{
    return p.j < s.size[1] && p.k < s.size[2];
}

__device__ __forceinline__ long long index_of(const Variable& v, const Point& p)
{
    return v.origin + p.i * v.plane + p.j * v.row + p.k;
}

__device__ __forceinline__ Real first_derivative(const Step& s, const Real* x, int gap, int axis)
{
    const Real* weights = s.firsts + axis * WIDTH;
    Real total = weights[0] * (x[gap] - x[-gap]);
#pragma unroll
    for (int k = 1; k < HALF; ++k) total += weights[k] * (x[(k + 1) * gap] - x[-(k + 1) * gap]);
    return total;
}

// Add the second derivative without its central term.
__device__ __forceinline__ void add_sides(const Step& s, const Real* x, int gap, int axis, Real& total)
{
    const Real* weights = s.seconds + axis * WIDTH;
#pragma unroll
    for (int k = 0; k < HALF; ++k) total += weights[k] * (x[(k + 1) * gap] + x[-(k + 1) * gap]);
}

__device__ __forceinline__ Real second_derivative(const Step& s, const Real* x, int gap, int axis)
{
    Real total = s.centers[axis] * *x;
    add_sides(s, x, gap, axis, total);
    return total;
}

// The staggered derivative between the elements x[-gap] and x[0].
__device__ __forceinline__ Real staggered_derivative(const Step& s, const Real* x, int gap, int axis)
{
    const Real* weights = s.firsts + axis * WIDTH;
    Real total = weights[0] * (x[0] - x[-gap]);
#pragma unroll
    for (int k = 1; k < HALF; ++k) total += weights[k] * (x[k * gap] - x[-(k + 1) * gap]);
    return total;
}

// Find the layer and the point of one of its variables that a thread advances; return the layer's number, or -1.
template <int WHICH>
__device__ __forceinline__ int own_variable(const Step& s, Point& p)
{
    int number = 0;
    while (number + 1 < s.layers && (int)blockIdx.x >= s.layer[number + 1].block[WHICH]) ++number;
    const Variable& v = s.layer[number].variable[WHICH];
    const int axis = s.layer[number].axis, extent = v.last - v.first;
    const int planes = axis == 0 ? extent : s.size[0], rows = axis == 1 ? extent : s.size[1];
    const int columns = axis == 2 ? extent : s.size[2];
    const unsigned blocks = blockIdx.x - s.layer[number].block[WHICH];
    const unsigned thread = (blocks * LINES + threadIdx.y) * LINE + threadIdx.x, row = thread / (unsigned)columns;
    if (row >= (unsigned)planes * rows) return -1;
    const Point first = {(int)(row / (unsigned)rows), (int)(row % (unsigned)rows), (int)(thread % (unsigned)columns)};
    p = moved(first, axis, v.first);
    return number;
}

// Fill the halo above a free surface, of the last field: others have no derivatives across it.
KERNEL mirror(const Step s, int ahead)
{
    const int row = (blockIdx.x * LINES + threadIdx.y) * LINE + threadIdx.x;
    if (row >= s.size[0] * s.size[1]) return;
    Real* at = s.u.at + (FIELDS - 1) * s.u.field + row / s.size[1] * s.u.plane + row % s.size[1] * s.u.row;
    for (int k = 1; k <= HALF; ++k) at[-k] = -at[k];
}

// ---- Products with the coefficients of coupled fields

// The field of which derivatives along an axis are taken: with coupled fields, the last one has those along the last axis.
__device__ constexpr int field_of(int axis)
{
    return axis == 2 ? FIELDS - 1 : 0;
}

// Compute the product of the matrix at a point with values of the fields.
__device__ __forceinline__ void product(const Step& s, const Real* c, const Real (&values)[FIELDS], Real (&out)[FIELDS])
{
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        bool any = false;
#pragma unroll
        for (int g = 0; g < FIELDS; ++g) {
            const int element = s.element[f * FIELDS + g];
            if (element < 0) continue;
            const Real term = c[element * s.volume] * values[g];
            out[f] = any ? out[f] + term : term;
            any = true;
        }
    }
}

// Filter values at a point in time; memory variables of relaxation advance.
__device__ __forceinline__ void filter(const Step& s, const Point& p, Real (&values)[FIELDS])
{
    Real* relaxed = s.relaxed.at + index_in(s.relaxed, p);
    const Real* gains = s.gains.at + index_in(s.gains, p);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        const Real signal = values[f];
        Real own[MECHANISMS], gain[MECHANISMS];  // all are read before any is stored
#pragma unroll
        for (int l = 0; l < MECHANISMS; ++l)
            if (l < s.mechanisms) own[l] = relaxed[l * s.relaxed.time + f * s.relaxed.field], gain[l] = gains[l * s.gains.time];
#pragma unroll
        for (int l = 0; l < MECHANISMS; ++l) {
            if (l >= s.mechanisms) break;
            values[f] += own[l];
            relaxed[l * s.relaxed.time + f * s.relaxed.field] = s.decays[l] * own[l] + gain[l] * signal;
        }
    }
}

// ---- Steps

#if defined(LAPLACIAN) || defined(FLUXES)

#define STEP_KERNEL extern "C" __global__ void __launch_bounds__(LINE * ROWS, (HALF > 4 ? 512 : 1024) / (LINE * ROWS))

// Whether layers across an axis may reach a point, or with FLUXES a half point.
__device__ __forceinline__ bool reached(const Step& s, const Point& p, int axis)
{
    const int index = index_along(p, axis);
    return index < s.clear[axis] || index >= s.unclear[axis];
}

// What a point needs to complete its step, which is read early: memory takes long to answer. Coefficients are symmetric matrices.
struct Own {
    Real before[FIELDS], c[2 * FIELDS - 1];
};

// Read the values of point number `own` of the tile, u in the field.
__device__ __forceinline__ Own read_own(const Step& s, const Real* u, long long own)
{
    Own found = {};
    if (!s.before.at) return found;
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) found.before[f] = s.before.at[u - s.u.at + f * s.before.field];
#pragma unroll
    for (int e = 0; e < 2 * FIELDS - 1; ++e) found.c[e] = s.c[own + e * s.volume];
    return found;
}

// Complete a step at a point, where the operator has the result `total`: store it, and unless that is all, replace `before` by the field
// after `field`. A change of the coefficients scatters w; the adjoint adds its product with w to the image.
__device__ __forceinline__ void complete(const Step& s, const Real* u, long long own, const Own& values, const Real (&field)[FIELDS],
                                         const Real (&total)[FIELDS], Real* out, const Real* w)
{
    if (out) {
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) out[own + f * s.volume] = total[f];
    }
    if (!s.before.at) return;
    Real result[FIELDS];
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        Real change = values.c[f] * total[0];
        if (FIELDS > 1) change += values.c[f + FIELDS - 1] * total[FIELDS - 1];
        result[f] = (2 * field[f] - values.before[f]) + change;
    }
    if (w) {
        Real stored[FIELDS], scattered[FIELDS];
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) stored[f] = w[own + f * s.volume];
        if (s.image) {
            Real image = s.image[own];
#pragma unroll
            for (int f = 0; f < FIELDS; ++f) image += field[f] * stored[f];
            s.image[own] = image;
        } else {
            product(s, s.change + own, stored, scattered);
#pragma unroll
            for (int f = 0; f < FIELDS; ++f) result[f] += scattered[f];
        }
    }
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) s.before.at[u - s.u.at + f * s.before.field] = result[f];
}

// Advance t of the adjoint.
KERNEL recede_t(const Step s, int ahead)
{
    Point p;
    const int number = own_variable<SECOND>(s, p);
    if (number < 0) return;
    const Variable& v = s.layer[number].variable[SECOND];
    const int axis = s.layer[number].axis, of = v.profile + index_along(p, axis);
    Real& own = s.second[index_of(v, p)];
    own = s.b[of] * own + s.a[of] * s.u.at[index_in(s.u, p) + field_of(axis) * s.u.field];
}

#endif

#ifdef LAPLACIAN

KERNEL advance(const Step s, int ahead)
{
    Point p;
    const int number = own_variable<FIRST>(s, p);
    if (number < 0) return;
    const Variable& v = s.layer[number].variable[FIRST];
    const int axis = s.layer[number].axis, of = v.profile + index_along(p, axis);
    const Real* u = s.u.at + index_in(s.u, p) + field_of(axis) * s.u.field;
    Real& own = s.first[index_of(v, p)];
    own = s.b[of] * own + s.a[of] * first_derivative(s, u, gap_of(s.u, axis), axis);
}

KERNEL recede(const Step s, int ahead)
{
    Point p;
    const int number = own_variable<FIRST>(s, p);
    if (number < 0) return;
    const Variable& v = s.layer[number].variable[FIRST];
    const int axis = s.layer[number].axis, of = v.profile + index_along(p, axis);
    const long long at = index_of(v, p);
    const Real* u = s.u.at + index_in(s.u, p) + field_of(axis) * s.u.field;
    Real change = first_derivative(s, u, gap_of(s.u, axis), axis);
    change += first_derivative(s, s.second + at, gap_of(v, axis), axis);
    s.first[at] = s.b[of] * s.first[at] - s.a[of] * change;
}

// Add the terms of the layers that reach a point; zeta advances.
template <bool ADJOINT>
__device__ __forceinline__ void add_layers(const Step& s, const Real* u, const Point& p, Real (&total)[FIELDS])
{
    for (int number = 0; number < s.layers; ++number) {
        const Layer& layer = s.layer[number];
        const Variable& v = layer.variable[SECOND];
        const int axis = layer.axis, index = index_along(p, axis), gap = gap_of(v, axis);
        if (!has(v, index)) continue;
        const long long at = index_of(v, p);
        const Real change = first_derivative(s, s.first + at, gap, axis);
        Real sum = FIELDS > 1 && axis == 2 ? total[FIELDS - 1] : total[0];
        if (ADJOINT) {
            sum += second_derivative(s, s.second + at, gap, axis) - change;
        } else {
            const Real curvature = second_derivative(s, u + field_of(axis) * s.u.field, gap_of(s.u, axis), axis);
            const Real own = s.b[v.profile + index] * s.second[at] + s.a[v.profile + index] * (curvature + change);
            s.second[at] = own;
            sum += change;
            sum += own;
        }
        (FIELDS > 1 && axis == 2 ? total[FIELDS - 1] : total[0]) = sum;
    }
}

template <bool ADJOINT>
__device__ __forceinline__ void step(const Step& s, int ahead)
{
    Point p = {(int)blockIdx.z * s.planes, (int)(blockIdx.y * ROWS + threadIdx.y), (int)(blockIdx.x * LINE + threadIdx.x)};
    if (!inside(s, p)) return;
    Real* out = s.out.at ? place(s, s.out, ahead) : nullptr;
    const Real* w = s.w.at ? place(s, s.w, ahead) : nullptr;
    const Real* u = s.u.at + index_in(s.u, p);
    const bool near = reached(s, p, 1) || reached(s, p, 2);
    const int end = min(p.i + s.planes, s.size[0]), plane = (int)s.u.plane;
    long long own = own_index(s, p);
    Real queue[2 * HALF + 2] = {};  // the points along the march, and the next one
    if (NDIM == 3) {
#pragma unroll
        for (int k = 1; k <= 2 * HALF + 1; ++k) queue[k] = u[(k - HALF - 1) * plane];
    }
    for (; p.i < end; ++p.i, u += plane, own += s.size[1] * s.size[2]) {
        if (NDIM == 3) {
#pragma unroll
            for (int k = 0; k <= 2 * HALF; ++k) queue[k] = queue[k + 1];
            if (p.i + 1 < end) queue[2 * HALF + 1] = u[(HALF + 1) * plane];
        }
        const Own values = read_own(s, u, own);
        Real field[FIELDS], total[FIELDS];
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) {
            field[f] = NDIM == 3 && f == 0 ? queue[HALF] : u[f * s.u.field];
            total[f] = s.center[f] * field[f];
        }
        if (NDIM == 3) add_sides(s, queue + HALF, 1, 0, total[0]);
        if (NDIM > 1) add_sides(s, u, (int)s.u.row, 1, total[0]);
        add_sides(s, u + field_of(2) * s.u.field, 1, 2, total[field_of(2)]);
        if (near || reached(s, p, 0)) add_layers<ADJOINT>(s, u, p, total);
        if (RELAXES && !ADJOINT) filter(s, p, total);
        complete(s, u, own, values, field, total, out, w);
    }
}

#endif

#ifdef FLUXES

// Where the buoyancy at a half point along an axis is, and how far planes are apart.
__device__ __forceinline__ const Real* buoyancy_at(const Step& s, const Point& p, int axis, int& plane)
{
    const int known = s.high[axis] - s.low[axis], rows = axis == 1 ? known : s.size[1], columns = axis == 2 ? known : s.size[2];
    const Point own = moved(p, axis, -s.low[axis]);
    plane = rows * columns;
    return s.buoyancy[axis] + ((long long)own.i * plane + own.j * columns + own.k);
}

// Where the flux that layers change has been computed, at a half point along an axis, in `edge`; NONE if they do not change it. Planes are
// `plane` apart. Half point number n is before point n - HALF + 1 of the tile.
__device__ __forceinline__ int edge_at(const Step& s, const Point& p, int axis, int& plane)
{
    if (!reached(s, p, axis)) return NONE;
    for (int number = 0; number < s.layers; ++number) {
        const Variable& v = s.layer[number].variable[EDGE];
        if (s.layer[number].axis != axis || !has(v, index_along(p, axis))) continue;
        plane = (int)v.plane;
        return (int)index_of(v, p);
    }
    return NONE;
}

// How a thread finds the flux at a half point of a plane: as the buoyancy, at a place of its plane, times the derivative before the point u of
// the plane, or in `edge`, at a place that moves by `plane` from one plane to the next. NONE for both where there is no flux.
struct Place {
    int u, factor, plane;
};

// Return the place of a half point along axis 1 or 2. Above a free surface, fluxes along the last axis are mirror images.
__device__ __forceinline__ Place place_at(const Step& s, Point p, int axis)
{
    if (axis == 2 && s.surface && p.k < HALF) p.k = MORE - p.k;
    const int n = index_along(p, axis);
    Place found = {NONE, NONE, 0};
    if (n < s.low[axis] || n >= s.high[axis] || index_along(p, 3 - axis) >= s.size[3 - axis]) return found;
    found.factor = edge_at(s, p, axis, found.plane);
    if (found.factor == NONE) {
        const Point after = moved(p, axis, 1 - HALF);
        found.u = after.j * (int)s.u.row + after.k;
        found.factor = axis == 1 ? (n - s.low[1]) * s.size[2] + p.k : p.j * (s.high[2] - s.low[2]) + n - s.low[2];
    }
    return found;
}

// Return the flux at a place of plane number m of a march, where the field and the buoyancy of this plane begin.
__device__ __forceinline__ Real flux_at(const Step& s, const Place& at, int m, const Real* u, const Real* buoyancy, int gap, int axis)
{
    if (at.u != NONE) return buoyancy[at.factor] * staggered_derivative(s, u + at.u, gap, axis);
    return at.factor != NONE ? s.edge[at.factor + m * at.plane] : 0;
}

// A value of the adjoint field so many points along an axis, with t of layers across the axis.
__device__ __forceinline__ Real summed(const Step& s, const Real* u, const Point& p, int axis, int along)
{
    const Real value = u[along * gap_of(s.u, axis)];
    const Point other = moved(p, axis, along);
    for (int number = 0; number < s.layers; ++number) {
        const Variable& v = s.layer[number].variable[SECOND];
        if (s.layer[number].axis == axis && has(v, index_along(other, axis))) return value + s.second[index_of(v, other)];
    }
    return value;
}

// Compute the fluxes that layers change, whose psi or r advances.
template <bool ADJOINT>
__device__ __forceinline__ void find_edge(const Step& s)
{
    Point p;
    const int own = own_variable<EDGE>(s, p);
    if (own < 0) return;
    const int axis = s.layer[own].axis, n = index_along(p, axis);
    if (n < s.low[axis] || n >= s.high[axis]) return;
    int plane;
    const Point after = moved(p, axis, 1 - HALF);
    const Real *u = s.u.at + index_in(s.u, after), *weights = s.firsts + axis * WIDTH;
    Real value;
    if (ADJOINT) {
        value = weights[0] * (summed(s, u, after, axis, 0) - summed(s, u, after, axis, -1));
#pragma unroll
        for (int k = 1; k < HALF; ++k)
            value += weights[k] * (summed(s, u, after, axis, k) - summed(s, u, after, axis, -k - 1));
    } else {
        value = staggered_derivative(s, u, gap_of(s.u, axis), axis);
    }
    value *= *buoyancy_at(s, p, axis, plane);
    for (int number = 0; number < s.layers; ++number) {
        const Variable& v = s.layer[number].variable[FIRST];
        if (s.layer[number].axis != axis || !has(v, n)) continue;
        Real& variable = s.first[index_of(v, p)];
        variable = s.b[v.profile + n] * variable + s.a[v.profile + n] * value;
        value += variable;
    }
    s.edge[index_of(s.layer[own].variable[EDGE], p)] = value;
}

KERNEL advance(const Step s, int ahead)
{
    find_edge<false>(s);
}

KERNEL recede(const Step s, int ahead)
{
    find_edge<true>(s);
}

// Add zeta of the layers that reach a point, where it advances; `changes` are the derivatives of the fluxes.
__device__ __forceinline__ void add_layers(const Step& s, const Point& p, const Real (&changes)[3], Real& total)
{
    for (int number = 0; number < s.layers; ++number) {
        const Variable& v = s.layer[number].variable[SECOND];
        const int axis = s.layer[number].axis, index = index_along(p, axis);
        if (!has(v, index)) continue;
        Real& own = s.second[index_of(v, p)];
        const Real change = axis == 0 ? changes[0] : axis == 1 ? changes[1] : changes[2];
        own = s.b[v.profile + index] * own + s.a[v.profile + index] * change;
        total += own;
    }
}

// A block shares the fluxes along both axes of a plane, and a thread has those along the march in registers.
template <bool ADJOINT>
__device__ __forceinline__ void step(const Step& s, int ahead)
{
    constexpr int THREADS = ROWS * LINE, ACROSS = (ROWS + MORE) * LINE, ALONG = ROWS * (LINE + MORE);  // shared fluxes along axes 1 and 2
    constexpr int ROW_PLACES = NDIM > 1 ? (ACROSS + THREADS - 1) / THREADS : 0, PLACES = ROW_PLACES + (ALONG + THREADS - 1) / THREADS;
    __shared__ Real across[2][ACROSS], along[2][ALONG];
    const int x = threadIdx.x, y = threadIdx.y, thread = y * LINE + x;
    const int begin = blockIdx.z * s.planes, end = min(begin + s.planes, s.size[0]), plane = (int)s.u.plane;
    const Point first = {begin, (int)blockIdx.y * ROWS, (int)blockIdx.x * LINE};
    Point p = {NDIM == 3 ? begin - MORE : begin, first.j + y, first.k + x};
    const bool inside_tile = inside(s, p), near = reached(s, p, 1) || reached(s, p, 2);
    Real* out = s.out.at ? place(s, s.out, ahead) : nullptr;
    const Real* w = s.w.at ? place(s, s.w, ahead) : nullptr;
    const Real* u = s.u.at + index_in(s.u, p);
    long long own = own_index(s, p);

    Place places[PLACES];
#pragma unroll
    for (int m = 0; m < PLACES; ++m) {
        const int e = thread + (m < ROW_PLACES ? m : m - ROW_PLACES) * THREADS, width = m < ROW_PLACES ? LINE : LINE + MORE;
        places[m] = place_at(s, {begin, first.j + e / width, first.k + e % width}, m < ROW_PLACES ? 1 : 2);
    }
    // The points from p on, and the fluxes from its half point on; the points beyond those that the fluxes need are not loaded.
    Real field[2 * HALF] = {}, fluxes[2 * HALF] = {};
    const Real* buoyancy = nullptr;
    int between = 0;
    if (NDIM == 3 && inside_tile) {
        buoyancy = buoyancy_at(s, moved(p, 0, MORE), 0, between);
#pragma unroll
        for (int k = 1; k <= MORE; ++k)
            if (p.i + k - 1 >= s.low[0] - MORE) field[k] = u[(k - 1) * plane];
    }
    for (int buffer = 0; p.i < end; ++p.i, u += plane, own += s.size[1] * s.size[2]) {
        if (NDIM == 3 && inside_tile) {
            const Point half = moved(p, 0, MORE);
#pragma unroll
            for (int k = 0; k < MORE; ++k) field[k] = field[k + 1], fluxes[k] = fluxes[k + 1];
            if (half.i >= s.low[0] - MORE && half.i < s.high[0]) field[MORE] = u[MORE * plane];
            fluxes[MORE] = 0;
            if (half.i >= s.low[0] && half.i < s.high[0]) {
                int unused;
                const int edge = edge_at(s, half, 0, unused);
                fluxes[MORE] = edge != NONE ? s.edge[edge] : *buoyancy * staggered_derivative(s, field + HALF, 1, 0);
            }
            buoyancy += between;
        }
        if (p.i < begin) continue;
        const Own values = inside_tile ? read_own(s, u, own) : Own{};
        const Real* const field_of_plane = s.u.at + p.i * s.u.plane;
        const Real* const buoyancy1 = s.buoyancy[1] + (long long)p.i * ((s.high[1] - s.low[1]) * s.size[2]);
        const Real* const buoyancy2 = s.buoyancy[2] + (long long)p.i * (s.size[1] * (s.high[2] - s.low[2]));
#pragma unroll
        for (int m = 0; m < PLACES; ++m) {
            const int e = thread + (m < ROW_PLACES ? m : m - ROW_PLACES) * THREADS;
            if (m < ROW_PLACES && e < ACROSS)
                across[buffer][e] = flux_at(s, places[m], p.i - begin, field_of_plane, buoyancy1, (int)s.u.row, 1);
            if (m >= ROW_PLACES && e < ALONG)
                along[buffer][e] = flux_at(s, places[m], p.i - begin, field_of_plane, buoyancy2, 1, 2);
        }
        __syncthreads();
        if (inside_tile) {
            Real changes[3] = {}, total[1], middle[1] = {NDIM == 3 ? field[0] : *u};
            changes[2] = total[0] = staggered_derivative(s, along[buffer] + y * (LINE + MORE) + x + HALF, 1, 2);
            if (NDIM > 1) {
                changes[1] = staggered_derivative(s, across[buffer] + (y + HALF) * LINE + x, LINE, 1);
                total[0] = changes[1] + changes[2];
            }
            if (NDIM == 3) {
                changes[0] = staggered_derivative(s, fluxes + HALF, 1, 0);
                total[0] = (changes[0] + changes[1]) + changes[2];
            }
            if (!ADJOINT && (near || reached(s, p, 0))) add_layers(s, p, changes, total[0]);
            if (RELAXES && !ADJOINT) filter(s, p, total);
            complete(s, u, own, values, middle, total, out, w);
        }
        buffer ^= 1;  // so that one barrier suffices
    }
}

#endif

#if defined(LAPLACIAN) || defined(FLUXES)

STEP_KERNEL forward(const Step s, int ahead)
{
    step<false>(s, ahead);
}

STEP_KERNEL adjoint(const Step s, int ahead)
{
    step<true>(s, ahead);
}

#endif

// ---- Parts of steps

// Filter fields u in time.
KERNEL relax(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    Real* out = place(s, s.out, ahead) + index_in(s.out, p);
    const Real* u = s.u.at + index_in(s.u, p);
    Real values[FIELDS];
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) values[f] = u[f * s.u.field];
    filter(s, p, values);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) out[f * s.out.field] = values[f];
}

// Compute the product of the matrix at a point with fields in memory.
__device__ __forceinline__ void product(const Step& s, const Real* c, const Real* w, Real (&out)[FIELDS])
{
    Real values[FIELDS];
#pragma unroll
    for (int g = 0; g < FIELDS; ++g) values[g] = w[g * s.w.field];
    product(s, c, values, out);
}

// Replace `before` by the field after u, of which w is the Laplacian.
KERNEL leap(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    const Real *u = s.u.at + index_in(s.u, p), *c = s.c + own_index(s, p), *w = place(s, s.w, ahead) + index_in(s.w, p);
    Real* before = s.before.at + index_in(s.before, p);
    Real change[FIELDS], moved[FIELDS];
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) moved[f] = 2 * u[f * s.u.field] - before[f * s.before.field];
    product(s, c, w, change);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) before[f * s.before.field] = moved[f] + change[f];
}

KERNEL multiply(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    const Real *c = s.c + own_index(s, p), *w = place(s, s.w, ahead) + index_in(s.w, p);
    Real* out = s.out.at + index_in(s.out, p);
    Real values[FIELDS];
    product(s, c, w, values);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) out[f * s.out.field] = values[f];
}

KERNEL add_product(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    const Real *c = s.c + own_index(s, p), *w = place(s, s.w, ahead) + index_in(s.w, p);
    Real* out = s.out.at + index_in(s.out, p);
    Real values[FIELDS];
    product(s, c, w, values);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) out[f * s.out.field] += values[f];
}

// Add the inner product of fields, the first multiplied by a factor, to an image.
KERNEL correlate(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    const Real *u = s.u.at + index_in(s.u, p), *w = place(s, s.w, ahead) + index_in(s.w, p);
    Real total = s.image[own_index(s, p)];
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) total += (s.factor * u[f * s.u.field]) * w[f * s.w.field];
    s.image[own_index(s, p)] = total;
}

// Replace w by its multiple plus u.
KERNEL combine(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    const Real* u = place(s, s.u, ahead) + index_in(s.u, p);
    Real* w = place(s, s.w, ahead) + index_in(s.w, p);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) w[f * s.w.field] = s.factor * w[f * s.w.field] + u[f * s.u.field];
}

// ---- Sources and receivers, which are on the last field

__device__ __forceinline__ int own_number()
{
    return (blockIdx.x * LINES + threadIdx.y) * LINE + threadIdx.x;
}

__device__ __forceinline__ Point point_of(const Step& s, long long point)
{
    return {(int)(point / s.size[2] / s.size[1]), (int)(point / s.size[2] % s.size[1]), (int)(point % s.size[2])};
}

// Add a value on the last field, multiplied by the coefficients, to all fields at a point.
__device__ __forceinline__ void add_column(const Step& s, const View& view, long long point, Real value)
{
    Real* field = view.at + index_in(view, point_of(s, point));
    for (int f = 0; f < FIELDS; ++f) {
        const int element = s.element[f * FIELDS + FIELDS - 1];
        if (element >= 0) field[f * view.field] += s.c[element * s.volume + point] * value;
    }
}

KERNEL record(const Step s, int ahead)
{
    const int number = own_number(), n = s.clock[0] + ahead;
    if (number >= s.count || n < 0) return;
    Real total = 0;
    const Real* field = s.u.at + (FIELDS - 1) * s.u.field;
#pragma unroll 16
    for (int e = s.rows[number]; e < s.rows[number + 1]; ++e) total += s.weights[e] * field[s.columns[e]];
    s.traces[(long long)number * s.samples + n] = total;
}

__device__ __forceinline__ Real signal_of(const Step& s, int number, int ahead)
{
    return s.signal[((long long)(s.clock[0] + ahead + s.lead) * s.parts + s.part) * s.count + number];
}

// Add the source to the field after a step.
KERNEL add_source(const Step s, int ahead)
{
    const int number = own_number();
    if (number < s.count) add_column(s, s.before, s.points[number], signal_of(s, number, ahead));
}

// Add the source to a wavefield.
KERNEL add_signal(const Step s, int ahead)
{
    const int number = own_number();
    if (number >= s.count) return;
    Real* w = place(s, s.w, ahead) + (FIELDS - 1) * s.w.field;
    w[index_in(s.w, point_of(s, s.points[number]))] += signal_of(s, number, ahead);
}

// Add the residuals at the sample after step n to the adjoint field.
KERNEL add_residual(const Step s, int ahead)
{
    const int number = own_number(), n = s.clock[0] + ahead;
    if (number >= s.count) return;
    Real total = 0;
    for (int e = s.rows[number]; e < s.rows[number + 1]; ++e)
        total += s.weights[e] * s.traces[(long long)s.columns[e] * s.samples + n + 1];
    add_column(s, s.u, s.points[number], total);
}

// Move the clock on after steps that were recorded together.
KERNEL tick(const Step s, int by)
{
    if (own_number() == 0) s.clock[0] += by;
}
