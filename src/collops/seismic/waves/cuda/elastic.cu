// Time steps of elastic media on a tile: the kernels of elastic_steps.py, with the arithmetic of steps/elastic.py.
//
// A step is two kernels. The first one computes all components of velocity from the fields, each the divergence of stress times the
// buoyancy, and the second one their symmetric gradient, the rates of all fields, and with them the next fields. The transposed scheme
// advances the memory variables of the layers in one kernel before each of them. A thread computes one point, and a block a box of
// points, since neighbours along all axes share most of the values that they read. Compiled without contraction (--fmad=false), each
// point takes the operations of the NumPy steps in the same order, so that results are the same bits as on hosts, and do not depend on
// the tiles.
//
// compile-with: -DNDIM=3 -DHALF=4
// compile-with: -DNDIM=2 -DHALF=8 -DCOLLOPS_DOUBLE
//
// NDIM is the number of axes, 2 or 3, and HALF half the order of accuracy. Arrays have three axes; in two dimensions the first one has
// one point.

#ifdef __HIP__
#pragma clang fp contract(off)
#endif

#ifdef COLLOPS_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define WIDTH 8   // maximum of HALF
#define LINE 32   // points of a block along a row, and ROWS rows of PLANES planes
#if NDIM == 3
#define ROWS 4
#define PLANES 4
#define FIELDS 6
#else
#define ROWS 8
#define PLANES 1
#define FIELDS 3
#endif
#define FIRST (3 - NDIM)  // axis of the grid
#define THREADS (LINE * ROWS * PLANES)
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)

// The tile in an array: where its first point is, and how far times, fields, planes and rows are apart. Points of a row are contiguous.
struct View {
    Real* at;
    long long time, field, plane, row;
};

// Where a memory variable is: first <= index along the axis of its derivative < last. It is stored at origin + i plane + j row + k, and
// its coefficients are at profile + the index.
struct Zone {
    long long origin;
    int plane, row, first, last, profile;
};

// The arguments of all kernels; each needs some of them.
struct Step {
    View u, before, w, change, scattering;
    Real *first, *second;    // memory variables: of stress and then of velocity
    const Real *a, *b, *c;   // coefficients of all zones, and of the medium
    Real* velocity;          // all components, each with half a stencil around the tile
    Real* image;
    const int* clock;        // the number of the step is clock[0] + ahead; wavefields are stored from number clock[1] on
    const Real* buoyancy[3]; // by axis, in the box of the component of velocity
    long long origin[3];     // of the tile in components of velocity
    int plane, row;          // of a component of velocity
    int size[3], begin[3], box_begin[3][3], box_end[3][3];  // `begin` is the least of all boxes
    int surface, stores, scatters;
    Zone zone[2][3][3][2];   // of stress and of velocity, by the axes of the velocity and of the derivative
    Real factor, third, weights[3][WIDTH];
};

struct Point {
    int i, j, k;
};

__device__ __forceinline__ Real* place(const Step& s, const View& view, int ahead)
{
    return view.at + (view.time ? (s.clock[0] + ahead - s.clock[1]) * view.time : 0);
}

// Registers have no index: an array with a variable index would be in local memory.
__device__ __forceinline__ int index_along(const Point& p, int axis)
{
    return axis == 0 ? p.i : axis == 1 ? p.j : p.k;
}

__device__ __forceinline__ long long index_in(const View& view, const Point& p)
{
    return p.i * view.plane + p.j * view.row + p.k;
}

__device__ __forceinline__ long long own_index(const Step& s, const Point& p)
{
    return ((long long)p.i * s.size[1] + p.j) * s.size[2] + p.k;
}

__device__ __forceinline__ long long own_size(const Step& s)
{
    return (long long)s.size[0] * s.size[1] * s.size[2];
}

__device__ __forceinline__ long long index_of(const Zone& zone, const Point& p)
{
    return zone.origin + (long long)p.i * zone.plane + p.j * zone.row + p.k;
}

// How far neighbours along an axis are apart.
__device__ __forceinline__ int gap_of(long long plane, long long row, int axis)
{
    return axis == 0 ? (int)plane : axis == 1 ? (int)row : 1;
}

__device__ __forceinline__ bool has(const Zone& zone, int index)
{
    return index >= zone.first && index < zone.last;
}

// Whether one of two zones has points with first <= index < last.
__device__ __forceinline__ bool reached(const Zone* zones, int first, int last)
{
    return (zones[0].first < last && zones[0].last > first) || (zones[1].first < last && zones[1].last > first);
}

