// Convolution along the middle axis of three with filters that vary along it, interpolated between those of a bank.
//
// A thread computes a tile: ROWS neighbouring samples of COLUMNS columns. It reads each number once and uses an
// interpolated tap for all columns. A thread's columns are strided; neighbouring columns belong to neighbouring threads.
//
// compile-with: -DWIDE=0
// compile-with: -DWIDE=1

#ifndef WIDE
#define WIDE 0  // whether there are at least as many columns as threads in a warp; otherwise a tile has one column
#endif
// As large as the registers allow, and measured on an H200.
#define COLUMNS(T) (WIDE ? 16 / static_cast<int>(sizeof(T)) : 1)
#define ROWS(T) (WIDE ? (sizeof(T) < 16 ? 8 : 4) : (sizeof(T) < 8 ? 4 : 2))

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

// The filters on either side of a sample, and its relative distance from the first of them.
template <typename T, typename Real>
struct Position {
    const T *near, *far;
    const T* last;  // filter
    long long distance, rest, step;
    Real width;
    int taps;

    // `distance`: samples from the first filter of the bank
    __device__ Position(const T* bank, long long distance, long long step, int filters, int taps)
        : last(bank + (filters - 1LL) * taps), distance(distance), rest(0), step(step),
          width(Real(1) / static_cast<Real>(step)), taps(taps)
    {
        const long long number = distance <= 0 ? 0 : distance / step;
        near = number < filters ? bank + number * taps : last;
        far = near == last ? near : near + taps;
        if (distance > 0 && near != last) rest = distance - number * step;
    }

    __device__ void advance()
    {
        if (distance++ < 0 || near == last || ++rest < step) return;
        near = far;
        far = near == last ? near : near + taps;
        rest = 0;
    }

    __device__ Real weight() const { return static_cast<Real>(rest) * width; }
};

// A product uses the filter of its input sample (forward) or of its output sample (adjoint).
template <bool ADJOINT, typename T, typename Real>
__device__ void convolve(const T* __restrict__ extended, const T* __restrict__ bank, T* __restrict__ out,
                         long long threads, long long extent, long long inner, long long first, long long step,
                         int filters, int taps)
{
    constexpr int rows = ROWS(T), columns = COLUMNS(T), positions = ADJOINT ? rows : 1;
    const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (thread >= threads) return;
    const long long across = (inner + columns - 1) / columns, tiles = (extent + rows - 1) / rows;
    const long long outer = thread / (across * tiles), sample = thread / across % tiles * rows;
    const long long sources = extent + taps - 1;

    long long column[columns];
    #pragma unroll
    for (int c = 0; c < columns; ++c) column[c] = thread % across + c * across;
    const T *near[positions], *far[positions];
    Real weight[positions];
    Position<T, Real> position(bank, first + sample - (ADJOINT ? 0 : taps / 2), step, filters, taps);
    #pragma unroll
    for (int row = 0; ADJOINT && row < rows; ++row, position.advance()) {
        near[row] = position.near;
        far[row] = position.far;
        weight[row] = position.weight();
    }
    const long long left = sources - sample;
    const int end = left < rows + taps - 1 ? static_cast<int>(left) : rows + taps - 1;
    const T* line = extended + (outer * sources + sample) * inner;
    auto load = [&](T* values) {
        #pragma unroll
        for (int c = 0; c < columns; ++c) values[c] = column[c] < inner ? line[column[c]] : T{};
        line += inner;
    };

    T sums[rows][columns] = {}, coming[columns];
    if (WIDE) load(coming);
    for (int source = 0; source < end; ++source) {
        T values[columns];
        if (WIDE) {
            #pragma unroll
            for (int c = 0; c < columns; ++c) values[c] = coming[c];
            if (source + 1 < end) load(coming);  // while these are used
        } else {
            load(values);
        }
        if (!ADJOINT) {
            near[0] = position.near;
            far[0] = position.far;
            weight[0] = position.weight();
            position.advance();
        }
        #pragma unroll
        for (int row = 0; row < rows; ++row) {
            const int number = source - row;
            if (number < 0 || number >= taps) continue;
            const int place = ADJOINT ? row : 0, element = ADJOINT ? number : taps - 1 - number;
            T tap = between(near[place][element], far[place][element], weight[place]);
            if (ADJOINT) tap = conjugate(tap);
            #pragma unroll
            for (int c = 0; c < columns; ++c) add_product(sums[row][c], tap, values[c]);
        }
    }

    #pragma unroll
    for (int row = 0; row < rows; ++row) {
        #pragma unroll
        for (int c = 0; c < columns; ++c)
            if (sample + row < extent && column[c] < inner)
                out[(outer * extent + sample + row) * inner + column[c]] = sums[row][c];
    }
}

#define KERNEL(NAME, ADJOINT, CHAR, T, REAL)                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        NAME##_##CHAR(const T* extended, const T* bank, T* out, long long threads, long long extent, long long inner,  \
                      long long first, long long step, int filters, int taps)                                          \
    {                                                                                                                  \
        convolve<ADJOINT, T, REAL>(extended, bank, out, threads, extent, inner, first, step, filters, taps);           \
    }

KERNEL(forward, false, f, float, float)
KERNEL(forward, false, d, double, double)
KERNEL(forward, false, F, Complex<float>, float)
KERNEL(forward, false, D, Complex<double>, double)
KERNEL(adjoint, true, f, float, float)
KERNEL(adjoint, true, d, double, double)
KERNEL(adjoint, true, F, Complex<float>, float)
KERNEL(adjoint, true, D, Complex<double>, double)
