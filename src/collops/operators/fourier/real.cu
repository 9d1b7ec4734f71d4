// Real Fourier transforms along one axis of arrays in C order, in one pass over the memory.
//
// With RADICES, as in steps.cu, a transform has LENGTH samples, the product of the radices. Without, it has any number n
// of samples, and is a convolution with a chirp (Bluestein), which is computed by two transforms of a power of two,
// LENGTH >= 2 n - 1. All of it is done in shared memory. Two real columns are transformed as one complex column.
// Rotating, padding and truncating the samples, selecting frequencies and multiplying by factors need no additional pass.
//
// A block transforms COLUMNS pairs of columns; every loop over `task` divides its work among the threads.
//
// compile-after: steps.cu
// compile-with: -DREAL=float -DLENGTH=256 -DCOLUMNS=8 -DTHREADS=256
// compile-with: -DREAL=double -DLENGTH=1024 -DCOLUMNS=4 -DTHREADS=512
// compile-with: -DREAL=float -DLENGTH=2048 -DCOLUMNS=4 -DTHREADS=512
// compile-with: -DREAL=float -DLENGTH=2000 -DRADICES=5050516 -DCOLUMNS=4 -DTHREADS=512

__device__ inline Complex conjugate(Complex a) { return {a.x, -a.y}; }

#ifdef RADICES

// Transforms all columns. `load` is called with samples, `store` with indices, where the frequency `found(index)` is.
template <class Load, class Store>
__device__ inline void transform(Complex* columns, const Complex* __restrict__ roots, const Complex* __restrict__,
                                 Load load, Store store)
{
    steps<false, LENGTH, RADICES>(
        columns, roots, load, [&](int place, int column) { return columns[place * COLUMNS + column]; }, store);
}

__device__ inline int found(int place) { return frequency<LENGTH, RADICES>(place); }
__device__ inline int index_of(int frequency) { return place_of<LENGTH, RADICES>(frequency); }
__device__ inline Complex turned(Complex value, const Complex* __restrict__, int) { return value; }

#else

// The radix of the first step, and of the others.
#if LENGTH == 512
#define FIRST 8
#else
#define FIRST 16
#endif
#if LENGTH == 256
#define MIDDLE 1
#define LAST 16
#elif LENGTH == 2048
#define MIDDLE 16
#define LAST 8
#else
#define MIDDLE 8
#define LAST 8
#endif

// Convolves all columns with the chirp; `spectrum` is the transform of the chirp, in the output order of the steps.
// `load` and `store` are called with the indices below LENGTH / 2; inputs beyond are zeros, outputs beyond are not needed.
template <class Load, class Store>
__device__ inline void transform(Complex* columns, const Complex* __restrict__ roots,
                                 const Complex* __restrict__ spectrum, Load load, Store store)
{
    const auto read = [&](int place, int column) { return columns[place * COLUMNS + column]; };
    const auto write = [&](int place, int column, Complex value) { columns[place * COLUMNS + column] = value; };
    step<FIRST, LENGTH, false, false, FIRST / 2>(roots, load, write);
    __syncthreads();
    #if MIDDLE > 1
    step<MIDDLE, LENGTH / FIRST, false, false>(roots, read, write);
    __syncthreads();
    #endif
    for (int task = threadIdx.x; task < LENGTH / LAST * COLUMNS; task += blockDim.x) {
        const int first = task / COLUMNS * LAST, column = task % COLUMNS;
        Complex values[LAST];
        #pragma unroll
        for (int k = 0; k < LAST; ++k) values[k] = read(first + k, column);
        small_transform<LAST, false>(values);
        #pragma unroll
        for (int k = 0; k < LAST; ++k) values[k] = values[k] * spectrum[first + k];
        small_transform<LAST, true>(values);
        #pragma unroll
        for (int k = 0; k < LAST; ++k) write(first + k, column, values[k]);
    }
    __syncthreads();
    #if MIDDLE > 1
    step<MIDDLE, LENGTH / FIRST, true, true>(roots, read, write);
    __syncthreads();
    #endif
    step<FIRST, LENGTH, true, true, FIRST / 2>(roots, read, store);
}

__device__ inline int found(int place) { return place; }
__device__ inline int index_of(int frequency) { return frequency; }
__device__ inline Complex turned(Complex value, const Complex* __restrict__ chirp, int k) { return value * chirp[k]; }

#endif