__device__ __forceinline__ Point own_point()
{
    return {(int)(blockIdx.z * PLANES + threadIdx.y / ROWS), (int)(blockIdx.y * ROWS + threadIdx.y % ROWS),
            (int)(blockIdx.x * LINE + threadIdx.x)};
}

__device__ __forceinline__ bool inside(const Step& s, const Point& p)
{
    return p.i < s.size[0] && p.j < s.size[1] && p.k < s.size[2];
}

// The component of stress along axes a and c at a point of fields that are so far apart.
__device__ __forceinline__ Real stress(const Step& s, const Real* u, int a, int c)
{
    const long long field = s.u.field;
#if NDIM == 3
    if (a != c) return u[(a + c - 1) * field];
    const Real one = u[3 * field], two = u[4 * field];
    if (a == 2) return -2 * s.third * two + u[5 * field];
    return (a == 0 ? one : -one) + s.third * two + u[5 * field];
#else
    if (a != c) return *u;
    return (a == 1 ? u[field] : -u[field]) + u[2 * field];
#endif
}

// The staggered derivative between elements number `first` - 1 and `first` along an axis.
template <class Values>
__device__ __forceinline__ Real derivative(const Step& s, int axis, int first, const Values& value)
{
    const Real* weights = s.weights[axis];
    Real total = weights[0] * (value(first) - value(first - 1));
#pragma unroll
    for (int n = 1; n < HALF; ++n) total += weights[n] * (value(first + n) - value(first - n - 1));
    return total;
}

// A value plus the memory variable that it drove, if one of two zones has it.
__device__ __forceinline__ Real driven(const Zone* zones, const Real* memory, const Point& p, int index, Real value)
{
    for (int n = 0; n < 2; ++n)
        if (has(zones[n], index)) return value + memory[index_of(zones[n], p)];
    return value;
}

__device__ __forceinline__ Point moved(const Point& p, int axis, int by)
{
    return {p.i + (axis == 0 ? by : 0), p.j + (axis == 1 ? by : 0), p.k + (axis == 2 ? by : 0)};
}

// Add the memory variable that a derivative drives to a sum, if one of two zones has it.
__device__ __forceinline__ void decay(
    const Step& s, const Zone* zones, Real* memory, const Point& p, int index, Real change, Real& total)
{
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        if (!has(zones[n], index)) continue;
        Real& own = memory[index_of(zones[n], p)];
        own = s.b[zones[n].profile + index] * own + s.a[zones[n].profile + index] * change;
        total += own;
    }
}

// The derivative along axis c of the stress along axes a and c, at the point of the velocity along a. Above a free surface stresses are
// odd functions of the depth.
template <bool ADJOINT>
__device__ __forceinline__ Real change_of_stress(const Step& s, const Real* u, const Point& p, int a, int c)
{
    const int gap = gap_of(s.u.plane, s.u.row, c), first = a == c, index = index_along(p, c);
    const Zone* zones = s.zone[0][a][c];
    const bool mirrors = c == 2 && s.surface && index + first <= HALF;
    if (!mirrors && !(ADJOINT && reached(zones, index + first - HALF, index + first + HALF)))
        return derivative(s, c, first, [&](int by) { return stress(s, u + by * gap, a, c); });
    return derivative(s, c, first, [&](int by) {
        int at = index + by;
        const bool above = mirrors && at < 0;
        if (mirrors && a == c && at == 0) return (Real)0;
        if (above) at = (a == c ? 0 : -1) - at;
        Real value = stress(s, u + (at - index) * gap, a, c);
        if (ADJOINT) value = driven(zones, s.first, moved(p, c, at - index), at, value);
        return above ? -value : value;
    });
}

// The derivative along axis c of the velocity along axis a, at the point of the stress along both. Above a free surface velocities are
// even functions of the depth.
template <bool ADJOINT>
__device__ __forceinline__ Real change_of_velocity(const Step& s, const Point& p, int a, int c)
{
    const int gap = gap_of(s.plane, s.row, c), first = a != c, index = index_along(p, c);
    const Real* v = s.velocity + s.origin[a] + (long long)p.i * s.plane + p.j * s.row + p.k;
    const Zone* zones = s.zone[1][a][c];
    const bool mirrors = c == 2 && s.surface && index + first < HALF;
    if (!mirrors && !(ADJOINT && reached(zones, index + first - HALF, index + first + HALF)))
        return derivative(s, c, first, [&](int by) { return v[by * gap]; });
    return derivative(s, c, first, [&](int by) {
        int at = index + by;
        if (mirrors && at < 0) at = (a == c ? -1 : 0) - at;
        const Real value = v[(at - index) * gap];
        return ADJOINT ? driven(zones, s.second, moved(p, c, at - index), at, value) : value;
    });
}

