// One sweep step of the eikonal equation for many sources: all points of a plane i + j + k = level are updated at once.
//
// The points of a plane do not depend on each other, so that a sweep over the planes in turn, from one corner of the grid to the
// opposite one, is that of fast sweeping. The times of 32 sources at a point are next to each other: each lane of a warp has a
// source, and every access of a warp is one line of memory, although a plane is scattered over the grid.
//
// compile-with: -DCOLLOPS_DOUBLE
//
// Layouts, C order: times (groups, points, LANES) in seconds, with a negative sign where they are fixed, and FAR where no wave has
// arrived; slowness (points) in s/m; sources (groups, 4, LANES): the slowness at the source, and the position of the first point relative
// to it in metres; tolerance in metres. A block has LANES x ROWS threads; blocks are (rows of points along the second axis, points along
// the first axis, groups). A grid with two axes has one point along the first one.

#ifdef COLLOPS_DOUBLE
typedef double Real;
#define ROUNDING 1e-15
#else
typedef float Real;
#define ROUNDING 5e-7f
#endif

#define LANES 32
#define ROWS 8
#define FAR Real(1e30)

// The source of a lane, seen from a point: the slowness at the source, and the coordinates of the point relative to it, in metres.
struct Source {
    Real slowness, offset[3];
};

// The time along a straight ray to a point that is `by` metres further along an axis.
__device__ __forceinline__ Real straight(const Source& source, int axis, Real by)
{
    Real squares = 0;
    for (int other = 0; other < 3; ++other) {
        Real part = source.offset[other] + (other == axis ? by : Real(0));
        squares += part * part;
    }
    return source.slowness * sqrt(squares);
}

// An axis of the upwind scheme: (time - value) * inverse is the derivative.
struct Upwind {
    Real value, inverse;
};

// Differences are taken of what is left after the time along a straight ray, whose derivative is known: the curvature of the wavefront
// around its source does not add to the error.
__device__ __forceinline__ Upwind upwind(
    const Real* here, long long stride, int number, int size, const Source& source, int axis, Real spacing)
{
    Real before = number > 0 ? fabs(here[-stride]) : FAR, after = number < size - 1 ? fabs(here[stride]) : FAR;
    if (before >= FAR && after >= FAR) return {FAR, 0};
    bool backward = before <= after;
    if (!backward) stride = -stride, number = size - 1 - number;
    Real away = backward ? spacing : -spacing, time = straight(source, axis, 0), from = backward ? before : after;
    Real slope = source.slowness * source.slowness * source.offset[axis] / time * (backward ? 1 : -1);
    Real rest = from - straight(source, axis, -away), distance = spacing;
    if (number > 1) {
        Real beyond = fabs(here[-2 * stride]);
        if (beyond <= from) {
            rest = (4 * rest - (beyond - straight(source, axis, -2 * away))) / 3;
            distance = spacing * 2 / 3;
        }
    }
    return {time + rest - slope * distance, 1 / distance};
}

__device__ __forceinline__ void order(Upwind& first, Upwind& second)
{
    if (second.value < first.value) {
        Upwind kept = first;
        first = second;
        second = kept;
    }
}

// The time at which the sum of the squares of the derivatives is that of the slowness, of as many axes as precede it. Times are
// relative to the first value, or else their squares would cancel.
__device__ __forceinline__ Real arrival(Upwind a, Upwind b, Upwind c, Real slowness)
{
    order(a, b);
    order(b, c);
    order(a, b);
    Real time = slowness / a.inverse, second = b.value - a.value, third = c.value - a.value;
    Real squares = a.inverse * a.inverse, linear = 0, constant = -slowness * slowness;
    if (time > second) {
        Real weight = b.inverse * b.inverse;
        squares += weight, linear += weight * second, constant += weight * second * second;
        time = (linear + sqrt(max(linear * linear - squares * constant, Real(0)))) / squares;
        if (time > third) {
            weight = c.inverse * c.inverse;
            squares += weight, linear += weight * third, constant += weight * third * third;
            time = (linear + sqrt(max(linear * linear - squares * constant, Real(0)))) / squares;
        }
    }
    return a.value + time;
}

extern "C" __global__ void sweep_plane(
    Real* times, const Real* slowness, const Real* sources, int* changed, Real tolerance, Real spacing0, Real spacing1, Real spacing2,
    int size0, int size1, int size2, int level, int first0, int first1, int corner)
{
    int i = first0 + blockIdx.y, j = first1 + blockIdx.x * ROWS + threadIdx.y, k = level - i - j;
    if (j >= size1 || k < 0 || k >= size2) return;
    if (corner & 4) i = size0 - 1 - i;
    if (corner & 2) j = size1 - 1 - j;
    if (corner & 1) k = size2 - 1 - k;
    long long points = (long long)size0 * size1 * size2, point = ((long long)i * size1 + j) * size2 + k;
    Real* here = times + (blockIdx.z * points + point) * LANES + threadIdx.x;
    Real time = *here, slow = slowness[point];
    if (signbit(time)) return;
    const Real* of = sources + blockIdx.z * 4 * LANES + threadIdx.x;
    Source source = {of[0], {i * spacing0 + of[LANES], j * spacing1 + of[2 * LANES], k * spacing2 + of[3 * LANES]}};
    Upwind a = upwind(here, (long long)size1 * size2 * LANES, i, size0, source, 0, spacing0);
    Upwind b = upwind(here, (long long)size2 * LANES, j, size1, source, 1, spacing1);
    Upwind c = upwind(here, LANES, k, size2, source, 2, spacing2);
    if (min(a.value, min(b.value, c.value)) >= FAR) return;
    Real found = arrival(a, b, c, slow);
    *here = found;
    // A time in float32 may change by its rounding forever.
    if (fabs(found - time) > tolerance * slow + ROUNDING * time) *changed = 1;
}
