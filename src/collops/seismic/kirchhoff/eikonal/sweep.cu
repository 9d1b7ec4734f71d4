// One sweep step of the eikonal equation for many sources: the points of a plane i + j + k = level that are active.
//
// The points of a plane do not depend on each other, so that visiting the planes in turn, from one corner of the grid to the
// opposite one, is a sweep of the fast sweeping method. The values of 32 sources at a point are next to each other: each lane of a warp has a
// source, and every access of a warp is one line of memory, although a plane is scattered over the grid. A point is active if a
// neighbour has changed, for any lane, since the point was computed.
//
// compile-with: -DCOLLOPS_DOUBLE -DLANES=32
// compile-with: -DLANES=8
//
// Layouts, C order: rests (groups, points, LANES), the times in seconds less those along straight rays at the velocity of the source,
// whose lowest bit says that they are fixed, or FAR where no wave has arrived; active (groups, points); slowness (points) in s/m;
// sources (groups, 4, LANES), the slowness at the source and the position of the first point relative to it in metres; in anisotropic
// media (groups, 8, LANES), then 1 + 2 epsilon and the symmetry axis at the source, with parameters (points, 5) as in anisotropy.py and
// tables (groups, CELLS + 1, 2, LANES); otherwise these two are not read. flags[0] is set
// if any rest changes by more than `tolerance`, in metres, times the slowness; neighbours become active if it does by more than `least`.
// With flags[1], rests only decrease. A block has LANES x ROWS threads; blocks are (ROWS points along the second axis, a point along the
// first axis, groups). A plane grid has one point along the first axis.

#ifdef COLLOPS_DOUBLE
typedef double Real;
typedef unsigned long long Bits;
#define ROUNDING 1e-15
#define AS_BITS(value) ((Bits)__double_as_longlong(value))
#define AS_REAL(bits) __longlong_as_double((long long)(bits))
#else
typedef float Real;
typedef unsigned int Bits;
#define ROUNDING 2e-7f
#define AS_BITS(value) __float_as_uint(value)
#define AS_REAL(bits) __uint_as_float(bits)
#endif

#define ROWS (256 / LANES)
#define CELLS 128 // as in anisotropy.py
#define FAR Real(1e30)

// The source of a lane, seen from a point: the slowness at the source, and the coordinates of the point relative to it, in metres.
struct Source {
    Real slowness, offset[3];
#ifdef COLLOPS_TILTED
    Real stretch, axis[3];
    const Real* table;
#endif
};

// The time along a straight ray to a point that is `by` metres further along an axis.
__device__ __forceinline__ Real straight(const Source& source, int axis, Real by);

#ifndef COLLOPS_TILTED
__device__ __forceinline__ Real straight(const Source& source, int axis, Real by)
{
    Real squares = 0;
    for (int other = 0; other < 3; ++other) {
        Real part = source.offset[other] + (other == axis ? by : Real(0));
        squares += part * part;
    }
    return source.slowness * sqrt(squares);
}
#endif

// An axis of the upwind scheme: (rest - value) * inverse is the derivative of the time.
struct Upwind {
    Real value, inverse;
};

// The rests of the neighbours of a point along an axis, FAR beyond the edge. All are read at once: most of the time of a point is the
// latency of the memory.
struct Line {
    Real second_before, before, after, second_after;
};

__device__ __forceinline__ Line line(const Real* here, long long stride, int number, int size)
{
    return {
        number > 1 ? here[-2 * stride] : FAR, number > 0 ? here[-stride] : FAR, number < size - 1 ? here[stride] : FAR,
        number < size - 2 ? here[2 * stride] : FAR};
}

// The scheme for the side with the neighbours `rest` and `beyond`, the first of which has the time `time`. For sides after a point the
// spacing is negative. Differences are taken of rests, since the derivative along the straight ray is known: the curvature of the
// wavefront around its source does not add to the error.
__device__ __forceinline__ Upwind difference(
    Real rest, Real beyond, const Source& source, int axis, Real spacing, Real slope, Real time)
{
    Real distance = spacing;
    if (beyond < FAR && beyond + straight(source, axis, -2 * spacing) <= time) {
        rest = (4 * rest - beyond) / 3;
        distance = spacing * 2 / 3;
    }
    return {rest - slope * distance, 1 / fabs(distance)};
}

