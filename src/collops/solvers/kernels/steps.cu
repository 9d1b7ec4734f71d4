// Steps of sparse and proximal methods, each in one pass over memory: combinations of vectors that are shrunk element
// by element, with their norms; shrinkage of short vectors; and selection by counting digits. The element type is fixed
// when this is compiled.
//
// CuPy compiles it at run time with NVRTC (or its HIP counterpart). It includes no header, so that a test can compile
// it.
//
// compile-with: -DELEMENT=2
// compile-with: -DELEMENT=3
// compile-with: -DELEMENT=4
// compile-with: -DELEMENT=5

#ifndef ELEMENT
#define ELEMENT 2
#endif

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
#define WARP warpSize
__device__ inline double from_lane_below(double value, int distance) { return __shfl_down(value, distance); }
#else
#define WARP 32
__device__ inline double from_lane_below(double value, int distance)
{
    return __shfl_down_sync(0xffffffffu, value, distance);
}
#endif

#define BLOCK 256
#define IN_FLIGHT 4  // elements of each array that a thread has in flight
#define MAX_WARPS (BLOCK / 32)
#define MEASURES 3

typedef long long Index;
typedef unsigned long long Bits;

// ---- Numbers

#if ELEMENT == 2 || ELEMENT == 4
typedef float Real;
__device__ inline Bits bits_of(float value) { return __float_as_uint(value); }
__device__ inline float from_bits(Bits bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
#else
typedef double Real;
__device__ inline Bits bits_of(double value) { return static_cast<Bits>(__double_as_longlong(value)); }
__device__ inline double from_bits(Bits bits) { return __longlong_as_double(static_cast<long long>(bits)); }
#endif

#if ELEMENT == 4 || ELEMENT == 5
struct Element {
    Real re, im;
};
__device__ inline Element operator+(Element a, Element b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Element operator-(Element a, Element b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline Element operator*(Real a, Element b) { return {a * b.re, a * b.im}; }
__device__ inline bool is_finite(Element a) { return a.re - a.re == Real(0) && a.im - a.im == Real(0); }
__device__ inline Real size_of(Element a) { return hypot(a.re, a.im); }
__device__ inline double square_of(Element a)
{
    return static_cast<double>(a.re) * a.re + static_cast<double>(a.im) * a.im;
}
#else
typedef Real Element;
__device__ inline bool is_finite(Element a) { return a - a == Real(0); }
__device__ inline Real size_of(Element a) { return a < 0 ? -a : a; }
__device__ inline double square_of(Element a) { return static_cast<double>(a) * a; }
#endif

// ---- Rules, as thresholds.py numbers them

enum { KEEP = 0, SOFT = 1, HARD = 2, HALF = 3, PROJECT = 4, CLIP = 5, HARD_AT = 6, HALF_AT = 7 };
#define HALF_CUT Real(0.94494078742115475)  // 54^(1/3) / 4

// Returns the factor of a value of an absolute size. Comparisons preserve NaN.
__device__ inline Real factor(int rule, Real size, Real t)
{
    if (rule == SOFT) return size <= t ? Real(0) : Real(1) - t / size;
    if (rule == HARD) return size <= sqrt(Real(2) * t) ? Real(0) : Real(1);
    if (rule == PROJECT) return size <= t ? Real(1) : t / size;
    if (rule == HARD_AT) return size <= t ? Real(0) : Real(1);
    if (rule == HALF || rule == HALF_AT) {
        Real cut = t;
        if (rule == HALF) {
            const Real third_root = cbrt(t);
            cut = HALF_CUT * third_root * third_root;
        } else {
            t = pow(cut / HALF_CUT, Real(1.5));
        }
        if (size <= cut) return Real(0);
        const Real cosine = t / Real(8) * pow(size / Real(3), Real(-1.5));
        const Real angle = acos(cosine > Real(1) ? Real(1) : cosine);
        return Real(2) / Real(3) * (Real(1) + cos(Real(2.0943951023931954923) - Real(2) / Real(3) * angle));
    }
    return Real(1);
}

__device__ inline Element shrunk(int rule, Element u, Real t, Real upper)
{
    if (rule == KEEP) return u;
#if ELEMENT == 4 || ELEMENT == 5
    return factor(rule, size_of(u), t) * u;
#else
    // Rounded as on the host: by differences and bounds.
    if (rule == SOFT) return u > t ? u - t : u < -t ? u + t : u != u ? u : Real(0);
    if (rule == PROJECT) return u > t ? t : u < -t ? -t : u;
    if (rule == CLIP) return u < t ? t : u > upper ? upper : u;
    return factor(rule, size_of(u), t) * u;
#endif
}

// A threshold: a number, or a pointer to device memory.
__device__ inline Real number(double value, const void* scalar, int doubles)
{
    if (!scalar) return static_cast<Real>(value);
    return static_cast<Real>(doubles ? *static_cast<const double*>(scalar) : *static_cast<const float*>(scalar));
}

// ---- Steps

__device__ inline double block_sum(double sum)
{
    __shared__ double of_warps[MAX_WARPS];
    for (int distance = WARP / 2; distance > 0; distance /= 2) sum += from_lane_below(sum, distance);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();  // of_warps may still be read by the previous sum
    if (lane == 0) of_warps[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int other = 1; other < BLOCK / WARP; ++other) sum += of_warps[other];
    return sum;
}

// v = T(base + alpha * gradient); ahead = v + momentum * (v - current); current = v, but unchanged where `keep` is set and
// v is not finite. Either of base and gradient may be missing, and ahead too, which may be base. |v - current|^2, |v| and
// |v|^2 are added to the elements of `sums` at the given indices, unless an index is -1. The block that finishes last adds
// up the blocks' sums, always in the same order; atomicInc wraps, so that `ticket` is 0 again when the kernel ends.
extern "C" __global__ void __launch_bounds__(BLOCK)
advance(int rule, double threshold, const void* threshold_scalar, int threshold_doubles, const Element* base,
        double alpha, const Element* gradient, Element* current, Element* ahead, double momentum,
        const void* momentum_scalar, int momentum_doubles, Index n, double* sums, int update_place, int absolute_place,
        int square_place, double* partial, unsigned* ticket, int keep)
{
    const Real t = number(threshold, threshold_scalar, threshold_doubles);
    const Real m = number(momentum, momentum_scalar, momentum_doubles);
    const Real a = static_cast<Real>(alpha);
    double measured[MEASURES] = {};
    const Index step = static_cast<Index>(gridDim.x) * BLOCK * IN_FLIGHT;
    for (Index start = static_cast<Index>(blockIdx.x) * BLOCK * IN_FLIGHT + threadIdx.x; start < n; start += step) {
        Element v[IN_FLIGHT], g[IN_FLIGHT], now[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; ++k) {
            const Index i = start + k * BLOCK;
            if (i < n) {
                if (base) v[k] = base[i];
                if (gradient) g[k] = gradient[i];
                now[k] = current[i];
            }
        }
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; ++k) {
            const Index i = start + k * BLOCK;
            if (i < n) {
                Element value = !gradient ? v[k] : !base ? a * g[k] : v[k] + a * g[k];
                value = shrunk(rule, value, t, t);
                const Element difference = value - now[k];
                current[i] = !keep || is_finite(value) ? value : now[k];
                if (ahead) ahead[i] = value + m * difference;
                if (update_place >= 0) measured[0] += square_of(difference);
                if (absolute_place >= 0) measured[1] += size_of(value);
                if (square_place >= 0) measured[2] += square_of(value);
            }
        }
    }
    if (update_place < 0 && absolute_place < 0 && square_place < 0) return;

    __shared__ bool last;
    for (int p = 0; p < MEASURES; ++p) {
        const double sum = block_sum(measured[p]);
        if (threadIdx.x == 0) partial[p * gridDim.x + blockIdx.x] = sum;
    }
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    const volatile double* of_blocks = partial;
    const int places[MEASURES] = {update_place, absolute_place, square_place};
    for (int p = 0; p < MEASURES; ++p) {
        double sum = 0;
        for (unsigned block = threadIdx.x; block < gridDim.x; block += BLOCK) sum += of_blocks[p * gridDim.x + block];
        sum = block_sum(sum);
        if (threadIdx.x == 0 && places[p] >= 0) sums[places[p]] += sum;
    }
}

// out = T(a * x + b * y), where y may be missing, and out may be x or y.
extern "C" __global__ void __launch_bounds__(BLOCK)
shrink(int rule, double threshold, const void* threshold_scalar, int threshold_doubles, double upper,
       const Real* weights, double a, const Element* x, double b, const Element* y, Element* out, Index n)
{
    const Real t = number(threshold, threshold_scalar, threshold_doubles);
    const Index step = static_cast<Index>(gridDim.x) * BLOCK;
    for (Index i = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += step) {
        Element u = static_cast<Real>(a) * x[i];
        if (y) u = u + static_cast<Real>(b) * y[i];
        out[i] = shrunk(rule, u, weights ? t * weights[i] : t, static_cast<Real>(upper));
    }
}

// Shrinks the lengths of vectors with one component in each of `count` arrays, at most four.
extern "C" __global__ void __launch_bounds__(BLOCK)
group_shrink(int rule, double threshold, int count, const Element* x0, const Element* x1, const Element* x2,
             const Element* x3, Element* y0, Element* y1, Element* y2, Element* y3, Index n)
{
    const Real t = static_cast<Real>(threshold);
    const Index step = static_cast<Index>(gridDim.x) * BLOCK;
    for (Index i = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += step) {
        Element a = x0[i], b = a, c = a, d = a;
        double square = square_of(a);
        if (count > 1) square += square_of(b = x1[i]);
        if (count > 2) square += square_of(c = x2[i]);
        if (count > 3) square += square_of(d = x3[i]);
        const Real scale = factor(rule, static_cast<Real>(sqrt(square)), t);
        y0[i] = scale * a;
        if (count > 1) y1[i] = scale * b;
        if (count > 2) y2[i] = scale * c;
        if (count > 3) y3[i] = scale * d;
    }
}

// ---- Radix selection of the element of a rank among sorted absolute values

#define DIGIT 11
#define DIGITS (1 << DIGIT)

struct Place {
    Bits prefix;      // the digits found so far
    long long rank;   // rank of the element among values that begin with these digits
    long long above;  // number of equal elements after it, once all digits are found
};

// Counts the values that begin with the digits found so far, by their next digit.
extern "C" __global__ void __launch_bounds__(BLOCK)
count_digits(const Element* values, Index n, int shift, const Place* place, unsigned long long* counts)
{
    __shared__ unsigned here[DIGITS];
    for (int digit = threadIdx.x; digit < DIGITS; digit += BLOCK) here[digit] = 0;
    __syncthreads();
    const Bits prefix = place->prefix;
    const Index step = static_cast<Index>(gridDim.x) * BLOCK;
    for (Index i = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += step) {
        const Bits bits = bits_of(size_of(values[i]));
        const Bits above = shift + DIGIT < 64 ? bits >> (shift + DIGIT) : 0;
        if (above == prefix) atomicAdd(&here[bits >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    for (int digit = threadIdx.x; digit < DIGITS; digit += BLOCK)
        if (here[digit]) atomicAdd(&counts[digit], static_cast<unsigned long long>(here[digit]));
}

extern "C" __global__ void start_selection(Place* place, long long rank)
{
    place->prefix = 0;
    place->rank = rank;
    place->above = 0;
}

// Finds the next digit from the counts of all ranks. One thread: 2048 numbers are few.
extern "C" __global__ void choose_digit(Place* place, const unsigned long long* counts)
{
    long long rank = place->rank;
    int digit = 0;
    while (digit < DIGITS - 1 && rank >= static_cast<long long>(counts[digit])) rank -= counts[digit++];
    place->prefix = place->prefix << DIGIT | static_cast<Bits>(digit);
    place->rank = rank;
    place->above = static_cast<long long>(counts[digit]) - 1 - rank;
}

__device__ inline Bits infinite() { return bits_of(static_cast<Real>(1) / static_cast<Real>(0)); }

// The smallest value above the selected one: bit patterns of non-negative numbers have the order of the numbers.
extern "C" __global__ void __launch_bounds__(BLOCK)
find_next(const Element* values, Index n, const Place* place, unsigned long long* next)
{
    const Bits found = place->prefix;
    Bits smallest = infinite();
    const Index step = static_cast<Index>(gridDim.x) * BLOCK;
    for (Index i = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += step) {
        const Bits bits = bits_of(size_of(values[i]));
        if (bits > found && bits < smallest) smallest = bits;
    }
    if (smallest < infinite()) atomicMin(next, smallest);
}

extern "C" __global__ void start_next(unsigned long long* next) { *next = infinite(); }

// Ranks compare numbers, not bits.
extern "C" __global__ void next_as_number(const unsigned long long* next, Real* out) { *out = from_bits(*next); }

extern "C" __global__ void interpolate(const Place* place, const Real* next, double fraction, Real* out)
{
    const Real found = from_bits(place->prefix);
    *out = place->above > 0 || fraction == 0 ? found : found + (*next - found) * static_cast<Real>(fraction);
}