// The axis has `extent` samples; the transform begins with the sample at `shift`, and has `samples` after zero-padding or
// truncation. `frequencies` values from `first` on are stored, rotated by `turn`, times `factors`. `chirp` is
// exp(-pi i k^2 / samples). Blocks along y are parts of the array before the axis. `after` elements follow each other,
// which may be some columns of a larger array: its rows are `source_row` or `target_row` elements apart.
struct Axis {
    int extent, shift, samples, first, frequencies, turn;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    real_forward(const REAL* __restrict__ source, Complex* __restrict__ target, Long after, Long source_row,
                 Long target_row, Axis axis, const Complex* __restrict__ roots, const Complex* __restrict__ spectrum,
                 const Complex* __restrict__ chirp, const REAL* __restrict__ factors)
{
    extern __shared__ double memory[];
    Complex* const columns = reinterpret_cast<Complex*>(memory);
    const Long begin = blockIdx.x * Long(2 * COLUMNS);
    const int common = axis.extent < axis.samples ? axis.extent : axis.samples;
    source += blockIdx.y * axis.extent * source_row + begin;
    target += blockIdx.y * axis.frequencies * target_row + begin;
    const int left = int(after - begin < 2 * COLUMNS ? after - begin : 2 * COLUMNS);
    transform(
        columns, roots, spectrum,
        [&](int place, int column) {
            Complex value = {0, 0};
            if (place < common) {
                const int row = place + axis.shift;
                const REAL* const samples = source + (row < axis.extent ? row : row - axis.extent) * source_row;
                if (column < left) value.x = samples[column];
                if (column + COLUMNS < left) value.y = samples[column + COLUMNS];
                value = turned(value, chirp, place);
            }
            return value;
        },
        [&](int place, int column, Complex value) { columns[place * COLUMNS + column] = value; });
    __syncthreads();
    for (int task = threadIdx.x; task < axis.frequencies * COLUMNS; task += blockDim.x) {
        const int row = task / COLUMNS, column = task % COLUMNS, from = row + axis.turn;
        const int k = axis.first + (from < axis.frequencies ? from : from - axis.frequencies);
        const int negative = k == 0 ? 0 : axis.samples - k;
        const REAL factor = factors[k] / 2;
        const Complex a = turned(columns[index_of(k) * COLUMNS + column], chirp, k);
        const Complex b = conjugate(turned(columns[index_of(negative) * COLUMNS + column], chirp, negative));
        const Complex sum = a + b, difference = a - b;
        Complex* const to = target + row * target_row + column;
        if (column < left) to[0] = {factor * sum.x, factor * sum.y};
        if (column + COLUMNS < left) to[COLUMNS] = {factor * difference.y, -factor * difference.x};
    }
}

// The adjoint: frequencies that were not selected and samples that were truncated are zero.
extern "C" __global__ void __launch_bounds__(THREADS)
    real_adjoint(const Complex* __restrict__ source, REAL* __restrict__ target, Long after, Long source_row,
                 Long target_row, Axis axis, const Complex* __restrict__ roots, const Complex* __restrict__ spectrum,
                 const Complex* __restrict__ chirp, const REAL* __restrict__ factors)
{
    extern __shared__ double memory[];
    Complex* const columns = reinterpret_cast<Complex*>(memory);
    const Long begin = blockIdx.x * Long(2 * COLUMNS);
    const int common = axis.extent < axis.samples ? axis.extent : axis.samples;
    source += blockIdx.y * axis.frequencies * source_row + begin;
    target += blockIdx.y * axis.extent * target_row + begin;
    const int left = int(after - begin < 2 * COLUMNS ? after - begin : 2 * COLUMNS);
    // The transform of the conjugate is the conjugate of the backward transform, so that both use the same steps.
    for (int task = threadIdx.x; task < (axis.samples / 2 + 1) * COLUMNS; task += blockDim.x) {
        const int k = task / COLUMNS, column = task % COLUMNS;
        Complex one = {0, 0}, other = {0, 0};
        if (k >= axis.first && k < axis.first + axis.frequencies) {
            const int from = k - axis.first - axis.turn;
            const Complex* const values = source + (from < 0 ? from + axis.frequencies : from) * source_row + column;
            const bool alone = k == 0 || 2 * k == axis.samples;
            const REAL real = factors[k] * (alone ? REAL(1) : REAL(0.5)), imaginary = alone ? 0 : real;
            if (column < left) one = {real * values[0].x, imaginary * values[0].y};
            if (column + COLUMNS < left) other = {real * values[COLUMNS].x, imaginary * values[COLUMNS].y};
        }
        columns[k * COLUMNS + column] = turned({one.x - other.y, -one.y - other.x}, chirp, k);
        if (k > 0 && 2 * k < axis.samples) {
            const int negative = axis.samples - k;
            columns[negative * COLUMNS + column] = turned({one.x + other.y, one.y - other.x}, chirp, negative);
        }
    }
    __syncthreads();
    transform(
        columns, roots, spectrum,
        [&](int place, int column) {
            return place < axis.samples ? columns[place * COLUMNS + column] : Complex{0, 0};
        },
        [&](int index, int column, Complex value) {
            const int place = found(index);
            if (place >= common) return;
            value = turned(value, chirp, place);
            const int row = place + axis.shift;
            REAL* const to = target + (row < axis.extent ? row : row - axis.extent) * target_row + column;
            if (column < left) to[0] = value.x;
            if (column + COLUMNS < left) to[COLUMNS] = -value.y;
        });
    for (int task = threadIdx.x; task < (axis.extent - common) * 2 * COLUMNS; task += blockDim.x) {
        const int row = task / (2 * COLUMNS) + common + axis.shift, column = task % (2 * COLUMNS);
        if (column < left) target[(row < axis.extent ? row : row - axis.extent) * target_row + column] = 0;
    }
}