#ifdef COLLOPS_TILTED
__device__ __forceinline__ void slopes(const Source& source, Real* result);
__device__ __forceinline__ Real arrival(const Upwind (&sides)[2][3], Real* towards, const Real* medium);

// The scheme for both sides.
__device__ __forceinline__ void both_sides(
    Line line, const Source& source, int axis, Real spacing, Real slope, Real unit, Upwind (&sides)[2][3])
{
    sides[0][axis] = sides[1][axis] = {FAR, 0};
    if (line.before < FAR)
        sides[0][axis] = difference(
            line.before, line.second_before, source, axis, spacing, slope,
            line.before + straight(source, axis, -spacing));
    if (line.after < FAR)
        sides[1][axis] = difference(
            line.after, line.second_after, source, axis, -spacing, slope, line.after + straight(source, axis, spacing));
    sides[0][axis].inverse /= unit, sides[1][axis].inverse /= unit;
}
#else
// The scheme for the earlier side.
__device__ __forceinline__ Upwind upwind(Line line, const Source& source, int axis, Real spacing, Real slope)
{
    if (line.before >= FAR && line.after >= FAR) return {FAR, 0};
    Real before = line.before + straight(source, axis, -spacing), after = line.after + straight(source, axis, spacing);
    if (before <= after) return difference(line.before, line.second_before, source, axis, spacing, slope, before);
    return difference(line.after, line.second_after, source, axis, -spacing, slope, after);
}

__device__ __forceinline__ void order(Upwind& first, Upwind& second)
{
    if (second.value < first.value) {
        Upwind kept = first;
        first = second;
        second = kept;
    }
}

// The rest at which the squared derivatives add up to the squared slowness, counting the axes whose value precedes it. Rests are
// relative to the first value, or else their squares would cancel.
__device__ __forceinline__ Real arrival(Upwind a, Upwind b, Upwind c, Real slowness)
{
    order(a, b);
    order(b, c);
    order(a, b);
    Real rest = slowness / a.inverse, second = b.value - a.value, third = c.value - a.value;
    Real squares = a.inverse * a.inverse, linear = 0, constant = -slowness * slowness;
    if (rest > second) {
        Real weight = b.inverse * b.inverse;
        squares += weight, linear += weight * second, constant += weight * second * second;
        rest = (linear + sqrt(max(linear * linear - squares * constant, Real(0)))) / squares;
        if (rest > third) {
            weight = c.inverse * c.inverse;
            squares += weight, linear += weight * third, constant += weight * third * third;
            rest = (linear + sqrt(max(linear * linear - squares * constant, Real(0)))) / squares;
        }
    }
    return a.value + rest;
}

#endif

// Make the points active whose differences along an axis contain a point.
__device__ __forceinline__ void wake(unsigned char* state, long long stride, int number, int size)
{
    for (int by = -2; by <= 2; ++by)
        if (by != 0 && number + by >= 0 && number + by < size) state[by * stride] = 1;
}

