// Time steps of any medium on a tile: the kernels of media_kernels.py, with the arithmetic of steps/acoustic.py and steps/density.py.
//
// Each kernel does a part of a step: a derivative with its layers, a product with the coefficients, sources or receivers. A thread
// computes one point, and neighbours in a row are next to each other. Compiled without contraction (--fmad=false), each point takes the
// operations of the NumPy steps in the same order, so that results are the same bits as on hosts, and do not depend on the tiles.
//
// compile-with: -DHALF=4 -DFIELDS=2
// compile-with: -DHALF=8 -DFIELDS=1 -DCOLLOPS_DOUBLE
//
// HALF is half the order of accuracy, and FIELDS the number of coupled fields. Arrays have three axes; those that the grid does not have are the first ones and have one point.

#ifdef __HIP__
#pragma clang fp contract(off)
#endif

#ifdef COLLOPS_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define WIDTH 8   // maximum of HALF
#define LINE 32   // threads of a block along a row, and LINES rows
#define LINES 8
#define LAYERS 6
#define KERNEL extern "C" __global__ void __launch_bounds__(LINE * LINES, 4)

// The tile in an array: where its first point is, and how far times, fields, planes and rows are apart. Points of a row are contiguous.
struct View {
    Real* at;
    long long time, field, plane, row;
};

// Where a memory variable differs from zero: first <= index along the axis < last. It is stored at origin + i plane + j row + k, and its
// coefficients are at profile + the index along the axis.
struct Variable {
    long long origin, plane, row;
    int first, last, profile;
};

struct Layer {
    Variable first, second;
    int axis, block[2];  // the numbers of the first blocks that advance its variables
};

// The arguments of all kernels; each needs some of them. Indices of coefficients of stencils are axis * WIDTH + k.
struct Step {
    View u, before, w, out;
    Real *first, *second;  // memory variables: psi and zeta, or r and t of the adjoint
    const Real *a, *b, *c;
    Real* image;
    Real* flux[3];         // with variable density, by axis: half a stencil longer than the tile at both ends
    const Real* buoyancy[3];
    int* clock;            // the number of the step is clock[0] + ahead; wavefields are stored from number clock[1] on
    const int* rows;       // stations as a sparse matrix: where rows begin, columns and weights
    const int* columns;
    const Real* weights;
    const long long* points;  // of the tile
    const Real* signal;       // (steps from number -lead on, parts, points)
    Real* traces;             // (receivers, samples)
    int count, samples, lead, parts, part;
    int size[3], axes[3], surface, layers, axis;
    int low, high;            // half points along `axis` before the first one and from the last one on have no flux
    int element[FIELDS * FIELDS];  // of the matrix of coefficients at a point: the number of a coefficient, or -1
    Real factor, center, centers[3], seconds[3 * WIDTH], firsts[3 * WIDTH];
    Layer layer[LAYERS];
};

__device__ __forceinline__ Real* place(const Step& s, const View& view, int ahead)
{
    return view.at + (view.time ? (s.clock[0] + ahead - s.clock[1]) * view.time : 0);
}

struct Point {
    int i, j, k;
};

// Registers have no index: an array with a variable index would be in local memory.
__device__ __forceinline__ int index_along(const Point& p, int axis)
{
    return axis == 0 ? p.i : axis == 1 ? p.j : p.k;
}

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

__device__ __forceinline__ long long index_of(const Variable& v, const Point& p)
{
    return v.origin + p.i * v.plane + p.j * v.row + p.k;
}

__device__ __forceinline__ bool has(const Variable& v, int index)
{
    return index >= v.first && index < v.last;
}

// How far neighbours along an axis are apart: a plane has less than 2^31 / HALF points.
__device__ __forceinline__ int gap_of(const View& view, int axis)
{
    return axis == 0 ? (int)view.plane : axis == 1 ? (int)view.row : 1;
}

