// Vector kernels: a*x + b*y, inner products of several pairs at once, and a division that makes 0 of x/0.
//
// One module is compiled for each element type, which ELEMENT selects. Nothing here needs a header or a library, so that
// NVRTC and hipRTC can both compile it; what differs between the two is in the first section.
//
// compile-after: ../../comm/peer_stores.cu
// compile-with: -DELEMENT=0
// compile-with: -DELEMENT=1
// compile-with: -DELEMENT=2
// compile-with: -DELEMENT=3
// compile-with: -DELEMENT=4
// compile-with: -DELEMENT=5

#ifndef ELEMENT
#define ELEMENT 2
#endif

// ---- What differs between CUDA and HIP

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
#define WARP warpSize
__device__ inline double from_lane_below(double value, int distance) { return __shfl_down(value, distance); }
__device__ inline float widen_half(unsigned short bits)
{
    return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
__device__ inline unsigned short narrow_half(float value)
{
    return __builtin_bit_cast(unsigned short, static_cast<_Float16>(value));
}
#else
#define WARP 32
__device__ inline double from_lane_below(double value, int distance)
{
    return __shfl_down_sync(0xffffffffu, value, distance);
}
__device__ inline float widen_half(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ inline unsigned short narrow_half(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#define BLOCK 256
#define IN_FLIGHT 4  // independent 16-byte loads of each array that a thread has under way
#define MAX_WARPS (BLOCK / 32)

typedef long long Index;

// ---- Numbers: the types of Elements in memory, of Numbers in computations, and of Scalars in results

template <typename R>
struct Complex {
    R re, im;
};

template <typename R>
__device__ inline Complex<R> operator+(Complex<R> a, Complex<R> b)
{
    return {a.re + b.re, a.im + b.im};
}

template <typename R>
__device__ inline Complex<R> operator*(Complex<R> a, Complex<R> b)
{
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

template <typename R>
__device__ inline bool is_zero(Complex<R> a)
{
    return a.re == 0 && a.im == 0;
}
__device__ inline bool is_zero(float a) { return a == 0; }
__device__ inline bool is_zero(double a) { return a == 0; }

#if ELEMENT == 0  // float16
typedef unsigned short Element;
typedef float Number;
typedef float Real;
__device__ inline Number widened(Element e) { return widen_half(e); }
__device__ inline Element narrowed(Number n) { return narrow_half(n); }
#elif ELEMENT == 1  // bfloat16: the upper half of a float
typedef unsigned short Element;
typedef float Number;
typedef float Real;
__device__ inline Number widened(Element e) { return __uint_as_float(static_cast<unsigned>(e) << 16); }
__device__ inline Element narrowed(Number n)
{
    unsigned bits = __float_as_uint(n);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Element>((bits >> 16) | 0x40u);  // NaN stays one
    return static_cast<Element>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // to the nearest, ties to even
}
#else
#if ELEMENT == 2
typedef float Element;
typedef float Real;
#elif ELEMENT == 3
typedef double Element;
typedef double Real;
#elif ELEMENT == 4
typedef Complex<float> Element;
typedef float Real;
#elif ELEMENT == 5
typedef Complex<double> Element;
typedef double Real;
#endif
typedef Element Number;
__device__ inline Number widened(Element e) { return e; }
__device__ inline Element narrowed(Number n) { return n; }
#endif

#define PER_LOAD static_cast<int>(16 / sizeof(Element))

// Sixteen bytes: one load or store, or the elements in it.
union Pack {
    uint4 words;
    struct {
        Element e[16 / sizeof(Element)];
    } parts;
    __device__ Pack() {}
};

__device__ inline bool aligned(const void* p) { return (reinterpret_cast<unsigned long long>(p) & 15u) == 0; }

// ---- Quotients of scalars

#if ELEMENT == 4 || ELEMENT == 5
__device__ inline Number quotient(Number a, Number b)
{
    // Smith's algorithm: no intermediate result overflows unless the quotient does.
    if (fabs(b.re) >= fabs(b.im)) {
        const Real ratio = b.im / b.re, scale = b.re + b.im * ratio;
        return {(a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale};
    }
    const Real ratio = b.re / b.im, scale = b.re * ratio + b.im;
    return {(a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale};
}
#endif
__device__ inline Real quotient(Real a, Real b) { return a / b; }

__device__ inline bool is_finite(Real a) { return a - a == Real(0); }
__device__ inline Real not_finite(Real a) { return a - a; }
#if ELEMENT == 4 || ELEMENT == 5
__device__ inline bool is_finite(Number a) { return is_finite(a.re) && is_finite(a.im); }
__device__ inline Number not_finite(Number a) { return {a.re - a.re + (a.im - a.im), a.re - a.re + (a.im - a.im)}; }
#endif

// 0 if b is 0. NaN if b is infinite, because the value before the overflow is unknown.
template <typename T>
__device__ inline T quotient_or_zero(T a, T b)
{
    return is_zero(b) ? T() : is_finite(b) ? quotient(a, b) : not_finite(b);
}

extern "C" __global__ void divide(const Number* a, const Number* b, Number* out) { *out = quotient_or_zero(*a, *b); }

// The square of w + beta q from inner products of w and q, with beta = factor * a / b.
extern "C" __global__ void square_of_sum(const Real* ww, const Real* wq, const Real* qq, Real factor, const Real* a,
                                         const Real* b, Real* out)
{
    const Real beta = factor * quotient_or_zero(*a, *b);
    *out = *ww + beta * (2 * *wq + beta * *qq);
}

// ---- Coefficients

// The kinds of a coefficient's pointers. A quotient has a second pointer, to the divisor.
enum { BY_VALUE = 0, TIMES_NUMBER = 1, TIMES_REAL = 2, KINDS = 3, IF_FINITE = 4 };

#if ELEMENT == 4 || ELEMENT == 5
__device__ inline Number one() { return {1, 0}; }
__device__ inline Number times_real(Number a, Real r) { return {a.re * r, a.im * r}; }
#else
__device__ inline Number one() { return 1; }
__device__ inline Number times_real(Number a, Real r) { return a * r; }
#endif

template <typename T>
__device__ inline T scalar_at(const void* scalar, const void* divisor)
{
    const T value = *static_cast<const T*>(scalar);
    return divisor ? quotient_or_zero(value, *static_cast<const T*>(divisor)) : value;
}

__device__ inline Number coefficient(Number value, const void* scalar, const void* divisor, int kind)
{
    if ((kind & KINDS) == TIMES_NUMBER) value = value * scalar_at<Number>(scalar, divisor);
    if ((kind & KINDS) == TIMES_REAL) value = times_real(value, scalar_at<Real>(scalar, divisor));
    return kind & IF_FINITE && !is_finite(value) ? Number() : value;
}

// ---- Sums

// Sums are kept in double precision. A real sum has no imaginary part to spend registers on.
__device__ inline void add(double& sum, double other) { sum += other; }
__device__ inline void add(Complex<double>& sum, Complex<double> other)
{
    sum.re += other.re;
    sum.im += other.im;
}
__device__ inline double from_below(double sum, int distance) { return from_lane_below(sum, distance); }
__device__ inline Complex<double> from_below(Complex<double> sum, int distance)
{
    return {from_lane_below(sum.re, distance), from_lane_below(sum.im, distance)};
}

#if ELEMENT == 4 || ELEMENT == 5
typedef Complex<double> Sum;
#define SUM_PARTS 2
__device__ inline void add_product(Sum& sum, Element x, Element y, double x_sign)
{
    const double re = x.re, im = x_sign * x.im;
    sum.re += re * y.re - im * y.im;
    sum.im += re * y.im + im * y.re;
}
__device__ inline void add_square(double& sum, Element x)
{
    sum += static_cast<double>(x.re) * x.re + static_cast<double>(x.im) * x.im;
}
__device__ inline Number as_number(Sum sum) { return {static_cast<Real>(sum.re), static_cast<Real>(sum.im)}; }
#else
typedef double Sum;
#define SUM_PARTS 1
__device__ inline void add_product(Sum& sum, Element x, Element y, double)
{
    sum += static_cast<double>(widened(x)) * static_cast<double>(widened(y));
}
__device__ inline void add_square(double& sum, Element x) { add_product(sum, x, x, 1); }
__device__ inline Number as_number(Sum sum) { return static_cast<Number>(sum); }
#endif

// The sum over a block, in thread 0.
template <typename T>
__device__ inline T block_sum(T sum)
{
    __shared__ T of_warps[MAX_WARPS];
    for (int distance = WARP / 2; distance > 0; distance /= 2) add(sum, from_below(sum, distance));
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();  // of_warps may still be read by the previous sum
    if (lane == 0) of_warps[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int other = 1; other < BLOCK / WARP; ++other) add(sum, of_warps[other]);
    return sum;
}

// ---- a*x + b*y

struct Combination {
    Number a, b;
    bool without_x, without_y;

    // As in BLAS, an array with a coefficient of exactly 0 does not contribute, not even NaN.
    __device__ Element operator()(Element x, Element y) const
    {
        if (without_x && without_y) return narrowed(Number());
        if (without_x) return narrowed(b * widened(y));
        if (without_y) return narrowed(a * widened(x));
        return narrowed(a * widened(x) + b * widened(y));
    }
};

// The number of a block, by which it finds its elements. Combinations begin with the last ones: a kernel of an operator,
// which begins with the first, has just left these in the cache, and the next such kernel finds the first ones there.
__device__ inline unsigned block_number() { return gridDim.x - 1 - blockIdx.x; }

// out may be x or y: an element is read before it is written, by one thread. With `squares`, block k writes the sum of the
// squares of its elements of `out` to element k.
template <bool SQUARES>
__device__ __forceinline__ void
combine_arrays(const Element* x, const Element* y, Element* out, Index n, Number a, const void* a_scalar,
               const void* a_divisor, int a_kind, Number b, const void* b_scalar, const void* b_divisor, int b_kind,
               double* squares)
{
    const unsigned block = block_number();
    Combination combine;
    double square = 0;
    combine.a = coefficient(a, a_scalar, a_divisor, a_kind);
    combine.b = coefficient(b, b_scalar, b_divisor, b_kind);
    combine.without_x = is_zero(combine.a);
    combine.without_y = is_zero(combine.b);

    const Index step = static_cast<Index>(gridDim.x) * BLOCK * IN_FLIGHT;
    const Index first = static_cast<Index>(block) * BLOCK * IN_FLIGHT + threadIdx.x;
    if (aligned(x) && aligned(y) && aligned(out)) {
        const uint4* x_words = reinterpret_cast<const uint4*>(x);
        const uint4* y_words = reinterpret_cast<const uint4*>(y);
        uint4* out_words = reinterpret_cast<uint4*>(out);
        const Index words = n / PER_LOAD;
        for (Index start = first; start < words; start += step) {
            Pack x_pack[IN_FLIGHT], y_pack[IN_FLIGHT];
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; ++k) {
                const Index i = start + k * BLOCK;
                if (i < words) {
                    x_pack[k].words = x_words[i];
                    y_pack[k].words = y_words[i];
                }
            }
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; ++k) {
                const Index i = start + k * BLOCK;
                if (i < words) {
                    Pack result;
#pragma unroll
                    for (int e = 0; e < PER_LOAD; ++e) {
                        result.parts.e[e] = combine(x_pack[k].parts.e[e], y_pack[k].parts.e[e]);
                        if (SQUARES) add_square(square, result.parts.e[e]);
                    }
                    out_words[i] = result.words;
                }
            }
        }
        const Index i = words * PER_LOAD + threadIdx.x;
        if (block == 0 && i < n) {
            out[i] = combine(x[i], y[i]);
            if (SQUARES) add_square(square, out[i]);
        }
    } else {
        for (Index start = first; start < n; start += step) {
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; ++k) {
                const Index i = start + k * BLOCK;
                if (i < n) {
                    out[i] = combine(x[i], y[i]);
                    if (SQUARES) add_square(square, out[i]);
                }
            }
        }
    }
    if (SQUARES) {
        square = block_sum(square);
        if (threadIdx.x == 0) squares[block] = square;
    }
}

#define TO_COMBINE                                                                                                     \
    const Element *x, const Element *y, Element *out, Index n, Number a, const void *a_scalar, const void *a_divisor, \
        int a_kind, Number b, const void *b_scalar, const void *b_divisor, int b_kind
#define COMBINED x, y, out, n, a, a_scalar, a_divisor, a_kind, b, b_scalar, b_divisor, b_kind

extern "C" __global__ void __launch_bounds__(BLOCK) axpby(TO_COMBINE) { combine_arrays<false>(COMBINED, nullptr); }

extern "C" __global__ void __launch_bounds__(BLOCK) axpby_and_squares(TO_COMBINE, double* squares)
{
    combine_arrays<true>(COMBINED, squares);
}

#define UPDATE_IN_FLIGHT 2

// x + length * direction in x, and then gradient + ratio * direction in direction. The arrays share no memory.
extern "C" __global__ void __launch_bounds__(BLOCK)
update_solution_and_direction(const Element* gradient, Element* direction, Element* x, Index n, Number length,
                              const void* length_scalar, const void* length_divisor, int length_kind, Number ratio,
                              const void* ratio_scalar, const void* ratio_divisor, int ratio_kind)
{
    const unsigned block = block_number();
    Combination new_x, new_direction;
    new_x.a = coefficient(length, length_scalar, length_divisor, length_kind);
    new_x.b = new_direction.a = one();
    new_direction.b = coefficient(ratio, ratio_scalar, ratio_divisor, ratio_kind);
    new_x.without_x = is_zero(new_x.a);
    new_direction.without_y = is_zero(new_direction.b);
    new_x.without_y = new_direction.without_x = false;

    const Index words = aligned(gradient) && aligned(direction) && aligned(x) ? n / PER_LOAD : 0;
    const Index step = static_cast<Index>(gridDim.x) * BLOCK * UPDATE_IN_FLIGHT;
    for (Index start = static_cast<Index>(block) * BLOCK * UPDATE_IN_FLIGHT + threadIdx.x; start < words;
         start += step) {
        Pack gradients[UPDATE_IN_FLIGHT], directions[UPDATE_IN_FLIGHT], places[UPDATE_IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < UPDATE_IN_FLIGHT; ++k) {
            const Index i = start + k * BLOCK;
            if (i < words) {
                gradients[k].words = reinterpret_cast<const uint4*>(gradient)[i];
                directions[k].words = reinterpret_cast<const uint4*>(direction)[i];
                places[k].words = reinterpret_cast<const uint4*>(x)[i];
            }
        }
#pragma unroll
        for (int k = 0; k < UPDATE_IN_FLIGHT; ++k) {
            const Index i = start + k * BLOCK;
            if (i < words) {
#pragma unroll
                for (int e = 0; e < PER_LOAD; ++e) {
                    places[k].parts.e[e] = new_x(directions[k].parts.e[e], places[k].parts.e[e]);
                    directions[k].parts.e[e] = new_direction(gradients[k].parts.e[e], directions[k].parts.e[e]);
                }
                reinterpret_cast<uint4*>(x)[i] = places[k].words;
                reinterpret_cast<uint4*>(direction)[i] = directions[k].words;
            }
        }
    }
    const Index threads = static_cast<Index>(gridDim.x) * BLOCK;
    for (Index i = words * PER_LOAD + static_cast<Index>(block) * BLOCK + threadIdx.x; i < n; i += threads) {
        const Element old = direction[i];
        x[i] = new_x(old, x[i]);
        direction[i] = new_direction(gradient[i], old);
    }
}

// ---- Inner products

// Sixteen-byte words of one array or two that a thread has under way.
template <bool SAME>
struct Batch {
    static constexpr int LOADS = SAME ? IN_FLIGHT : IN_FLIGHT / 2;
    Pack x[LOADS], y[SAME ? 1 : LOADS];

    __device__ inline void load(const uint4* x_words, const uint4* y_words, Index start, Index stride, Index words)
    {
#pragma unroll
        for (int k = 0; k < LOADS; ++k) {
            const Index i = start + k * stride;
            x[k].words = i < words ? x_words[words - 1 - i] : make_uint4(0, 0, 0, 0);
            if (!SAME) y[k].words = i < words ? y_words[words - 1 - i] : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ inline void add_to(Sum* sums, double x_sign) const
    {
#pragma unroll
        for (int k = 0; k < LOADS; ++k)
#pragma unroll
            for (int e = 0; e < PER_LOAD; ++e)
                add_product(sums[k], x[k].parts.e[e], SAME ? x[k].parts.e[e] : y[k].parts.e[e], x_sign);
    }
};

// The next batch is under way while one is added. From the end to the start: what has just been written is in the cache.
template <bool SAME>
__device__ inline Sum thread_sum(const Element* x, const Element* y, Index n, double x_sign)
{
    constexpr int LOADS = Batch<SAME>::LOADS;
    Sum sums[LOADS] = {};
    const Index stride = static_cast<Index>(gridDim.x) * BLOCK;
    const Index first = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x;
    Index done = 0;
    if (aligned(x) && aligned(y)) {
        const uint4* x_words = reinterpret_cast<const uint4*>(x);
        const uint4* y_words = reinterpret_cast<const uint4*>(y);
        const Index words = n / PER_LOAD;
        Batch<SAME> now, next;
        now.load(x_words, y_words, first, stride, words);
        for (Index start = first; start < words; start += LOADS * stride) {
            next.load(x_words, y_words, start + LOADS * stride, stride, words);
            now.add_to(sums, x_sign);
            now = next;
        }
        done = words * PER_LOAD;
    }
    for (Index i = done + first; i < n; i += stride) add_product(sums[0], x[i], y[i], x_sign);
#pragma unroll
    for (int k = 1; k < LOADS; ++k) add(sums[0], sums[k]);
    return sums[0];
}

// A thread's sum of squares that axpby_and_squares or a kernel of an operator has written.
__device__ inline Sum sum_of_squares(const double* squares, Index n)
{
    double sum = 0;
    const Index stride = static_cast<Index>(gridDim.x) * BLOCK;
    // One block reads all of them, and would wait for one after another.
#pragma unroll 16
    for (Index i = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += stride) sum += squares[i];
    return Sum{sum};
}

#define MAX_PAIRS 4

struct Pair {
    const Element* x;
    const Element* y;
    Index n;  // or minus the number of squares in x
};

// Adds up the numbers of all ranks, by a block whose thread 0 has stored them. Not inlined, so that it takes no registers
// from what comes before.
__device__ __noinline__ void add_ranks(Link* link, Number* numbers, int count)
{
    __syncthreads();
    unsigned* words = reinterpret_cast<unsigned*>(numbers);
    collective(*link, words, words, count * sizeof(Number) / sizeof(unsigned), sizeof(Real) == 8 ? DOUBLE : FLOAT, 0);
}

// Adds up the products of each pair and, in the block that finishes last, the blocks' sums, always in the same order.
// `places` has four bits a pair: the element of `out` that the pair adds to. `fresh` has one bit an element of `out`:
// whether it is overwritten rather than added to. With a `link`, the last pair adds to the last element, and the block that
// finishes last adds up the elements of all ranks. atomicInc wraps, so that `ticket` is 0 again when the kernel ends.
// Not inlined: one body serves any number of pairs, which compiles in a quarter of the time and runs no slower.
__device__ __noinline__ void dots(const Pair* pairs, int count, Number* out, double* partial, unsigned* ticket,
                                  unsigned places, unsigned fresh, double x_sign, Link* link)
{
    __shared__ bool last;
    __shared__ Sum results[MAX_PAIRS];  // of thread 0
    Sum totals[MAX_PAIRS];  // threads wait for each other after the last pair only
    for (int p = 0; p < count; ++p) {
        const Pair pair = pairs[p];
        totals[p] = pair.n < 0         ? sum_of_squares(reinterpret_cast<const double*>(pair.x), -pair.n)
                    : pair.x == pair.y ? thread_sum<true>(pair.x, pair.y, pair.n, x_sign)
                                       : thread_sum<false>(pair.x, pair.y, pair.n, x_sign);
    }
    for (int p = 0; p < count; ++p) {
        const Sum sum = block_sum(totals[p]);
        if (threadIdx.x == 0) results[p] = reinterpret_cast<Sum*>(partial)[p * gridDim.x + blockIdx.x] = sum;
    }
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            __threadfence();
            last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
        const volatile double* sums = partial;
        for (int p = 0; p < count; ++p) {
            Sum sum = Sum();
            for (unsigned block = threadIdx.x; block < gridDim.x; block += BLOCK) {
                const unsigned at = (p * gridDim.x + block) * SUM_PARTS;
#if SUM_PARTS == 2
                add(sum, Sum{sums[at], sums[at + 1]});
#else
                add(sum, sums[at]);
#endif
            }
            sum = block_sum(sum);
            if (threadIdx.x == 0) results[p] = sum;
        }
    }
    if (threadIdx.x == 0)
        for (int p = 0; p < count; ++p) {
            const unsigned place = (places >> (4 * p)) & 15u;
            const Number value = as_number(results[p]);
            out[place] = (fresh >> place) & 1u ? value : out[place] + value;
            fresh &= ~(1u << place);
        }
    if (link) add_ranks(link, out, ((places >> (4 * (count - 1))) & 15u) + 1);
}

// The arrays come first: a launch is prepared with everything else.
#define ARRAYS(k) const Element *x##k, const Element *y##k
#define THE_REST double *partial, unsigned *ticket, unsigned places, unsigned fresh, double x_sign, Link *link

extern "C" __global__ void __launch_bounds__(BLOCK, 4) dots1(ARRAYS(0), Number* out, Index n0, THE_REST)
{
    const Pair pairs[1] = {{x0, y0, n0}};
    dots(pairs, 1, out, partial, ticket, places, fresh, x_sign, link);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
dots2(ARRAYS(0), ARRAYS(1), Number* out, Index n0, Index n1, THE_REST)
{
    const Pair pairs[2] = {{x0, y0, n0}, {x1, y1, n1}};
    dots(pairs, 2, out, partial, ticket, places, fresh, x_sign, link);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
dots3(ARRAYS(0), ARRAYS(1), ARRAYS(2), Number* out, Index n0, Index n1, Index n2, THE_REST)
{
    const Pair pairs[3] = {{x0, y0, n0}, {x1, y1, n1}, {x2, y2, n2}};
    dots(pairs, 3, out, partial, ticket, places, fresh, x_sign, link);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
dots4(ARRAYS(0), ARRAYS(1), ARRAYS(2), ARRAYS(3), Number* out, Index n0, Index n1, Index n2, Index n3, THE_REST)
{
    const Pair pairs[4] = {{x0, y0, n0}, {x1, y1, n1}, {x2, y2, n2}, {x3, y3, n3}};
    dots(pairs, 4, out, partial, ticket, places, fresh, x_sign, link);
}
