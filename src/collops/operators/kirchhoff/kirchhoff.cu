// Kirchhoff demigration and migration on a GPU, and the convolution with the wavelet.
//
// Travel times are fixed-point numbers in units of the sampling step, with `fraction_bits`
// fractional bits, so that the sum of a source and a receiver time is exact, its integer part is a shift and its fraction a
// mask: a float would keep only four digits of the fraction at the end of a long trace. The host saturates the
// tables such that a sum never overflows and a point that is never reached falls after the last sample.
//
// compile-with: -DRECEIVERS_PER_BLOCK=1
// compile-with: -DRECEIVERS_PER_BLOCK=2
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DCOLLOPS_WIDE_TIMES
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DCOLLOPS_WIDE_TIMES -DCOLLOPS_DOUBLE
// compile-with: -DRECEIVERS_PER_BLOCK=1 -DREPEATABLE
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DREPEATABLE -DCOLLOPS_DOUBLE
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DFIELDS=1 -DBANDS=7
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DFIELDS=3 -DAXES=2 -DDIP
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DFIELDS=4 -DAXES=2 -DOBLIQUE -DSPREADS -DDIP -DBANDS=5 -DCOLLOPS_DOUBLE
// compile-with: -DRECEIVERS_PER_BLOCK=1 -DFIELDS=4 -DAXES=3 -DOBLIQUE -DREPEATABLE
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DROWS -DFIELDS=1 -DBANDS=3
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DROWS -DFACTOR=4
// compile-with: -DRECEIVERS_PER_BLOCK=2 -DROWS -DFACTOR=3 -DCOLLOPS_WIDE_TIMES -DFIELDS=4 -DAXES=3 -DOBLIQUE -DDIP -DBANDS=5
//
// Layouts, all C order: image (columns, depths) with columns = ny * nx; source_times and receiver_times (stations, nodes);
// traces (sources, receivers, samples); weights (stations, FIELDS, nodes) and bands (rows, nodes). With ROWS, sources and
// receivers have the rows of the tables that source_rows, receiver_rows and band_rows say, otherwise consecutive ones.
// Nodes are the image points, or with FACTOR every so many along each axis and the last one: the tables then hold what is
// left of a time, in samples, after that of the straight ray, which `straight` describes: (stations, 4), samples per metre and
// the position of the station. Inside the kernels a trace has BANDS rows of samples: an arrival falls on the row of its
// band, and each row has its own wavelet. Options not given cost nothing: they are constants of the compiler.

#ifdef COLLOPS_DOUBLE
typedef double Real;
typedef double2 Pair;
typedef unsigned long long Bits;
#define MANTISSA_BITS 52
#define ONE_BITS 0x3ff0000000000000ULL
#define BITS_AS_REAL(bits) __longlong_as_double((long long)(bits))
#else
typedef float Real;
typedef float2 Pair;
typedef unsigned int Bits;
#define MANTISSA_BITS 23
#define ONE_BITS 0x3f800000U
#define BITS_AS_REAL(bits) __int_as_float((int)(bits))
#endif

#ifdef COLLOPS_WIDE_TIMES
typedef long long Fixed;
typedef double Rest;
#else
typedef int Fixed;
typedef float Rest;
#endif

#ifdef FACTOR
typedef Rest Time;  // an element of the tables of times
#else
typedef Fixed Time;
#endif

#ifdef ROWS
#define ROW(rows, number) __ldg((rows) + (number))
#else
#define ROW(rows, number) (number)
#endif

// Threads add to a trace in any order. With REPEATABLE they add integers, multiples of 1 / scale, for which the order does
// not matter; `choose_scale` makes those as small as the largest possible sum allows.
#ifdef REPEATABLE
typedef unsigned long long Sum;
#define AS_SUM(value, scale) ((Sum)__double2ll_rn((double)(value) * (scale)))
#define AS_REAL(sum, scale) ((Real)((double)(long long)(sum) / (scale)))
#else
typedef Real Sum;
#define AS_SUM(value, scale) (value)
#define AS_REAL(sum, scale) (sum)
#endif

#ifndef BANDS
#define BANDS 1
#endif
#ifndef FIELDS
#define FIELDS 0  // without weights
#endif
#ifndef AXES
#define AXES 0  // components of the directions of the rays
#endif

#define SOURCES_PER_PASS 5  // of 4, 5 and 10 the fastest on an H200 at all slopes, in float32 and float64