__device__ __forceinline__ int gap_of(const Variable& v, int axis)
{
    return axis == 0 ? (int)v.plane : axis == 1 ? (int)v.row : 1;
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

// Find the layer and the point of its first or second variable that a thread advances; return the layer's number, or -1.
template <int WHICH>
__device__ __forceinline__ int own_variable(const Step& s, Point& p)
{
    int number = 0;
    while (number + 1 < s.layers && (int)blockIdx.x >= s.layer[number + 1].block[WHICH]) ++number;
    const Variable& v = WHICH ? s.layer[number].second : s.layer[number].first;
    const int axis = s.layer[number].axis, extent = v.last - v.first;
    const int planes = axis == 0 ? extent : s.size[0], rows = axis == 1 ? extent : s.size[1];
    const int columns = axis == 2 ? extent : s.size[2];
    const unsigned blocks = blockIdx.x - s.layer[number].block[WHICH];
    const unsigned long long thread = ((unsigned long long)blocks * LINES + threadIdx.y) * LINE + threadIdx.x;
    const unsigned row = thread / columns;
    if (row >= (unsigned)planes * rows) return -1;
    const Point first = {(int)(row / rows), (int)(row % rows), (int)(thread - (unsigned long long)row * columns)};
    p = moved(first, axis, v.first);
    return number;
}

// Fill the halo above a free surface.
KERNEL mirror(const Step s, int ahead)
{
    const int row = (blockIdx.x * LINES + threadIdx.y) * LINE + threadIdx.x;
    if (row >= s.size[0] * s.size[1]) return;
    Real* at = s.u.at + row / s.size[1] * s.u.plane + row % s.size[1] * s.u.row;
    for (int k = 1; k <= HALF; ++k) at[-k] = -at[k];
}

// ---- Derivatives of constant coefficients

KERNEL advance_psi(const Step s, int ahead)
{
    Point p;
    const int number = own_variable<0>(s, p);
    if (number < 0) return;
    const Variable& v = s.layer[number].first;
    const int axis = s.layer[number].axis, of = v.profile + index_along(p, axis);
    Real& own = s.first[index_of(v, p)];
    own = s.b[of] * own + s.a[of] * first_derivative(s, s.u.at + index_in(s.u, p), gap_of(s.u, axis), axis);
}

// Advance t of the adjoint: also with variable density.
KERNEL recede_t(const Step s, int ahead)
{
    Point p;
    const int number = own_variable<1>(s, p);
    if (number < 0) return;
    const Variable& v = s.layer[number].second;
    const int of = v.profile + index_along(p, s.layer[number].axis);
    Real& own = s.second[index_of(v, p)];
    own = s.b[of] * own + s.a[of] * s.u.at[index_in(s.u, p)];
}

KERNEL recede_r(const Step s, int ahead)
{
    Point p;
    const int number = own_variable<0>(s, p);
    if (number < 0) return;
    const Variable& v = s.layer[number].first;
    const int axis = s.layer[number].axis, of = v.profile + index_along(p, axis);
    const long long at = index_of(v, p);
    Real change = first_derivative(s, s.u.at + index_in(s.u, p), gap_of(s.u, axis), axis);
    change += first_derivative(s, s.second + at, gap_of(v, axis), axis);
    s.first[at] = s.b[of] * s.first[at] - s.a[of] * change;
}

template <bool ADJOINT>
__device__ __forceinline__ void apply(const Step& s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    const Real* u = s.u.at + index_in(s.u, p);
    Real total = s.center * *u;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis)
        if (s.axes[axis]) add_sides(s, u, gap_of(s.u, axis), axis, total);
    for (int number = 0; number < s.layers; ++number) {
        const Layer& layer = s.layer[number];
        const Variable& v = layer.second;
        const int axis = layer.axis;
        const int index = index_along(p, axis), gap = gap_of(v, axis);
        if (!has(v, index)) continue;
        const long long at = index_of(v, p);
        const Real change = first_derivative(s, s.first + at, gap, axis);
        if (ADJOINT) {
            total += second_derivative(s, s.second + at, gap, axis) - change;
        } else {
            const int of = v.profile + index;
            const Real curvature = second_derivative(s, u, gap_of(s.u, axis), axis);
            const Real own = s.b[of] * s.second[at] + s.a[of] * (curvature + change);
            s.second[at] = own;
            total += change;
            total += own;
        }
    }
    place(s, s.w, ahead)[index_in(s.w, p)] = total;
}

KERNEL laplacian(const Step s, int ahead)
{
    apply<false>(s, ahead);
}

KERNEL transposed(const Step s, int ahead)
{
    apply<true>(s, ahead);
}

// ---- Variable density

// A value of the field at so many points along an axis, with t if `layers` across the axis are near.
__device__ __forceinline__ Real summed(const Step& s, const Real* u, const Point& p, int axis, int along, bool layers)
{
    const Real value = u[along * gap_of(s.u, axis)];
    const Point other = moved(p, axis, along);
    for (int number = 0; layers && number < s.layers; ++number)
        if (s.layer[number].axis == axis && has(s.layer[number].second, index_along(other, axis)))
            return value + s.second[index_of(s.layer[number].second, other)];
    return value;
}

