// Kirchhoff demigration and migration on a GPU, and the convolution with the wavelet.
//
// Travel times are fixed-point numbers in units of the sampling step, with `fraction_bits`
// fractional bits, so that the sum of a source and a receiver time is exact, its integer part is a shift and its fraction a
// mask: a float would keep only four digits of the fraction at the end of a long trace. The host saturates the
// tables such that a sum never overflows and a point that is never reached falls after the last sample.
//
// compile-with: -DWINDOW=99 -DPOINTS=2 -DSOURCES=1 -DRECEIVERS=1
// compile-with: -DWINDOW=99 -DPOINTS=2 -DSOURCES=2 -DRECEIVERS=4
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=2 -DCOLLOPS_WIDE_TIMES
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=4 -DCOLLOPS_WIDE_TIMES -DCOLLOPS_DOUBLE
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=2 -DCOLLOPS_WIDE_TIMES -DCOLLOPS_DOUBLE
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=4 -DFIELDS=1 -DBANDS=7
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=2 -DFIELDS=3 -DAXES=2 -DDIP
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=2 -DFIELDS=4 -DAXES=2 -DOBLIQUE -DSPREADS -DDIP -DBANDS=5 -DCOLLOPS_DOUBLE
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=1 -DRECEIVERS=2 -DFIELDS=4 -DAXES=3 -DOBLIQUE
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=4 -DROWS -DFIELDS=1 -DBANDS=3
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=2 -DRECEIVERS=4 -DROWS -DFACTOR=4
// compile-with: -DWINDOW=99 -DPOINTS=1 -DSOURCES=1 -DRECEIVERS=2 -DROWS -DFACTOR=3 -DCOLLOPS_WIDE_TIMES -DFIELDS=4 -DAXES=3 -DOBLIQUE -DDIP -DBANDS=5
//
// Layouts, all C order: image (columns, depths) with columns = ny * nx; source_times and receiver_times (stations, nodes);
// traces (sources, receivers, samples); weights (stations, FIELDS, nodes) and bands (rows, nodes). With ROWS, sources and
// receivers have the rows of the tables that source_rows, receiver_rows and band_rows say, otherwise consecutive ones.
// Nodes are the image points, or with FACTOR every so many along each axis and the last one: the tables then hold what is
// left of a time, in samples, after that of the straight ray, which `straight` describes: (stations, 4), samples per metre and
// the position of the station. Inside the kernels a trace has BANDS rows of samples: an arrival falls on the row of its
// band, and each row has its own wavelet. Options not given cost nothing: they are constants of the compiler. A block of
// `forward` has SOURCES x RECEIVERS traces, a window of WINDOW samples of each, and reads the tables at POINTS points of each
// thread at a time.

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

// The rows of one station in the tables.
struct Station {
    const Time *__restrict__ times;
    const Rest *__restrict__ ray;
    const Real *__restrict__ weights;
};

__device__ __forceinline__ Station station_of(const Time *__restrict__ times, const Rest *__restrict__ straight,
                                              const Real *__restrict__ weights, long long row, long long n_nodes)
{
    return {times + row * n_nodes, straight + 4 * row, weights + row * FIELDS * n_nodes};
}

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

