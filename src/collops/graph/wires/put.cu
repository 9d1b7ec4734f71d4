// One-sided stores between GPUs: values are packed straight into the receivers' memory, and counters say when.
//
// For every place of a channel a rank counts how often it has filled and how often it has read it. Counters live in
// symmetric memory and are kept by the kernels themselves, so that a CUDA graph which recorded them can be replayed.
//
// compile-with: -DBYTES=1
// compile-with: -DBYTES=4
// compile-with: -DBYTES=16

#ifndef BYTES
#define BYTES 4
#endif

typedef long long Long;
typedef unsigned long long Count;

#if BYTES == 1
typedef unsigned char Element;
#elif BYTES == 2
typedef unsigned short Element;
#elif BYTES == 4
typedef unsigned int Element;
#elif BYTES == 8
typedef unsigned long long Element;
#else
struct alignas(16) Element {
    unsigned long long low, high;
};
#endif

__device__ inline void wait_until(const volatile Count* counter, Count least)
{
    while (*counter < least) {
    }
}

__device__ inline Long point_at(const int* numbers, Long start, Long inner, Long middle, Long by_inner, Long by_middle,
    Long by_outer, Long i)
{
    if (numbers) return numbers[i];
    if (i < inner) return start + i * by_inner;
    const unsigned position = static_cast<unsigned>(i), row = position / static_cast<unsigned>(inner);
    const unsigned plane = row / static_cast<unsigned>(middle);
    return start + (position - row * static_cast<unsigned>(inner)) * by_inner
        + (row - plane * static_cast<unsigned>(middle)) * by_middle + plane * by_outer;
}

// Packs and puts. `stops` are the ends of the receivers' segments of the buffer, `targets` where the segments go;
// `read_here` the counters that receivers raise when they have read, `filled_there` those that this rank raises;
// `state` is how often the place was filled, and how many blocks are done.
extern "C" __global__ void put(const Element* __restrict__ source, Long points, Long width, const int* numbers, Long start,
    Long inner, Long middle, Long by_inner, Long by_middle, Long by_outer, int receivers, const Long* __restrict__ stops,
    Element* const* __restrict__ targets, const Count* const* __restrict__ read_here,
    Count* const* __restrict__ filled_there, Count* state)
{
    const Count use = *static_cast<volatile Count*>(state);
    for (int r = threadIdx.x; r < receivers; r += blockDim.x) wait_until(read_here[r], use);
    __threadfence_system();
    __syncthreads();
    int receiver = 0;
    for (Long t = blockIdx.x * static_cast<Long>(blockDim.x) + threadIdx.x; t < points * width;
         t += static_cast<Long>(gridDim.x) * blockDim.x) {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        while (point >= stops[receiver]) ++receiver;
        const Long begin = receiver ? stops[receiver - 1] : 0;
        targets[receiver][(point - begin) * width + value]
            = source[point_at(numbers, start, inner, middle, by_inner, by_middle, by_outer, point) * width + value];
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        if (atomicAdd(&state[1], static_cast<Count>(1)) + 1 == gridDim.x) {
            state[1] = 0;
            state[0] = use + 1;
            __threadfence_system();
            for (int r = 0; r < receivers; ++r) *static_cast<volatile Count*>(filled_there[r]) = use + 1;
        }
    }
}

// Waits until all senders have filled the place once more.
extern "C" __global__ void arrive(int senders, const Count* const* __restrict__ filled_here, Count* state)
{
    const Count use = *static_cast<volatile Count*>(state) + 1;
    for (int s = threadIdx.x; s < senders; s += blockDim.x) wait_until(filled_here[s], use);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *state = use;
}

// Tells all senders that the place has been read.
extern "C" __global__ void release(int senders, Count* const* __restrict__ read_there, const Count* state)
{
    __threadfence_system();
    for (int s = threadIdx.x; s < senders; s += blockDim.x) *static_cast<volatile Count*>(read_there[s]) = *state;
}
