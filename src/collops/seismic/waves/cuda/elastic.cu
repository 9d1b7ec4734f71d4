// Time steps of elastic media on a tile: the kernels of elastic_steps.py, with the arithmetic of steps/elastic.py.
//
// A step is two kernels. The first one computes all components of velocity from the fields, each the divergence of stress times the
// buoyancy, and the second one their symmetric gradient, the rates of all fields, and with them the next fields. The transposed scheme
// advances the memory variables of the layers in one kernel before each of them. A thread computes VEC points of a row, which it loads
// together, and a block a box of points, since neighbours along all axes share most of the values that they read. Compiled without
// contraction (--fmad=false), each point takes the operations of the NumPy steps in the same order, so that results are the same bits
// as on hosts, and do not depend on the tiles.
//
// compile-after: tile.cu
// compile-with: -DNDIM=3 -DHALF=4 -DVEC=4
// compile-with: -DNDIM=2 -DHALF=8 -DVEC=1 -DCOLLOPS_DOUBLE
//
// NDIM is the number of axes, 2 or 3, and HALF half the order of accuracy. Arrays have three axes; in two dimensions the first one has
// one point. VEC divides HALF and the points of a row, so that vectors are at multiples of it in all arrays but memory variables of
// layers across rows.

#ifdef COLLOPS_DOUBLE
#define BLOCKS 2  // of a multiprocessor that registers must suffice for
#else
#define BLOCKS 4
#endif

#define LINE 16   // threads of a block along a row, and ROWS rows of PLANES planes
#if NDIM == 3
#define ROWS 4
#define PLANES 4
#define FIELDS 6
#else
#define ROWS 16
#define PLANES 1
#define FIELDS 3
#endif
#define FIRST (3 - NDIM)  // axis of the grid
#define THREADS (LINE * ROWS * PLANES)
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)

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
    const Real* buoyancy;    // likewise, 0 where there is no velocity
    long long origin[3];     // of the tile in components of velocity
    int plane, row;          // of a component of velocity
    int size[3], begin[3], box_begin[3][3], box_end[3][3];  // `begin` is the least of all boxes, at a vector
    int surface, stores, scatters, images;  // `images`: of all fields
    Zone zone[2][3][3][2];   // of stress and of velocity, by the axes of the velocity and of the derivative
    Real factor, third, weights[3][WIDTH];
};

// Values at consecutive points of a row.
struct alignas(VEC * sizeof(Real)) Vector {
    Real x[VEC];
};

__device__ __forceinline__ Vector operator+(Vector one, const Vector& two)
{
#pragma unroll
    for (int e = 0; e < VEC; ++e) one.x[e] += two.x[e];
    return one;
}

__device__ __forceinline__ Vector operator-(Vector one, const Vector& two)
{
#pragma unroll
    for (int e = 0; e < VEC; ++e) one.x[e] -= two.x[e];
    return one;
}

__device__ __forceinline__ Vector operator-(Vector one)
{
#pragma unroll
    for (int e = 0; e < VEC; ++e) one.x[e] = -one.x[e];
    return one;
}

__device__ __forceinline__ Vector operator*(Real factor, Vector one)
{
#pragma unroll
    for (int e = 0; e < VEC; ++e) one.x[e] *= factor;
    return one;
}

__device__ __forceinline__ Vector operator*(const Vector& one, Vector two)
{
#pragma unroll
    for (int e = 0; e < VEC; ++e) two.x[e] *= one.x[e];
    return two;
}

// One value, or the values of a vector.
template <class T>
__device__ __forceinline__ T load(const Real* at)
{
    return *reinterpret_cast<const T*>(at);
}

__device__ __forceinline__ void store(Real* at, const Vector& values)
{
    *reinterpret_cast<Vector*>(at) = values;
}

__device__ __forceinline__ long long own_size(const Step& s)
{
    return (long long)s.size[0] * s.size[1] * s.size[2];
}

__device__ __forceinline__ long long index_of(const Zone& zone, const Point& p)
{
    return zone.origin + (long long)p.i * zone.plane + p.j * zone.row + p.k;
}

// Whether one of two zones has points with first <= index < last.
__device__ __forceinline__ bool reached(const Zone* zones, int first, int last)
{
    return (zones[0].first < last && zones[0].last > first) || (zones[1].first < last && zones[1].last > first);
}

__device__ __forceinline__ Point own_point()
{
    return {(int)(blockIdx.z * PLANES + threadIdx.y / ROWS), (int)(blockIdx.y * ROWS + threadIdx.y % ROWS),
            (int)((blockIdx.x * LINE + threadIdx.x) * VEC)};
}