__device__ __forceinline__ Place place_of(const Lattice &lattice, int point)
{
    Place place;
    const int column = point / lattice.n_depths, depth = point % lattice.n_depths;
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

__device__ __forceinline__ Fixed time_at(const Station &station, const Lattice &lattice, const Place &place,
                                         int fraction_bits)
{
    const Rest *__restrict__ ray = station.ray;
    const Rest y = place.y - __ldg(ray + 1), x = place.x - __ldg(ray + 2), z = place.z - __ldg(ray + 3);
    const Rest samples = table_value(station.times, place) + __ldg(ray) * sqrt(y * y + x * x + z * z);
    return (Fixed)rint((samples < lattice.latest ? samples : lattice.latest) * (Rest)((Fixed)1 << fraction_bits));
}

#define NEAREST(place) (place).nearest
#else
typedef int Place;

__device__ __forceinline__ Place place_of(const Lattice &, int point)
{
    return point;
}

template <class Value>
__device__ __forceinline__ Value table_value(const Value *__restrict__ row, Place place)
{
    return __ldg(row + place);
}

__device__ __forceinline__ Fixed time_at(const Station &station, const Lattice &, Place place, int)
{
    return __ldg(station.times + place);
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

__device__ __forceinline__ Fields load_fields(const Station &station, long long n_nodes, const Place &place)
{
    Fields fields;
#if FIELDS > 0
#pragma unroll
    for (int field = 0; field < FIELDS; ++field)
        fields.values[field] = table_value(station.weights + field * n_nodes, place);
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

// ---- the scale of the integer sums of `forward`: 1 / scale is their unit ------------------------------------------------
// A power of two, such that every sum stays below 2^62: none exceeds the largest element of the image times `largest_sum`.
// In float32, typical arrivals are also smaller than 2^TYPICAL_BITS, so that they and the sums of many of them fit the low
// word; larger ones take longer: with three bits more, a dense image took up to 1.6 times as long. If an element is
// infinite or NaN, the scale and every sum are NaN. The block that finishes last adds up what all have found, in a fixed
// order; `ticket` is then 0 again.
#define SCALE_BLOCKS 64
#define SCALE_THREADS 256
#define TYPICAL_BITS 22
#define NARROW ((Real)(1 << 30))  // arrivals below it fit the low word

struct Sizes {
    double sum, count, largest;  // of the sizes of elements; of those that are not zero

    __device__ __forceinline__ void add(const Sizes &other)
    {
        sum += other.sum;
        count += other.count;
        largest = other.largest > largest || other.largest != other.largest ? other.largest : largest;  // or NaN
    }
};

__device__ __forceinline__ void add_up(Sizes *sizes)
{
    for (int half = SCALE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sizes[threadIdx.x].add(sizes[threadIdx.x + half]);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(SCALE_THREADS)
choose_scale(const Real *__restrict__ image, long long n_points, double largest_sum, double typical_weight,
             double *blocks, unsigned *ticket, double *scale)
{
    __shared__ Sizes sizes[SCALE_THREADS];
    __shared__ bool last;
    Sizes mine = {0, 0, 0};
    for (long long point = blockIdx.x * SCALE_THREADS + threadIdx.x; point < n_points; point += gridDim.x * SCALE_THREADS) {
        const double size = fabs((double)image[point]);
        mine.add({size, size != 0 ? 1.0 : 0.0, size});
    }
    sizes[threadIdx.x] = mine;
    add_up(sizes);
    if (threadIdx.x == 0) {
        ((Sizes *)blocks)[blockIdx.x] = sizes[0];
        __threadfence();
        last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    const volatile double *found = blocks + 3 * threadIdx.x;
    sizes[threadIdx.x] = {0, 0, 0};
    if (threadIdx.x < gridDim.x)
        sizes[threadIdx.x] = {found[0], found[1], found[2]};
    add_up(sizes);
    if (threadIdx.x == 0) {
        const double bound = sizes[0].largest * largest_sum;
        int exponent;
        frexp(bound, &exponent);
        exponent = 62 - exponent;
#ifndef COLLOPS_DOUBLE
        int typical;
        frexp(sizes[0].sum / fmax(sizes[0].count, 1.0) * typical_weight, &typical);
        exponent = min(exponent, TYPICAL_BITS - typical);
#endif
        const int most = sizeof(Real) == 4 ? 126 : 1000;  // of the exponents of reals
        *scale = isfinite(bound) ? ldexp(1.0, min(exponent, most)) : bound - bound;
    }
}

// ---- forward: a block computes some traces, or windows of them, from a part of the image -----------------------------
// Neighbouring threads have neighbouring depths, which fall on different samples. Each reads the times of the block's
// sources and receivers at its point, and adds to all of the block's traces, in shared memory. There, additions of reals
// are loops of compare-and-swap; those of 32-bit integers are single instructions, and their order does not matter. Hence
// sums are integers of two words, of which the high one counts how often the low one has wrapped around. An arrival outside
// the window is added behind it, to a place of the thread's lane, which is faster than a branch.
#define THREADS 512
#define LANES 32
#define TRACES (SOURCES * RECEIVERS)

// Whether a sum of two integers does not fit its type: the sign of the result.
__device__ __forceinline__ int overflow(int before, int amount)
{
    const int after = (int)((unsigned)before + (unsigned)amount);
    return (before ^ after) & (amount ^ after);
}

__device__ __forceinline__ void add_wide(int *low, int high, long long amount)
{
    const int rest = (int)amount;
    int more = (int)((amount - rest) >> 32);
    if (overflow(atomicAdd(low, rest), rest) < 0)
        more += rest < 0 ? -1 : 1;
    if (more != 0)
        atomicAdd(low + high, more);
}

// What an arrival adds to its trace, times the scale. `whole` is for the low word; `wide` is negative where it does not fit.
struct Amount {
    Real value;
    int whole, wide;
};

__device__ __forceinline__ Amount amount_of(Real value)
{
    const bool fits = sizeof(Real) == 4 && fabs(value) < NARROW;
    return {value, fits ? (int)rint(value) : 0, fits ? 0 : -1};
}

// One arrival on its way to two samples of its trace. `add` does not wait for the sums before it; `finish` does.
struct Arrival {
    int *low;
    Amount amount;
    Fixed time;
    int right, before_left, before_right;

    __device__ __forceinline__ void add(int fraction_bits)
    {
        right = before_left = before_right = 0;
#ifndef COLLOPS_DOUBLE  // whose amounts are all wide
        right = __mulhi(2 * amount.whole, (int)((unsigned)time << (32 - fraction_bits) >> 1));
        before_left = atomicAdd(low, amount.whole - right);
        before_right = atomicAdd(low + 1, right);
#endif
    }

    __device__ __forceinline__ int unfinished() const  // negative if so
    {
        return amount.wide | overflow(before_left, amount.whole - right) | overflow(before_right, right);
    }

    __device__ __forceinline__ void finish(int fraction_bits, int high)
    {
        if (overflow(before_left, amount.whole - right) < 0)
            atomicAdd(low + high, right < amount.whole ? 1 : -1);
        if (overflow(before_right, right) < 0)
            atomicAdd(low + high + 1, right < 0 ? -1 : 1);
        if (amount.wide < 0) {
            const long long far = llrint((double)(amount.value * fraction_of(time, fraction_bits)));
            add_wide(low, high, llrint((double)amount.value) - far);
            add_wide(low + 1, high, far);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
forward(const Real *__restrict__ image, const Time *__restrict__ source_times, const Time *__restrict__ receiver_times,
        const int *__restrict__ source_rows, const int *__restrict__ receiver_rows, const Rest *__restrict__ straight,
        const Real *__restrict__ source_weights, const Real *__restrict__ receiver_weights,
        const unsigned char *__restrict__ bands, const int *__restrict__ band_rows, Real steepest, Real taper_width,
        int n_receivers, int n_samples, int n_columns, int n_depths, int n_along, Rest dy, Rest dx, Rest dz, Rest latest,
        int fraction_bits, int n_sources, const double *__restrict__ scale, Real *__restrict__ traces)
{
    extern __shared__ char shared_bytes[];
    const int groups = (n_receivers + RECEIVERS - 1) / RECEIVERS;
    const int first_source = blockIdx.x / groups * SOURCES;
    const int first_receiver = blockIdx.x % groups * RECEIVERS;
    const Lattice lattice = {n_columns, n_depths, n_along, dy, dx, dz, latest};
    const long long n_nodes = lattice.n_nodes();

    // Arrivals from the sample before the window on reach it. Without bands their last one is before the last sample.
    const int row = BANDS * n_samples;
    const int start = blockIdx.z * WINDOW, end = min(start + WINDOW, row);
    const int first = max(start - 1, 0), reach = min(end, row - 1) - first;
    constexpr int stride = WINDOW + LANES + 2;
    int *sums = (int *)shared_bytes;
    for (int i = threadIdx.x; i < 2 * TRACES * stride; i += THREADS)
        sums[i] = 0;
    __syncthreads();
    const int nowhere = WINDOW + 1 + threadIdx.x % LANES;

    Station sources[SOURCES], receivers[RECEIVERS];
    const unsigned char *choices[RECEIVERS];
#pragma unroll
    for (int s = 0; s < SOURCES; ++s)
        sources[s] = station_of(source_times, straight, source_weights,
                                ROW(source_rows, min(first_source + s, n_sources - 1)), n_nodes);
#pragma unroll
    for (int r = 0; r < RECEIVERS; ++r) {
        const int receiver = min(first_receiver + r, n_receivers - 1);
        receivers[r] = station_of(receiver_times, straight, receiver_weights, ROW(receiver_rows, receiver), n_nodes);
        choices[r] = BANDS > 1 ? bands + ROW(band_rows, receiver) * n_nodes : bands;
    }
    const Real factor = (Real)*scale;

    const Fixed before = BANDS > 1 ? 0 : (Fixed)first << fraction_bits;
    const int n_points = n_columns * n_depths;
    for (int begin = blockIdx.y * POINTS * THREADS; begin < n_points; begin += gridDim.y * POINTS * THREADS) {
        Real value[POINTS];
        Fixed source_time[POINTS][SOURCES], receiver_time[POINTS][RECEIVERS];
        Fields source_fields[POINTS][SOURCES], receiver_fields[POINTS][RECEIVERS];
        int band[POINTS][RECEIVERS];
#pragma unroll
        for (int p = 0; p < POINTS; ++p) {
            const int point = begin + p * THREADS + threadIdx.x;
            if (point >= n_points)
                break;
            const Place place = place_of(lattice, point);
            value[p] = __ldg(image + point);
#pragma unroll
            for (int s = 0; s < SOURCES; ++s) {
                source_time[p][s] = time_at(sources[s], lattice, place, fraction_bits);
                source_fields[p][s] = load_fields(sources[s], n_nodes, place);
            }
#pragma unroll
            for (int r = 0; r < RECEIVERS; ++r) {
                receiver_time[p][r] = time_at(receivers[r], lattice, place, fraction_bits);
                receiver_fields[p][r] = load_fields(receivers[r], n_nodes, place);
                band[p][r] = BANDS > 1 ? __ldg(choices[r] + NEAREST(place)) : 0;
            }
        }
#pragma unroll
        for (int p = 0; p < POINTS; ++p) {
            if (begin + p * THREADS + threadIdx.x >= n_points)
                break;
            const Amount unweighted = amount_of(value[p] * factor);
            Arrival arrivals[TRACES];
            int unfinished = 0;
#pragma unroll
            for (int t = 0; t < TRACES; ++t) {
                const int s = t / RECEIVERS, r = t % RECEIVERS;
                const Fixed time = source_time[p][s] - before + receiver_time[p][r];
                int local = (int)(time >> fraction_bits);
                bool there = BANDS == 1 || (unsigned)local < (unsigned)(n_samples - 1);
                if (BANDS > 1)
                    local += band[p][r] * n_samples - first;
                there &= (unsigned)local < (unsigned)reach;
                arrivals[t].low = sums + 2 * t * stride + (there ? local : nowhere);
                arrivals[t].time = time;
                arrivals[t].amount = FIELDS == 0 ? unweighted
                                                 : amount_of(weighed(value[p] * factor, source_fields[p][s],
                                                                     receiver_fields[p][r], steepest, taper_width));
                arrivals[t].add(fraction_bits);
            }
#pragma unroll
            for (int t = 0; t < TRACES; ++t)
                unfinished |= arrivals[t].unfinished();
            if (unfinished < 0)
#pragma unroll
                for (int t = 0; t < TRACES; ++t)
                    arrivals[t].finish(fraction_bits, stride);
        }
    }
    __syncthreads();

    for (int t = 0; t < TRACES; ++t) {
        const int source = first_source + t / RECEIVERS, receiver = first_receiver + t % RECEIVERS;
        if (source >= n_sources || receiver >= n_receivers)
            continue;
        Real *trace = traces + ((long long)source * n_receivers + receiver) * row;
        const int *low = sums + 2 * t * stride - first;
        for (int i = start + threadIdx.x; i < end; i += THREADS) {
            const Real sum = (Real)((4294967296.0 * low[stride + i] + low[i]) / *scale);
            if (gridDim.y == 1)
                trace[i] = sum;
            else
                atomicAdd(trace + i, sum);
        }
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
    const Place place = place_of(lattice, point);
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
                const Station source = station_of(source_times, straight, source_weights,
                                                  ROW(source_rows, first_source + s), n_nodes);
                source_time[s] = time_at(source, lattice, place, fraction_bits);
                source_fields[s] = load_fields(source, n_nodes, place);
            }
        }
        const Pair *trace = pairs + first_source * source_stride + (long long)first_receiver * row;
        for (int receiver = first_receiver; receiver < last_receiver; ++receiver, trace += row) {
            const Station station = station_of(receiver_times, straight, receiver_weights, ROW(receiver_rows, receiver),
                                               n_nodes);
            const Fixed receiver_time = time_at(station, lattice, place, fraction_bits);
            const Fields receiver_fields = load_fields(station, n_nodes, place);
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
