// Products of sparse matrices in compressed rows with vectors: LANES threads share a row and add up by shuffles.
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
__device__ inline Element plus_product(Element sum, Entry a, Element x, Real) { return sum + a * x; }
__device__ inline Element below(Element a, int distance) { return from_lane_below(a, distance); }
#else
__device__ inline Element zero() { return {0, 0}; }
__device__ inline Element plus(Element a, Element b) { return {a.re + b.re, a.im + b.im}; }
// `sign` is -1 for the conjugate of the matrix.
__device__ inline Element plus_product(Element sum, Entry a, Element x, Real sign)
{
    const Real im = sign * a.im;
    return {sum.re + a.re * x.re - im * x.im, sum.im + a.re * x.im + im * x.re};
}
__device__ inline Element below(Element a, int distance)
{
    return {from_lane_below(a.re, distance), from_lane_below(a.im, distance)};
}
#endif

// `names` are the row numbers if empty rows are omitted; `sign` is -1 for the conjugate of the matrix.
extern "C" __global__ void multiply(const Element* __restrict__ x, Element* y, Long rows, const int* __restrict__ names,
    const Start* __restrict__ starts, const int* __restrict__ columns, const Entry* __restrict__ values, Long sign,
    Long add)
{
    const int lane = threadIdx.x % LANES;
    const Long stride = static_cast<Long>(gridDim.x) * (blockDim.x / LANES);
    const Long first = static_cast<Long>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / LANES;
    // All threads of a warp run the same number of iterations, as shuffles require.
    const Long turns = (rows + stride - 1) / stride;
    for (Long turn = 0; turn < turns; ++turn) {
        const Long row = first + turn * stride;
        Element sum = zero();
        if (row < rows) {
            const Start end = starts[row + 1];
            for (Start k = starts[row] + lane; k < end; k += LANES)
                sum = plus_product(sum, values[k], x[columns[k]], static_cast<Real>(sign));
        }
        for (int distance = LANES / 2; distance; distance /= 2) sum = plus(sum, below(sum, distance));
        if (lane == 0 && row < rows) {
            Element* place = y + (names ? names[row] : row);
            *place = add ? plus(*place, sum) : sum;
        }
    }
}