__device__ __forceinline__ bool inside(const Step& s, const Point& p)
{
    return p.i < s.size[0] && p.j < s.size[1] && p.k < s.size[2];
}

// The component of stress along axes a and c at a point of the fields.
template <class T>
__device__ __forceinline__ T stress(const Step& s, const Real* u, int a, int c)
{
    const long long field = s.u.field;
#if NDIM == 3
    if (a != c) return load<T>(u + (a + c - 1) * field);
    const T two = load<T>(u + 4 * field), mean = load<T>(u + 5 * field);
    if (a == 2) return -2 * s.third * two + mean;
    const T one = load<T>(u + 3 * field);
    return (a == 0 ? one : -one) + s.third * two + mean;
#else
    if (a != c) return load<T>(u);
    const T one = load<T>(u + field);
    return (a == 1 ? one : -one) + load<T>(u + 2 * field);
#endif
}

// The staggered derivative between elements number `first` - 1 and `first` along an axis.
template <class T, class Values>
__device__ __forceinline__ T derivative(const Step& s, int axis, int first, const Values& value)
{
    const Real* weights = s.weights[axis];
    T total = weights[0] * (value(first) - value(first - 1));
#pragma unroll
    for (int n = 1; n < HALF; ++n) total = total + weights[n] * (value(first + n) - value(first - n - 1));
    return total;
}

// The derivatives along a row at a vector, from all vectors around it.
template <class Vectors>
__device__ __forceinline__ Vector along_row(const Step& s, int first, const Vectors& vector)
{
    Real x[VEC + 2 * HALF];
#pragma unroll
    for (int n = 0; n < VEC + 2 * HALF; n += VEC) {
        const Vector own = vector(n - HALF);
#pragma unroll
        for (int e = 0; e < VEC; ++e) x[n + e] = own.x[e];
    }
    Vector total;
#pragma unroll
    for (int e = 0; e < VEC; ++e)
        total.x[e] = derivative<Real>(s, 2, first, [&](int by) { return x[HALF + e + by]; });
    return total;
}

// The values of a vector that are found one after the other, by the same instructions.
template <class Values>
__device__ __forceinline__ Vector one_by_one(const Values& value)
{
    Vector all = {};
#pragma unroll 1
    for (int e = 0; e < VEC; ++e) {
        const Real own = value(e);
#pragma unroll
        for (int n = 0; n < VEC; ++n)
            if (n == e) all.x[n] = own;
    }
    return all;
}

// Values plus the memory variable that they drove, if one of two zones has it.
template <class T>
__device__ __forceinline__ T driven(const Zone* zones, const Real* memory, const Point& p, int index, const T& value)
{
    for (int n = 0; n < 2; ++n)
        if (has(zones[n], index)) return value + load<T>(memory + index_of(zones[n], p));
    return value;
}

__device__ __forceinline__ Point moved(const Point& p, int axis, int by)
{
    return {p.i + (axis == 0 ? by : 0), p.j + (axis == 1 ? by : 0), p.k + (axis == 2 ? by : 0)};
}

// Add the memory variable that derivatives along an axis drive to sums, where one of two zones has it.
__device__ __forceinline__ void decay(
    const Step& s, const Zone* zones, Real* memory, const Point& p, int axis, const Vector& change, Vector& total)
{
    const int index = index_along(p, axis);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const Zone& zone = zones[n];
        const Real *a = s.a + zone.profile, *b = s.b + zone.profile;
        if (axis < 2) {
            if (!has(zone, index)) continue;
            Real* at = memory + index_of(zone, p);
            const Vector own = b[index] * load<Vector>(at) + a[index] * change;
            store(at, own);
            total = total + own;
        } else if (zone.first < index + VEC && zone.last > index) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                if (!has(zone, index + e)) continue;
                Real& own = memory[index_of(zone, p) + e];
                own = b[index + e] * own + a[index + e] * change.x[e];
                total.x[e] += own;
            }
        }
    }
}

// The stress along axes a and c, so many points along axis c from a point. Above a free surface stresses are odd functions of the depth.
template <bool ADJOINT>
__device__ __forceinline__ Real stress_at(const Step& s, const Real* u, const Point& p, int a, int c, int by)
{
    int at = p.k + by;
    if (s.surface && a == c && at == 0) return 0;
    const bool above = s.surface && at < 0;
    if (above) at = (a == c ? 0 : -1) - at;
    Real value = stress<Real>(s, u + at - p.k, a, c);
    if (ADJOINT) value = driven(s.zone[0][a][c], s.first, moved(p, c, at - p.k), at, value);
    return above ? -value : value;
}