#define NOWHERE 0x3fffffff  // an index beyond every window

// The fraction of a time, from its bits without a conversion: 1.fraction minus 1.
__device__ __forceinline__ Real fraction_of(Fixed time, int fraction_bits)
{
    const Bits mantissa = ((Bits)time << (MANTISSA_BITS - fraction_bits)) & (((Bits)1 << MANTISSA_BITS) - 1);
    return BITS_AS_REAL(mantissa | ONE_BITS) - (Real)1;
}

// The image as the tables see it: points along x, their spacing in metres, and where times are cut off, in samples.
struct Lattice {
    int n_columns, n_depths, n_along;
    Rest dy, dx, dz, latest;

#ifdef FACTOR
    static __device__ __forceinline__ int nodes(int n) { return (n + FACTOR - 2) / FACTOR + 1; }
    __device__ __forceinline__ long long n_nodes() const
    {
        return (long long)nodes(n_columns / n_along) * nodes(n_along) * nodes(n_depths);
    }
#else
    __device__ __forceinline__ long long n_nodes() const { return (long long)n_columns * n_depths; }
#endif
};

// Where a point is in the tables.
#ifdef FACTOR
struct Place {
    int node, nearest;  // the corner of its cell with the smallest coordinates, and the nearest one
    int step_z, step_x, step_y;  // to the next corner; 0 for a point at a node
    Rest part_z, part_x, part_y, z, x, y;
};

__device__ __forceinline__ int locate(int index, int n, int stride, int &step, int &nearest, Rest &part)
{
    const int cell = index / FACTOR, beyond = index - cell * FACTOR;
    const int width = min(FACTOR, n - 1 - cell * FACTOR);  // the last cell may be smaller
    step = beyond > 0 ? stride : 0;
    part = beyond > 0 ? (Rest)beyond / (Rest)width : (Rest)0;
    nearest += cell * stride + (2 * beyond > width ? step : 0);
    return cell * stride;
}

__device__ __forceinline__ Place place_of(const Lattice &lattice, int column, int depth)
{
    Place place;
    const int x = column % lattice.n_along, y = column / lattice.n_along, n_across = lattice.n_columns / lattice.n_along;
    const int stride_x = Lattice::nodes(lattice.n_depths), stride_y = stride_x * Lattice::nodes(lattice.n_along);
    place.nearest = 0;
    place.node = locate(depth, lattice.n_depths, 1, place.step_z, place.nearest, place.part_z);
    place.node += locate(x, lattice.n_along, stride_x, place.step_x, place.nearest, place.part_x);
    place.node += locate(y, n_across, stride_y, place.step_y, place.nearest, place.part_y);
    place.z = depth * lattice.dz;
    place.x = x * lattice.dx;
    place.y = y * lattice.dy;
    return place;
}

template <class Value> __device__ __forceinline__ Value between(Value low, Value high, Rest part)
{
    return low + (Value)part * (high - low);
}

template <class Value>
__device__ __forceinline__ Value in_plane(const Value *__restrict__ corner, const Place &place)
{
    const Value *__restrict__ next = corner + place.step_x;
    return between(between(__ldg(corner), __ldg(corner + place.step_z), place.part_z),
                   between(__ldg(next), __ldg(next + place.step_z), place.part_z), place.part_x);
}

template <class Value>
__device__ __forceinline__ Value table_value(const Value *__restrict__ row, const Place &place)
{
    const Value value = in_plane(row + place.node, place);
    return place.step_y ? between(value, in_plane(row + place.node + place.step_y, place), place.part_y) : value;
}

__device__ __forceinline__ Fixed time_at(const Time *__restrict__ times, const Rest *__restrict__ straight, int station,
                                         const Lattice &lattice, const Place &place, int fraction_bits)
{
    const Rest *__restrict__ ray = straight + 4 * station;
    const Rest y = place.y - __ldg(ray + 1), x = place.x - __ldg(ray + 2), z = place.z - __ldg(ray + 3);
    const Rest samples = table_value(times + station * lattice.n_nodes(), place) + __ldg(ray) * sqrt(y * y + x * x + z * z);
    return (Fixed)rint((samples < lattice.latest ? samples : lattice.latest) * (Rest)((Fixed)1 << fraction_bits));
}

#define NEAREST(place) (place).nearest
#else
typedef int Place;