// Compute the point (i, j, k) for all lanes, if it is active.
__device__ __forceinline__ void compute(
    Real* rests, unsigned char* active, const Real* slowness, const Real* sources, const Real* parameters, const Real* tables,
    int* flags, Real tolerance, Real least, const Real* spacing, const int* size, int i, int j, int k)
{
    long long points = (long long)size[0] * size[1] * size[2], point = ((long long)i * size[1] + j) * size[2] + k;
    long long stride0 = (long long)size[1] * size[2], stride1 = size[2];
    unsigned char* state = active + blockIdx.z * points + point;
    int needed = threadIdx.x == 0 ? *state : 0;
    // The lanes of this row, which are all or a part of a warp.
    unsigned row = (0xffffffffU >> (32 - LANES)) << (threadIdx.y * LANES & 31);
    needed = __shfl_sync(row, needed, 0, LANES);
    if (!needed) return;
    if (threadIdx.x == 0) *state = 0;
#ifdef COLLOPS_TILTED
    const Real* of = sources + blockIdx.z * 8 * LANES + threadIdx.x;
#else
    const Real* of = sources + blockIdx.z * 4 * LANES + threadIdx.x;
#endif
    Source source = {of[0], {i * spacing[0] + of[LANES], j * spacing[1] + of[2 * LANES], k * spacing[2] + of[3 * LANES]}};
    Real* here = rests + (blockIdx.z * points + point) * LANES + threadIdx.x;
    Line along0 = line(here, stride0 * LANES, i, size[0]), along1 = line(here, stride1 * LANES, j, size[1]);
    Line along2 = line(here, LANES, k, size[2]);
    Real rest = *here, slow = slowness[point];
    if (rest < FAR && AS_BITS(rest) & 1) return; // fixed
#ifdef COLLOPS_TILTED
    source.stretch = of[4 * LANES];
    for (int n = 0; n < 3; ++n) source.axis[n] = of[(5 + n) * LANES];
    source.table = tables + (long long)blockIdx.z * 2 * (CELLS + 1) * LANES + threadIdx.x;
    Real towards[3], medium[5];
    Upwind sides[2][3];
    slopes(source, towards);
    both_sides(along0, source, 0, spacing[0], towards[0], slow, sides);
    both_sides(along1, source, 1, spacing[1], towards[1], slow, sides);
    both_sides(along2, source, 2, spacing[2], towards[2], slow, sides);
    for (int n = 0; n < 5; ++n) medium[n] = parameters[5 * point + n];
    for (int n = 0; n < 3; ++n) towards[n] /= slow;
    Real found = arrival(sides, towards, medium);
#else
    Real slope = source.slowness * source.slowness / max(straight(source, 0, 0), Real(1e-30)); // of a metre of offset
    Upwind a = upwind(along0, source, 0, spacing[0], slope * source.offset[0]);
    Upwind b = upwind(along1, source, 1, spacing[1], slope * source.offset[1]);
    Upwind c = upwind(along2, source, 2, spacing[2], slope * source.offset[2]);
    Real found = min(a.value, min(b.value, c.value)) >= FAR ? FAR : arrival(a, b, c, slow);
#endif
    if (found >= FAR) return;
    found = AS_REAL(AS_BITS(found) & ~Bits(1));
    if (flags[1] && found >= rest) return;
    *here = found;
    Real change = fabs(found - rest), rounding = ROUNDING * fabs(found);
    // Read it first: stores of all warps to one address would wait for each other.
    if (change > tolerance * slow + rounding && !flags[0]) flags[0] = 1;
    if (change > least * slow + rounding) {
        wake(state, stride0, i, size[0]);
        wake(state, stride1, j, size[1]);
        wake(state, 1, k, size[2]);
    }
}

extern "C" __global__ void sweep_plane(
    Real* rests, unsigned char* active, const Real* slowness, const Real* sources, const Real* parameters, const Real* tables,
    int* flags, Real tolerance, Real least, Real spacing0, Real spacing1, Real spacing2, int size0, int size1, int size2, int level,
    int first0, int first1, int corner)
{
    int size[3] = {size0, size1, size2}, across = first0 + blockIdx.y, along = first1 + blockIdx.x * ROWS + threadIdx.y;
    Real spacing[3] = {spacing0, spacing1, spacing2};
    int down = level - across - along;
    if (along >= size1 || down < 0 || down >= size2) return; // all lanes
    int i = corner & 4 ? size0 - 1 - across : across, j = corner & 2 ? size1 - 1 - along : along;
    int k = corner & 1 ? size2 - 1 - down : down;
    compute(rests, active, slowness, sources, parameters, tables, flags, tolerance, least, spacing, size, i, j, k);
}