// The derivative along axis c of the stress along axes a and c, at the point of the velocity along a.
template <bool ADJOINT>
__device__ __forceinline__ Vector change_of_stress(const Step& s, const Real* u, const Point& p, int a, int c)
{
    const int gap = gap_of(s.u, c), first = a == c, index = index_along(p, c), last = index + (c < 2 ? 1 : VEC);
    const Zone* zones = s.zone[0][a][c];
    const bool near = ADJOINT && reached(zones, index + first - HALF, last - 1 + first + HALF);
    if (c < 2) {
        if (!near) return derivative<Vector>(s, c, first, [&](int by) { return stress<Vector>(s, u + by * gap, a, c); });
        return derivative<Vector>(s, c, first, [&](int by) {
            return driven(zones, s.first, moved(p, c, by), index + by, stress<Vector>(s, u + by * gap, a, c));
        });
    }
    if (!near && !(s.surface && index + first <= HALF))
        return along_row(s, first, [&](int by) { return stress<Vector>(s, u + by, a, c); });
    return one_by_one([&](int e) {
        return derivative<Real>(s, c, first, [&](int by) { return stress_at<ADJOINT>(s, u, p, a, c, e + by); });
    });
}

// The velocity along axis a so many points along the last axis from a point. Above a free surface velocities are even functions of the
// depth.
template <bool ADJOINT>
__device__ __forceinline__ Real velocity_at(const Step& s, const Real* v, const Point& p, int a, int by)
{
    int at = p.k + by;
    if (s.surface && at < 0) at = (a == 2 ? -1 : 0) - at;
    const Real value = v[at - p.k];
    return ADJOINT ? driven(s.zone[1][a][2], s.second, moved(p, 2, at - p.k), at, value) : value;
}

// The derivative along axis c of the velocity along axis a, at the point of the stress along both.
template <bool ADJOINT>
__device__ __forceinline__ Vector change_of_velocity(const Step& s, const Point& p, int a, int c)
{
    const int gap = gap_of(s, c), first = a != c, index = index_along(p, c), last = index + (c < 2 ? 1 : VEC);
    const Real* v = s.velocity + s.origin[a] + (long long)p.i * s.plane + p.j * s.row + p.k;
    const Zone* zones = s.zone[1][a][c];
    const bool near = ADJOINT && reached(zones, index + first - HALF, last - 1 + first + HALF);
    if (c < 2) {
        if (!near) return derivative<Vector>(s, c, first, [&](int by) { return load<Vector>(v + by * gap); });
        return derivative<Vector>(s, c, first, [&](int by) {
            return driven(zones, s.second, moved(p, c, by), index + by, load<Vector>(v + by * gap));
        });
    }
    if (!near && !(s.surface && index + first < HALF))
        return along_row(s, first, [&](int by) { return load<Vector>(v + by); });
    return one_by_one([&](int e) {
        return derivative<Real>(s, c, first, [&](int by) { return velocity_at<ADJOINT>(s, v, p, a, e + by); });
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
        if (p.i < begin[0] || p.j < begin[1] || p.k + VEC <= begin[2]) continue;
        if (p.i >= end[0] || p.j >= end[1] || p.k >= end[2]) continue;
        Vector changes[3], total;
#pragma unroll
        for (int c = FIRST; c < 3; ++c) {
            changes[c] = change_of_stress<ADJOINT>(s, u, p, a, c);
            total = c == FIRST ? changes[c] : total + changes[c];
        }
#pragma unroll
        for (int c = FIRST; c < 3 && !ADJOINT; ++c) decay(s, s.zone[0][a][c], s.first, p, c, changes[c], total);
        const long long at = s.origin[a] + (long long)p.i * s.plane + p.j * s.row + p.k;
        total = load<Vector>(s.buoyancy + at) * total;
        // Before and after the box, values of other rows were read: one that is infinite would give NaN.
#pragma unroll
        for (int e = 0; e < VEC; ++e)
            if (p.k + e < begin[2] || p.k + e >= end[2]) total.x[e] = 0;
        store(s.velocity + at, total);
    }
}

// The strain along two axes. With layers, memory variables are added.
template <bool ADJOINT>
__device__ __forceinline__ Vector strain(const Step& s, const Point& p, int a, int c)
{
    const Vector one = change_of_velocity<ADJOINT>(s, p, a, c);
    Vector total = one;
    if (a == c) {
        if (!ADJOINT) decay(s, s.zone[1][a][c], s.second, p, c, one, total);
        return total;
    }
    const Vector two = change_of_velocity<ADJOINT>(s, p, c, a);
    total = one + two;
    if (ADJOINT) return total;
    decay(s, s.zone[1][a][c], s.second, p, c, one, total);
    decay(s, s.zone[1][c][a], s.second, p, a, two, total);
    return total;
}

// Compute the rates of all fields.
template <bool ADJOINT>
__device__ __forceinline__ void find_rates(const Step& s, const Point& p, Vector (&rates)[FIELDS])
{
    const bool halved = s.surface && p.k == 0;
#if NDIM == 3
    rates[0] = strain<ADJOINT>(s, p, 0, 1);
    rates[1] = strain<ADJOINT>(s, p, 0, 2);
    rates[2] = strain<ADJOINT>(s, p, 1, 2);
    const Vector x = strain<ADJOINT>(s, p, 0, 0), y = strain<ADJOINT>(s, p, 1, 1), z = strain<ADJOINT>(s, p, 2, 2);
    rates[3] = x - y;
    rates[4] = s.third * x + s.third * y + -2 * s.third * z;
    rates[5] = x + y + z;
    if (halved) rates[0].x[0] *= (Real)0.5;
#else
    rates[0] = strain<ADJOINT>(s, p, 1, 2);
    const Vector x = strain<ADJOINT>(s, p, 1, 1), z = strain<ADJOINT>(s, p, 2, 2);
    rates[1] = x - z;
    rates[2] = x + z;
#endif
#pragma unroll
    for (int f = FIELDS - NDIM; f < FIELDS; ++f)
        if (halved) rates[f].x[0] *= (Real)0.5;
}

// Replace `before` by the fields after u.
__device__ __forceinline__ void leap(const Step& s, const Point& p, const Vector (&rates)[FIELDS])
{
    const Real *u = s.u.at + index_in(s.u, p), *c = s.c + own_index(s, p);
    Real* before = s.before.at + index_in(s.before, p);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        Real* at = before + f * s.before.field;
        const Vector change = load<Vector>(c + f * own_size(s)) * rates[f];
        store(at, ((Real)2 * load<Vector>(u + f * s.u.field) - load<Vector>(at)) + change);
    }
}

