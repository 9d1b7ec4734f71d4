// Entries of sparse matrices in compressed rows: their types, and arithmetic that rounds as on hosts (with --fmad=false).
//
// Other sources continue this one, which has no kernel. The threads of a row are the x axis of a block, at most a warp;
// all loops that add go through the entries of a row in their order.

#ifndef ELEMENT
#define ELEMENT 1
#endif

typedef long long Long;
typedef unsigned long long Key;

#if ELEMENT == 0 || ELEMENT == 2
typedef float Real;
#else
typedef double Real;
#endif

#if ELEMENT < 2
typedef Real Element;
__device__ inline Element plus(Element a, Element b) { return a + b; }
__device__ inline Element times(Element a, Element b) { return a * b; }
__device__ inline Element minus_times(Real a, Element b) { return -a * b; }
__device__ inline Real real_part(Element a) { return a; }
__device__ inline double modulus(Element a) { return a < 0 ? -a : a; }
__device__ inline Element from_real(Real a) { return a; }
#else
struct Element {
    Real re, im;
};
__device__ inline Element plus(Element a, Element b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Element times(Element a, Element b)
{
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ inline Element minus_times(Real a, Element b) { return {-a * b.re, -a * b.im}; }
__device__ inline Real real_part(Element a) { return a.re; }
#if ELEMENT == 2
__device__ inline double modulus(Element a) { return hypotf(a.re, a.im); }
#else
__device__ inline double modulus(Element a) { return hypot(a.re, a.im); }
#endif
__device__ inline Element from_real(Real a) { return {a, 0}; }
#endif

// The row of this thread, its place among the threads of the row, and their number, a power of 2.
#define ROW (static_cast<Long>(blockIdx.x) * blockDim.y + threadIdx.y)
#define LANE (static_cast<int>(threadIdx.x))
#define LANES (static_cast<int>(blockDim.x))

// Threads of a warp wait until all see each other's writes, or exchange values over a distance. All of them must come,
// with or without a row: if each row of a warp waited alone, the rows would run one after the other.
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
__device__ inline void synchronize_rows() { __threadfence_block(); } // threads of a wavefront run in lockstep
template <typename T>
__device__ inline T from_lane(T value, int distance) { return __shfl_xor(value, distance); }
#else
__device__ inline void synchronize_rows() { __syncwarp(0xffffffffu); }
template <typename T>
__device__ inline T from_lane(T value, int distance) { return __shfl_xor_sync(0xffffffffu, value, distance); }
#endif

#if ELEMENT < 2
__device__ inline Element element_from_lane(Element value, int distance) { return from_lane(value, distance); }
#else
__device__ inline Element element_from_lane(Element value, int distance)
{
    return {from_lane(value.re, distance), from_lane(value.im, distance)};
}
#endif

// Return the largest number of the threads of a warp.
__device__ inline Long largest_of_warp(Long number)
{
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    for (int distance = (threads < 32 ? threads : 32) / 2; distance; distance /= 2) {
        const Long other = from_lane(number, distance);
        if (other > number) number = other;
    }
    return number;
}
