// Products of a dense matrix in C order with a vector, and of its transpose, at the speed of memory.
//
// Forward: a block of threads computes ROWS neighbouring elements, so that it loads the vector once for several rows.
// Adjoint: a block sums up a strip of columns over a range of rows; the last block of a strip to finish adds the partial
// sums of all blocks, always in the same order, so that the result is reproducible. No block waits for another.
//
// S is the storage type of the matrix; T is the type of the vectors and of the computation.

template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack {
    T value[V];
};

__device__ inline float widened(float value) { return value; }
__device__ inline double widened(double value) { return value; }
// A bfloat16 is the upper 16 bits of a float.
__device__ inline float widened(unsigned short bits) { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

constexpr int THREADS = 256;
constexpr int LANES = 32;                 // threads of the adjoint's block along a row
constexpr int SLICES = THREADS / LANES;   // and along a column
constexpr int BATCH = 8;

template <typename T>
__device__ T block_sum(T sum, T* shared)
{
    // Through shared memory, not by shuffles, whose width differs between vendors.
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    sum = shared[0];
    __syncthreads();
    return sum;
}

template <typename S, typename T, int V, int ROWS>
__device__ void forward(const S* __restrict__ matrix, const T* __restrict__ x, T* __restrict__ y, long long rows,
                        long long columns)
{
    using P = Pack<S, V>;
    __shared__ T shared[THREADS];
    const long long first = static_cast<long long>(blockIdx.x) * ROWS;
    const long long packs = columns / V;  // the host chose a V that divides
    const P* row[ROWS];
    for (int r = 0; r < ROWS; ++r)
        row[r] = reinterpret_cast<const P*>(matrix + (first + r < rows ? first + r : rows - 1) * columns);
    const Pack<T, V>* vector = reinterpret_cast<const Pack<T, V>*>(x);
    T sum[ROWS] = {};
    #pragma unroll 2
    for (long long i = threadIdx.x; i < packs; i += THREADS) {
        P part[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) part[r] = row[r][i];
        const Pack<T, V> factor = vector[i];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r)
            #pragma unroll
            for (int v = 0; v < V; ++v) sum[r] += widened(part[r].value[v]) * factor.value[v];
    }
    for (int r = 0; r < ROWS; ++r) {
        const T total = block_sum(sum[r], shared);
        if (threadIdx.x == 0 && first + r < rows) y[first + r] = total;
    }
}

template <typename S, typename T, int V>
__device__ void adjoint(const S* __restrict__ matrix, const T* __restrict__ y, T* __restrict__ x, T* partial,
                        unsigned* finished, long long rows, long long columns)
{
    using P = Pack<S, V>;
    using Sums = Pack<T, V>;
    __shared__ Sums shared[SLICES][LANES];
    __shared__ bool last;
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
    const long long packs = columns / V;
    const long long pack = static_cast<long long>(blockIdx.x) * LANES + lane;
    const bool inside = pack < packs;
    const long long height = (rows + gridDim.y - 1) / gridDim.y;
    const long long begin = height * blockIdx.y, end = begin + height < rows ? begin + height : rows;
    Sums sum{};
    if (inside) {
        const P* column = reinterpret_cast<const P*>(matrix) + pack;
        long long i = begin + slice;
        for (; i + (BATCH - 1) * SLICES < end; i += BATCH * SLICES) {
            P part[BATCH];  // issue all loads first, so that their latencies overlap
            T factor[BATCH];
            #pragma unroll
            for (int b = 0; b < BATCH; ++b) part[b] = column[(i + b * SLICES) * packs];
            #pragma unroll
            for (int b = 0; b < BATCH; ++b) factor[b] = y[i + b * SLICES];
            #pragma unroll
            for (int b = 0; b < BATCH; ++b)
                #pragma unroll
                for (int v = 0; v < V; ++v) sum.value[v] += widened(part[b].value[v]) * factor[b];
        }
        for (; i < end; i += SLICES) {
            const P part = column[i * packs];
            const T factor = y[i];
            for (int v = 0; v < V; ++v) sum.value[v] += widened(part.value[v]) * factor;
        }
    }
    shared[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && inside) {
        for (int other = 1; other < SLICES; ++other)
            for (int v = 0; v < V; ++v) sum.value[v] += shared[other][lane].value[v];
        if (gridDim.y == 1)
            reinterpret_cast<Sums*>(x)[pack] = sum;
        else
            reinterpret_cast<Sums*>(partial)[blockIdx.y * packs + pack] = sum;
    }
    if (gridDim.y == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(finished + blockIdx.x, 1u) == gridDim.y - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (slice == 0 && inside) {
        Sums total{};
        #pragma unroll 8
        for (unsigned part = 0; part < gridDim.y; ++part) {
            const volatile T* source = partial + (part * packs + pack) * V;
            for (int v = 0; v < V; ++v) total.value[v] += source[v];
        }
        reinterpret_cast<Sums*>(x)[pack] = total;
    }
    if (threadIdx.x == 0) finished[blockIdx.x] = 0;  // for the next call
}

#define FORWARD(NAME, S, T, V, ROWS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const S* matrix, const T* x, T* y, long long rows, long long columns)                                     \
    {                                                                                                                  \
        forward<S, T, V, ROWS>(matrix, x, y, rows, columns);                                                           \
    }
#define ADJOINT(NAME, S, T, V)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const S* matrix, const T* y, T* x, T* partial, unsigned* finished, long long rows, long long columns)     \
    {                                                                                                                  \
        adjoint<S, T, V>(matrix, y, x, partial, finished, rows, columns);                                              \
    }

FORWARD(forward_f_4_1, float, float, 4, 1)
FORWARD(forward_f_4_4, float, float, 4, 4)
FORWARD(forward_f_1_1, float, float, 1, 1)
FORWARD(forward_f_1_4, float, float, 1, 4)
FORWARD(forward_d_2_1, double, double, 2, 1)
FORWARD(forward_d_2_4, double, double, 2, 4)
FORWARD(forward_d_1_1, double, double, 1, 1)
FORWARD(forward_d_1_4, double, double, 1, 4)
FORWARD(forward_bfloat16_8_1, unsigned short, float, 8, 1)
FORWARD(forward_bfloat16_8_2, unsigned short, float, 8, 2)
FORWARD(forward_bfloat16_1_1, unsigned short, float, 1, 1)
FORWARD(forward_bfloat16_1_2, unsigned short, float, 1, 2)
ADJOINT(adjoint_f_4, float, float, 4)
ADJOINT(adjoint_f_1, float, float, 1)
ADJOINT(adjoint_d_2, double, double, 2)
ADJOINT(adjoint_d_1, double, double, 1)
ADJOINT(adjoint_bfloat16_8, unsigned short, float, 8)
ADJOINT(adjoint_bfloat16_1, unsigned short, float, 1)