template <bool ADJOINT>
__device__ __forceinline__ void accelerate(const Step& s)
{
    Point p = own_point();
    p = {p.i + s.begin[0], p.j + s.begin[1], p.k + s.begin[2]};
    const Real* u = s.u.at + index_in(s.u, p);
#pragma unroll
    for (int a = FIRST; a < 3; ++a) {
        const int *begin = s.box_begin[a], *end = s.box_end[a];
        if (p.i < begin[0] || p.j < begin[1] || p.k < begin[2]) continue;
        if (p.i >= end[0] || p.j >= end[1] || p.k >= end[2]) continue;
        Real changes[3], total = 0;
#pragma unroll
        for (int c = FIRST; c < 3; ++c) {
            changes[c] = change_of_stress<ADJOINT>(s, u, p, a, c);
            total = c == FIRST ? changes[c] : total + changes[c];
        }
#pragma unroll
        for (int c = FIRST; c < 3 && !ADJOINT; ++c)
            decay(s, s.zone[0][a][c], s.first, p, index_along(p, c), changes[c], total);
        const int rows = end[1] - begin[1], columns = end[2] - begin[2];
        const long long own = ((long long)(p.i - begin[0]) * rows + p.j - begin[1]) * columns + p.k - begin[2];
        s.velocity[s.origin[a] + (long long)p.i * s.plane + p.j * s.row + p.k] = s.buoyancy[a][own] * total;
    }
}

// The strain along two axes. With layers, memory variables are added.
template <bool ADJOINT>
__device__ __forceinline__ Real strain(const Step& s, const Point& p, int a, int c)
{
    const Real one = change_of_velocity<ADJOINT>(s, p, a, c), two = a == c ? 0 : change_of_velocity<ADJOINT>(s, p, c, a);
    Real total = a == c ? one : one + two;
    if (ADJOINT) return total;
    decay(s, s.zone[1][a][c], s.second, p, index_along(p, c), one, total);
    if (a != c) decay(s, s.zone[1][c][a], s.second, p, index_along(p, a), two, total);
    return total;
}

// Compute the rates of all fields.
template <bool ADJOINT>
__device__ __forceinline__ void find_rates(const Step& s, const Point& p, Real (&rates)[FIELDS])
{
    const bool halved = s.surface && p.k == 0;
#if NDIM == 3
    rates[0] = strain<ADJOINT>(s, p, 0, 1);
    rates[1] = strain<ADJOINT>(s, p, 0, 2);
    rates[2] = strain<ADJOINT>(s, p, 1, 2);
    const Real x = strain<ADJOINT>(s, p, 0, 0), y = strain<ADJOINT>(s, p, 1, 1), z = strain<ADJOINT>(s, p, 2, 2);
    rates[3] = x + -y;
    rates[4] = s.third * x + s.third * y + -2 * s.third * z;
    rates[5] = x + y + z;
    if (halved) rates[0] *= (Real)0.5;
#else
    rates[0] = strain<ADJOINT>(s, p, 1, 2);
    const Real x = strain<ADJOINT>(s, p, 1, 1), z = strain<ADJOINT>(s, p, 2, 2);
    rates[1] = x + -z;
    rates[2] = x + z;
#endif
#pragma unroll
    for (int f = FIELDS - NDIM; f < FIELDS; ++f)
        if (halved) rates[f] *= (Real)0.5;
}

// Replace `before` by the fields after u.
__device__ __forceinline__ void leap(const Step& s, const Point& p, const Real (&rates)[FIELDS])
{
    const Real *u = s.u.at + index_in(s.u, p), *c = s.c + own_index(s, p);
    Real* before = s.before.at + index_in(s.before, p);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        Real& own = before[f * s.before.field];
        own = (2 * u[f * s.u.field] - own) + c[f * own_size(s)] * rates[f];
    }
}