// Compute the flux at the half points along an axis, with layers. Half point number n is before point n - HALF + 1 of the tile.
template <bool ADJOINT>
__device__ __forceinline__ void find_flux(const Step& s)
{
    const Point p = own_point();
    const int axis = s.axis, n = index_along(p, axis), more = 2 * HALF - 1;
    const int rows = s.size[1] + (axis == 1 ? more : 0), columns = s.size[2] + (axis == 2 ? more : 0);
    if (p.j >= rows || p.k >= columns || n < s.low || n >= s.high) return;
    const int gap = axis == 0 ? rows * columns : axis == 1 ? columns : 1;
    const long long at = ((long long)p.i * rows + p.j) * columns + p.k;

    const Point after = moved(p, axis, 1 - HALF);
    bool near = false;
    for (int number = 0; ADJOINT && number < s.layers; ++number) {
        const Layer& layer = s.layer[number];
        const int point = index_along(after, axis);
        near |= layer.axis == axis && point + HALF > layer.second.first && point - HALF < layer.second.last;
    }
    const Real *u = s.u.at + index_in(s.u, after), *weights = s.firsts + axis * WIDTH;
    Real value = weights[0] * (summed(s, u, after, axis, 0, near) - summed(s, u, after, axis, -1, near));
#pragma unroll
    for (int k = 1; k < HALF; ++k)
        value += weights[k] * (summed(s, u, after, axis, k, near) - summed(s, u, after, axis, -k - 1, near));
    const int known = s.high - s.low, last = axis == 2 ? known : columns, middle = axis == 1 ? known : rows;
    const Point own = moved(p, axis, -s.low);
    value = s.buoyancy[axis][((long long)own.i * middle + own.j) * last + own.k] * value;
    for (int number = 0; number < s.layers; ++number) {
        const Variable& v = s.layer[number].first;
        if (s.layer[number].axis != axis || !has(v, n)) continue;
        const int of = v.profile + n;
        Real& variable = s.first[index_of(v, p)];
        variable = s.b[of] * variable + s.a[of] * value;
        value += variable;
    }
    // Above a free surface, fluxes along the last axis are mirror images.
    const bool closes = s.surface && axis == 2;
    if (!closes || n >= HALF) s.flux[axis][at] = value;
    if (closes && n >= HALF && n < 2 * HALF) s.flux[axis][at + (more - 2 * n) * gap] = value;
}

KERNEL flux(const Step s, int ahead)
{
    find_flux<false>(s);
}

KERNEL flux_of_adjoint(const Step s, int ahead)
{
    find_flux<true>(s);
}

template <bool ADJOINT>
__device__ __forceinline__ void diverge(const Step& s, int ahead)
{
    const Point p = own_point();
    if (!inside(s, p)) return;
    Real total = 0, changes[3] = {};
    bool any = false;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        if (!s.axes[axis]) continue;
        const int rows = s.size[1] + (axis == 1 ? 2 * HALF - 1 : 0), columns = s.size[2] + (axis == 2 ? 2 * HALF - 1 : 0);
        const int gap = axis == 0 ? rows * columns : axis == 1 ? columns : 1;
        const Real* at = s.flux[axis] + ((long long)p.i * rows + p.j) * columns + p.k + HALF * gap;
        changes[axis] = staggered_derivative(s, at, gap, axis);
        total = any ? total + changes[axis] : changes[axis];
        any = true;
    }
    for (int number = 0; number < (ADJOINT ? 0 : s.layers); ++number) {
        const Layer& layer = s.layer[number];
        const Variable& v = layer.second;
        const int index = index_along(p, layer.axis);
        if (!has(v, index)) continue;
        Real& own = s.second[index_of(v, p)];
        const Real change = layer.axis == 0 ? changes[0] : layer.axis == 1 ? changes[1] : changes[2];
        own = s.b[v.profile + index] * own + s.a[v.profile + index] * change;
        total += own;
    }
    place(s, s.w, ahead)[index_in(s.w, p)] = total;
}

KERNEL divergence(const Step s, int ahead)
{
    diverge<false>(s, ahead);
}

KERNEL divergence_of_adjoint(const Step s, int ahead)
{
    diverge<true>(s, ahead);
}

// ---- Products with the coefficients of coupled fields

// Compute the product of the matrix at a point with the fields.
__device__ __forceinline__ void product(const Step& s, const Real* c, const Real* w, Real (&out)[FIELDS])
{
    Real values[FIELDS];
#pragma unroll
    for (int g = 0; g < FIELDS; ++g) values[g] = w[g * s.w.field];
#pragma unroll
    for (int f = 0; f < FIELDS; ++f) {
        bool any = false;
#pragma unroll
        for (int g = 0; g < FIELDS; ++g) {
            const int element = s.element[f * FIELDS + g];
            if (element < 0) continue;
            const Real term = c[element * own_size(s)] * values[g];
            out[f] = any ? out[f] + term : term;
            any = true;
        }
    }
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
        if (element >= 0) field[f * view.field] += s.c[element * own_size(s) + point] * value;
    }
}

KERNEL record(const Step s, int ahead)
{
    const int number = own_number(), n = s.clock[0] + ahead;
    if (number >= s.count || n < 0) return;
    Real total = 0;
    const Real* field = s.u.at + (FIELDS - 1) * s.u.field;
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