__device__ __forceinline__ Place place_of(const Lattice &lattice, int column, int depth)
{
    return column * lattice.n_depths + depth;
}

template <class Value>
__device__ __forceinline__ Value table_value(const Value *__restrict__ row, Place place)
{
    return __ldg(row + place);
}

__device__ __forceinline__ Fixed time_at(const Time *__restrict__ times, const Rest *__restrict__, int station,
                                         const Lattice &lattice, Place place, int)
{
    return __ldg(times + station * lattice.n_nodes() + place);
}

#define NEAREST(place) (place)
#endif

// The fields of the weight of one station at one point, and the weight of a source and a receiver: the product of
// their factors, and of what the sum of their directions says (the fields 1 to AXES, the last one vertical). `steepest` is
// the squared cosine of the dip at which the weight is zero, and where the taper begins it is larger by `taper_width`.
struct Fields {
#if FIELDS > 0
    Real values[FIELDS];
#endif
};

__device__ __forceinline__ Fields load_fields(const Real *__restrict__ weights, long long station, long long n_nodes,
                                              const Place &place)
{
    Fields fields;
#if FIELDS > 0
#pragma unroll
    for (int field = 0; field < FIELDS; ++field)
        fields.values[field] = table_value(weights + (station * FIELDS + field) * n_nodes, place);
#endif
    return fields;
}

__device__ __forceinline__ Real weighed(Real value, const Fields &ours, const Fields &theirs, Real steepest,
                                        Real taper_width)
{
#if FIELDS > 0
    value *= ours.values[0] * theirs.values[0];
#endif
#if AXES > 0
    Real square = 0, vertical = 0;
#pragma unroll
    for (int axis = 1; axis <= AXES; ++axis) {
        const Real sum = ours.values[axis] + theirs.values[axis];
        vertical = sum * sum;
        square += vertical;
    }
#ifdef OBLIQUE
    value *= sqrt(square);
#endif
#ifdef DIP
    const Real taper = (vertical - steepest * square) / (taper_width * (square + (Real)1e-30));
    value *= taper < 0 ? (Real)0 : taper > 1 ? (Real)1 : taper;
#endif
#ifdef SPREADS
    value /= sqrt(ours.values[FIELDS - 1] + theirs.values[FIELDS - 1]);
#endif
#endif
    return value;
}

// A thread's running sums for the two samples of one trace that its point last fell between.
struct Run {
    int index;
    Real left, right;
};

// The samples of one trace that a block computes, in shared memory.
struct Window {
    Sum *sums;
    int start, length;
    double scale;
};

__device__ __forceinline__ void add_to_window(const Window &window, int index, Real value)
{
    const int local = index - window.start;
    if ((unsigned)local < (unsigned)window.length)
        atomicAdd(window.sums + local, AS_SUM(value, window.scale));
}

__device__ __forceinline__ double larger(double a, double b)  // or NaN
{
    return b > a || b != b ? b : a;
}

