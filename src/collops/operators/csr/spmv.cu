// Products of sparse matrices in compressed rows with vectors, and their combinations with other vectors in one pass.
//
// The threads of a block read consecutive entries of its rows, so that loads of the matrix are coalesced, and store their
// products in shared memory; then LANES threads add up the products of each row. Each thread has PER_THREAD entries in
// flight.
//
// A custom kernel, because CuPy does not allow calls of cuSPARSE while a stream is being captured. It needs no header
// and no library, so that NVRTC and hipRTC can both compile it.
//
// compile-with: -DELEMENT=0 -DLANES=1
// compile-with: -DELEMENT=1 -DLANES=8
// compile-with: -DELEMENT=2 -DLANES=32 -DWIDE
// compile-with: -DELEMENT=3 -DLANES=4
// compile-with: -DELEMENT=1 -DLANES=8 -DSINGLE
// compile-with: -DELEMENT=3 -DLANES=4 -DSINGLE

#ifndef ELEMENT
#define ELEMENT 0
#endif
#ifndef LANES
#define LANES 8
#endif
#ifndef THREADS
#define THREADS 128
#endif
#define PER_THREAD 4
#define CHUNK (THREADS * PER_THREAD)

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
template <typename R>
__device__ inline R from_lane_below(R value, int distance) { return __shfl_down(value, distance, LANES); }
#else
template <typename R>
__device__ inline R from_lane_below(R value, int distance)
{
    return __shfl_down_sync(0xffffffffu, value, distance, LANES);
}
#endif

typedef long long Long;
#ifdef WIDE
typedef long long Start;
#else
typedef int Start;
#endif

template <typename R>
struct Complex {
    R re, im;
};

#if ELEMENT == 0
typedef float Real;
typedef float Element;
#elif ELEMENT == 1
typedef double Real;
typedef double Element;
#elif ELEMENT == 2
typedef float Real;
typedef Complex<float> Element;
#else
typedef double Real;
typedef Complex<double> Element;
#endif

// The entries of the matrix, which may have a lower precision than the vectors.
#ifndef SINGLE
typedef Element Entry;
#elif ELEMENT == 1
typedef float Entry;
#else
typedef Complex<float> Entry;
#endif

#if ELEMENT < 2
__device__ inline Element zero() { return 0; }
__device__ inline Element plus(Element a, Element b) { return a + b; }
__device__ inline Element scaled(Real a, Element b) { return a * b; }
__device__ inline Element times(Element a, Element b) { return a * b; }
__device__ inline Element times_entry(Entry a, Element x, Real) { return a * x; }
__device__ inline Element below(Element a, int distance) { return from_lane_below(a, distance); }
#else
__device__ inline Element zero() { return {0, 0}; }
__device__ inline Element plus(Element a, Element b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Element scaled(Real a, Element b) { return {a * b.re, a * b.im}; }
__device__ inline Element times(Element a, Element b)
{
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// `sign` is -1 for the conjugate of the matrix.
__device__ inline Element times_entry(Entry a, Element x, Real sign)
{
    const Real im = sign * a.im;
    return {a.re * x.re - im * x.im, a.re * x.im + im * x.re};
}
__device__ inline Element below(Element a, int distance)
{
    return {from_lane_below(a.re, distance), from_lane_below(a.im, distance)};
}
#endif

// Sets `out` to ``a x + b before + w (d y - c A x)``, where `w` are the weights, or 1 if there are none. Vectors whose
// factor is 0 are not read. `out` may be `before` or `y`. `names` are the row numbers if empty rows are omitted; `sign`
// is -1 for the conjugate of the matrix.
extern "C" __global__ void __launch_bounds__(THREADS) combine(const Element* __restrict__ x, const Element* y,
    const Element* before, Element* out, Long rows, const int* __restrict__ names, const Start* __restrict__ starts,
    const int* __restrict__ columns, const Entry* __restrict__ values, const Element* __restrict__ weights, Long sign,
    double a, double b, double c, double d)
{
    __shared__ Element products[CHUNK];
    const int thread = threadIdx.x, lane = thread % LANES;
    const Long first_row = static_cast<Long>(blockIdx.x) * (THREADS / LANES), row = first_row + thread / LANES;
    const Long end_row = first_row + THREADS / LANES < rows ? first_row + THREADS / LANES : rows;
    const Start end = starts[end_row];
    Start next = end, row_end = end; // the next entry of this thread in its row
    if (row < rows) {
        next = starts[row] + lane;
        row_end = starts[row + 1];
    }
    Element sum = zero();
    for (Start chunk = starts[first_row]; chunk < end; chunk += CHUNK) {
        Entry entries[PER_THREAD];
        int places[PER_THREAD];
        Element factors[PER_THREAD];
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            const Start k = chunk + j * THREADS + thread;
            if (k < end) {
                places[j] = columns[k];
                entries[j] = values[k];
            }
        }
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j)
            if (chunk + j * THREADS + thread < end) factors[j] = x[places[j]];
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) // products beyond the end are not read
            products[j * THREADS + thread] = times_entry(entries[j], factors[j], static_cast<Real>(sign));
        __syncthreads();
        for (; next < row_end && next - chunk < CHUNK; next += LANES) sum = plus(sum, products[next - chunk]);
        __syncthreads();
    }
    for (int distance = LANES / 2; distance; distance /= 2) sum = plus(sum, below(sum, distance));
    if (lane == 0 && row < rows) {
        const Long place = names ? names[row] : row;
        Element value = scaled(static_cast<Real>(-c), sum);
        if (d != 0) value = plus(value, scaled(static_cast<Real>(d), y[place]));
        if (weights) value = times(weights[place], value);
        if (a != 0) value = plus(value, scaled(static_cast<Real>(a), x[place]));
        if (b != 0) value = plus(value, scaled(static_cast<Real>(b), before[place]));
        out[place] = value;
    }
}
