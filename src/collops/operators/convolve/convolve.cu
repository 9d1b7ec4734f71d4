// Convolution along the middle axis of three with filters that vary along it, interpolated between those of a bank.
//
// A thread computes one element. Threads of a warp compute and load neighbouring elements, and mostly use the same
// two filters. The sums over the two filters are separate if the weights are the same for all taps.

template <typename T>
struct Complex {
    T re, im;
};

template <typename T>
__device__ void add_product(T& sum, T a, T b)
{
    sum += a * b;
}

template <typename T>
__device__ void add_product(Complex<T>& sum, Complex<T> a, Complex<T> b)
{
    sum.re += a.re * b.re - a.im * b.im;
    sum.im += a.re * b.im + a.im * b.re;
}

template <typename T>
__device__ T conjugate(T a)
{
    return a;
}

template <typename T>
__device__ Complex<T> conjugate(Complex<T> a)
{
    return {a.re, -a.im};
}

// near + weight * (far - near)
template <typename T>
__device__ T between(T near, T far, T weight)
{
    return near + weight * (far - near);
}

template <typename T>
__device__ Complex<T> between(Complex<T> near, Complex<T> far, T weight)
{
    return {between(near.re, far.re, weight), between(near.im, far.im, weight)};
}

// The filters on either side of a sample, and how far it is from the first one.
struct Position {
    long long number, rest;

    // `distance`: samples from the first filter of the bank
    __device__ Position(long long distance, long long step, long long last)
    {
        number = distance <= 0 ? 0 : distance / step;
        rest = distance <= 0 ? 0 : distance % step;
        if (number >= last) {
            number = last;
            rest = 0;
        }
    }
};

template <typename T, typename Real>
__device__ void forward(const T* __restrict__ extended, const T* __restrict__ bank, T* __restrict__ out,
                        long long size, long long extent, long long inner, long long first, long long step,
                        int filters, int taps)
{
    const long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= size) return;
    const long long sample = element / inner % extent;
    const long long outer = element / (inner * extent);
    const int half = taps / 2;
    const long long last = filters - 1;
    const T* source = extended + (outer * (extent + 2 * half) + sample) * inner + element % inner;
    const Real width = Real(1) / static_cast<Real>(step);
    long long distance = first + sample - half;
    Position position(distance, step, last);
    T sum{};
    for (int tap = taps - 1; tap >= 0; --tap) {  // the first sample that contributes does so with its last tap
        const T near = bank[position.number * taps + tap];
        const T far = bank[(position.number < last ? position.number + 1 : last) * taps + tap];
        add_product(sum, between(near, far, static_cast<Real>(position.rest) * width), *source);
        source += inner;
        if (distance++ >= 0 && position.number < last && ++position.rest == step) {
            ++position.number;
            position.rest = 0;
        }
    }
    out[element] = sum;
}

template <typename T, typename Real>
__device__ void adjoint(const T* __restrict__ extended, const T* __restrict__ bank, T* __restrict__ out,
                        long long size, long long extent, long long inner, long long first, long long step,
                        int filters, int taps)
{
    const long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= size) return;
    const long long sample = element / inner % extent;
    const long long outer = element / (inner * extent);
    const long long last = filters - 1;
    const T* source = extended + (outer * (extent + taps - 1) + sample) * inner + element % inner;
    const Position position(first + sample, step, last);
    const T* near = bank + position.number * taps;
    const T* far = bank + (position.number < last ? position.number + 1 : last) * taps;
    T sum{}, other{};
    for (int tap = 0; tap < taps; ++tap) {
        add_product(sum, conjugate(near[tap]), *source);
        add_product(other, conjugate(far[tap]), *source);
        source += inner;
    }
    out[element] = between(sum, other, static_cast<Real>(position.rest) / static_cast<Real>(step));
}

#define KERNEL(DIRECTION, CHAR, T, REAL)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        DIRECTION##_##CHAR(const T* extended, const T* bank, T* out, long long size, long long extent,                 \
                           long long inner, long long first, long long step, int filters, int taps)                    \
    {                                                                                                                  \
        DIRECTION<T, REAL>(extended, bank, out, size, extent, inner, first, step, filters, taps);                      \
    }

KERNEL(forward, f, float, float)
KERNEL(forward, d, double, double)
KERNEL(forward, F, Complex<float>, float)
KERNEL(forward, D, Complex<double>, double)
KERNEL(adjoint, f, float, float)
KERNEL(adjoint, d, double, double)
KERNEL(adjoint, F, Complex<float>, float)
KERNEL(adjoint, D, Complex<double>, double)