// ---- the scale of repeatable sums: by one block, from the image -------------------------------------------------------
// A sum of all elements, times their largest weight, stays below 2^62. If it is infinite or NaN, the scale and every sum
// are NaN.
extern "C" __global__ void __launch_bounds__(1024)
choose_scale(const Real *__restrict__ image, long long n_points, double largest_weight, double *scale)
{
    __shared__ double largest[1024];
    double mine = 0;
    for (long long point = threadIdx.x; point < n_points; point += blockDim.x)
        mine = larger(mine, fabs((double)image[point]));
    largest[threadIdx.x] = mine;
    for (int half = 512; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            largest[threadIdx.x] = larger(largest[threadIdx.x], largest[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) {
        const double bound = largest[0] * largest_weight * n_points;
        int exponent;
        frexp(bound, &exponent);
        *scale = isfinite(bound) ? ldexp(1.0, min(62 - exponent, 1000)) : bound - bound;
    }
}

// ---- forward: lanes along depth, each marching over a segment of columns ------------------------------------------
// Neighbouring depths fall on different samples (few conflicts), neighbouring columns on the same or the next one,
// so that a run of them is summed in registers and reaches shared memory once. Times that follow no order only cost
// more atomic additions. A trace that is longer than shared memory is computed in windows, one block each.
extern "C" __global__ void __launch_bounds__(256)
forward(const Real *__restrict__ image, const Time *__restrict__ source_times, const Time *__restrict__ receiver_times,
        const int *__restrict__ source_rows, const int *__restrict__ receiver_rows, const Rest *__restrict__ straight,
        const Real *__restrict__ source_weights, const Real *__restrict__ receiver_weights,
        const unsigned char *__restrict__ bands, const int *__restrict__ band_rows, Real steepest, Real taper_width,
        int n_receivers, int n_samples, int n_columns, int n_depths, int n_along, Rest dy, Rest dx, Rest dz, Rest latest,
        int fraction_bits, const double *__restrict__ scale, Real *__restrict__ traces, int segment_columns,
        int window_length)
{
    extern __shared__ char shared_bytes[];
    Sum *sums = (Sum *)shared_bytes;
    const int groups = (n_receivers + RECEIVERS_PER_BLOCK - 1) / RECEIVERS_PER_BLOCK;
    const int source = blockIdx.x / groups;
    const int first_receiver = (blockIdx.x % groups) * RECEIVERS_PER_BLOCK;
    const int receivers = min(RECEIVERS_PER_BLOCK, n_receivers - first_receiver);
    const int start = blockIdx.z * window_length;
    const Lattice lattice = {n_columns, n_depths, n_along, dy, dx, dz, latest};
    const long long n_nodes = lattice.n_nodes();

    for (int i = threadIdx.x; i < RECEIVERS_PER_BLOCK * window_length; i += blockDim.x)
        sums[i] = 0;
    __syncthreads();
    Window windows[RECEIVERS_PER_BLOCK];
#pragma unroll
    for (int r = 0; r < RECEIVERS_PER_BLOCK; ++r)
        windows[r] = {sums + r * window_length, start, window_length, *scale};

    const int source_row = ROW(source_rows, source);
    int rows[RECEIVERS_PER_BLOCK];
#pragma unroll
    for (int r = 0; r < RECEIVERS_PER_BLOCK; ++r)
        rows[r] = ROW(receiver_rows, min(first_receiver + r, n_receivers - 1));

    const int segments = (n_columns + segment_columns - 1) / segment_columns;
    const int slots = segments * n_depths;
    for (int slot = blockIdx.y * blockDim.x + threadIdx.x; slot < slots; slot += gridDim.y * blockDim.x) {
        const int depth = slot % n_depths;
        const int first_column = (slot / n_depths) * segment_columns;
        const int last_column = min(first_column + segment_columns, n_columns);
        Run runs[RECEIVERS_PER_BLOCK];
#pragma unroll
        for (int r = 0; r < RECEIVERS_PER_BLOCK; ++r) {
            runs[r].index = NOWHERE;
            runs[r].left = runs[r].right = 0;
        }
        for (int column = first_column; column < last_column; ++column) {
            const int point = column * n_depths + depth;
            const Place place = place_of(lattice, column, depth);
            const Real value = __ldg(image + point);
            const Fixed source_time = time_at(source_times, straight, source_row, lattice, place, fraction_bits);
            const Fields source_fields = load_fields(source_weights, source_row, n_nodes, place);
            Fixed receiver_time[RECEIVERS_PER_BLOCK];
#pragma unroll
            for (int r = 0; r < RECEIVERS_PER_BLOCK; ++r)
                receiver_time[r] = time_at(receiver_times, straight, rows[r], lattice, place, fraction_bits);
#pragma unroll
            for (int r = 0; r < RECEIVERS_PER_BLOCK; ++r) {
                const Fields receiver_fields = load_fields(receiver_weights, rows[r], n_nodes, place);
                const Real weighted = weighed(value, source_fields, receiver_fields, steepest, taper_width);
                const Fixed time = source_time + receiver_time[r];
                int index = (int)(time >> fraction_bits);
                const Real right = weighted * fraction_of(time, fraction_bits);
                const Real left = weighted - right;
                Run &run = runs[r];
                if ((unsigned)index >= (unsigned)(n_samples - 1))
                    index = NOWHERE;
                else if (BANDS > 1) {
                    const int receiver = min(first_receiver + r, n_receivers - 1);
                    index += __ldg(bands + ROW(band_rows, receiver) * n_nodes + NEAREST(place)) * n_samples;
                }
                if (index != run.index) {
                    const Window &window = windows[r];
                    if (index == run.index - 1) {
                        add_to_window(window, run.index + 1, run.right);
                        run.right = run.left;
                        run.left = 0;
                    } else {
                        add_to_window(window, run.index, run.left);
                        if (index == run.index + 1) {
                            run.left = run.right;
                        } else {
                            add_to_window(window, run.index + 1, run.right);
                            run.left = 0;
                        }
                        run.right = 0;
                    }
                    run.index = index;
                }
                run.left += left;
                run.right += right;
            }
        }
#pragma unroll
        for (int r = 0; r < RECEIVERS_PER_BLOCK; ++r) {
            add_to_window(windows[r], runs[r].index, runs[r].left);
            add_to_window(windows[r], runs[r].index + 1, runs[r].right);
        }
    }
    __syncthreads();

    const int row = BANDS * n_samples;
    traces += ((long long)source * n_receivers + first_receiver) * row + start;
    const int length = min(window_length, row - start);
    for (int r = 0; r < receivers; ++r)
        for (int i = threadIdx.x; i < length; i += blockDim.x) {
            const Real value = AS_REAL(sums[r * window_length + i], *scale);
            if (gridDim.y == 1)
                traces[(long long)r * row + i] = value;
            else
                atomicAdd(traces + (long long)r * row + i, value);
        }
}

// ---- convolution of every trace with the wavelet --------------------------------------------------------------------
// result[i] = sum over k of wavelet[k] * trace[i + center - k]. A block computes a tile of one trace; a thread computes four
// neighbouring samples from a window of seven in registers. `as_pairs` writes (value, next value - value), zeros
// at the last sample, from which the adjoint interpolates, and for each trace a row for each band; otherwise the rows
// of a trace are added. `wavelet` has a row of taps for each band.
#define TILE_THREADS 128
#define TILE (4 * TILE_THREADS)
#define TAPS 64
#define PADDED(i) ((i) + ((i) >> 5))  // keeps strides of four words off each other's banks

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
convolve(const Real *__restrict__ traces, const Real *__restrict__ wavelet, Real *__restrict__ result, int n_samples,
         int n_taps, int center, int as_pairs)
{
    __shared__ Real segment[PADDED(TILE + TAPS + 3) + 1];
    __shared__ Real taps[TAPS];
    const int step = as_pairs ? TILE - 1 : TILE;
    const int tile_start = blockIdx.y * step;
    const int first_band = as_pairs ? blockIdx.x % BANDS : 0;
    const int last_band = as_pairs ? first_band + 1 : BANDS;
    const long long first_row = as_pairs ? blockIdx.x / BANDS : (long long)blockIdx.x * BANDS;
    const Real *trace = traces + first_row * n_samples;
    const int mine = 4 * threadIdx.x;
    Real sums[4] = {0, 0, 0, 0};

    for (int band = first_band; band < last_band; ++band, trace += n_samples)
    for (int first_tap = 0; first_tap < n_taps; first_tap += TAPS) {
        // segment[j] is the sample tile_start + center - first_tap - (TAPS - 1) + j
        const int base = tile_start + center - first_tap - (TAPS - 1);
        __syncthreads();
        for (int j = threadIdx.x; j < TILE + TAPS - 1; j += TILE_THREADS) {
            const int sample = base + j;
            segment[PADDED(j)] = sample >= 0 && sample < n_samples ? trace[sample] : (Real)0;
        }
        if (threadIdx.x < TAPS)
            taps[threadIdx.x] = first_tap + threadIdx.x < n_taps
                                    ? wavelet[(long long)band * n_taps + first_tap + threadIdx.x]
                                    : (Real)0;
        __syncthreads();
        // window[m] is segment[mine + TAPS - 1 - k + m - 3] for the current k
        Real window[7];
#pragma unroll
        for (int m = 4; m < 7; ++m)
            window[m] = segment[PADDED(mine + TAPS - 4 + m)];
#pragma unroll 4
        for (int k = 0; k < TAPS; k += 4) {
#pragma unroll
            for (int m = 0; m < 4; ++m)
                window[m] = segment[PADDED(mine + TAPS - 4 - k + m)];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const Real tap = taps[k + n];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    sums[j] += tap * window[3 + j - n];
            }
#pragma unroll
            for (int m = 6; m > 3; --m)
                window[m] = window[m - 4];
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; ++j)
        segment[PADDED(mine + j)] = sums[j];
    __syncthreads();
    for (int j = threadIdx.x; j < step; j += TILE_THREADS) {
        const int sample = tile_start + j;
        if (sample >= n_samples)
            break;
        const long long where = (long long)blockIdx.x * n_samples + sample;
        const Real value = segment[PADDED(j)];
        if (as_pairs) {
            Pair pair;
            const bool last = sample == n_samples - 1;
            pair.x = last ? (Real)0 : value;
            pair.y = last ? (Real)0 : segment[PADDED(j + 1)] - value;
            ((Pair *)result)[where] = pair;
        } else {
            result[where] = value;
        }
    }
}

__device__ __forceinline__ Real interpolate(const Pair *__restrict__ trace, Fixed time, int n_samples,
                                            int fraction_bits)
{
    const unsigned index = min((unsigned)(time >> fraction_bits), (unsigned)(n_samples - 1));
    const Pair pair = __ldg(trace + index);
    return pair.x + fraction_of(time, fraction_bits) * pair.y;
}

// ---- adjoint: a thread owns a point; samples come through the L1 cache ---------------------------------------------
// A warp covers 32 depths of one column and a block a few columns, so that the samples that a block needs at a time
// are a short piece of the trace, at any slope. The times of SOURCES_PER_PASS sources stay in registers while the
// receivers pass by, so that each receiver time is read once for all of them.
extern "C" __global__ void __launch_bounds__(256)
adjoint(const Pair *__restrict__ pairs, const Time *__restrict__ source_times, const Time *__restrict__ receiver_times,
        const int *__restrict__ source_rows, const int *__restrict__ receiver_rows, const Rest *__restrict__ straight,
        const Real *__restrict__ source_weights, const Real *__restrict__ receiver_weights,
        const unsigned char *__restrict__ bands, const int *__restrict__ band_rows, Real steepest, Real taper_width,
        int n_receivers, int n_samples, int n_columns, int n_depths, int n_along, Rest dy, Rest dx, Rest dz, Rest latest,
        int fraction_bits, Real *__restrict__ image, int n_sources, int receivers_per_part)
{
    const int tiles = (n_depths + 31) / 32;
    const int depth = (blockIdx.x % tiles) * 32 + (threadIdx.x & 31);
    const int column = (blockIdx.x / tiles) * (blockDim.x / 32) + (threadIdx.x >> 5);
    if (depth >= n_depths || column >= n_columns)
        return;
    const int point = column * n_depths + depth;
    const Lattice lattice = {n_columns, n_depths, n_along, dy, dx, dz, latest};
    const long long n_nodes = lattice.n_nodes();
    const Place place = place_of(lattice, column, depth);
    const int first_receiver = blockIdx.y * receivers_per_part;
    const int last_receiver = min(first_receiver + receivers_per_part, n_receivers);
    const int row = BANDS * n_samples;
    const long long source_stride = (long long)n_receivers * row;
    Real sum = 0;
    for (int first_source = 0; first_source < n_sources; first_source += SOURCES_PER_PASS) {
        Fixed source_time[SOURCES_PER_PASS];
        Fields source_fields[SOURCES_PER_PASS];
#pragma unroll
        for (int s = 0; s < SOURCES_PER_PASS; ++s) {
            const bool there = first_source + s < n_sources;
            source_time[s] = 0;
            if (there) {
                const int row = ROW(source_rows, first_source + s);
                source_time[s] = time_at(source_times, straight, row, lattice, place, fraction_bits);
                source_fields[s] = load_fields(source_weights, row, n_nodes, place);
            }
        }
        const Pair *trace = pairs + first_source * source_stride + (long long)first_receiver * row;
        for (int receiver = first_receiver; receiver < last_receiver; ++receiver, trace += row) {
            const int station = ROW(receiver_rows, receiver);
            const Fixed receiver_time = time_at(receiver_times, straight, station, lattice, place, fraction_bits);
            const Fields receiver_fields = load_fields(receiver_weights, station, n_nodes, place);
            const Pair *samples = trace;
            if (BANDS > 1)
                samples += __ldg(bands + ROW(band_rows, receiver) * n_nodes + NEAREST(place)) * n_samples;
#pragma unroll
            for (int s = 0; s < SOURCES_PER_PASS; ++s)
                if (first_source + s < n_sources)
                    sum += weighed(interpolate(samples + s * source_stride, source_time[s] + receiver_time, n_samples,
                                               fraction_bits),
                                   source_fields[s], receiver_fields, steepest, taper_width);
        }
    }
    if (gridDim.y == 1)
        image[point] = sum;
    else
        atomicAdd(image + point, sum);
}
