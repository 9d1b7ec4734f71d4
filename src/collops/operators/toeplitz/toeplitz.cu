// Products of the matrices of all frequencies with one vector each, and of their conjugate transposes, at the speed of
// memory. The matrices are in C order, as pairs of real and imaginary parts.
//
// The compiler's options define STORED, the type of the parts (float, double, Half or Bfloat), REAL, the type of vectors
// and sums, WIDTH, the number of elements that a thread loads at once, and ROWS: in narrow types, several rows share the
// loads of a vector, which would limit the speed.
//
// Forward: LANES threads compute ROWS elements, and a block SLICES times as many of one frequency. Adjoint: a block
// computes a strip of LANES * WIDTH elements of one frequency, to which each of SLICES groups of threads adds some rows.

// compile-with: -DSTORED=float -DREAL=float -DWIDTH=2 -DROWS=1
// compile-with: -DSTORED=double -DREAL=double -DWIDTH=1 -DROWS=1
// compile-with: -DSTORED=Half -DREAL=float -DWIDTH=4 -DROWS=2
// compile-with: -DSTORED=Bfloat -DREAL=double -DWIDTH=1 -DROWS=2

struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };

// Conversion by bits needs no header files.
__device__ inline float widened(Half value)
{
    // The exponent of a half begins at -14, that of a float at -126; the product also normalises subnormal numbers.
    const float magnitude = __uint_as_float((value.bits & 0x7fffu) << 13) * 5.192296858534828e33f;  // 2^112
    return __uint_as_float(__float_as_uint(magnitude) | (value.bits & 0x8000u) << 16);
}
__device__ inline float widened(Bfloat value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
__device__ inline float widened(float value) { return value; }
__device__ inline double widened(double value) { return value; }

struct alignas(sizeof(STORED) * 2 * WIDTH) Pack {
    STORED value[2 * WIDTH];
};
struct alignas(sizeof(REAL) * 2) Complex {
    REAL re, im;
};

// As many elements of a vector as a Pack has of a matrix, loaded by as few instructions as possible.
struct alignas(sizeof(Complex) * WIDTH < 16 ? sizeof(Complex) * WIDTH : 16) Factors {
    Complex value[WIDTH];
};

constexpr int LANES = 32;
constexpr int SLICES = 8;
constexpr int BATCH = 4;  // loads that a thread issues before it uses them, so that their latencies overlap

extern "C" __global__ void __launch_bounds__(LANES * SLICES)
    forward(const Pack* __restrict__ matrices, const Factors* __restrict__ x, Complex* __restrict__ y, long long rows,
            long long columns)
{
    __shared__ Complex shared[SLICES][LANES];
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
    const long long groups = (rows + SLICES * ROWS - 1) / (SLICES * ROWS);
    const long long frequency = blockIdx.x / groups, row = (blockIdx.x % groups * SLICES + slice) * ROWS;
    const long long packs = columns / WIDTH;  // the host chose a WIDTH that divides
    const Pack* line[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) line[r] = matrices + (frequency * rows + min(row + r, rows - 1)) * packs;
    const Factors* vector = x + frequency * packs;
    Complex sum[ROWS] = {};
    auto add = [&](const Pack (&part)[ROWS], const Factors& factors) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            #pragma unroll
            for (int v = 0; v < WIDTH; ++v) {
                const Complex factor = factors.value[v];
                const REAL re = widened(part[r].value[2 * v]), im = widened(part[r].value[2 * v + 1]);
                sum[r].re += re * factor.re - im * factor.im;
                sum[r].im += re * factor.im + im * factor.re;
            }
        }
    };
    auto load = [&](Pack (&part)[ROWS], long long pack) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) part[r] = line[r][pack];
    };
    long long pack = lane;
    for (; pack + (BATCH - 1) * LANES < packs; pack += BATCH * LANES) {
        Pack part[BATCH][ROWS];
        #pragma unroll
        for (int b = 0; b < BATCH; ++b) load(part[b], pack + b * LANES);
        #pragma unroll
        for (int b = 0; b < BATCH; ++b) add(part[b], vector[pack + b * LANES]);
    }
    for (; pack < packs; pack += LANES) {
        Pack part[ROWS];
        load(part, pack);
        add(part, vector[pack]);
    }
    // Through shared memory, not by shuffles, whose width differs between vendors.
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        shared[slice][lane] = sum[r];
        __syncthreads();
        for (int half = LANES / 2; half > 0; half /= 2) {
            if (lane < half) {
                shared[slice][lane].re += shared[slice][lane + half].re;
                shared[slice][lane].im += shared[slice][lane + half].im;
            }
            __syncthreads();
        }
        if (lane == 0 && row + r < rows) y[frequency * rows + row + r] = shared[slice][0];
    }
}

extern "C" __global__ void __launch_bounds__(LANES * SLICES)
    adjoint(const Pack* __restrict__ matrices, const Complex* __restrict__ y, Complex* __restrict__ x, long long rows,
            long long columns)
{
    __shared__ Complex shared[SLICES][WIDTH][LANES];
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
    const long long packs = columns / WIDTH, strips = (packs + LANES - 1) / LANES;
    const long long frequency = blockIdx.x / strips, pack = blockIdx.x % strips * LANES + lane;
    const Pack* column = matrices + frequency * rows * packs + pack;
    const Complex* vector = y + frequency * rows;
    Complex sum[WIDTH] = {};
    auto add = [&](const Pack& part, const Complex& factor) {
        #pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            const REAL re = widened(part.value[2 * v]), im = widened(part.value[2 * v + 1]);
            sum[v].re += re * factor.re + im * factor.im;
            sum[v].im += re * factor.im - im * factor.re;
        }
    };
    if (pack < packs) {
        long long row = slice;
        for (; row + (BATCH - 1) * SLICES < rows; row += BATCH * SLICES) {
            Pack part[BATCH];
            #pragma unroll
            for (int b = 0; b < BATCH; ++b) part[b] = column[(row + b * SLICES) * packs];
            #pragma unroll
            for (int b = 0; b < BATCH; ++b) add(part[b], vector[row + b * SLICES]);
        }
        for (; row < rows; row += SLICES) add(column[row * packs], vector[row]);
    }
    for (int v = 0; v < WIDTH; ++v) shared[slice][v][lane] = sum[v];
    __syncthreads();
    if (slice > 0 || pack >= packs) return;
    for (int v = 0; v < WIDTH; ++v) {
        for (int other = 1; other < SLICES; ++other) {
            sum[v].re += shared[other][v][lane].re;
            sum[v].im += shared[other][v][lane].im;
        }
        x[frequency * columns + pack * WIDTH + v] = sum[v];
    }
}

extern "C" __global__ void __launch_bounds__(LANES * SLICES)
    widen(const STORED* __restrict__ parts, REAL* __restrict__ out, long long elements)
{
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (long long i = first; i < elements; i += static_cast<long long>(gridDim.x) * blockDim.x)
        out[i] = widened(parts[i]);
}