// Add the products of the fields whose coefficients depend on the velocity of P waves to an image.
__device__ __forceinline__ void add_to_image(const Step& s, const Point& p, int ahead)
{
    const Real *u = s.u.at + index_in(s.u, p), *w = place(s, s.w, ahead) + index_in(s.w, p);
    Real total = s.image[own_index(s, p)];
    total += (s.factor * u[(FIELDS - 1) * s.u.field]) * w[(FIELDS - 1) * s.w.field];
    if (s.surface && p.k == 0) total += (s.factor * u[(FIELDS - 2) * s.u.field]) * w[(FIELDS - 2) * s.w.field];
    s.image[own_index(s, p)] = total;
}

template <bool ADJOINT>
__device__ __forceinline__ void store_rates(const Step& s, const Point& p, int ahead)
{
    Real rates[FIELDS], *w = place(s, s.w, ahead) + index_in(s.w, p);
    find_rates<ADJOINT>(s, p, rates);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) w[f * s.w.field] = rates[f];
}

KERNEL velocity(const Step s, int ahead)
{
    accelerate<false>(s);
}

KERNEL velocity_of_adjoint(const Step s, int ahead)
{
    accelerate<true>(s);
}

// Compute the fields after u. The rates are stored where this is wanted, and a change of the coefficients scatters others.
KERNEL advance(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    Real rates[FIELDS];
    find_rates<false>(s, p, rates);
    leap(s, p, rates);
    if (s.stores) {
        Real* w = place(s, s.w, ahead) + index_in(s.w, p);
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) w[f * s.w.field] = rates[f];
    }
    if (s.scatters) {
        const Real *change = s.change.at + index_in(s.change, p), *other = s.scattering.at + index_in(s.scattering, p);
        Real* before = s.before.at + index_in(s.before, p);
#pragma unroll
        for (int f = 0; f < FIELDS; ++f)
            before[f * s.before.field] += change[f * s.change.field] * other[f * s.scattering.field];
    }
}

// Add to the image, and compute the fields before u.
KERNEL retreat(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    add_to_image(s, p, ahead);
    Real rates[FIELDS];
    find_rates<true>(s, p, rates);
    leap(s, p, rates);
}

KERNEL laplacian(const Step s, int ahead)
{
    const Point p = own_point();
    if (inside(s, p)) store_rates<false>(s, p, ahead);
}

KERNEL transposed(const Step s, int ahead)
{
    const Point p = own_point();
    if (inside(s, p)) store_rates<true>(s, p, ahead);
}

KERNEL correlate(const Step s, int ahead)
{
    const Point p = own_point();
    if (inside(s, p)) add_to_image(s, p, ahead);
}

// Advance the memory variables of the adjoint in a zone, whose number is the one of the block along the second axis. Variables of stress
// are also needed beyond the tile.
template <int WHICH>
__device__ __forceinline__ void recede(const Step& s)
{
    const int n = blockIdx.y, a = n / 6, c = n / 2 % 3;
    const Zone& zone = s.zone[WHICH][a][c][n % 2];
    Point first = {0, 0, 0}, last = {s.size[0], s.size[1], s.size[2]};
    if (WHICH == 0) {
        first = {s.box_begin[a][0], s.box_begin[a][1], s.box_begin[a][2]};
        last = {s.box_end[a][0], s.box_end[a][1], s.box_end[a][2]};
    }
    (c == 0 ? first.i : c == 1 ? first.j : first.k) = zone.first;
    (c == 0 ? last.i : c == 1 ? last.j : last.k) = zone.last;
    const int rows = last.j - first.j, columns = last.k - first.k;
    const long long number = (long long)blockIdx.x * THREADS + threadIdx.y * LINE + threadIdx.x;
    if (number >= (long long)(last.i - first.i) * rows * columns) return;
    const int line = number / columns;
    const Point p = {first.i + line / rows, first.j + line % rows, first.k + (int)(number - (long long)line * columns)};
    Real value;
    if (WHICH == 0)
        value = stress(s, s.u.at + index_in(s.u, p), a, c);
    else
        value = s.velocity[s.origin[a] + (long long)p.i * s.plane + p.j * s.row + p.k];
    Real& own = (WHICH ? s.second : s.first)[index_of(zone, p)];
    const int at = zone.profile + index_along(p, c);
    own = s.b[at] * own + s.a[at] * value;
}

KERNEL recede_stress(const Step s, int ahead)
{
    recede<0>(s);
}

KERNEL recede_velocity(const Step s, int ahead)
{
    recede<1>(s);
}
