// Writes the numbers of one iteration into the next row of a table in pinned host memory, and keeps results of the last
// iterations. The host reads a row after an event, so that no fence is needed.

__device__ double number(const void* value, int kind)
{
    return kind == 0 ? static_cast<double>(*static_cast<const float*>(value)) : *static_cast<const double*>(value);
}

extern "C" __global__ void record_scalars(const void* a, int a_kind, const void* b, int b_kind, const void* c, int c_kind,
                                          const void* d, int d_kind, int width, double* rows, long long* next)
{
    double* row = rows + *next * width;
    row[0] = number(a, a_kind);
    if (width > 1) row[1] = number(b, b_kind);
    if (width > 2) row[2] = number(c, c_kind);
    if (width > 3) row[3] = number(d, d_kind);
    ++*next;
}

extern "C" __global__ void record_block(const double* values, int width, double* rows, long long* next)
{
    const long long row = *next;
    for (int i = threadIdx.x; i < width; i += blockDim.x) rows[row * width + i] = values[i];
    __syncthreads();
    if (threadIdx.x == 0) *next = row + 1;
}

// Copies an array after the iteration of row `next` - 1 to its slot among the last `places` iterations.
extern "C" __global__ void keep(const char* array, char* kept, long long bytes, long long places, const long long* next)
{
    char* target = kept + (*next - 1) % places * bytes;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x, threads = (long long)gridDim.x * blockDim.x;
    long long done = 0;
    if (((unsigned long long)array | (unsigned long long)target) % sizeof(int4) == 0) {
        const long long words = bytes / sizeof(int4);
        for (long long i = thread; i < words; i += threads)
            reinterpret_cast<int4*>(target)[i] = reinterpret_cast<const int4*>(array)[i];
        done = words * sizeof(int4);
    }
    for (long long i = done + thread; i < bytes; i += threads) target[i] = array[i];
}