// Add the products of the fields to the image of each, or of those whose coefficients depend on the velocity of P waves to one image.
__device__ __forceinline__ void add_to_image(const Step& s, const Point& p, int ahead)
{
    const Real *u = s.u.at + index_in(s.u, p), *w = place(s, s.w, ahead) + index_in(s.w, p);
    Real* image = s.image + own_index(s, p);
    if (s.images) {
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) {
            Real* at = image + f * own_size(s);
            store(at, load<Vector>(at) + (s.factor * load<Vector>(u + f * s.u.field)) * load<Vector>(w + f * s.w.field));
        }
        return;
    }
    const int f = FIELDS - 1;
    Vector total = load<Vector>(image);
    total = total + (s.factor * load<Vector>(u + f * s.u.field)) * load<Vector>(w + f * s.w.field);
    if (s.surface && p.k == 0) total.x[0] += (s.factor * u[(f - 1) * s.u.field]) * w[(f - 1) * s.w.field];
    store(image, total);
}

template <bool ADJOINT>
__device__ __forceinline__ void store_rates(const Step& s, const Point& p, int ahead)
{
    Vector rates[FIELDS];
    Real* w = place(s, s.w, ahead) + index_in(s.w, p);
    find_rates<ADJOINT>(s, p, rates);
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) store(w + f * s.w.field, rates[f]);
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
    Vector rates[FIELDS];
    find_rates<false>(s, p, rates);
    leap(s, p, rates);
    if (s.stores) {
        Real* w = place(s, s.w, ahead) + index_in(s.w, p);
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) store(w + f * s.w.field, rates[f]);
    }
    if (s.scatters) {
        const Real *change = s.change.at + index_in(s.change, p), *other = place(s, s.scattering, ahead) + index_in(s.scattering, p);
        Real* before = s.before.at + index_in(s.before, p);
#pragma unroll
        for (int f = 0; f < FIELDS; ++f) {
            Real* at = before + f * s.before.field;
            const Vector more = load<Vector>(change + f * s.change.field) * load<Vector>(other + f * s.scattering.field);
            store(at, load<Vector>(at) + more);
        }
    }
}

// Add to the image, and compute the fields before u.
KERNEL retreat(const Step s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    add_to_image(s, p, ahead);
    Vector rates[FIELDS];
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

// Advance the memory variables of the adjoint in a zone, whose number is the block's along the second axis. Variables of stress
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
        value = stress<Real>(s, s.u.at + index_in(s.u, p), a, c);
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
