// Moves between points of two arrays, one kernel each: packing, unpacking with an operation, and local moves.
//
// One module is compiled for each element type (ELEMENT) and operation (OPERATION). The source needs no headers and no
// libraries, so that both NVRTC and hipRTC can compile it. Compiler options disable fused multiply-add, so that sums
// are bitwise equal to the host's.
//
// compile-with: -DELEMENT=0 -DOPERATION=1
// compile-with: -DELEMENT=2 -DOPERATION=1
// compile-with: -DELEMENT=3 -DOPERATION=3
// compile-with: -DELEMENT=4 -DOPERATION=2
// compile-with: -DELEMENT=5 -DOPERATION=1
// compile-with: -DELEMENT=10 -DOPERATION=1
// compile-with: -DELEMENT=12 -DOPERATION=1
// compile-with: -DELEMENT=14 -DOPERATION=1
// compile-with: -DELEMENT=5 -DOPERATION=0

#ifndef ELEMENT
#define ELEMENT 2
#endif
#ifndef OPERATION
#define OPERATION 0
#endif

#define REPLACE 0
#define SUM 1
#define PROD 2
#define MIN 3
#define MAX 4
#define LAND 5
#define LOR 6
#define LXOR 7

// ---- What differs between CUDA and HIP

#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
__device__ inline float widen_half(unsigned short bits)
{
    return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
__device__ inline unsigned short narrow_half(float value)
{
    return __builtin_bit_cast(unsigned short, static_cast<_Float16>(value));
}
#define ANY_REGISTER "+v"
#else
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
#define ANY_REGISTER "+l"
#endif

typedef long long Long;

// ---- Element types and operations

template <typename R>
struct Complex {
    R re, im;
};

template <typename T>
__device__ inline T combine_numbers(T old, T value)
{
#if OPERATION == SUM
    return static_cast<T>(old + value);
#elif OPERATION == PROD
    return static_cast<T>(old * value);
#elif OPERATION == MIN
    return old < value || old != old ? old : value;
#elif OPERATION == MAX
    return old > value || old != old ? old : value;
#elif OPERATION == LAND
    return static_cast<T>(old != T(0) && value != T(0));
#elif OPERATION == LOR
    return static_cast<T>(old != T(0) || value != T(0));
#elif OPERATION == LXOR
    return static_cast<T>((old != T(0)) != (value != T(0)));
#else
    return value;
#endif
}

template <typename R>
__device__ inline Complex<R> combine_numbers(Complex<R> old, Complex<R> value)
{
#if OPERATION == SUM
    return {old.re + value.re, old.im + value.im};
#elif OPERATION == PROD
    return {old.re * value.re - old.im * value.im, old.re * value.im + old.im * value.re};
#else
    return value;
#endif
}

#if ELEMENT == 0
struct Half {
    unsigned short bits;
};
typedef Half Element;
__device__ inline Element combine(Element old, Element value)
{
#if OPERATION == REPLACE
    return value;
#else
    return {narrow_half(combine_numbers(widen_half(old.bits), widen_half(value.bits)))};
#endif
}
#elif ELEMENT == 1
struct Bfloat {
    unsigned short bits;
};
typedef Bfloat Element;
__device__ inline float widen_bfloat(unsigned short bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
__device__ inline unsigned short narrow_bfloat(float value)
{
    unsigned bits = __float_as_uint(value);
    if (value != value) return static_cast<unsigned short>((bits >> 16) | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ inline Element combine(Element old, Element value)
{
#if OPERATION == REPLACE
    return value;
#else
    return {narrow_bfloat(combine_numbers(widen_bfloat(old.bits), widen_bfloat(value.bits)))};
#endif
}
#elif ELEMENT == 14
typedef unsigned char Element;  // a truth value: sums and maxima are "or", products and minima "and"
__device__ inline Element combine(Element old, Element value)
{
#if OPERATION == SUM || OPERATION == MAX || OPERATION == LOR
    return old || value;
#elif OPERATION == PROD || OPERATION == MIN || OPERATION == LAND
    return old && value;
#elif OPERATION == LXOR
    return !old != !value;
#else
    return value;
#endif
}
#else
#if ELEMENT == 2
typedef float Element;
#elif ELEMENT == 3
typedef double Element;
#elif ELEMENT == 4
typedef Complex<float> Element;
#elif ELEMENT == 5
typedef Complex<double> Element;
#elif ELEMENT == 6
typedef signed char Element;
#elif ELEMENT == 7
typedef unsigned char Element;
#elif ELEMENT == 8
typedef short Element;
#elif ELEMENT == 9
typedef unsigned short Element;
#elif ELEMENT == 10
typedef int Element;
#elif ELEMENT == 11
typedef unsigned int Element;
#elif ELEMENT == 12
typedef long long Element;
#elif ELEMENT == 13
typedef unsigned long long Element;
#endif
__device__ inline Element combine(Element old, Element value) { return combine_numbers(old, value); }
#endif

// ---- Points: an index array, or points with a constant stride

struct Points {
    const int* numbers;
    Long start, step;

    __device__ inline Long operator[](Long i) const
    {
        if (numbers) return numbers[i];
        // Hides the origin of `i` from the compiler, which otherwise keeps a running sum for every point of a loop and
        // runs out of registers.
        asm("" : ANY_REGISTER(i));
        return start + i * step;
    }
};

#define POINTS(name) const int *name##_numbers, Long name##_start, Long name##_step
#define AS_POINTS(name) Points { name##_numbers, name##_start, name##_step }

// Grid-stride loop over the values of all points.
#define FOR_VALUES(t, count)                                                                                           \
    for (Long t = blockIdx.x * static_cast<Long>(blockDim.x) + threadIdx.x; t < (count);                              \
         t += static_cast<Long>(gridDim.x) * blockDim.x)

// ---- Kernels

// The points of `to` are unique.
extern "C" __global__ void move(
    const Element* __restrict__ source, Element* target, Long points, Long width, POINTS(from), POINTS(to))
{
    const Points from = AS_POINTS(from), to = AS_POINTS(to);
    FOR_VALUES(t, points * width)
    {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        Element* element = target + to[point] * width + value;
        const Element incoming = source[from[point] * width + value];
#if OPERATION == REPLACE
        *element = incoming;
#else
        *element = combine(*element, incoming);
#endif
    }
}

// Points of the target have several values each, consecutive in `order`: one thread combines them sequentially.
extern "C" __global__ void fold(const Element* __restrict__ source, Element* target, Long points, Long width,
    POINTS(from), const int* __restrict__ to, const int* __restrict__ starts, const int* __restrict__ order)
{
    const Points from = AS_POINTS(from);
    FOR_VALUES(t, points * width)
    {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        Element* element = target + static_cast<Long>(to[point]) * width + value;
        Element sum = *element;
        for (int k = starts[point]; k < starts[point + 1]; ++k)
            sum = combine(sum, source[from[order[k]] * width + value]);
        *element = sum;
    }
}

// As `fold`; `before`, which may be the source, receives the target's value before each update.
extern "C" __global__ void fetch(const Element* source, Element* target, Element* before, Long points, Long width,
    POINTS(from), const int* __restrict__ to, const int* __restrict__ starts, const int* __restrict__ order)
{
    const Points from = AS_POINTS(from);
    FOR_VALUES(t, points * width)
    {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        Element* element = target + static_cast<Long>(to[point]) * width + value;
        Element sum = *element;
        for (int k = starts[point]; k < starts[point + 1]; ++k) {
            const Long index = from[order[k]] * width + value;
            const Element incoming = source[index];
            before[index] = sum;
            sum = combine(sum, incoming);
        }
        *element = sum;
    }
}

#if OPERATION == SUM
#if ELEMENT == 2 || ELEMENT == 3 || ELEMENT == 10 || ELEMENT == 11 || ELEMENT == 13
__device__ inline void add(Element* place, Element value) { atomicAdd(place, value); }
#define ATOMIC
#elif ELEMENT == 12
__device__ inline void add(Element* place, Element value)
{
    atomicAdd(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(value));
}
#define ATOMIC
#elif ELEMENT == 4 || ELEMENT == 5
__device__ inline void add(Element* place, Element value)
{
    atomicAdd(&place->re, value.re);
    atomicAdd(&place->im, value.im);
}
#define ATOMIC
#endif
#ifdef ATOMIC
// Points of the target may be repeated; the order of additions is not fixed.
extern "C" __global__ void add_atomically(
    const Element* __restrict__ source, Element* target, Long points, Long width, POINTS(from), POINTS(to))
{
    const Points from = AS_POINTS(from), to = AS_POINTS(to);
    FOR_VALUES(t, points * width)
    {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        add(target + to[point] * width + value, source[from[point] * width + value]);
    }
}
#endif
#endif
